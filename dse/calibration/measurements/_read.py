"""Readers of measurements: GEMM, attention, experts, collectives and embedding lookups."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dse._suggest import hint
from dse.calibration.measurements._checks import check_count, check_repeats
from dse.calibration.measurements._columns import ColumnOptions, size_unit
from dse.calibration.measurements._names import (
    COLLECTIVE_WORDS,
    DATA_TYPES,
    EMBEDDING_WORDS,
    PRECISION_WORDS,
    TYPE_WORDS,
    value_bytes_of,
)
from dse.calibration.measurements._open import needed, open_measurements
from dse.calibration.measurements._samples import (
    AttentionSamples,
    CollectiveSamples,
    EmbeddingSamples,
    ExchangeSamples,
    ExpertSamples,
    GemmSamples,
)
from dse.errors import ConfigError
from dse.machine.fits import NCCL_VERSION
from dse.machine.kernels import places_visited

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from dse.calibration.measurements._open import Opened


def read_gemm(
    path: str | Path,
    options: ColumnOptions | None = None,
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
    options = options or ColumnOptions()
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
    common = _common(opened, keys, minimum_points=minimum_points, tolerance=tolerance)
    names, counts = np.unique(precision, return_counts=True)
    if len(names) > 1:
        held = [f"{count} of {name}" for name, count in zip(names, counts, strict=True)]
        common["notes"] += (f"several precisions: {', '.join(held)}",)
    return GemmSamples(**keys, **common)


def read_attention(
    path: str | Path,
    options: ColumnOptions | None = None,
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
        options or ColumnOptions(),
        required=("batch", "heads", "queries", "head_dim", "time"),
        optional=("kv_heads", "keys"),
        vocabularies={},
    )
    keys: dict[str, Any] = {name: opened.sizes(name) for name in ("batch", "heads", "queries")}
    keys["dim"] = opened.sizes("head_dim")
    for name, same in (("kv_heads", "heads"), ("keys", "queries")):
        keys[name] = opened.sizes(name) if name in opened.columns.of else keys[same]
    common = _common(opened, keys, minimum_points=minimum_points, tolerance=0.25)
    return AttentionSamples(**keys, **common)


def read_experts(
    path: str | Path,
    options: ColumnOptions | None = None,
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
        options or ColumnOptions(),
        required=("tokens", "hidden", "inner", "choices", "experts", "time"),
        optional=("expert_tensor", "expert_ranks"),
        vocabularies={},
    )
    stated = ("tokens", "hidden", "inner", "choices", "experts")
    keys: dict[str, Any] = {name: opened.sizes(name) for name in stated}
    for name in ("expert_tensor", "expert_ranks"):
        known = name in opened.columns.of
        keys[name] = opened.sizes(name) if known else np.ones_like(keys["tokens"])
    common = _common(opened, keys, minimum_points=20, tolerance=0.5)
    rows = keys["tokens"] * keys["choices"] / keys["expert_ranks"]
    return ExpertSamples(
        tokens=np.minimum(keys["tokens"], rows),
        rows=rows,
        experts=keys["experts"] / keys["expert_ranks"],
        hidden=keys["hidden"],
        inner=keys["inner"] / keys["expert_tensor"],
        **common,
    )


def read_exchange(
    path: str | Path,
    options: ColumnOptions | None = None,
) -> ExchangeSamples:
    """Reads times of sending each token once to every rank that has one of its experts.

    Args:
        path: A CSV, Parquet or JSON-lines file with columns for tokens of a rank, their columns,
            experts that a token visits, experts and time, and for ranks or with them as an option.
        options: Columns, units and filters that the file does not state.

    Raises:
        ConfigError: The file cannot be read so, or holds impossible values; all are reported.
        CalibrationError: Too few rows, or repeated ones that disagree.
    """
    options = options or ColumnOptions()
    opened = open_measurements(
        path,
        options,
        required=(
            *needed("ranks", options.ranks),
            *("tokens", "hidden", "choices", "experts", "time"),
        ),
        optional=("ranks",),
        vocabularies={},
    )
    tokens, hidden = opened.sizes("tokens"), opened.sizes("hidden")
    ranks = opened.numbers_or("ranks", options.ranks, least=2)
    places = zip(
        opened.sizes("experts").tolist(),
        opened.sizes("choices").tolist(),
        ranks.tolist(),
        strict=True,
    )
    copies = np.array([places_visited(*place) for place in places])
    keys: dict[str, Any] = {
        "tokens": tokens,
        "hidden": hidden,
        "copies": copies,
        "ranks": ranks,
    }
    return ExchangeSamples(**keys, **_common(opened, keys, minimum_points=20, tolerance=0.5))


def read_collective(
    path: str | Path,
    options: ColumnOptions | None = None,
    *,
    minimum_points: int = 4,
    tolerance: float = 0.5,
) -> CollectiveSamples:
    """Reads times of collectives, from a table or from the output of nccl-tests.

    Sizes are taken as nccl-tests counts them, see :class:`CollectiveSamples`. Rows of the same
    size in bytes and of different data types are different measurements.

    Args:
        path: A CSV, Parquet or JSON-lines file with columns for operation, ranks, size and time
            (and data type where sizes are in elements), or a log.
        options: Columns, units and filters that the file does not state.
        minimum_points: Fewest rows.
        tolerance: How much longer, as a fraction, the longest of several times of the same
            operation, ranks, size, data type and version may be than the shortest.

    Raises:
        ConfigError: The file cannot be read so, or holds impossible values; all are reported.
        CalibrationError: Too few rows, or repeated ones that disagree.
    """
    options = options or ColumnOptions()
    opened = open_measurements(
        path,
        options,
        required=(*needed("op", options.op), *needed("ranks", options.ranks), "size", "time"),
        optional=("op", "ranks", "nodes", "dtype", "nccl"),
        vocabularies={"op": COLLECTIVE_WORDS, "dtype": TYPE_WORDS},
        logs=True,
    )
    op = opened.words("op", options.op, COLLECTIVE_WORDS)
    ranks = opened.numbers_or("ranks", options.ranks, least=2)
    nodes = _nodes(opened)
    size, dtype, unit_notes = _message_sizes(opened)
    nccl = _versions(opened)
    keys: dict[str, Any] = {
        "op": op,
        "ranks": ranks,
        "size_bytes": size,
        "dtype": dtype,
        "nccl": nccl,
    }
    same = {**keys, "nodes": nodes} if nodes.any() else keys
    common = _common(opened, same, *unit_notes, minimum_points=minimum_points, tolerance=tolerance)
    return CollectiveSamples(**keys, nodes=nodes, **common)


def read_embedding(
    path: str | Path,
    options: ColumnOptions | None = None,
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
    options = options or ColumnOptions()
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
    common = _common(opened, keys, *uniform, minimum_points=minimum_points, tolerance=0.25)
    return EmbeddingSamples(**keys, **common)


def _common(
    opened: Opened,
    keys: Mapping[str, NDArray[Any]],
    *notes: str,
    minimum_points: int,
    tolerance: float,
) -> dict[str, Any]:
    """Returns what all samples have; reports all that is wrong with the file.

    Args:
        opened: The file.
        keys: What makes two rows measurements of the same.
        *notes: Said ahead of those on the rows.
        minimum_points: Fewest rows.
        tolerance: How much longer, as a fraction, the longest of several times of the same may be
            than the shortest.
    """
    time_s = opened.time_s()
    opened.checker.finish()
    check_count(opened.table, minimum_points)
    used = tuple(opened.columns.of.values())
    repeats = check_repeats(opened.table, keys, time_s, tolerance, used)
    return {
        "time_s": time_s,
        "source_rows": opened.table.rows,
        "origin": opened.origin,
        "notes": (*notes, *opened.notes, *repeats),
    }


def _versions(opened: Opened) -> NDArray[np.str_]:
    """Returns the version of the communication library of each row; empty where it is not said."""
    column, constant = opened.columns.of.get("nccl"), opened.options.nccl
    if column is None or constant is not None:
        return np.array([constant or ""] * len(opened.table), dtype=np.str_)
    values = opened.table.columns[column].tolist()
    texts = ["" if value is None else str(value).strip() for value in values]
    wrong = [text != "" and not re.fullmatch(NCCL_VERSION, text) for text in texts]
    wrong_rows = np.array(wrong, dtype=np.bool_)
    opened.checker.refuse(
        column, wrong_rows, "no version", "numbers with dots are expected: 2.27.3"
    )
    return np.array(texts, dtype=np.str_)


def _nodes(opened: Opened) -> NDArray[np.int64]:
    """Returns the nodes of each row; 0 where the file does not say."""
    if "nodes" not in opened.columns.of and opened.options.nodes is None:
        return np.zeros(len(opened.table), dtype=np.int64)
    return opened.numbers_or("nodes", opened.options.nodes, least=0)


def _message_sizes(
    opened: Opened,
) -> tuple[NDArray[np.int64], NDArray[np.str_], tuple[str, ...]]:
    """Returns sizes in bytes, data types, and notes on the unit."""
    unit, notes = size_unit(opened.table, opened.columns, opened.options)
    size = opened.sizes("size")
    column = opened.columns.of.get("dtype")
    constant = opened.options.precision
    if unit == "bytes" and constant is None:
        if column is None:
            return size, np.array([""] * len(size), dtype=np.str_), tuple(notes)
        return size, opened.checker.any_words(column, TYPE_WORDS), tuple(notes)
    if column is None and constant is None:
        raise opened.table.header_error(
            opened.columns.of["size"],
            "the sizes are in elements and the file does not say of which type; "
            "pass --precision, or name a column with --column dtype=NAME",
        )
    dtype = opened.words("dtype", constant, TYPE_WORDS)
    if unit == "bytes":
        return size, dtype, tuple(notes)
    value_bytes = {name: value_bytes_of(name) or 1 for name in np.unique(dtype).tolist()}
    scale = np.array([value_bytes[name] for name in dtype.tolist()], dtype=np.int64)
    return size * scale, dtype, tuple(notes)


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
