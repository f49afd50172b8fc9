"""Training steps of transformers: time and memory under tensor, pipeline and data parallelism."""

from __future__ import annotations

from dse.transformers._check import check_parallelism
from dse.transformers._configuration import (
    StepConfiguration,
    parallelism_words,
    step_problem,
)
from dse.transformers._deploy import configuration_to_json, configuration_to_megatron
from dse.transformers._explain import (
    StepDetails,
    explain_step,
    step_details,
    step_task_details,
)
from dse.transformers._explain_compare import compare_steps
from dse.transformers._graph import step_graph
from dse.transformers._groups import group_of
from dse.transformers._memory import layer_activation_bytes, stage_memory, stage_parameters
from dse.transformers._predict import predict_step
from dse.transformers._profiles import (
    PROFILE_DESCRIPTIONS,
    SOFTWARE_PROFILES,
    software_profile,
)
from dse.transformers._types import (
    COMPOSER,
    MEGATRON,
    DataSharding,
    FlashKernel,
    LossKernels,
    Parallelism,
    Recompute,
    StepMemory,
    StepPrediction,
    StepProblem,
    StepSoftware,
)

__all__ = [
    "COMPOSER",
    "MEGATRON",
    "PROFILE_DESCRIPTIONS",
    "SOFTWARE_PROFILES",
    "DataSharding",
    "FlashKernel",
    "LossKernels",
    "Parallelism",
    "Recompute",
    "StepConfiguration",
    "StepDetails",
    "StepMemory",
    "StepPrediction",
    "StepProblem",
    "StepSoftware",
    "check_parallelism",
    "compare_steps",
    "configuration_to_json",
    "configuration_to_megatron",
    "explain_step",
    "group_of",
    "layer_activation_bytes",
    "parallelism_words",
    "predict_step",
    "software_profile",
    "stage_memory",
    "stage_parameters",
    "step_details",
    "step_graph",
    "step_problem",
    "step_task_details",
]
