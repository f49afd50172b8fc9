"""Duration of one operator on one device.

Where a device has a calibration, an analytical reference time is multiplied by a learned ratio;
elsewhere analytical models with published constants serve, with a wider spread. All functions are
vectorised over shapes.
"""

from __future__ import annotations

from dse.kernels._embedding import (
    EmbeddingShape,
    EmbeddingWork,
    IndexStatistics,
    embedding_time_s,
    embedding_work,
)
from dse.kernels._estimate import Estimate
from dse.kernels._gemm import gemm_estimate, gemm_time_s
from dse.kernels._gemm_features import (
    GEMM_FEATURES,
    GEMM_OFFSET_FEATURE,
    gemm_features,
    gemm_reference_s,
)
from dse.kernels._memory import elementwise_time_s, host_copy_time_s

__all__ = [
    "GEMM_FEATURES",
    "GEMM_OFFSET_FEATURE",
    "EmbeddingShape",
    "EmbeddingWork",
    "Estimate",
    "IndexStatistics",
    "elementwise_time_s",
    "embedding_time_s",
    "embedding_work",
    "gemm_estimate",
    "gemm_features",
    "gemm_reference_s",
    "gemm_time_s",
    "host_copy_time_s",
]
