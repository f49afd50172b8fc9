"""Reference trainer: a distributed DLRM that trains any sharding plan."""

from __future__ import annotations

from dse.validation.trainer.reference._rank import ReferenceRank
from dse.validation.trainer.reference._trainer import ReferenceTrainer

__all__ = ["ReferenceRank", "ReferenceTrainer"]
