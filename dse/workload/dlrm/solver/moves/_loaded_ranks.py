"""Places of movable shards, and the loads of all ranks.

A load of a rank is the largest of a few sums over its shards. Device memory and cache work at the
same time, so shards that wait for memory are best placed with shards that wait for cache.

The objective is the cost of the largest loads plus a small share of the sum of squares. The
squares lead off plateaus, where several ranks are equally loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver.moves._shards import MovableShards

#: Weight of the sum of squares against the largest loads.
_SQUARES = 0.02

#: Terms below this share of their load are ignored.
_HIDDEN_SHARE = 0.5

#: Weight of bytes beyond a rank's memory against all other costs.
_OVERFLOW = 1e3


class LoadedRanks:
    """Places of movable shards, and the loads of the ranks.

    Args:
        shards: The shards.
        weights: Seconds that one more unit of the largest of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        devices_per_node: Ranks of a full node.
        stop: Returns whether time is over.

    Attributes:
        rank: Rank of every shard and, after these, of an empty shard on each rank.
    """

    def __init__(
        self,
        shards: MovableShards,
        weights: NDArray[np.float64],
        memory_bytes: float,
        devices_per_node: int,
        stop: Callable[[], bool],
    ) -> None:
        self._ranks = shards.fixed.shape[1]
        count = len(shards.rank)
        self._count = count
        self._limit = memory_bytes
        self._stop = stop
        # An empty shard on every rank: a move is an exchange with it.
        nothing = np.zeros((len(shards.fixed), self._ranks))
        everyone = np.arange(self._ranks)
        self._loads = np.concatenate((shards.loads, nothing), axis=1)
        self._table = np.concatenate((shards.table, np.full(self._ranks, -1)))
        self._node = np.concatenate((shards.node, np.full(self._ranks, -1)))
        # Ranks that shards may go to at all; None where nothing is pinned.
        self._may_be: NDArray[np.bool_] | None = None
        if shards.allowed is not None:
            anywhere = np.ones((self._ranks, self._ranks), dtype=bool)
            self._may_be = np.concatenate((shards.allowed, anywhere))
        self.rank = np.concatenate((shards.rank, everyone))
        self._node_of = everyone // devices_per_node
        self._total = shards.fixed.copy()
        np.add.at(self._total.T, shards.rank, shards.loads.T)
        mean = np.maximum(self._total.mean(axis=1), 1e-300)
        # Bytes are the last load, with one term. Terms of a load are adjacent.
        of = np.append(shards.load_of, len(weights))
        by_load = np.append(weights, 0.0)
        largest = np.zeros(len(by_load))
        np.maximum.at(largest, of, self._total.max(axis=1))
        if largest[-1] > memory_bytes:
            scale = float(by_load @ largest) or 1.0
            by_load[-1] = _OVERFLOW * scale / memory_bytes
        usual = np.zeros(len(by_load))
        np.maximum.at(usual, of, mean)
        # Terms far below the largest of their load are hidden: they cannot become the largest.
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
        # The change of the sum of squares by an exchange is composed of these.
        self._squared = 2.0 * self._squares[self._on, None] * self._counted
        self._twice = 2.0 * self._counted
        self._own_squares = (self._squared * self._counted).sum(axis=0)
        self._any_bound = bool((shards.node >= 0).any())
        # No rank holds less of a load than the mean, than its fixed part, or than one shard.
        shard, fixed = (
            part[self._on].max(axis=1, initial=0.0) for part in (shards.loads, shards.fixed)
        )
        self._least = np.maximum(np.maximum(shard, fixed), mean[self._on])
        cut = np.bincount(shards.table) > 1 if count else np.zeros(0, dtype=bool)
        self._cut = np.append(cut, False)
        self._any_cut = bool(cut.any())
        self._holds = np.zeros((len(self._cut), self._ranks), dtype=np.int32)
        np.add.at(self._holds, (shards.table, shards.rank), 1)

    @property
    def places(self) -> NDArray[np.int64]:
        """Rank of every shard; shape `(shards,)`."""
        return self.rank[: self._count].copy()

    def value(self) -> float:
        """Returns the objective."""
        largest = self._by_load(self._total[self._on].max(axis=1))
        return float(self._weights @ largest + self._squares @ (self._total**2).sum(axis=1))

    def most_gain_s(self) -> float:
        """Returns what other places may save at most, if all ranks have room."""
        largest = self._by_load(self._total[self._on].max(axis=1))
        return float(self._weights @ (largest - self._by_load(self._least)))

    def _by_load(self, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the larger of the terms of each load that counts, along the first axis."""
        if len(self._starts) == len(self._on):
            return terms
        largest = terms[self._starts]
        for row, term in self._further:
            np.maximum(largest[row], terms[term], out=largest[row, ...])
        return largest

    def _critical(self, total: NDArray[np.float64]) -> NDArray[np.int64]:
        """Returns the ranks with the largest of some load that costs time.

        Args:
            total: Loads that count; shape `(loads, ranks)`.
        """
        if not len(self._on):
            return np.array([int(np.argmax(self._total[-1]))])
        ranks = total.argmax(axis=1)
        most = total[self._rows, ranks]
        binding = most >= self._by_load(most)[self._load_row]
        return np.array(sorted(set(ranks[binding].tolist())))

    def _may_go(self, shard: int, target: int) -> bool:
        node = self._node[shard]
        if node >= 0 and self._node_of[target] != node:
            return False
        if self._may_be is not None and not self._may_be[shard, target]:
            return False
        table = self._table[shard]
        return not (self._cut[table] and self._holds[table, target])

    def _has_room(self, shard: int, target: int) -> bool:
        return bool(self._total[-1, target] + self._loads[-1, shard] <= self._limit)

    def _move(self, shard: int, target: int) -> None:
        source = self.rank[shard]
        if self._table[shard] < 0:
            return
        self._total[:, source] -= self._loads[:, shard]
        self._total[:, target] += self._loads[:, shard]
        self._holds[self._table[shard], source] -= 1
        self._holds[self._table[shard], target] += 1
        self.rank[shard] = target

    def _save(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]:
        return self.rank.copy(), self._total.copy(), self._holds.copy()

    def _restore(
        self, saved: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]
    ) -> None:
        rank, total, holds = saved
        self.rank, self._total, self._holds = rank.copy(), total.copy(), holds.copy()
