"""TorchRec as a trainer: `DistributedModelParallel` with TorchRec's own train pipelines."""

from __future__ import annotations

from dse.validation.trainer.torchrec._trainer import TorchRecTrainer

__all__ = ["TorchRecTrainer"]
