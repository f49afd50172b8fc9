"""YAML of sequence, towers, experts and tasks, and how they have to fit the rest of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config import Count, PositiveFloat, StrictModel, WholeNumber
from dse.model._common import Name, Width
from dse.model.dlrm._architecture import Experts, SequenceLayers, Task, Tower

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MAX_PARTS = 1000

#: Layers of an MLP.
Widths = Annotated[list[Width], Field(max_length=1000)]
SomeWidths = Annotated[list[Width], Field(min_length=1, max_length=1000)]

Parts = Annotated[Count, Field(le=_MAX_PARTS)]
PartsOrNone = Annotated[WholeNumber, Field(ge=0, le=_MAX_PARTS)]


class TowerBlock(StrictModel):
    """An MLP of its own over the vectors of some tables, whose output takes their place."""

    described_by: ClassVar = Tower

    name: Name
    tables: Annotated[list[Name], Field(min_length=1, max_length=100_000)]
    mlp: SomeWidths

    def to_tower(self, names: Mapping[str, Sequence[str]]) -> Tower:
        """Returns the tower.

        Args:
            names: Names of the tables that each entry of the model's list stands for.
        """
        tables = tuple(table for name in self.tables for table in names.get(name, (name,)))
        return Tower(self.name, tables, tuple(self.mlp))


class ExpertsBlock(StrictModel):
    """Experts between the shared layers and the tasks."""

    described_by: ClassVar = Experts

    shared: PartsOrNone
    per_task: PartsOrNone = 0
    mlp: SomeWidths
    levels: Annotated[Count, Field(le=20)] = 1

    def to_experts(self) -> Experts:
        """Returns the experts."""
        return Experts(self.shared, tuple(self.mlp), self.per_task, self.levels)


class TaskBlock(StrictModel):
    """Something that the model predicts."""

    described_by: ClassVar = Task

    name: Name
    top_mlp: SomeWidths

    def to_task(self) -> Task:
        """Returns the task."""
        return Task(self.name, tuple(self.top_mlp))


class SequenceBlock(StrictModel):
    """Attention over a sample's history: the vectors of its tables without pooling."""

    described_by: ClassVar = SequenceLayers

    layers: Annotated[WholeNumber, Field(ge=0, le=1000)]
    hidden: Width
    heads: Parts
    head_dim: Width
    value_dim: Width | None = None
    input_mlp: Widths = []
    length: Annotated[PositiveFloat, Field(le=10**7)] | None = None
    max_length: Annotated[PositiveFloat, Field(le=10**7)] | None = None
    predictions: Annotated[Count, Field(le=10**6)] = 1
    concatenated: bool = False
    recompute: bool = False

    def to_sequence(self) -> SequenceLayers:
        """Returns the layers."""
        return SequenceLayers(
            self.layers,
            self.hidden,
            self.heads,
            self.head_dim,
            self.value_dim or self.head_dim,
            tuple(self.input_mlp),
            self.length,
            self.max_length,
            self.predictions,
            self.concatenated,
            self.recompute,
        )


def problem(field: tuple[str | int, ...], message: str) -> InitErrorDetails:
    """Describes a problem that concerns several fields, at the one to mend."""
    return InitErrorDetails(
        type=PydanticCustomError("model", "{message}", {"message": message}),
        loc=field,
        input=None,
    )


def wrong_towers(
    towers: Sequence[TowerBlock], names: Mapping[str, Sequence[str]]
) -> Iterator[InitErrorDetails]:
    """Yields what is wrong with the tables of towers.

    Args:
        towers: The towers.
        names: Names of the tables that each entry of the model's list stands for.
    """
    every = {table for tables in names.values() for table in tables}
    owner: dict[str, str] = {}
    for index, tower in enumerate(towers):
        for place, name in enumerate(tower.tables):
            field = ("towers", index, "tables", place)
            tables = names.get(name, (name,))
            if name not in names and name not in every:
                yield problem(field, f"the model has no table `{name}`")
            elif taken := next((table for table in tables if table in owner), None):
                other = owner[taken]
                yield problem(field, f"table `{taken}` is in tower `{other}` already")
            owner |= dict.fromkeys(tables, tower.name)


def wrong_experts(
    experts: ExpertsBlock | None, tasks: Sequence[TaskBlock]
) -> Iterator[InitErrorDetails]:
    """Yields what is wrong with experts."""
    if experts is None:
        return
    if not tasks:
        yield problem(("experts",), "experts need `tasks`, whose gates choose among them")
    elif not experts.shared + experts.per_task:
        yield problem(("experts", "shared"), "expected at least one expert a task, found none")


def repeated(field: str, names: Sequence[str]) -> Iterator[InitErrorDetails]:
    """Yields an entry of a list that has the name of an earlier one."""
    for index, name in enumerate(names):
        if name in names[:index]:
            yield problem((field, index, "name"), f"`{name}` is given twice")


def wrong_sequence(
    sequence: SequenceBlock | None,
    unpooled: Sequence[int],
    beside: Sequence[str],
    lookups: float,
) -> Iterator[InitErrorDetails]:
    """Yields what is wrong with a sequence.

    Args:
        sequence: The sequence; None without one.
        unpooled: Entries of the list of tables that are not pooled.
        beside: Other inputs of the interaction.
        lookups: Mean lookups a sample of these tables.
    """
    if sequence is None:
        for index in unpooled:
            yield problem(
                ("tables", index, "pooled"),
                "vectors of single lookups are positions of a `sequence`, and the model has none",
            )
        return
    if not unpooled:
        yield problem(
            ("sequence",), "a sequence needs tables with `pooled: false`; there are none"
        )
    length = sequence.length or lookups
    if sequence.max_length is not None and sequence.max_length < length:
        yield problem(
            ("sequence", "max_length"),
            f"expected at least the mean length, {length:g}, found {sequence.max_length:g}",
        )
    if sequence.input_mlp and sequence.input_mlp[-1] != sequence.hidden:
        yield problem(
            ("sequence", "input_mlp"),
            f"expected a last width of {sequence.hidden}, as `hidden`, found "
            f"{sequence.input_mlp[-1]}",
        )
    if sequence.predictions > 1 and beside:
        yield problem(
            ("sequence", "predictions"),
            f"several predictions a sample have the sequence alone as input; leave "
            f"{', '.join(beside)} out, or give them as positions (`pooled: false`)",
        )
