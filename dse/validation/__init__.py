"""Validation of predictions by real training runs.

:func:`measure` trains candidates on ranks of this machine (gloo on CPUs, NCCL on GPUs) or under
``torchrun`` and times their iterations. :func:`train` returns losses and weights, which the tests
compare with those of the unsharded model. :func:`validate_study` runs the best candidates of a
study and compares the measurements with the predictions. torch is imported on use only.
"""

from __future__ import annotations

from dse.validation._types import Candidate, Measurement, TrainerOptions, TrainingResult
from dse.validation.measurement import MeasureLimits, measure, median_interval, train
from dse.validation.study import ValidateOptions, scale_model, scaling_text, validate_study
from dse.validation.trainer import LocalBatch, local_batch

__all__ = [
    "Candidate",
    "LocalBatch",
    "MeasureLimits",
    "Measurement",
    "TrainerOptions",
    "TrainingResult",
    "ValidateOptions",
    "local_batch",
    "measure",
    "median_interval",
    "scale_model",
    "scaling_text",
    "train",
    "validate_study",
]
