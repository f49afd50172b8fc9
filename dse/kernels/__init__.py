"""Duration of one operator on one device.

First version: analytical models with published constants (labelled so in a prediction's
provenance). All functions are vectorised over shapes and return seconds.
"""

from __future__ import annotations

from dse.kernels._embedding import (
    EmbeddingShape,
    EmbeddingWork,
    IndexStatistics,
    embedding_time_s,
    embedding_work,
)
from dse.kernels._gemm import gemm_time_s
from dse.kernels._memory import elementwise_time_s, host_copy_time_s

__all__ = [
    "EmbeddingShape",
    "EmbeddingWork",
    "IndexStatistics",
    "elementwise_time_s",
    "embedding_time_s",
    "embedding_work",
    "gemm_time_s",
    "host_copy_time_s",
]
