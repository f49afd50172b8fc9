"""Readers of measured collectives, and of the exchange of tokens with their experts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dse.calibration.measurements._columns import NO_OPTIONS, ColumnOptions, size_unit
from dse.calibration.measurements._names import (
    COLLECTIVE_WORDS,
    TYPE_WORDS,
    value_bytes_of,
)
from dse.calibration.measurements._nccl_log import BUS_RATIO, NO_REDUCTION
from dse.calibration.measurements._open import needed, open_measurements
from dse.calibration.measurements._samples import (
    CollectiveSamples,
    ExchangeSamples,
)
from dse.errors import ConfigError
from dse.machine.fits import NCCL_VERSION
from dse.machine.kernels import places_visited

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from dse.calibration.measurements._open import Opened


#: Operations that reduce, and those that do not; logs of `send_recv` name an operator as well.
_REDUCING = ("all_reduce", "reduce_scatter")
_NOT_REDUCING = ("all_gather", "all_to_all", "broadcast")

#: What is to be done about rows of another operation.
_RUN_AS = "pass the operation that was run as --op, or choose the rows of one with --where"

#: Most that a ratio of printed bandwidths may be off.
_RATIO_TOLERANCE = 0.03


def read_exchange(
    path: str | Path,
    options: ColumnOptions = NO_OPTIONS,
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
    return ExchangeSamples(**keys, **opened.common(keys, minimum_points=20, tolerance=0.5))


def read_collective(
    path: str | Path,
    options: ColumnOptions = NO_OPTIONS,
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
    return _read(path, options, minimum_points, tolerance)


def read_collectives(
    paths: Sequence[str | Path],
    options: ColumnOptions = NO_OPTIONS,
    *,
    tolerance: float = 0.5,
) -> list[CollectiveSamples]:
    """Reads several files of collectives, as :func:`read_collective` does each.

    Args:
        paths: Tables and logs.
        options: As for one file; of several, operation, ranks and nodes stand for the files that
            do not say.
        tolerance: As for one file.

    Raises:
        ConfigError: As for one file; or all of several files say another operation, or other
            numbers of ranks or nodes, than an option.
        CalibrationError: As for one file.
    """
    if len(paths) == 1:
        return [read_collective(paths[0], options, tolerance=tolerance)]
    fills = frozenset({"op", "ranks", "nodes"})
    measured = [_read(path, options, 4, tolerance, fills) for path in paths]
    op = None if options.op is None else COLLECTIVE_WORDS.find(options.op)
    for name, given in (("op", op), ("ranks", options.ranks), ("nodes", options.nodes)):
        said = {value for one in measured for value in getattr(one, name).tolist()}
        if given is not None and given not in said:
            raise ConfigError(
                f"--{name} {given}: all files say otherwise, "
                f"{', '.join(map(str, sorted(said)))}; leave it out"
            )
    return measured


def _read(
    path: str | Path,
    options: ColumnOptions,
    minimum_points: int,
    tolerance: float,
    fills: frozenset[str] = frozenset(),
) -> CollectiveSamples:
    opened = open_measurements(
        path,
        options,
        required=(*needed("op", options.op), *needed("ranks", options.ranks), "size", "time"),
        optional=("op", "ranks", "nodes", "dtype", "nccl"),
        vocabularies={"op": COLLECTIVE_WORDS, "dtype": TYPE_WORDS},
        logs=True,
        fills=fills,
    )
    op = opened.words("op", options.op, COLLECTIVE_WORDS)
    ranks = opened.numbers_or("ranks", options.ranks, least=2)
    if opened.table.is_log:
        _check_operations(opened, op, ranks)
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
    common = opened.common(
        same,
        *unit_notes,
        minimum_points=minimum_points,
        tolerance=tolerance,
        option="--tolerance",
    )
    return CollectiveSamples(**keys, nodes=nodes, **common)


def _check_operations(opened: Opened, op: NDArray[np.str_], ranks: NDArray[np.int64]) -> None:
    """Refuses rows of a log of nccl-tests that cannot be of the operation they are taken for."""
    table = opened.table
    rows = len(table)
    named = table.columns[opened.columns.of["op"]].tolist()
    known = np.array([COLLECTIVE_WORDS.find(str(word)) is not None for word in named])
    operators = table.columns.get("redop", np.full(rows, None))
    given = np.array([word is not None for word in operators.tolist()], dtype=np.bool_)
    reduces = given & (operators != NO_REDUCTION)
    ratios = table.columns.get(BUS_RATIO, np.full(rows, None)).astype(np.float64)
    for name in np.unique(op[known]).tolist():
        of = known & (op == name)
        wrong = of & (name in _NOT_REDUCING) & reduces
        wrong |= of & (name in _REDUCING) & given & ~reduces
        what = "of no reduction" if name in _REDUCING else "of a reduction"
        opened.checker.refuse("redop", wrong, f"{what}, and not of `{name}`", _RUN_AS)
        expected = _bus_ratios(name, ranks.astype(np.float64))
        off = np.min([abs(ratios / one - 1) for one in expected], axis=0) > _RATIO_TOLERANCE
        opened.checker.refuse(
            BUS_RATIO,
            of & ~wrong & off,
            f"bus over algorithm bandwidth of another operation than `{name}`",
            _RUN_AS,
        )


def _bus_ratios(op: str, ranks: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Returns what nccl-tests may print as bus bandwidth over algorithm bandwidth."""
    share, one = (ranks - 1) / ranks, np.ones(len(ranks))
    if op == "all_reduce":
        return [2 * share]
    if op == "all_to_all":
        return [share]
    # Early versions left out a rank's own part in both bandwidths.
    return [share, one] if op in ("all_gather", "reduce_scatter") else [one]


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
    if opened.table.is_log and opened.options.size_unit == "elements":
        raise ConfigError(
            f"{opened.table.origin.file}: --size-unit elements: the sizes of a log of nccl-tests "
            "are in bytes; leave it out",
            key="size_unit",
            value="elements",
        )
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
