"""Constraint files (YAML or JSON), and the short forms of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from dse._text.suggest import hint
from dse.config import (
    MAX_COUNT,
    MAX_RANKS,
    Document,
    Number,
    StrictModel,
    WholeNumber,
    key_places,
    parse_document,
    read_source,
)
from dse.errors import ConfigError
from dse.sharding._kernels import KernelName, kernel_problem, refused_kernels
from dse.sharding._plan import ComputeKernel, ShardingType
from dse.sharding.constraints._types import TableConstraints

if TYPE_CHECKING:
    from pathlib import Path

Value = TypeVar("Value")

_Rank = Annotated[WholeNumber, Field(ge=0, lt=MAX_RANKS)]
_Count = Annotated[WholeNumber, Field(ge=0, le=MAX_COUNT)]
TablePattern = Annotated[str, Field(min_length=1, max_length=1000)]


class TableConstraintsBlock(StrictModel):
    """Constraints on the tables that a pattern matches; names as in TorchRec.

    Attributes:
        sharding_types: Sharding types that may be used.
        compute_kernels: Compute kernels that may be used.
        ranks: The only ranks that may hold a shard.
    """

    described_by: ClassVar = TableConstraints

    sharding_types: Annotated[list[ShardingType], Field(min_length=1)] | None = None
    compute_kernels: Annotated[list[KernelName], Field(min_length=1)] | None = None
    ranks: Annotated[list[_Rank], Field(min_length=1)] | None = None
    min_partition: Annotated[WholeNumber, Field(ge=1, le=MAX_COUNT)] | None = None
    max_partitions: Annotated[WholeNumber, Field(ge=1, le=MAX_COUNT)] | None = None
    cache_load_factor: Annotated[Number, Field(gt=0, le=1)] | None = None
    hot_rows: Annotated[list[_Count], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> TableConstraintsBlock:
        if not self.model_fields_set:
            raise PydanticCustomError("empty", "no constraint is given; expected at least one key")
        return self

    def to_constraints(self, pattern: str, origin: str) -> TableConstraints:
        """Returns the constraints on tables that match a pattern; `origin` is for messages."""
        return TableConstraints(
            tables=pattern,
            allowed_types=_set(self.sharding_types),
            allowed_kernels=_set(self.compute_kernels),
            pinned_ranks=_set(self.ranks),
            min_partition=self.min_partition,
            max_partitions=self.max_partitions,
            cache_load_factor=self.cache_load_factor,
            hot_rows=_set(self.hot_rows),
            origin=origin,
        )


class ConstraintsDocument(Document):
    """Constraints by table name or shell pattern.

    Attributes:
        tables: Constraints by the name of a table, or a pattern such as `cat_*`.
    """

    called: ClassVar = "a file of constraints"

    tables: Annotated[dict[TablePattern, TableConstraintsBlock], Field(min_length=1)]


def read_constraints(path: str | Path) -> tuple[TableConstraints, ...]:
    """Reads a file of constraints; each of them has its line as origin.

    Raises:
        ConfigError: The file is missing or wrong; every problem is listed with its place.
    """
    source = read_source(path)
    document = parse_document(source.text, ConstraintsDocument, file=str(path))
    places = key_places(source.text, file=str(path))
    return tuple(
        block.to_constraints(pattern, places.get(("tables", pattern), str(path)))
        for pattern, block in document.tables.items()
    )


def parse_pin(text: str) -> TableConstraints:
    """Reads `TABLE=RANK` or `TABLE=RANK,RANK` of the command line.

    Raises:
        ConfigError: It is not of that form.
    """
    table, ranks = _sides("--pin", text, "TABLE=RANK, for example cat_3=0")
    try:
        chosen = frozenset(int(rank) for rank in ranks)
    except ValueError:
        raise ConfigError(f"--pin {text}: ranks are whole numbers, for example cat_3=0") from None
    return TableConstraints(table, pinned_ranks=chosen, origin=f"--pin {text}")


def parse_allow(text: str) -> TableConstraints:
    """Reads `TABLE=TYPE,KERNEL,…` of the command line: sharding types and compute kernels.

    Raises:
        ConfigError: It is not of that form, or a name is neither a type nor a kernel.
    """
    table, names = _sides("--allow", text, "TABLE=TYPE,… for example cat_3=row_wise,column_wise")
    types = {kind.value: kind for kind in ShardingType}
    kernels = {kernel.value: kernel for kernel in ComputeKernel}
    for name in names:
        if name in refused_kernels():
            raise ConfigError(f"--allow {text}: {kernel_problem(name)}")
        if name not in types and name not in kernels:
            raise ConfigError(
                f"--allow {text}: `{name}` is neither a sharding type nor a compute kernel; "
                f"{hint(name, [*types, *kernels])}"
            )
    return TableConstraints(
        table,
        allowed_types=_set([types[name] for name in names if name in types]),
        allowed_kernels=_set([kernels[name] for name in names if name in kernels]),
        origin=f"--allow {text}",
    )


def _sides(option: str, text: str, form: str) -> tuple[str, list[str]]:
    # A pattern may hold an equals sign in brackets; what is allowed never does.
    table, _, right = text.rpartition("=")
    names = [name.strip() for name in right.split(",") if name.strip()]
    if not table.strip() or not names:
        raise ConfigError(f"{option} {text}: expected {form}")
    return table.strip(), names


def _set(values: list[Value] | None) -> frozenset[Value] | None:
    return frozenset(values) if values else None
