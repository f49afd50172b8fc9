"""Reference trainer: a distributed DLRM that trains any sharding plan."""

from __future__ import annotations

from dse.validation.trainer._batches import LocalBatch, local_batch
from dse.validation.trainer._trainer import Trainer

__all__ = ["LocalBatch", "Trainer", "local_batch"]
