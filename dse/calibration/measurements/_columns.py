"""Columns of measurement files: meaning, unit, and the options that state them."""

from __future__ import annotations

from dataclasses import dataclass, field
import re
from typing import TYPE_CHECKING

from dse._io.tables import snake_case
from dse._text.suggest import hint
from dse.calibration.measurements._names import SIZE_UNITS, TIME_UNITS, UNIT_OF_SUFFIX
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse._io.tables import Table

#: Our names of columns to usual ones, in snake case.
USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "m": ("m", "gemm_m", "dim_m", "size_m"),
    "n": ("n", "gemm_n", "dim_n", "size_n"),
    "k": ("k", "gemm_k", "dim_k", "size_k"),
    "precision": ("precision", "gemm_dtype", "dtype", "data_type", "compute_dtype"),
    "op": ("op", "op_name", "operation", "collective", "coll", "direction", "pass"),
    "ranks": (
        "ranks",
        "num_ranks",
        "nranks",
        "n_ranks",
        "num_gpus",
        "ngpus",
        "gpus",
        "world_size",
        "moe_ep_size",
    ),
    "nodes": ("nodes", "num_nodes", "nnodes", "n_nodes", "hosts", "num_hosts"),
    "dtype": ("dtype", "nccl_dtype", "data_type", "type"),
    "nccl": ("nccl", "nccl_version"),
    "rows": ("rows", "num_rows", "num_embeddings", "table_rows", "hash_size", "e"),
    "dim": ("dim", "embedding_dim", "emb_dim", "d"),
    "head_dim": ("head_dim", "head_size", "dim_head"),
    "heads": ("heads", "num_heads", "n_heads", "query_heads"),
    "kv_heads": ("kv_heads", "num_kv_heads", "num_key_value_heads", "n_kv_heads"),
    "queries": ("queries", "seq", "seq_len", "sequence_length", "seqlen", "isl"),
    "keys": ("keys", "kv_seq", "kv_seq_len", "seqlen_k"),
    "tokens": ("tokens", "num_tokens", "num_token"),
    "hidden": ("hidden", "hidden_size"),
    "inner": ("inner", "inter", "inter_size", "intermediate_size", "moe_intermediate_size"),
    "choices": ("choices", "topk", "top_k", "num_topk"),
    "experts": ("experts", "num_experts"),
    "expert_tensor": ("expert_tensor", "moe_tp", "moe_tp_size"),
    "expert_ranks": ("expert_ranks", "moe_ep", "moe_ep_size"),
    "batch": ("batch", "batch_size", "b"),
    "pooling": ("pooling", "pooling_factor", "avg_pooling", "bag_size", "hotness", "l"),
    "value_bytes": ("value_bytes", "bytes_per_value", "element_bytes"),
    "alpha": ("alpha", "zipf_alpha", "zipf_exponent", "zipf"),
}

#: Columns that say on which device a row was measured, in snake case.
DEVICE_COLUMNS = ("device", "device_name", "gpu", "gpu_name", "system")

_SIZE_IN_BYTES = (
    "size_bytes",
    "bytes",
    "nbytes",
    "num_bytes",
    "message_bytes",
    "msg_bytes",
    "message_size_bytes",
    "msg_size_bytes",
    "buffer_bytes",
    "size_b",
)
_SIZE_IN_ELEMENTS = ("count", "elements", "numel", "num_elements", "size_elements")
_SIZE_UNIT_UNKNOWN = ("message_size", "msg_size", "size", "data_size", "buffer_size")

_STATISTIC = "mean|avg|average|median|min|p50"
_UNIT = "|".join(UNIT_OF_SUFFIX)
_TIME = re.compile(
    rf"(?:(?:{_STATISTIC}|kernel|gpu|cuda|device|exec|execution|elapsed|run|wall)_)*"
    rf"(?:time|latency|duration|dur|elapsed|runtime)(?:_(?:{_STATISTIC}))?(?:_(?:{_UNIT}))?"
)
_TIME_SHOWN = ("time_s", "latency_ms", "duration_us", "latency", "time")

