"""Predicted against published times of FBGEMM's table-batched embeddings.

A row names its device, the place of its rows (`hbm`, `uvm`, `uvm_caching`), a phase and sizes. The
constants of the model were fitted on the rows of one source (`FITTED`); all others check it. A
source that names no device is predicted as an H100 (or a V100, as it says) up to one factor for
all its rows: its errors are those of the shape. What is no time of these kernels carries the
reason and is counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
import math
from typing import TYPE_CHECKING

import numpy as np
from table_errors import PredictedRow
from tables import read_table

from dse.indices import IndexDistribution, PopularityBuckets, Uniform
from dse.machine.kernels import (
    HOST_ROWS_SPREAD,
    LOOKUP_LAUNCHES,
    EmbeddingShape,
    HostRowsKernels,
    embedding_time_s,
    host_rows_time_s,
    host_rows_work,
    unfused_embedding_work,
)
from dse.machine.platforms import load_platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd

    from dse.machine.kernels import EmbeddingWork
    from dse.machine.platforms import Platform

#: Commit of the source that the constants were fitted on, and that of the same measured again.
FITTED, AGAIN = "6f7281aa", "1a89190b"

#: Share of the rows that a cache holds where the file does not say: of the benchmark's script
#: (recsys-examples, `gpu_ratio`), and TorchRec's default.
_SCRIPT_SHARE, _DEFAULT_SHARE = 0.125, 0.2

#: Batches that the benchmark scripts of recsys-examples repeat. A cache that holds all their rows
#: misses none; at this share of its places hardly any of its sets of 32 overflows.
_REPEATED_BATCHES, _SAFE_LOAD = 100, 0.8

#: Sizes of caches as a share of all rows of those batches, by label (`cache_footprint_ratio`).
_FOOTPRINTS = {"cfr=1.0": 1.0, "cfr=0.8": 0.8}

#: Part of the indices that FBGEMM's `uvm` benchmark takes from the batch before.
_REUSED = 0.1

#: Rows that are no times of these kernels: source, condition, reason.
_LEFT_OUT = (
    ("meta-pytorch/torchrec", "batch", 1024, "the host takes longer than the kernels"),
    ("pytorch/FBGEMM@8b9eae95", "placement", "hbm (after prefetch)",
     "rows of 512 and of 128 bytes take equally long: bound by the host"),
    ("owensgroup/ml_perf_model", "optimizer", "sgd",
     "2.3 to 2.4 ns a lookup whatever the share of distinct rows: an older library that updates "
     "rows lookup by lookup"),
)  # fmt: skip

#: Columns that predictions need.
_COLUMNS = (
    *("source", "device", "placement", "phase", "tables", "rows_per_table", "dim", "batch"),
    *("lookups", "dtype", "pooling", "optimizer", "distribution", "note", "time_ms"),
)

#: Platforms by what names of devices contain.
_PLATFORMS = {"V100": "v100_dgx1", "H100": "h100_sxm", "not stated": "h100_sxm"}

#: What kernels take by the shipped constants.
SHIPPED = HostRowsKernels()

#: Ends the names of sources that state no device: they are compared up to one factor.
_LEVEL_FREE = " (level free)"

_VALUE_BYTES = {"fp32": 4, "fp16": 2, "fp8": 1}

#: Standard deviations that an interval of 90 % reaches to either side.
_NORMAL_90 = 1.645


@dataclass(frozen=True)
class PowerLaw(IndexDistribution):
    """Floors of a continuous power law over `[1, rows)`, as the benchmark's generator draws.

    Attributes:
        alpha: Exponent.
    """

    alpha: float

    def buckets(self, rows: int) -> PopularityBuckets:
        """Returns the first thousand rows one by one and the others in logarithmic buckets."""
        first = min(rows, 1025)
        tail = np.round(np.geomspace(min(1024, rows), rows, 800))
        edges = np.unique(np.concatenate([np.arange(1, first), tail]))
        power = 1.0 - self.alpha
        share = np.diff((edges**power - 1.0) / (rows**power - 1.0))
        return PopularityBuckets(np.diff(edges), share / np.diff(edges))


@dataclass(frozen=True, slots=True)
class _Case:
    """One row of the table with its prediction before any level."""

    number: int
    platform: str
    source: str
    group: str
    measured_s: float
    predicted_s: float = math.nan
    spread: float = math.nan
    problem: str = ""

    @property
    def kind(self) -> str:
        """Whether the constants were fitted on it."""
        if AGAIN in self.source:
            return "fitted, measured again"
        return "fitted" if FITTED in self.source else "held out"


def embedding_rows(path: Path) -> list[PredictedRow]:
    """Returns every row of a table of embedding times with its prediction.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    table = embedding_table(path)
    cases = [_case(number, row) for number, row in enumerate(table.itertuples(), start=1)]
    sources = Counter(case.source for case in cases if not case.problem)
    alone = "the only row of a source without a device, whose level nothing else tells"
    cases = [
        replace(case, problem=alone)
        if case.source.endswith(_LEVEL_FREE) and sources[case.source] == 1 and not case.problem
        else case
        for case in cases
    ]
    levels = {
        source: _level([case for case in cases if case.source == source and not case.problem])
        for source in {case.source for case in cases}
        if source.endswith(_LEVEL_FREE)
    }
    return [_row(case, levels.get(case.source, 1.0)) for case in cases]


