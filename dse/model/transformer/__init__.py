"""Transformers: sizes, parameters, arithmetic, and their files."""

from __future__ import annotations

from dse.model.transformer._huggingface import compose_transformer
from dse.model.transformer._model import (
    Activation,
    AttentionKind,
    LatentAttention,
    MixtureOfExperts,
    NormKind,
    SlidingWindow,
    TransformerFamily,
    TransformerModel,
)
from dse.model.transformer._schema import TransformerDocument

__all__ = [
    "Activation",
    "AttentionKind",
    "LatentAttention",
    "MixtureOfExperts",
    "NormKind",
    "SlidingWindow",
    "TransformerDocument",
    "TransformerFamily",
    "TransformerModel",
    "compose_transformer",
]
