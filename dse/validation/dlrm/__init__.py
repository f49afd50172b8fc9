"""What all trainers of recommendation models share: candidates, batches, the dense part."""

from __future__ import annotations

from dse.validation.dlrm._batches import LocalBatch, local_batch
from dse.validation.dlrm._candidate import Candidate, untrained_lookups, untrained_parts
from dse.validation.dlrm._network import make_network, make_optimizer
from dse.validation.dlrm._weights import fill_initial_weights, stored_type

__all__ = [
    "Candidate",
    "LocalBatch",
    "fill_initial_weights",
    "local_batch",
    "make_network",
    "make_optimizer",
    "stored_type",
    "untrained_lookups",
    "untrained_parts",
]
