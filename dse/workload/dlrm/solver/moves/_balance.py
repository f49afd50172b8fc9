"""Balancing: exchanges of shards between ranks until none of a few shards helps.

What the largest of each load costs is known around the present plan, so an exchange is judged in
closed form: all exchanges of a shard of a critical rank (the most loaded in some respect) with
any shard elsewhere, or with nothing, in one expression. The full model judges the outcome, not the
steps.

Chains of two moves send a shard of a critical rank to a second rank, and one of that rank's shards
to a third. They help where every rank that has room for a shard has none for what it costs, and no
exchange with one shard elsewhere makes up for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm.solver.moves._loaded_ranks import LoadedRanks

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Least relative gain of a step; smaller ones are rounding.
_LEAST_GAIN = 1e-7

#: Values evaluated together; they should stay in the cache.
_BLOCK_VALUES = 30_000

#: Best exchanges that are checked one by one before all are checked.
_LIKELY = 4


#: Ranks that may take the last shard of a chain of two moves: the least loaded.
_CHAIN_ENDS = 6

#: Most chains from one rank; if there are more, chains are not tried.
_MAX_CHAINS = 400_000


class Balancer(LoadedRanks):
    """Balances shards under linear loads.

    Args:
        shards: The shards.
        weights: Seconds that one more unit of the largest of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        devices_per_node: Ranks of a full node.
        stop: Returns whether time is over.
    """

    def descend(self, max_steps: int, *, chains: bool = True) -> None:
        """Applies the best exchange, or chain of two moves, until none helps."""
        for _ in range(max_steps):
            if self._stop() or not (self._exchange() or (chains and self._chain())):
                return

    def improve(self, rng: np.random.Generator, perturbations: int, max_steps: int) -> None:
        """Perturbs a few ranks and descends; keeps improvements."""
        if self._count < 2 or self._ranks < 2:
            return
        best, value = self._save(), self.value()
        for _ in range(perturbations):
            if self._stop():
                break
            self._perturb(rng)
            self.descend(max_steps, chains=False)
            found = self.value()
            if found < value * (1 - _LEAST_GAIN):
                best, value = self._save(), found
            else:
                self._restore(best)

    def _perturb(self, rng: np.random.Generator) -> None:
        """Moves some shards of a critical rank and a few other ranks at random."""
        critical = self._critical(self._total[self._on])
        chosen = {int(critical[rng.integers(0, len(critical))])}
        chosen.update(rng.integers(0, self._ranks, 2).tolist())
        ranks = np.array(sorted(chosen))
        perturbed = np.zeros(self._ranks, dtype=bool)
        perturbed[ranks] = True
        movable = np.flatnonzero(perturbed[self.rank[: self._count]])
        for shard in rng.permutation(movable)[: rng.integers(2, 7)].tolist():
            for target in rng.permutation(ranks).tolist():
                if self._may_go(shard, target) and self._has_room(shard, target):
                    self._move(shard, target)
                    break

    def _exchange(self) -> bool:
        """Applies the best exchange of a critical rank's shard with one elsewhere, if it helps.

        One critical rank after another is looked at, until one of them has such a shard.
        """
        total = self._total[self._on]
        squares = float(self._squares @ (self._total**2).sum(axis=1))
        value = float(self._weights @ self._by_load(total.max(axis=1)) + squares)
        enough = value * (1.0 - _LEAST_GAIN)
        at_target = total.take(self.rank, axis=1)
        for source in self._critical(total).tolist():
            at_source = self.rank == source
            here = at_source.nonzero()[0]
            after = self._after_exchange(source, here, total, at_target)
            after += squares
            after[:, at_source] = np.inf
            found = self._best_exchange(here, after, enough)
            if found is not None:
                first, second = found
                to_rank = int(self.rank[second])
                self._move(first, to_rank)
                self._move(second, source)
                return True
        return False

    def _best_exchange(
        self, here: NDArray[np.int64], after: NDArray[np.float64], enough: float
    ) -> tuple[int, int] | None:
        """Returns the best exchange that is allowed; None if none is good enough.

        Args:
            here: Shards of a rank.
            after: The objective after their exchanges with any shard; overwritten.
            enough: The objective has to be below this.
        """
        # Most of the best exchanges are allowed, so all are checked only if the first few are not.
        for _ in range(_LIKELY):
            row, second = divmod(int(after.argmin()), len(self.rank))
            if not after[row, second] < enough:
                return None
            if self._may_swap(int(here[row]), second):
                return int(here[row]), second
            after[row, second] = np.inf
        after[~self._may_exchange(here, self.rank[here])] = np.inf
        row, second = divmod(int(after.argmin()), len(self.rank))
        return (int(here[row]), second) if after[row, second] < enough else None

    def _may_swap(self, first: int, second: int) -> bool:
        """Returns whether two shards on different ranks may change places."""
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
        source: int,
        here: NDArray[np.int64],
        total: NDArray[np.float64],
        at_target: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Returns the objective after all exchanges of a rank's shards with any shard.

        The squares are those that are added to the present ones.

        Args:
            source: The rank.
            here: Its shards.
            total: Loads that count; shape `(loads, ranks)`.
            at_target: Those of the rank of every shard; shape `(loads, shards)`.

        Returns:
            Shape `(here, shards)`.
        """
        theirs, at_source = self._counted, total[:, source]
        mine = theirs.take(here, axis=1)
        # With less = mine - theirs, the squares change by 2 · less · (less + target - source).
        by_source = at_source @ self._squared
        by_target = np.add.reduce(self._squared * at_target, axis=0)
        after = self._squared.take(here, axis=1).T @ (at_target - self._twice)
        after += self._own_squares + by_source - by_target
        after += (self._own_squares - by_source)[here, None]
        left, taken = at_source[:, None] - mine, at_target - theirs
        rest = self._rest(source, total).take(self.rank, axis=1)[:, None]
        block = max(1, _BLOCK_VALUES // max(1, len(total) * len(self.rank)))
        for start in range(0, len(here), block):
            rows = slice(start, start + block)
            largest = left[:, rows, None] + theirs[:, None]
            np.maximum(largest, rest, out=largest)
            np.maximum(largest, mine[:, rows, None] + taken[:, None], out=largest)
            largest = self._by_load(largest)
            shape = largest.shape[1:]
            after[rows] += (self._weights @ largest.reshape(len(largest), -1)).reshape(shape)
        return np.asarray(after)

    def _rest(self, source: int, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the largest loads of all ranks but two: one, and any other.

        Args:
            source: The one.
            total: Loads that count; shape `(loads, ranks)`.

        Returns:
            By the other one; shape `(loads, ranks)`; minus infinity where no rank is left.
        """
        others = total.copy()
        others[:, source] = -np.inf
        every, most = np.arange(len(others)), others.argmax(axis=1)
        rest = np.repeat(others[every, most][:, None], others.shape[1], axis=1)
        others[every, most] = -np.inf
        rest[every, most] = others.max(axis=1)
        return rest

    def _may_exchange(
        self, here: NDArray[np.int64], source: NDArray[np.int64], other: int | None = None
    ) -> NDArray[np.bool_]:
        """Returns which shards of `here` may change places with which; shape `(here, shards)`.

        Args:
            here: MovableShards.
            source: Their ranks.
            other: The only shard to check; all when None.
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

    def _chain(self) -> bool:
        """Applies the best pair of moves from a critical rank via another one to a third."""
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
        """Returns the objective after all chains to one rank, and whether memory allows them."""
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

    def _allowed(self, shards: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which shards may go to which ranks; shape `(shards, ranks)`."""
        node, table = self._node[shards], self._table[shards]
        stays = (node[:, None] < 0) | (node[:, None] == self._node_of[target])
        if self._may_be is not None:
            stays &= self._may_be[shards][:, target]
        twice = self._cut[table][:, None] & (self._holds[table][:, target] > 0)
        return np.asarray(stays & ~twice)

    def _allowed_back(self, shards: NDArray[np.int64], source: int) -> NDArray[np.bool_]:
        return self._allowed(shards, np.array([source]))[:, 0]
