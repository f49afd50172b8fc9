"""Transformers: sizes, parameters, arithmetic, and their files."""

from __future__ import annotations

from dse.model.transformer._huggingface import compose_transformer
from dse.model.transformer._model import (
    Activation,
    AttentionKind,
    MixtureOfExperts,
    NormKind,
    TransformerFamily,
    TransformerModel,
)
from dse.model.transformer._schema import TransformerDocument

__all__ = [
    "Activation",
    "AttentionKind",
    "MixtureOfExperts",
    "NormKind",
    "TransformerDocument",
    "TransformerFamily",
    "TransformerModel",
    "compose_transformer",
]
