"""Measured times of kernels and collectives, read from files as checked arrays.

Tables (CSV, Parquet, JSON lines) and the text that nccl-tests prints become samples in SI units.
Columns are recognised by usual names or named by :class:`ColumnOptions`. A file that could mislead
a fit is refused with the place, the value and the next step; deliberate omissions are counted in
the samples' notes. Nothing is fitted here.
"""

from __future__ import annotations

from dse._io.tables import Origin, RowKind
from dse.calibration.measurements._checks import check_files
from dse.calibration.measurements._columns import ColumnOptions
from dse.calibration.measurements._dispatch import dispatch_message_bytes
from dse.calibration.measurements._names import (
    COLLECTIVE_OPS,
    GEMM_PRECISIONS,
    collective_of,
    value_bytes_of,
)
from dse.calibration.measurements._read_collectives import (
    read_collective,
    read_collectives,
    read_exchange,
)
from dse.calibration.measurements._read_kernels import (
    read_attention,
    read_embedding,
    read_experts,
    read_gemm,
)
from dse.calibration.measurements._samples import (
    AttentionSamples,
    CollectiveSamples,
    EmbeddingSamples,
    ExchangeSamples,
    ExpertSamples,
    GemmSamples,
    Samples,
    joined,
)
from dse.calibration.measurements._units import check_units

__all__ = [
    "COLLECTIVE_OPS",
    "GEMM_PRECISIONS",
    "AttentionSamples",
    "CollectiveSamples",
    "ColumnOptions",
    "EmbeddingSamples",
    "ExchangeSamples",
    "ExpertSamples",
    "GemmSamples",
    "Origin",
    "RowKind",
    "Samples",
    "check_files",
    "check_units",
    "collective_of",
    "dispatch_message_bytes",
    "joined",
    "read_attention",
    "read_collective",
    "read_collectives",
    "read_embedding",
    "read_exchange",
    "read_experts",
    "read_gemm",
    "value_bytes_of",
]
