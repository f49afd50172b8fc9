"""Dealing the parts of a few ranks out anew, as a small mixed-integer linear program.

Parts of some ranks are freed, all else stays. The program makes the sum of the largest loads, at
what they cost, as small as possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._pieces import Pieces

#: Nodes of the branch-and-bound tree: a limit that, unlike time, gives the same answer always.
_NODE_LIMIT = 40

#: Most parts that are freed.
_MAX_PARTS = 48


def dealt_anew(
    pieces: Pieces,
    freed: NDArray[np.int64],
    weights: NDArray[np.float64],
    memory_bytes: float,
    devices_per_node: int,
    time_limit_s: float | None = None,
) -> NDArray[np.int64] | None:
    """Returns ranks of all parts with those of some ranks dealt out anew.

    Args:
        pieces: The parts, and where they sit.
        freed: Ranks whose parts may go to any of these ranks.
        weights: Seconds that one more unit of the largest of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        devices_per_node: Ranks of a full node.
        time_limit_s: Seconds that the program may take; without, its tree is limited only.

    Returns:
        Shape `(parts,)`; None when there is nothing to deal out or no answer was found.
    """
    parts = np.flatnonzero(np.isin(pieces.rank, freed))
    counted = np.flatnonzero(weights[pieces.load_of] > 0)
    costing, column = np.unique(pieces.load_of[counted], return_inverse=True)
    if not 2 <= len(parts) <= _MAX_PARTS or not len(counted) or len(freed) < 2:
        return None
    total = pieces.fixed.copy()
    others = np.setdiff1d(np.arange(len(pieces.rank)), parts)
    np.add.at(total.T, pieces.rank[others], pieces.loads[:, others].T)
    binaries = len(parts) * len(freed)
    # Scaled to the mean of the freed ranks: the solver's tolerances are absolute.
    scale = (total[:, freed].sum(axis=1) + pieces.loads[:, parts].sum(axis=1)) / len(freed)
    scale = _largest(np.maximum(scale, 1e-300)[counted], column, len(costing))
    rows = _Rows(binaries + len(costing))
    index = np.arange(binaries).reshape(len(parts), len(freed))
    for variables in index:
        rows.add(variables, np.ones(len(freed)), 1.0, 1.0)
    for way, place in enumerate(freed.tolist()):
        for number, term in zip(column.tolist(), counted.tolist(), strict=True):
            shares = np.append(pieces.loads[term, parts] / scale[number], -1.0)
            variables = np.append(index[:, way], binaries + number)
            rows.add(variables, shares, -np.inf, -total[term, place] / scale[number])
        room = (memory_bytes - total[-1, place]) / memory_bytes
        rows.add(index[:, way], pieces.loads[-1, parts] / memory_bytes, -np.inf, room)
        for table in np.unique(pieces.table[parts]).tolist():
            same = np.flatnonzero(pieces.table[parts] == table)
            if len(same) > 1:
                rows.add(index[same, way], np.ones(len(same)), -np.inf, 1.0)
    lowest = np.zeros(binaries + len(costing))
    rest = np.delete(total, freed, axis=1)
    if rest.size:
        # No largest load can be less than that of the ranks which stay as they are.
        most = _largest(rest[counted].max(axis=1), column, len(costing))
        lowest[binaries:] = most / scale
    highest = np.full(binaries + len(costing), np.inf)
    highest[:binaries] = _allowed(pieces, parts, others, freed, devices_per_node).ravel()
    costs = np.zeros(binaries + len(costing))
    costs[binaries:] = weights[costing] * scale
    limit_s = np.inf if time_limit_s is None else max(0.01, time_limit_s)
    answer = milp(
        costs / costs.sum(),
        integrality=np.append(np.ones(binaries), np.zeros(len(costing))),
        bounds=Bounds(lowest, highest),
        constraints=rows.constraint(),
        options={"node_limit": _NODE_LIMIT, "mip_rel_gap": 1e-4, "time_limit": limit_s},
    )
    if answer.x is None:
        return None
    result = pieces.rank.copy()
    result[parts] = freed[answer.x[:binaries].reshape(index.shape).argmax(axis=1)]
    return result


def _largest(
    values: NDArray[np.float64], column: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """Returns the largest value of each column."""
    largest = np.zeros(count)
    np.maximum.at(largest, column, values)
    return largest


def _allowed(
    pieces: Pieces,
    parts: NDArray[np.int64],
    others: NDArray[np.int64],
    freed: NDArray[np.int64],
    devices_per_node: int,
) -> NDArray[np.float64]:
    """Returns 1 where a part may go to a freed rank, else 0; shape `(parts, freed)`."""
    node = pieces.node[parts][:, None]
    allowed = (node < 0) | (node == freed // devices_per_node)
    if pieces.allowed is not None:
        allowed &= pieces.allowed[parts][:, freed]
    # A rank holds one part of a table; those of ranks that were not freed stay.
    held = set(zip(pieces.table[others].tolist(), pieces.rank[others].tolist(), strict=True))
    for row, table in enumerate(pieces.table[parts].tolist()):
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
        lengths = [len(variables) for variables in self._variables]
        row = np.repeat(np.arange(len(lengths)), lengths)
        places = (row, np.concatenate(self._variables))
        shape = (len(lengths), self._columns)
        matrix = coo_array((np.concatenate(self._factors), places), shape=shape).tocsr()
        return LinearConstraint(matrix, np.array(self._lower), np.array(self._upper))
