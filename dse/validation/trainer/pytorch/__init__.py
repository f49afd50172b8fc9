"""PyTorch's own DDP, FSDP2 and tensor parallelism, by the module that `dse export` writes."""

from __future__ import annotations

from dse.validation.trainer.pytorch._rank import PyTorchRank
from dse.validation.trainer.pytorch._trainer import PyTorchTrainer

__all__ = ["PyTorchRank", "PyTorchTrainer"]
