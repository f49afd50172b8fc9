"""Repacking a few ranks by a mixed-integer linear program: large neighbourhood search.

The shards of some ranks are freed, all others stay. The program minimizes the weighted sum of the
largest loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from scipy.optimize import LinearConstraint

    from dse.workload.dlrm.solver.moves._shards import MovableShards

#: Nodes of the branch-and-bound tree. Unlike a time limit, this gives reproducible answers.
_NODE_LIMIT = 40

#: Most shards that are freed.
_MAX_SHARDS = 48


def repack(
    shards: MovableShards,
    freed: NDArray[np.int64],
    weights: NDArray[np.float64],
    memory_bytes: float,
    devices_per_node: int,
    time_limit_s: float | None = None,
) -> NDArray[np.int64] | None:
    """Repacks the shards of some ranks and returns the ranks of all shards.

    Args:
        shards: The shards, and where they sit.
        freed: Ranks whose shards may go to any of these ranks.
        weights: Seconds that one more unit of the largest of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        devices_per_node: Ranks of a full node.
        time_limit_s: Seconds that the program may take; without, only its tree is limited.

    Returns:
        Shape `(shards,)`; None when there is nothing to repack or no solution was found.
    """
    moving = np.flatnonzero(np.isin(shards.rank, freed))
    counted = np.flatnonzero(weights[shards.load_of] > 0)
    costing, column = np.unique(shards.load_of[counted], return_inverse=True)
    if not 2 <= len(moving) <= _MAX_SHARDS or not len(counted) or len(freed) < 2:
        return None
    total = shards.fixed.copy()
    others = np.setdiff1d(np.arange(len(shards.rank)), moving)
    np.add.at(total.T, shards.rank[others], shards.loads[:, others].T)
    binaries = len(moving) * len(freed)
    # Scaled to the mean of the freed ranks: the tolerances of HiGHS are absolute.
    scale = (total[:, freed].sum(axis=1) + shards.loads[:, moving].sum(axis=1)) / len(freed)
    scale = _largest(np.maximum(scale, 1e-300)[counted], column, len(costing))
    rows = _Rows(binaries + len(costing))
    index = np.arange(binaries).reshape(len(moving), len(freed))
    for variables in index:
        rows.add(variables, np.ones(len(freed)), 1.0, 1.0)
    for way, place in enumerate(freed.tolist()):
        for number, term in zip(column.tolist(), counted.tolist(), strict=True):
            shares = np.append(shards.loads[term, moving] / scale[number], -1.0)
            variables = np.append(index[:, way], binaries + number)
            rows.add(variables, shares, -np.inf, -total[term, place] / scale[number])
        room = (memory_bytes - total[-1, place]) / memory_bytes
        rows.add(index[:, way], shards.loads[-1, moving] / memory_bytes, -np.inf, room)
        for table in np.unique(shards.table[moving]).tolist():
            same = np.flatnonzero(shards.table[moving] == table)
            if len(same) > 1:
                rows.add(index[same, way], np.ones(len(same)), -np.inf, 1.0)
    lowest = np.zeros(binaries + len(costing))
    rest = np.delete(total, freed, axis=1)
    if rest.size:
        # No largest load can be below that of the ranks that stay as they are.
        most = _largest(rest[counted].max(axis=1), column, len(costing))
        lowest[binaries:] = most / scale
    highest = np.full(binaries + len(costing), np.inf)
    highest[:binaries] = _allowed(shards, moving, others, freed, devices_per_node).ravel()
    costs = np.zeros(binaries + len(costing))
    costs[binaries:] = weights[costing] * scale
    limit_s = np.inf if time_limit_s is None else max(0.01, time_limit_s)
    from scipy.optimize import Bounds, milp

    answer = milp(
        costs / costs.sum(),
        integrality=np.append(np.ones(binaries), np.zeros(len(costing))),
        bounds=Bounds(lowest, highest),
        constraints=rows.constraint(),
        options={"node_limit": _NODE_LIMIT, "mip_rel_gap": 1e-4, "time_limit": limit_s},
    )
    if answer.x is None:
        return None
    result = shards.rank.copy()
    result[moving] = freed[answer.x[:binaries].reshape(index.shape).argmax(axis=1)]
    return result


def _largest(
    values: NDArray[np.float64], column: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """Returns the largest value of each column."""
    largest = np.zeros(count)
    np.maximum.at(largest, column, values)
    return largest


def _allowed(
    shards: MovableShards,
    moving: NDArray[np.int64],
    others: NDArray[np.int64],
    freed: NDArray[np.int64],
    devices_per_node: int,
) -> NDArray[np.float64]:
    """Returns 1 where a shard may go to a freed rank, else 0; shape `(moving, freed)`."""
    node = shards.node[moving][:, None]
    allowed = (node < 0) | (node == freed // devices_per_node)
    if shards.allowed is not None:
        allowed &= shards.allowed[moving][:, freed]
    # A rank holds one shard of a table at most; shards of other ranks stay.
    held = set(zip(shards.table[others].tolist(), shards.rank[others].tolist(), strict=True))
    for row, table in enumerate(shards.table[moving].tolist()):
        for way, place in enumerate(freed.tolist()):
            allowed[row, way] &= (table, place) not in held
    return np.asarray(allowed, dtype=np.float64)


class _Rows:
    """Collects the rows of a sparse constraint matrix."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._variables: list[NDArray[np.int64]] = []
        self._factors: list[NDArray[np.float64]] = []
        self._lower: list[float] = []
        self._upper: list[float] = []

    def add(
        self,
        variables: NDArray[np.int64],
        factors: NDArray[np.float64],
        lower: float,
        upper: float,
    ) -> None:
        """Bounds a weighted sum of variables."""
        self._variables.append(variables)
        self._factors.append(factors)
        self._lower.append(lower)
        self._upper.append(upper)

    def constraint(self) -> LinearConstraint:
        """Returns all rows."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        lengths = [len(variables) for variables in self._variables]
        row = np.repeat(np.arange(len(lengths)), lengths)
        places = (row, np.concatenate(self._variables))
        shape = (len(lengths), self._columns)
        matrix = coo_array((np.concatenate(self._factors), places), shape=shape).tocsr()
        return LinearConstraint(matrix, np.array(self._lower), np.array(self._upper))
