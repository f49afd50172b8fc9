"""The parts of a plan that sit on one rank each, as arrays: what moves without a new cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType
from dse.solver._assignment import Assignment
from dse.solver._catalogue import Reach

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.solver._catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class Pieces:
    """Movable parts and what they rest on.

    Attributes:
        table: Table of each part; shape `(parts,)`.
        offset: Which part of its table it is; shape `(parts,)`.
        rank: Where it sits; shape `(parts,)`.
        node: The node it may not leave, or -1; shape `(parts,)`.
        loads: Additive loads and, last, bytes; shape `(loads + 1, parts)`.
        fixed: The same of everything that cannot be moved; shape `(loads + 1, ranks)`.
    """

    table: NDArray[np.int64]
    offset: NDArray[np.int64]
    rank: NDArray[np.int64]
    node: NDArray[np.int64]
    loads: NDArray[np.float64]
    fixed: NDArray[np.float64]

    def moved(self, base: Assignment, rank: NDArray[np.int64]) -> Assignment:
        """Returns the plan in which the parts sit on other ranks."""
        places = list(base.places)
        for index in np.flatnonzero(rank != self.rank).tolist():
            table, offset = int(self.table[index]), int(self.offset[index])
            where = places[table]
            places[table] = (*where[:offset], int(rank[index]), *where[offset + 1 :])
        return Assignment(base.cuts, tuple(places))


def pieces_of(assignment: Assignment, catalogue: Catalogue) -> Pieces:
    """Returns the movable parts of a plan."""
    request = catalogue.request
    base_bytes = catalogue.scorer.memory_bytes_without_tables
    rows: list[tuple[int, int, int, int]] = []
    loads: list[NDArray[np.float64]] = []
    fixed: NDArray[np.float64] | None = None
    for table, (number, places) in enumerate(zip(assignment.cuts, assignment.places, strict=True)):
        cut = catalogue.cuts[number]
        if fixed is None:
            fixed = np.zeros((cut.costs.shape[1], request.world_size))
            fixed[-1] = base_bytes
        if cut.reach is Reach.ALL:
            fixed += cut.costs[0][:, None]
        elif cut.reach is Reach.NODE:
            for node, costs in zip(places, cut.costs, strict=True):
                start = node * request.devices_per_node
                fixed[:, start : start + request.local_size] += costs[:, None]
        else:
            stays = cut.key.kind is ShardingType.TABLE_COLUMN_WISE
            for offset, rank in enumerate(places):
                node = rank // request.devices_per_node if stays else -1
                rows.append((table, offset, rank, node))
            loads.append(cut.costs)
    table_of, offset_of, rank_of, node_of = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    if fixed is None:
        raise ValueError("a plan has at least one table")
    stacked = np.concatenate(loads).T if loads else np.zeros((len(fixed), 0))
    return Pieces(table_of, offset_of, rank_of, node_of, np.ascontiguousarray(stacked), fixed)
