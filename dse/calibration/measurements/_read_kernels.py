"""Readers of measured kernels: products, attention, experts and embedding lookups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse._text.suggest import hint
from dse.calibration.measurements._columns import NO_OPTIONS, ColumnOptions
from dse.calibration.measurements._names import (
    DATA_TYPES,
    EMBEDDING_WORDS,
    PRECISION_WORDS,
    value_bytes_of,
)
from dse.calibration.measurements._open import needed, open_measurements
from dse.calibration.measurements._samples import (
    AttentionSamples,
    EmbeddingSamples,
    ExpertSamples,
    GemmSamples,
)
from dse.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from dse.calibration.measurements._open import Opened


def read_gemm(
    path: str | Path,
    options: ColumnOptions = NO_OPTIONS,
    *,
    minimum_points: int = 30,
    tolerance: float = 0.25,
) -> GemmSamples:
    """Reads times of matrix multiplications; several precisions in one file are all kept.

    Args:
        path: A CSV, Parquet or JSON-lines file with columns for m, n, k, precision and time.
        options: Columns, units and filters that the file does not state.
        minimum_points: Fewest rows.
        tolerance: How much longer, as a fraction, the longest of several times of the same sizes
            and precision may be than the shortest.

    Raises:
        ConfigError: The file cannot be read so, or holds impossible values; all are reported.
        CalibrationError: Too few rows, or repeated ones that disagree.
    """
    opened = open_measurements(
        path,
        options,
        required=("m", "n", "k", *needed("precision", options.precision), "time"),
        optional=("precision",),
        vocabularies={"precision": PRECISION_WORDS},
    )
    keys: dict[str, Any] = {name: opened.sizes(name) for name in ("m", "n", "k")}
    precision = opened.words("precision", options.precision, PRECISION_WORDS)
    if opened.columns.aiconfigurator:
        others = np.array([op != "gemm" for op in opened.table.columns["op_name"].tolist()])
        opened.checker.refuse(
            "op_name", others, "not `gemm`", "choose rows with --where op_name=gemm"
        )
    keys["precision"] = precision
    common = opened.common(keys, minimum_points=minimum_points, tolerance=tolerance)
    names, counts = np.unique(precision, return_counts=True)
    if len(names) > 1:
        held = [f"{count} of {name}" for name, count in zip(names, counts, strict=True)]
        common["notes"] += (f"several precisions: {', '.join(held)}",)
    return GemmSamples(**keys, **common)


def read_attention(
    path: str | Path,
    options: ColumnOptions = NO_OPTIONS,
    *,
    minimum_points: int = 40,
) -> AttentionSamples:
    """Reads times of causal forward attention.

    Without columns for them there are as many heads of keys as of queries, and as many keys.

    Args:
        path: A CSV, Parquet or JSON-lines file with columns for batch, heads, queries, columns of
            a head and time, and optionally heads of keys and values, and keys.
        options: Columns, units and filters that the file does not state.
        minimum_points: Fewest rows.

    Raises:
        ConfigError: The file cannot be read so, or holds impossible values; all are reported.
        CalibrationError: Too few rows, or repeated ones that disagree.
    """
    opened = open_measurements(
        path,
        options,
        required=("batch", "heads", "queries", "head_dim", "time"),
        optional=("kv_heads", "keys"),
        vocabularies={},
    )
    keys: dict[str, Any] = {name: opened.sizes(name) for name in ("batch", "heads", "queries")}
    keys["dim"] = opened.sizes("head_dim")
    for name, same in (("kv_heads", "heads"), ("keys", "queries")):
        keys[name] = opened.sizes(name) if name in opened.columns.of else keys[same]
    common = opened.common(keys, minimum_points=minimum_points, tolerance=0.25)
    return AttentionSamples(**keys, **common)


def read_experts(
    path: str | Path,
    options: ColumnOptions = NO_OPTIONS,
) -> ExpertSamples:
    """Reads times of blocks of experts of one rank, of an even routing over all ranks.

    Args:
        path: A CSV, Parquet or JSON-lines file with columns for tokens of all ranks, columns of a
            token and inside an expert, experts that a token visits, experts and time, and
            optionally the ranks that share the experts and that divide each.
        options: Columns, units and filters that the file does not state.

    Raises:
        ConfigError: The file cannot be read so, or holds impossible values; all are reported.
        CalibrationError: Too few rows, or repeated ones that disagree.
    """
    opened = open_measurements(
        path,
        options,
        required=("tokens", "hidden", "inner", "choices", "experts", "time"),
        optional=("expert_tensor", "expert_ranks"),
        vocabularies={},
    )
    stated = ("tokens", "hidden", "inner", "choices", "experts")
    keys: dict[str, Any] = {name: opened.sizes(name) for name in stated}
    for name in ("expert_tensor", "expert_ranks"):
        known = name in opened.columns.of
        keys[name] = opened.sizes(name) if known else np.ones_like(keys["tokens"])
    common = opened.common(keys, minimum_points=20, tolerance=0.5)
    rows = keys["tokens"] * keys["choices"] / keys["expert_ranks"]
    return ExpertSamples(
        tokens=np.minimum(keys["tokens"], rows),
        rows=rows,
        experts=keys["experts"] / keys["expert_ranks"],
        hidden=keys["hidden"],
        inner=keys["inner"] / keys["expert_tensor"],
        **common,
    )


def read_embedding(
    path: str | Path,
    options: ColumnOptions = NO_OPTIONS,
    *,
    minimum_points: int = 20,
) -> EmbeddingSamples:
    """Reads times of pooled embedding lookups.

    The bytes of a value come from a column, or from the `precision` of the options. Without a
    column for the Zipf exponent the looked-up rows are taken to be uniform, with a note.

    Args:
        path: A CSV, Parquet or JSON-lines file with columns for pass, rows, dim, batch, pooling,
            bytes of a value, exponent and time.
        options: Columns, units and filters that the file does not state.
        minimum_points: Fewest rows.

    Raises:
        ConfigError: The file cannot be read so, or holds impossible values; all are reported.
        CalibrationError: Too few rows, or repeated ones that disagree.
    """
    sizes = ("rows", "dim", "batch")
    opened = open_measurements(
        path,
        options,
        required=(
            *needed("op", options.op),
            *sizes,
            "pooling",
            *needed("value_bytes", options.precision),
            "time",
        ),
        optional=("op", "value_bytes", "alpha"),
        vocabularies={"op": EMBEDDING_WORDS},
    )
    op = opened.words("op", options.op, EMBEDDING_WORDS)
    rows, dim, batch = (opened.sizes(name) for name in sizes)
    pooling = opened.checker.positive(opened.columns.of["pooling"])
    value_bytes = _value_bytes(opened)
    uniform: tuple[str, ...] = ()
    if "alpha" in opened.columns.of:
        alpha = opened.checker.not_negative(opened.columns.of["alpha"])
    else:
        alpha = np.zeros(len(opened.table))
        uniform = ("no column `alpha`: looked-up rows taken to be uniform",)
    keys: dict[str, Any] = {
        "op": op,
        "rows": rows,
        "dim": dim,
        "batch": batch,
        "pooling": pooling,
        "value_bytes": value_bytes,
        "alpha": alpha,
    }
    common = opened.common(keys, *uniform, minimum_points=minimum_points, tolerance=0.25)
    return EmbeddingSamples(**keys, **common)


def _value_bytes(opened: Opened) -> NDArray[np.int64]:
    precision = opened.options.precision
    if precision is None:
        return opened.sizes("value_bytes")
    value_bytes = value_bytes_of(precision)
    if value_bytes is None:
        raise ConfigError(
            f"--precision: unknown data type `{precision}`; {hint(precision.lower(), DATA_TYPES)}"
        )
    return opened.numbers_or("value_bytes", value_bytes, least=1)
