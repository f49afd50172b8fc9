"""Transformers: sizes, parameters, arithmetic, and their files."""

from __future__ import annotations

from dse.model.transformer._huggingface import compose_transformer
from dse.model.transformer._model import TransformerModel
from dse.model.transformer._parts import (
    Activation,
    AttentionKind,
    LatentAttention,
    MixtureOfExperts,
    NormKind,
    SlidingWindow,
    TransformerFamily,
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
