"""Chains of two moves: a part of a critical rank to another one, and one of its parts to a third.

They help where every rank that has room for a part has none for what it costs, and no exchange
with one part elsewhere makes up for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm.solver._balance_ranks import LoadedRanks

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Ranks that may take the last part of a chain of two moves: the least loaded ones.
_CHAIN_ENDS = 6

#: Most entries of the table of all chains from one rank; beyond, chains are not tried.
_MAX_CHAINS = 400_000

#: Least relative gain of a chain; smaller ones are rounding.
_LEAST_GAIN = 1e-7


class ChainMover(LoadedRanks):
    """Moves parts in chains; arguments are :class:`LoadedRanks`'s."""

    def _chain(self) -> bool:
        """Takes the best pair of moves from a critical rank over another one to a third."""
        if self._ranks < 3:
            return False
        weighted = self._weights @ self._by_load(self._total[self._on])
        ends = np.argsort(weighted, kind="stable")[:_CHAIN_ENDS]
        value = self.value()
        best_gain, best = 0.0, (-1, -1, -1)
        for source in self._critical(self._total[self._on]).tolist():
            here = np.flatnonzero(self.rank[: self._count] == source)
            pushed = np.flatnonzero(self.rank[: self._count] != source)
            if not len(here) or not len(pushed) or len(here) * len(pushed) > _MAX_CHAINS:
                continue
            middle = self.rank[pushed]
            way_in = self._allowed(here, middle)
            for end in ends.tolist():
                out = self._allowed_back(pushed, end) & (middle != end)
                if end == source or not out.any():
                    continue
                after, fits = self._after_chain(source, here, pushed, end)
                gains = np.where(way_in & out & fits, value - after, -np.inf)
                index = int(np.argmax(gains))
                if gains.flat[index] > best_gain:
                    row, column = divmod(index, len(pushed))
                    best_gain = float(gains.flat[index])
                    best = (int(here[row]), int(pushed[column]), end)
        if best_gain <= _LEAST_GAIN * value:
            return False
        first, second, end = best
        middle_rank = int(self.rank[second])
        self._move(second, end)
        self._move(first, middle_rank)
        return True

    def _after_chain(
        self, source: int, here: NDArray[np.int64], pushed: NDArray[np.int64], end: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns the values after all chains to one end, and whether memory allows them."""
        middle = self.rank[pushed]
        total, loads = self._total, self._loads
        result = np.full((len(here), len(pushed)), self._squares @ (self._total**2).sum(axis=1))
        found = np.zeros((len(self._on), *result.shape))
        for row, load in enumerate(self._on.tolist()):
            at_source = (total[load, source] - loads[load, here])[:, None]
            at_middle = total[load, middle] + loads[load, here, None] - loads[load, pushed]
            at_end = total[load, end] + loads[load, pushed]
            rest = self._largest_without(load, (np.array(source), middle, np.array(end)))
            np.maximum(at_middle, np.maximum(np.maximum(at_source, at_end), rest), out=found[row])
            before = total[load, source] ** 2 + total[load, middle] ** 2 + total[load, end] ** 2
            squares = at_source * at_source + at_middle * at_middle + at_end * at_end - before
            result += self._squares[load] * squares
        result += np.tensordot(self._weights, self._by_load(found), 1)
        at_middle = total[-1, middle] + loads[-1, here, None] - loads[-1, pushed]
        at_end = total[-1, end] + loads[-1, pushed]
        fits = (at_middle <= np.maximum(self._limit, total[-1, middle])) & (at_end <= self._limit)
        return result, np.asarray(fits)

    def _largest_without(
        self, load: int, without: tuple[NDArray[np.int64], ...]
    ) -> NDArray[np.float64]:
        """Returns the largest load of all ranks but some, in the shape the ranks broadcast to."""
        keep = min(len(without) + 1, self._ranks)
        top = np.argpartition(-self._total[load], keep - 1)[:keep]
        top = top[np.argsort(-self._total[load, top], kind="stable")]
        shape = np.broadcast_shapes(*(ranks.shape for ranks in without))
        largest = np.full(shape, -np.inf)
        for rank in reversed(top.tolist()):
            taken = np.zeros(shape, dtype=bool)
            for ranks in without:
                taken |= ranks == rank
            largest = np.where(taken, largest, self._total[load, rank])
        return largest

    def _allowed(self, parts: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Says which parts may go to which ranks; shape `(parts, ranks)`."""
        node, table = self._node[parts], self._table[parts]
        stays = (node[:, None] < 0) | (node[:, None] == self._node_of[target])
        if self._may_be is not None:
            stays &= self._may_be[parts][:, target]
        twice = self._cut[table][:, None] & (self._holds[table][:, target] > 0)
        return np.asarray(stays & ~twice)

    def _allowed_back(self, parts: NDArray[np.int64], source: int) -> NDArray[np.bool_]:
        return self._allowed(parts, np.array([source]))[:, 0]
