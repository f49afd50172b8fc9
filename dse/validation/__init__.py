"""Validation by real runs: a distributed DLRM that trains any plan, and its iteration time.

:func:`measure` trains candidates on ranks of this machine (gloo on CPUs, NCCL on GPUs) or under
``torchrun`` and times their iterations; :func:`train` returns losses and weights, by which every
sharding is checked against the unsharded model. :func:`scale_model` makes a model small enough.
:func:`validate_study` runs the best candidates of a study and compares them with its predictions.
torch is imported on use only.
"""

from __future__ import annotations

from dse.validation._batches import LocalBatch, local_batch
from dse.validation._estimate import median_interval
from dse.validation._measure import MeasureLimits, measure
from dse.validation._options import ValidateOptions
from dse.validation._run import train
from dse.validation._scale import scale_model, scaling_words
from dse.validation._study import validate_study
from dse.validation._types import Candidate, Measurement, TrainerOptions, TrainingResult

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
    "scaling_words",
    "train",
    "validate_study",
]
