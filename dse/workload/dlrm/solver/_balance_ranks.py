"""Where movable parts are, and what every rank has to do and to hold because of it.

A load of a rank is the largest of a few sums over its parts: device memory and cache work at the
same time, so parts that wait for the one are best beside parts that wait for the other.

The value to be made small is the cost of the largest loads plus a little of the sum of squares:
the latter leads off plateaus, where several ranks are equally loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._pieces import Pieces

#: Weight of the sum of squares beside the largest loads.
_SQUARES = 0.02

#: Largest share of a load that a term has which is not looked at.
_HIDDEN_SHARE = 0.5

#: What a rank's bytes over its memory weigh against everything else.
_OVERFLOW = 1e3


class LoadedRanks:
    """Places of movable parts, and the loads of the ranks.

    Args:
        pieces: The parts.
        weights: Seconds that one more unit of the largest of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        devices_per_node: Ranks of a full node.
        stop: Says when time is over.

    Attributes:
        rank: Rank of every part and, after these, of an empty part on each rank.
    """

    def __init__(
        self,
        pieces: Pieces,
        weights: NDArray[np.float64],
        memory_bytes: float,
        devices_per_node: int,
        stop: Callable[[], bool],
    ) -> None:
        self._ranks = pieces.fixed.shape[1]
        count = len(pieces.rank)
        self._count = count
        self._limit = memory_bytes
        self._stop = stop
        # An empty part on every rank: a move is an exchange with it.
        nothing = np.zeros((len(pieces.fixed), self._ranks))
        everyone = np.arange(self._ranks)
        self._loads = np.concatenate((pieces.loads, nothing), axis=1)
        self._table = np.concatenate((pieces.table, np.full(self._ranks, -1)))
        self._node = np.concatenate((pieces.node, np.full(self._ranks, -1)))
        # Ranks that parts may go to at all; None where nothing is pinned.
        self._may_be: NDArray[np.bool_] | None = None
        if pieces.allowed is not None:
            anywhere = np.ones((self._ranks, self._ranks), dtype=bool)
            self._may_be = np.concatenate((pieces.allowed, anywhere))
        self.rank = np.concatenate((pieces.rank, everyone))
        self._node_of = everyone // devices_per_node
        self._total = pieces.fixed.copy()
        np.add.at(self._total.T, pieces.rank, pieces.loads.T)
        mean = np.maximum(self._total.mean(axis=1), 1e-300)
        # Bytes are the last load, of one term. Terms of a load stand together.
        of = np.append(pieces.load_of, len(weights))
        by_load = np.append(weights, 0.0)
        largest = np.zeros(len(by_load))
        np.maximum.at(largest, of, self._total.max(axis=1))
        if largest[-1] > memory_bytes:
            scale = float(by_load @ largest) or 1.0
            by_load[-1] = _OVERFLOW * scale / memory_bytes
        usual = np.zeros(len(by_load))
        np.maximum.at(usual, of, mean)
        # Terms far below the other one of their load are hidden: they cannot become the largest.
        matters = self._total.max(axis=1) >= _HIDDEN_SHARE * largest[of]
        self._on = np.flatnonzero((by_load[of] > 0) & matters)
        self._squares = np.zeros(len(of))
        on = of[self._on]
        self._squares[self._on] = _SQUARES * by_load[on] / (usual[on] * self._ranks)
        begins = np.ones(len(on), dtype=bool)
        begins[1:] = on[1:] != on[:-1]
        self._starts = np.flatnonzero(begins)
        self._weights = by_load[on[self._starts]]
        # Terms that count, and the load of each as a row of those that do.
        self._rows = np.arange(len(on))
        self._load_row = begins.cumsum() - 1
        # The other terms of a load besides its first one, with its row.
        self._further = [
            (int(self._load_row[term]), int(term)) for term in np.flatnonzero(~begins)
        ]
        self._counted = np.ascontiguousarray(self._loads[self._on])
        # What exchanges change in the sum of squares is made up of these.
        self._square_weights = 2.0 * self._squares[self._on, None]
        self._squared = self._square_weights * self._counted
        self._twice = 2.0 * self._counted
        self._any_bound = bool((pieces.node >= 0).any())
        cut = np.bincount(pieces.table) > 1 if count else np.zeros(0, dtype=bool)
        self._cut = np.append(cut, False)
        self._any_cut = bool(cut.any())
        self._holds = np.zeros((len(self._cut), self._ranks), dtype=np.int32)
        np.add.at(self._holds, (pieces.table, pieces.rank), 1)

    @property
    def places(self) -> NDArray[np.int64]:
        """Rank of every part; shape `(parts,)`."""
        return self.rank[: self._count].copy()

    def value(self) -> float:
        """Returns what is made small."""
        largest = self._by_load(self._total[self._on].max(axis=1))
        return float(self._weights @ largest + self._squares @ (self._total**2).sum(axis=1))

    def _by_load(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the larger of the terms of each load that counts, along the first axis."""
        if len(self._starts) == len(self._on):
            return terms
        largest = terms[self._starts]
        for row, term in self._further:
            np.maximum(largest[row], terms[term], out=largest[row, ...])
        return largest

    def _critical(self, total: NDArray[np.float64]) -> NDArray[np.int64]:
        """Ranks that are the most loaded in a respect that costs something.

        Args:
            total: Loads that count; shape `(loads, ranks)`.
        """
        if not len(self._on):
            return np.array([int(np.argmax(self._total[-1]))])
        ranks = total.argmax(axis=1)
        most = total[self._rows, ranks]
        binding = most >= self._by_load(most)[self._load_row]
        return np.array(sorted(set(ranks[binding].tolist())))

    def _may_go(self, part: int, target: int) -> bool:
        node = self._node[part]
        if node >= 0 and self._node_of[target] != node:
            return False
        if self._may_be is not None and not self._may_be[part, target]:
            return False
        table = self._table[part]
        return not (self._cut[table] and self._holds[table, target])

    def _has_room(self, part: int, target: int) -> bool:
        return bool(self._total[-1, target] + self._loads[-1, part] <= self._limit)

    def _move(self, part: int, target: int) -> None:
        source = self.rank[part]
        if self._table[part] < 0:
            return
        self._total[:, source] -= self._loads[:, part]
        self._total[:, target] += self._loads[:, part]
        self._holds[self._table[part], source] -= 1
        self._holds[self._table[part], target] += 1
        self.rank[part] = target

    def _save(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]:
        return self.rank.copy(), self._total.copy(), self._holds.copy()

    def _restore(
        self, saved: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]
    ) -> None:
        rank, total, holds = saved
        self.rank, self._total, self._holds = rank.copy(), total.copy(), holds.copy()
