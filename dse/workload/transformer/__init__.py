"""Transformers: one training step under tensor, pipeline, data and context parallelism."""

from __future__ import annotations

from dse.workload import MemoryAccount as StepMemory
from dse.workload import Prediction as StepPrediction
from dse.workload import compare_jobs as compare_steps
from dse.workload import explain_job as explain_step
from dse.workload import predict_job as predict_step
from dse.workload.transformer._check import check_parallelism
from dse.workload.transformer._configuration import (
    StepConfiguration,
    parallelism_words,
    step_problem,
)
from dse.workload.transformer._groups import rank_group
from dse.workload.transformer._job import TransformerJob
from dse.workload.transformer._memory import layer_activation_bytes, stage_memory, stage_parameters
from dse.workload.transformer._parameters import TransformerParameters
from dse.workload.transformer._programs import TRANSFORMER_PROGRAMS, TransformerProgram
from dse.workload.transformer._types import (
    COMPOSER,
    MEGATRON,
    DataSharding,
    FlashKernel,
    LossKernels,
    Parallelism,
    Recompute,
    TransformerRuntime,
)
from dse.workload.transformer._workload import TransformerWorkload

__all__ = [
    "COMPOSER",
    "MEGATRON",
    "TRANSFORMER_PROGRAMS",
    "DataSharding",
    "FlashKernel",
    "LossKernels",
    "Parallelism",
    "Recompute",
    "StepConfiguration",
    "StepMemory",
    "StepPrediction",
    "TransformerJob",
    "TransformerParameters",
    "TransformerProgram",
    "TransformerRuntime",
    "TransformerWorkload",
    "check_parallelism",
    "compare_steps",
    "explain_step",
    "layer_activation_bytes",
    "parallelism_words",
    "predict_step",
    "rank_group",
    "stage_memory",
    "stage_parameters",
    "step_problem",
]