#: Options that stand for a column.
_OPTION_FOR = {
    "op": "--op",
    "ranks": "--ranks",
    "nodes": "--nodes",
    "nccl": "--nccl",
    "precision": "--precision",
    "value_bytes": "--precision",
}

#: Columns by which tables of aiconfigurator are known; their documentation gives the units.
_AICONFIGURATOR = {"framework", "version", "device", "op_name", "kernel_source", "latency"}
_AICONFIGURATOR_TYPES = {"gemm_dtype", "nccl_dtype"}


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Options for reading a file of measurements.

    Attributes:
        columns: Our name of a column to the file's name, for columns that are not recognised:
            `m`, `n`, `k`, `precision`, `op`, `ranks`, `nodes`, `size`, `dtype`, `nccl`, `rows`,
            `dim`, `batch`, `pooling`, `value_bytes`, `alpha`, `heads`, `kv_heads`, `head_dim`,
            `queries`, `keys`, `tokens`, `hidden`, `inner`, `choices`, `experts`, `expert_tensor`,
            `expert_ranks`, `time`.
        time_unit: `s`, `ms`, `us` or `ns`; overrides the name of the column.
        size_unit: `bytes` or `elements` of a message size; overrides the name of the column.
        precision: Precision of all rows (for collectives and embeddings: type of the values), for
            a file without such a column.
        op: Operation of all rows, for a file that does not name it.
        ranks: Number of ranks of all rows, for a file that does not name it.
        nodes: Number of nodes of all rows, for a file that does not name it.
        nccl: Version of the communication library of all rows, for a file that does not name it.
        filters: Column (the file's name or ours) to the value that rows must have to be kept.
        in_place: Take the in-place times of an nccl-tests log instead of the out-of-place ones.
        device: Name of the device that was measured; rows that name another one are refused.
            Empty takes all rows.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    time_unit: str | None = None
    size_unit: str | None = None
    precision: str | None = None
    op: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    nccl: str | None = None
    filters: Mapping[str, str | int | float] = field(default_factory=dict)
    in_place: bool = False
    device: str = ""

    def __post_init__(self) -> None:
        _expect("--time-unit", self.time_unit, tuple(TIME_UNITS))
        _expect("--size-unit", self.size_unit, SIZE_UNITS)


def _expect(option: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        names = ", ".join(f"`{name}`" for name in known)
        raise ConfigError(
            f"{option}: expected one of {names}; found `{value}`; {hint(value, known)}"
        )


#: Everything as the file says.
NO_OPTIONS = ColumnOptions()


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table by our names.

    Attributes:
        of: Our name to the file's; columns that the file lacks are not there.
        aiconfigurator: True for the layout of aiconfigurator's tables.
    """

    of: Mapping[str, str]
    aiconfigurator: bool


def find_columns(
    table: Table, required: Sequence[str], optional: Sequence[str], options: ColumnOptions
) -> Columns:
    """Finds the columns of an operator.

    Args:
        table: The file.
        required: Our names of columns that must be there.
        optional: Our names of columns that may be there.
        options: Columns named by the user.

    Raises:
        ConfigError: A named column does not exist, columns are missing, or several fit.
    """
    wanted = (*required, *optional)
    found = _named(table, wanted, options)
    for ours in wanted:
        if ours in found:
            continue
        fitting = _fitting(ours, table)
        if len(fitting) > 1:
            listed = ", ".join(f"`{name}`" for name in fitting)
            raise table.header_error(
                ours,
                f"{len(fitting)} columns fit: {listed}; name one with --column {ours}=NAME",
            )
        if fitting:
            found[ours] = fitting[0]
    missing = [ours for ours in required if ours not in found]
    if missing:
        raise _missing(table, missing)
    names = set(table.columns)
    known = names >= _AICONFIGURATOR and bool(names & _AICONFIGURATOR_TYPES)
    return Columns(found, known)


def time_unit(table: Table, columns: Columns, options: ColumnOptions) -> tuple[str, list[str]]:
    """Returns the unit of the times, and notes on how it is known.

    Raises:
        ConfigError: Neither the column's name nor an option states it.
    """
    column = columns.of["time"]
    by_name = unit_suffix(column)
    if options.time_unit is not None:
        differs = by_name not in (None, options.time_unit)
        note = f"times of `{column}` taken in {options.time_unit} as given"
        return options.time_unit, [note] if differs else []
    if by_name is not None:
        return by_name, []
    if columns.aiconfigurator and column == "latency":
        return "ms", ["recognised as a table of aiconfigurator: `latency` is in ms"]
    raise table.header_error(
        column,
        "the unit of the times is not known; pass --time-unit s, ms, us or ns, "
        f"or call the column `{snake_case(column)}_us`",
    )


def size_unit(table: Table, columns: Columns, options: ColumnOptions) -> tuple[str, list[str]]:
    """Returns `bytes` or `elements` for the message sizes, and notes on how it is known.

    Raises:
        ConfigError: Neither the column's name nor an option states it.
    """
    column = columns.of["size"]
    plain = snake_case(column)
    by_name = (
        "bytes"
        if plain in _SIZE_IN_BYTES or plain.endswith("_bytes")
        else "elements"
        if plain in _SIZE_IN_ELEMENTS or plain.endswith("_elements")
        else None
    )
    if options.size_unit is not None:
        differs = by_name not in (None, options.size_unit)
        note = f"sizes of `{column}` taken in {options.size_unit} as given"
        return options.size_unit, [note] if differs else []
    if by_name is not None:
        return by_name, []
    if columns.aiconfigurator and column == "message_size":
        return "elements", ["recognised as a table of aiconfigurator: `message_size` in elements"]
    raise table.header_error(
        column,
        "the unit of the sizes is not known; pass --size-unit bytes or elements, "
        "or call the column `size_bytes`",
    )


def unit_suffix(column: str) -> str | None:
    """Returns the unit of time at the end of a column's name, or None."""
    _, separator, suffix = snake_case(column).rpartition("_")
    return UNIT_OF_SUFFIX.get(suffix) if separator else None


def _named(table: Table, wanted: Sequence[str], options: ColumnOptions) -> dict[str, str]:
    for ours, column in options.columns.items():
        if ours not in wanted:
            raise ConfigError(
                f"--column {ours}={column}: `{ours}` is not read here; {hint(ours, wanted)}"
            )
        if column not in table.columns:
            raise ConfigError(
                f"{table.origin.file}: --column {ours}={column}: no column is called "
                f"`{column}`; {hint(column, table.columns)}"
            )
    return dict(options.columns)


def _fitting(ours: str, table: Table) -> list[str]:
    if ours == "time":
        return [name for name in table.columns if _TIME.fullmatch(snake_case(name))]
    if ours != "size":
        return table.named(USUAL_NAMES[ours])
    # A column in bytes needs no further column, so it is preferred where a file has several.
    sizes = (_SIZE_IN_BYTES, _SIZE_UNIT_UNKNOWN, _SIZE_IN_ELEMENTS)
    return next(filter(None, map(table.named, sizes)), [])


def _missing(table: Table, missing: Sequence[str]) -> ConfigError:
    spelled = {
        **USUAL_NAMES,
        "time": _TIME_SHOWN,
        "size": (*_SIZE_IN_BYTES[:3], *_SIZE_UNIT_UNKNOWN[:1], _SIZE_IN_ELEMENTS[0]),
    }
    usual = "; ".join(f"`{ours}` (recognised: {', '.join(spelled[ours])})" for ours in missing)
    found = ", ".join(f"`{name}`" for name in table.columns) or "none"
    advice = f"name a column with --column {missing[0]}=NAME"
    if missing[0] in _OPTION_FOR:
        advice += f", or say it for the whole file with {_OPTION_FOR[missing[0]]}"
    return table.header_error(
        missing[0], f"missing columns: {usual}; the file has {found}; {advice}"
    )
