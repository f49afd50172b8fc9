"""Transformers that real runs train: candidates, the network, and what it leaves out."""

from __future__ import annotations

from dse.validation.transformer._candidate import TransformerCandidate, untrained
from dse.validation.transformer._network import loss_of, make_batch, make_network

__all__ = ["TransformerCandidate", "loss_of", "make_batch", "make_network", "untrained"]
