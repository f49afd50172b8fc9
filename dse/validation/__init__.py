"""Validation of predictions by real training runs.

:func:`measure` trains candidates on ranks of this machine (gloo on CPUs, NCCL on GPUs) or under
``torchrun`` and times their iterations. :func:`train` returns losses and weights, which the tests
compare with those of the unsharded model. :func:`validate_study` runs the best candidates of a
study and compares the measurements with the predictions. torch is imported on use only.
"""

from __future__ import annotations

from dse._median import median_interval
from dse.validation._protocol import (
    AloneTrainer,
    RunCandidate,
    Trainer,
    TrainerRank,
    UnsupportedCandidateError,
    WeightPiece,
)
from dse.validation._types import Measurement, TrainerOptions, TrainingResult
from dse.validation.dlrm import Candidate, LocalBatch, local_batch
from dse.validation.measurement import BudgetError, MeasureLimits, measure, train
from dse.validation.study import ValidateOptions, scale_model, scaling_text, validate_study
from dse.validation.trainer import TRAINERS, find_trainer
from dse.validation.transformer import TransformerCandidate

__all__ = [
    "TRAINERS",
    "AloneTrainer",
    "BudgetError",
    "Candidate",
    "LocalBatch",
    "MeasureLimits",
    "Measurement",
    "RunCandidate",
    "Trainer",
    "TrainerOptions",
    "TrainerRank",
    "TrainingResult",
    "TransformerCandidate",
    "UnsupportedCandidateError",
    "ValidateOptions",
    "WeightPiece",
    "find_trainer",
    "local_batch",
    "measure",
    "median_interval",
    "scale_model",
    "scaling_text",
    "train",
    "validate_study",
]
