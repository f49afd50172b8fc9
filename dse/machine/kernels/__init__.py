"""Duration of one operator on one device.

Where a device has a calibration, an analytical reference time is multiplied by a learned ratio;
elsewhere analytical models with published constants serve, with a wider spread. All functions are
vectorised over shapes.
"""

from __future__ import annotations

from dse.machine.fits import Estimate
from dse.machine.kernels._attention import (
    ATTENTION_OPTIONS,
    ATTENTION_SIZES,
    ATTENTION_TERMS,
    FLASH_RATES,
    attention_estimate,
    attention_features,
    attention_reference_s,
)
from dse.machine.kernels._experts import (
    EXCHANGE_SIZES,
    EXCHANGE_TERMS,
    EXPERT_SIZES,
    EXPERT_TERMS,
    exchange_estimate,
    exchange_features,
    exchange_reference_s,
    expert_features,
    expert_reference_s,
    experts_estimate,
    grouped_gemm_estimate,
    places_visited,
)
from dse.machine.kernels._gemm import gemm_curve_features, gemm_estimate
from dse.machine.kernels._gemm_features import (
    GEMM_FEATURES,
    GEMM_OFFSET_FEATURE,
    gemm_features,
    gemm_reference_s,
)
from dse.machine.kernels._memory import (
    HOST_COPY_EFFICIENCY,
    elementwise_time_s,
    host_copy_estimate,
    host_copy_time_s,
)
from dse.machine.kernels._power import sustained_share
from dse.machine.kernels._sequence_attention import (
    sequence_attention_estimate,
)
from dse.machine.kernels._streaming import (
    streaming_estimate,
    streaming_reference_s,
    streaming_work,
)
from dse.machine.kernels._streaming_operators import (
    STREAMING_OPERATORS,
)
from dse.machine.kernels.embedding import (
    EMBEDDING_SIZES,
    FBGEMM,
    HOST_ROWS_SPREAD,
    LOOKUP_LAUNCHES,
    UPDATE_LAUNCHES,
    EmbeddingKernels,
    EmbeddingShape,
    EmbeddingWork,
    HostRowsKernels,
    HostRowsWork,
    cached_row_count,
    embedding_sizes,
    embedding_time_s,
    embedding_work,
    host_rows_time_s,
    host_rows_waiting_s,
    host_rows_work,
    unfused_embedding_work,
)

__all__ = [
    "ATTENTION_OPTIONS",
    "ATTENTION_SIZES",
    "ATTENTION_TERMS",
    "EMBEDDING_SIZES",
    "EXCHANGE_SIZES",
    "EXCHANGE_TERMS",
    "EXPERT_SIZES",
    "EXPERT_TERMS",
    "FBGEMM",
    "FLASH_RATES",
    "GEMM_FEATURES",
    "GEMM_OFFSET_FEATURE",
    "HOST_COPY_EFFICIENCY",
    "HOST_ROWS_SPREAD",
    "LOOKUP_LAUNCHES",
    "STREAMING_OPERATORS",
    "UPDATE_LAUNCHES",
    "EmbeddingKernels",
    "EmbeddingShape",
    "EmbeddingWork",
    "Estimate",
    "HostRowsKernels",
    "HostRowsWork",
    "attention_estimate",
    "attention_features",
    "attention_reference_s",
    "cached_row_count",
    "elementwise_time_s",
    "embedding_sizes",
    "embedding_time_s",
    "embedding_work",
    "exchange_estimate",
    "exchange_features",
    "exchange_reference_s",
    "expert_features",
    "expert_reference_s",
    "experts_estimate",
    "gemm_curve_features",
    "gemm_estimate",
    "gemm_features",
    "gemm_reference_s",
    "grouped_gemm_estimate",
    "host_copy_estimate",
    "host_copy_time_s",
    "host_rows_time_s",
    "host_rows_waiting_s",
    "host_rows_work",
    "places_visited",
    "sequence_attention_estimate",
    "streaming_estimate",
    "streaming_reference_s",
    "streaming_work",
    "sustained_share",
    "unfused_embedding_work",
]
