"""Sharding plans inside the search: the cut of every table, and the places of its shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dse.sharding import ShardingPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.dlrm.solver._options import ShardingOptions


class Change(NamedTuple):
    """A different cut or different places of one table."""

    table: int
    cut: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A plan: the cut of every table, and the places of its shards.

    Attributes:
        cuts: Number of the cut in :class:`ShardingOptions`, by table.
        places: Ranks or nodes of the shards, by table; empty for cuts on all ranks.
    """

    cuts: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]

    def changed(self, changes: Sequence[Change]) -> Assignment:
        """Returns the plan with some tables placed differently."""
        cuts, places = list(self.cuts), list(self.places)
        for table, cut, where in changes:
            cuts[table], places[table] = cut, where
        return Assignment(tuple(cuts), tuple(places))


def from_plan(plan: ShardingPlan, options: ShardingOptions) -> Assignment:
    """Converts a checked plan."""
    placed = [options.key_and_places(index, table) for index, table in enumerate(plan.tables)]
    return Assignment(
        tuple(options.ids(key for key, _ in placed)), tuple(places for _, places in placed)
    )


def to_plan(assignment: Assignment, options: ShardingOptions) -> ShardingPlan:
    """Converts an assignment back to a plan."""
    tables = zip(assignment.cuts, assignment.places, strict=True)
    return ShardingPlan(
        options.request.world_size, tuple(options.plan(cut, places) for cut, places in tables)
    )
