"""Moving the parts of a plan between ranks until no exchange of a few of them helps.

A load of a rank is the largest of a few sums over its parts: device memory and cache work at the
same time, so parts that wait for the one are best beside parts that wait for the other. What the
largest of each load costs is known around the present plan, so an exchange is judged in closed
form: all exchanges of one part of a critical rank (the most loaded in some respect) with any part
elsewhere, or with nothing, in one expression.
The full model judges the outcome, not the steps.

The value to be made small is the cost of the largest loads plus a little of the sum of squares:
the latter leads off plateaus, where several ranks are equally loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dse.solver._pieces import Pieces

#: Weight of the sum of squares beside the largest loads.
_SQUARES = 0.02

#: Largest share of a load that a term has which is not looked at.
_HIDDEN_SHARE = 0.5

#: What a rank's bytes over its memory weigh against everything else.
_OVERFLOW = 1e3

#: Least relative gain of a step; smaller ones are rounding.
_LEAST_GAIN = 1e-7

#: Best exchanges that are looked at one by one before all are checked.
_LIKELY = 4

#: Ranks that may take the last part of a chain of two moves: the least loaded ones.
_CHAIN_ENDS = 6

#: Most entries of the table of all chains from one rank; beyond, chains are not tried.
_MAX_CHAINS = 400_000


class Balancer:
    """Places of movable parts under linear loads.

    Args:
        pieces: The parts.
        weights: Seconds that one more unit of the largest of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        devices_per_node: Ranks of a full node.
        stop: Says when time is over.
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
        self._starts = np.flatnonzero(np.diff(on, prepend=-1))
        self._weights = by_load[on[self._starts]]
        self._counted = np.ascontiguousarray(self._loads[self._on])
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
        ends = [*self._starts[1:].tolist(), len(terms)]
        largest = np.empty((len(ends), *terms.shape[1:]))
        for row, (start, end) in enumerate(zip(self._starts.tolist(), ends, strict=True)):
            np.maximum.reduce(terms[start:end], axis=0, out=largest[row, ...])
        return largest

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
        critical = self._critical()
        chosen = {int(rng.choice(critical))}
        chosen.update(rng.integers(0, self._ranks, 2).tolist())
        ranks = np.array(sorted(chosen))
        movable = np.flatnonzero(np.isin(self.rank[: self._count], ranks))
        for part in rng.permutation(movable)[: rng.integers(2, 7)].tolist():
            for target in rng.permutation(ranks).tolist():
                if self._may_go(part, target) and self._has_room(part, target):
                    self._move(part, target)
                    break

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

    def _critical(self) -> NDArray[np.int64]:
        """Ranks that are the most loaded in a respect that costs something."""
        if not len(self._on):
            return np.array([int(np.argmax(self._total[-1]))])
        total = self._total[self._on]
        most = total.max(axis=1)
        ends = np.append(self._starts[1:], len(most))
        binding = most >= np.repeat(self._by_load(most), ends - self._starts)
        return np.unique(total[binding].argmax(axis=1))

    def _exchange(self) -> bool:
        """Takes the best exchange of a critical rank's part with one elsewhere, if it helps."""
        critical = self._critical()
        is_critical = np.zeros(self._ranks, dtype=bool)
        is_critical[critical] = True
        here = np.flatnonzero(is_critical[self.rank])
        source, target = self.rank[here], self.rank
        after = self._after_exchange(critical, here, source)
        after[source[:, None] == target] = np.inf
        enough = self.value() * (1.0 - _LEAST_GAIN)
        # Most of the best ones are possible: all are looked at only where the first few are not.
        for _ in range(_LIKELY):
            index = int(np.argmin(after))
            if not after.flat[index] < enough:
                return False
            row, second = divmod(index, len(target))
            if self._may_exchange(here[row : row + 1], source[row : row + 1], second)[0]:
                break
            after.flat[index] = np.inf
        else:
            after[~self._may_exchange(here, source)] = np.inf
            index = int(np.argmin(after))
            if not after.flat[index] < enough:
                return False
            row, second = divmod(index, len(target))
        first = int(here[row])
        from_rank, to_rank = int(source[row]), int(target[second])
        self._move(first, to_rank)
        self._move(second, from_rank)
        return True

    def _after_exchange(
        self, critical: NDArray[np.int64], here: NDArray[np.int64], source: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Returns the values after all exchanges of parts of `here` with any part.

        Args:
            critical: Ranks.
            here: Their parts.
            source: The ranks of these.

        Returns:
            Shape `(here, parts)`.
        """
        target = self.rank
        total = self._total[self._on]
        mine, theirs = self._counted[:, here], self._counted
        at_source, at_target = total[:, source], total[:, target]
        # With less = mine - theirs, the squares change by 2 · less · (less + target - source).
        squares = 2.0 * self._squares[self._on, None]
        after = (squares * mine).T @ (at_target - 2.0 * theirs) + (squares * at_source).T @ theirs
        after += np.add.reduce(squares * mine * (mine - at_source), axis=0)[:, None]
        after += np.add.reduce(squares * theirs * (theirs - at_target), axis=0)
        after += self._squares @ (self._total**2).sum(axis=1)
        left, taken = at_source - mine, at_target - theirs
        rest = self._rest(critical, total)[:, np.searchsorted(critical, source)]
        ends = [*self._starts[1:].tolist(), len(total)]
        for weight, start, end in zip(self._weights, self._starts.tolist(), ends, strict=True):
            largest = np.take(rest[start], target, axis=1)
            for term in range(start, end):
                if term > start:
                    np.maximum(largest, np.take(rest[term], target, axis=1), out=largest)
                np.maximum(largest, left[term][:, None] + theirs[term], out=largest)
                np.maximum(largest, mine[term][:, None] + taken[term], out=largest)
            largest *= weight
            after += largest
        return np.asarray(after)

    def _rest(
        self, critical: NDArray[np.int64], total: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Returns the largest loads of all ranks but two: a critical one and any other.

        Args:
            critical: Ranks.
            total: Loads that count; shape `(loads, ranks)`.

        Returns:
            Shape `(loads, critical ranks, ranks)`.
        """
        if self._ranks < 3:
            return np.full((len(total), len(critical), self._ranks), -np.inf)
        top = np.argsort(-total, axis=1, kind="stable")[:, :3]
        first, second, third = np.take_along_axis(total, top, axis=1).T[:, :, None, None]
        a, b = critical[None, :, None], np.arange(self._ranks)[None, None, :]
        has_first = (top[:, 0, None, None] == a) | (top[:, 0, None, None] == b)
        has_second = (top[:, 1, None, None] == a) | (top[:, 1, None, None] == b)
        return np.asarray(np.where(~has_first, first, np.where(~has_second, second, third)))

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

    def _chain(self) -> bool:
        """Takes the best pair of moves from a critical rank over another one to a third."""
        if self._ranks < 3:
            return False
        weighted = self._weights @ self._by_load(self._total[self._on])
        ends = np.argsort(weighted, kind="stable")[:_CHAIN_ENDS]
        value = self.value()
        best_gain, best = 0.0, (-1, -1, -1)
        for source in self._critical().tolist():
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
