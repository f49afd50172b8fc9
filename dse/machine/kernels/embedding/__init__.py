"""Duration of embedding lookups and updates: fused, unfused, or with host rows."""

from __future__ import annotations

from dse.machine.kernels.embedding._fused import (
    EMBEDDING_SIZES,
    LOOKUP_LAUNCHES,
    UPDATE_LAUNCHES,
    EmbeddingShape,
    EmbeddingWork,
    embedding_sizes,
    embedding_time_s,
    embedding_work,
)
from dse.machine.kernels.embedding._unfused import (
    FBGEMM,
    EmbeddingKernels,
    unfused_embedding_work,
)
from dse.machine.kernels.embedding._uvm import (
    HOST_ROWS_SPREAD,
    HostRowsKernels,
    HostRowsWork,
    cached_row_count,
    host_rows_time_s,
    host_rows_waiting_s,
    host_rows_work,
)

__all__ = [
    "EMBEDDING_SIZES",
    "FBGEMM",
    "HOST_ROWS_SPREAD",
    "LOOKUP_LAUNCHES",
    "UPDATE_LAUNCHES",
    "EmbeddingKernels",
    "EmbeddingShape",
    "EmbeddingWork",
    "HostRowsKernels",
    "HostRowsWork",
    "cached_row_count",
    "embedding_sizes",
    "embedding_time_s",
    "embedding_work",
    "host_rows_time_s",
    "host_rows_waiting_s",
    "host_rows_work",
    "unfused_embedding_work",
]