def embedding_table(path: Path) -> pd.DataFrame:
    """Returns the table as it is.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    return read_table(path, _COLUMNS)


def _level(cases: Sequence[_Case]) -> float:
    """One factor for all rows of a source without a device."""
    logs = [math.log(case.measured_s / case.predicted_s) for case in cases]
    return math.exp(float(np.median(logs))) if logs else 1.0


def _row(case: _Case, level: float) -> PredictedRow:
    predicted_s, reach = level * case.predicted_s, math.exp(_NORMAL_90 * case.spread)
    return PredictedRow(
        case.number,
        case.platform,
        f"{case.kind}: {case.group}",
        case.measured_s,
        predicted_s,
        predicted_s / reach,
        predicted_s * reach,
        case.problem,
        case.kind,
    )


def _case(number: int, row: pd.core.frame.Pandas) -> _Case:
    names_device = "not stated" not in row.device
    source = row.source.split(" (")[0]
    if source.startswith("meta-pytorch/torchrec"):
        # Two blocks of equal shape whose times differ by a factor of two.
        source += f" {row.tables} x {row.batch}"
    if not names_device:
        source += _LEVEL_FREE
    group = f"{source.split(':')[0].split('@')[0]} {row.placement} {row.phase}"
    platform = _platform_name(row)
    case = _Case(number, platform, source, group, 1e-3 * row.time_ms)
    if not platform:
        known = ", ".join(part for part in _PLATFORMS if part != "not stated")
        problem = f"the device `{row.device}` has no measured kernels; there are {known}"
        return replace(case, platform=str(row.device), problem=problem)
    if not 0 < case.measured_s < math.inf:
        return replace(case, problem=f"the time is {row.time_ms} ms; expected a positive one")
    for prefix, column, value, reason in _LEFT_OUT:
        if row.source.startswith(prefix) and getattr(row, column) == value:
            return replace(case, problem=reason)
    predicted_s, spread = predicted(row)
    return replace(case, predicted_s=predicted_s, spread=spread)


def predicted(
    row: pd.core.frame.Pandas, kernels: HostRowsKernels = SHIPPED
) -> tuple[float, float]:
    """Returns the expected time of a row in seconds, and its spread.

    Args:
        row: A row of the table.
        kernels: What kernels take.
    """
    if row.placement.startswith("uvm_caching: prefetch"):
        (cached_s, spread), (resident_s, _) = (
            next(_phases(row, placement, kernels)) for placement in ("uvm_caching", "hbm")
        )
        return cached_s - resident_s, spread
    forward, backward = _phases(row, row.placement, kernels)
    if row.phase == "forward+backward":
        both_s = forward[0] + backward[0]
        return both_s, (forward[0] * forward[1] + backward[0] * backward[1]) / both_s
    return backward if row.phase.startswith("backward") else forward


@lru_cache
def _platform(name: str) -> Platform:
    return load_platform(name)


def _platform_name(row: pd.core.frame.Pandas) -> str:
    """Returns the platform of a row's device; empty if there is none."""
    return next((name for part, name in _PLATFORMS.items() if part in str(row.device)), "")


