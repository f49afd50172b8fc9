"""Moving the parts of a plan between ranks until no exchange of a few of them helps.

What the largest of each load costs is known around the present plan, so an exchange is judged in
closed form: all exchanges of one part of a critical rank (the most loaded in some respect) with
any part elsewhere, or with nothing, in one expression. The full model judges the outcome, not the
steps. Loads and what is made small are in :mod:`dse.workload.dlrm.solver._balance_ranks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm.solver._balance_chains import ChainMover

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Least relative gain of a step; smaller ones are rounding.
_LEAST_GAIN = 1e-7

#: Values that are looked at together; they should stay in the cache.
_BLOCK_VALUES = 30_000

#: Best exchanges that are looked at one by one before all are checked.
_LIKELY = 4


class Balancer(ChainMover):
    """Balances parts under linear loads.

    Args:
        pieces: The parts.
        weights: Seconds that one more unit of the largest of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        devices_per_node: Ranks of a full node.
        stop: Says when time is over.
    """

    def descend(self, max_steps: int, *, chains: bool = True) -> None:
        """Takes the best exchange, or chain of two moves, again and again until none helps."""
        for _ in range(max_steps):
            if self._stop() or not (self._exchange() or (chains and self._chain())):
                return

    def improve(self, rng: np.random.Generator, kicks: int, max_steps: int) -> None:
        """Shakes a few ranks and descends, keeping what is better."""
        if self._count < 2 or self._ranks < 2:
            return
        best, value = self._save(), self.value()
        for _ in range(kicks):
            if self._stop():
                break
            self._shake(rng)
            self.descend(max_steps, chains=False)
            found = self.value()
            if found < value * (1 - _LEAST_GAIN):
                best, value = self._save(), found
            else:
                self._restore(best)

    def _shake(self, rng: np.random.Generator) -> None:
        """Deals out some parts of a critical rank and of a few others anew."""
        critical = self._critical(self._total[self._on])
        chosen = {int(critical[rng.integers(0, len(critical))])}
        chosen.update(rng.integers(0, self._ranks, 2).tolist())
        ranks = np.array(sorted(chosen))
        shaken = np.zeros(self._ranks, dtype=bool)
        shaken[ranks] = True
        movable = np.flatnonzero(shaken[self.rank[: self._count]])
        for part in rng.permutation(movable)[: rng.integers(2, 7)].tolist():
            for target in rng.permutation(ranks).tolist():
                if self._may_go(part, target) and self._has_room(part, target):
                    self._move(part, target)
                    break

    def _exchange(self) -> bool:
        """Takes the best exchange of a critical rank's part with one elsewhere, if it helps."""
        total = self._total[self._on]
        squares = float(self._squares @ (self._total**2).sum(axis=1))
        critical = self._critical(total)
        is_critical = np.zeros(self._ranks, dtype=bool)
        is_critical[critical] = True
        here = np.flatnonzero(is_critical[self.rank])
        source, target = self.rank[here], self.rank
        after = self._after_exchange(critical, here, source, total, squares)
        after[source[:, None] == target] = np.inf
        value = float(self._weights @ self._by_load(total.max(axis=1)) + squares)
        enough = value * (1.0 - _LEAST_GAIN)
        # Most of the best ones are possible: all are looked at only where the first few are not.
        for _ in range(_LIKELY):
            index = int(after.argmin())
            if not after.flat[index] < enough:
                return False
            row, second = divmod(index, len(target))
            if self._may_swap(int(here[row]), second):
                break
            after.flat[index] = np.inf
        else:
            after[~self._may_exchange(here, source)] = np.inf
            index = int(after.argmin())
            if not after.flat[index] < enough:
                return False
            row, second = divmod(index, len(target))
        first = int(here[row])
        from_rank, to_rank = int(source[row]), int(target[second])
        self._move(first, to_rank)
        self._move(second, from_rank)
        return True

    def _may_swap(self, first: int, second: int) -> bool:
        """Says whether two parts on different ranks may change places."""
        here, there = int(self.rank[first]), int(self.rank[second])
        if not (self._may_go(first, there) and self._may_go(second, here)):
            return False
        less = self._loads[-1, first] - self._loads[-1, second]
        held = self._total[-1]
        if less > 0:
            return bool(held[there] + less <= self._limit)
        return bool(less == 0 or held[here] - less <= self._limit)

    def _after_exchange(
        self,
        critical: NDArray[np.int64],
        here: NDArray[np.int64],
        source: NDArray[np.int64],
        total: NDArray[np.float64],
        squares: float,
    ) -> NDArray[np.float64]:
        """Returns the values after all exchanges of parts of `here` with any part.

        Args:
            critical: Ranks.
            here: Their parts.
            source: The ranks of these.
            total: Loads that count; shape `(loads, ranks)`.
            squares: The sum of squares in the present value.

        Returns:
            Shape `(here, parts)`.
        """
        target = self.rank
        mine, theirs = self._counted[:, here], self._counted
        squared_mine, squared_theirs = self._squared[:, here], self._squared
        at_source, at_target = total[:, source], total[:, target]
        # With less = mine - theirs, the squares change by 2 · less · (less + target - source).
        after = squared_mine.T @ (at_target - self._twice)
        after += (self._square_weights * at_source).T @ theirs
        left, taken = at_source - mine, at_target - theirs
        after -= np.add.reduce(squared_mine * left, axis=0)[:, None]
        after -= np.add.reduce(squared_theirs * taken, axis=0)
        after += squares
        rest = np.take(self._rest(critical, total), target, axis=2)
        row_of = np.searchsorted(critical, source)
        block = max(1, _BLOCK_VALUES // max(1, len(total) * len(target)))
        for start in range(0, len(here), block):
            rows = slice(start, start + block)
            largest = left[:, rows, None] + theirs[:, None]
            others = rest if len(critical) == 1 else rest[:, row_of[rows]]
            np.maximum(largest, others, out=largest)
            np.maximum(largest, mine[:, rows, None] + taken[:, None], out=largest)
            largest = self._by_load(largest)
            shape = largest.shape[1:]
            after[rows] += (self._weights @ largest.reshape(len(largest), -1)).reshape(shape)
        return np.asarray(after)

    def _rest(
        self, critical: NDArray[np.int64], total: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Returns the largest loads of all ranks but two: a critical one and any other.

        Args:
            critical: Ranks.
            total: Loads that count; shape `(loads, ranks)`.

        Returns:
            Shape `(loads, critical ranks, ranks)`; minus infinity where no rank is left.
        """
        count, ranks = total.shape
        others = np.repeat(total, len(critical), axis=0)
        every = np.arange(len(others))
        others.reshape(count, len(critical), ranks)[:, every[: len(critical)], critical] = -np.inf
        most = others.argmax(axis=1)
        largest = others[every, most]
        others[every, most] = -np.inf
        rest = np.repeat(largest[:, None], ranks, axis=1)
        rest[every, most] = others.max(axis=1)
        return rest.reshape(count, len(critical), ranks)

    def _may_exchange(
        self, here: NDArray[np.int64], source: NDArray[np.int64], other: int | None = None
    ) -> NDArray[np.bool_]:
        """Says which parts of `here` may change places with which parts; shape `(here, parts)`.

        Args:
            here: Parts.
            source: Their ranks.
            other: Only this part is asked for; all when None.
        """
        others = slice(None) if other is None else slice(other, other + 1)
        target, theirs = self.rank[others], self._table[others]
        allowed = source[:, None] != target
        if self._any_bound:
            bound, bound_there = self._node[here], self._node[others]
            allowed &= (bound[:, None] < 0) | (bound[:, None] == self._node_of[target])
            allowed &= (bound_there < 0) | (bound_there == self._node_of[source][:, None])
        if self._may_be is not None:
            allowed &= self._may_be[here][:, target]
            allowed &= self._may_be[others][:, source].T
        if self._any_cut:
            mine = self._table[here]
            allowed &= ~(self._cut[mine][:, None] & (self._holds[mine][:, target] > 0))
            allowed &= ~(self._cut[theirs] & (self._holds[theirs][:, source] > 0).T)
        held = self._total[-1]
        less = self._loads[-1, here, None] - self._loads[-1, others]
        allowed &= (less >= 0) | (held[source][:, None] - less <= self._limit)
        allowed &= (less <= 0) | (held[target] + less <= self._limit)
        return np.asarray(allowed)
