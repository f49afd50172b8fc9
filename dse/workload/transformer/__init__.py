"""Transformers: one training step under tensor, pipeline, data and context parallelism."""

from __future__ import annotations

from dse.workload.transformer._check import check_parallelism
from dse.workload.transformer._job import TransformerJob
from dse.workload.transformer._parameters import TransformerParameters
from dse.workload.transformer._types import (
    Capture,
    ContextExchange,
    DataSharding,
    ExpertDispatch,
    FlashKernel,
    LossKernels,
    Offload,
    Parallelism,
    Recompute,
    RecomputeModule,
    RotaryKernels,
    Schedule,
    TransformerRuntime,
)
from dse.workload.transformer._workload import TransformerWorkload
from dse.workload.transformer.deploy import DEPLOY_FORMATS
from dse.workload.transformer.memory._account import layer_activation_bytes
from dse.workload.transformer.memory._parameters import stage_parameters
from dse.workload.transformer.program._programs import TRANSFORMER_PROGRAMS, TransformerProgram
from dse.workload.transformer.program._runtimes import (
    COMPOSER,
    IDEAL_RUNTIME,
    MEGATRON,
    MEGATRON_CORE,
    NANOTRON,
    PYTORCH,
)

__all__ = [
    "COMPOSER",
    "DEPLOY_FORMATS",
    "IDEAL_RUNTIME",
    "MEGATRON",
    "MEGATRON_CORE",
    "NANOTRON",
    "PYTORCH",
    "TRANSFORMER_PROGRAMS",
    "Capture",
    "ContextExchange",
    "DataSharding",
    "ExpertDispatch",
    "FlashKernel",
    "LossKernels",
    "Offload",
    "Parallelism",
    "Recompute",
    "RecomputeModule",
    "RotaryKernels",
    "Schedule",
    "TransformerJob",
    "TransformerParameters",
    "TransformerProgram",
    "TransformerRuntime",
    "TransformerWorkload",
    "check_parallelism",
    "layer_activation_bytes",
    "stage_parameters",
]