def _phases(
    row: pd.core.frame.Pandas, placement: str, kernels: HostRowsKernels
) -> Iterator[tuple[float, float]]:
    """Yields time and spread of the lookup, then of the update."""
    loaded = _platform(_platform_name(row))
    device, link = loaded.device, loaded.host_link
    by_value = row.optimizer == "adam"
    by_row = "row_wise" in str(row.optimizer)
    lookups = row.lookups / row.tables
    shape = EmbeddingShape(
        rows=int(row.rows_per_table),
        dim=int(row.dim),
        value_bytes=_VALUE_BYTES[row.dtype],
        bags=float(lookups if row.pooling == "none" else row.batch),
        lookups=float(lookups),
        output_value_bytes=4,
        state_bytes_per_row=8.0 * row.dim if by_value else 4.0 * by_row,
    )
    indices = PowerLaw(1.05) if "law" in row.distribution else Uniform()
    crossing = (0.0, 0.0)
    if placement == "hbm":
        work = unfused_embedding_work(device, shape, indices, kernels.order)
    else:
        cached_rows = 0.0
        if placement == "uvm_caching":
            cached_rows = _cached_rows(row, shape, indices)
        host_work = host_rows_work(
            device,
            link,
            shape,
            indices,
            cached_rows=cached_rows,
            host_state_bytes_per_row=8.0 * row.dim * by_value,
            call_share=1.0 / row.tables,
            kernels=kernels,
        )
        work = host_work.device
        crossing = (host_work.forward_link_bytes, host_work.backward_link_bytes)
    launches = (LOOKUP_LAUNCHES, kernels.order.update_launches(device))
    for part, link_bytes, count in zip(_parts(work), crossing, launches, strict=True):
        memory, cache, spread = part
        kernel_s = float(embedding_time_s(device, row.tables * memory, row.tables * cache, count))
        link_s = float(host_rows_time_s(link, row.tables * link_bytes))
        time_s = kernel_s + link_s
        yield time_s, (kernel_s * spread + link_s * HOST_ROWS_SPREAD) / time_s


def _parts(work: EmbeddingWork) -> Iterator[tuple[float, float, float]]:
    yield work.forward_memory_bytes, work.forward_cache_bytes, work.forward_spread
    yield work.backward_memory_bytes, work.backward_cache_bytes, work.backward_spread


def _cached_rows(
    row: pd.core.frame.Pandas, shape: EmbeddingShape, indices: IndexDistribution
) -> float:
    """Rows of a table that its cache holds; all of them if it has room for all that are drawn."""
    if not row.source.startswith("NVIDIA"):
        # Of the reused indices none is missing.
        return (1.0 - (1.0 - _DEFAULT_SHARE) * (1.0 - _REUSED)) * shape.rows
    footprint = indices.expected_unique_rows(shape.rows, _REPEATED_BATCHES * shape.lookups)
    labelled = [share for label, share in _FOOTPRINTS.items() if label in str(row.note)]
    cached = labelled[0] * footprint if labelled else _SCRIPT_SHARE * shape.rows
    return float(shape.rows) if _SAFE_LOAD * cached >= footprint else cached
