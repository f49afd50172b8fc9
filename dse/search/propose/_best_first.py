"""Best-first search: exact, by points that configurations cannot beat.

Every outcome of the space begins with an optimistic point, which costs about a millisecond. The
best of these points are refined by lower bounds, and evaluated when they are still among the best;
an outcome whose point is dominated by a feasible answer, or ties with it, is closed and never
looked at again. When none is left, the front is complete: this is branch and bound with
several objectives (Przybylski and Gandibleux, EJOR 260(3), 2017), where a branch is one outcome.

Rounds have a fixed size, all of a round is chosen before any of it is answered, and answers count
together; so what is evaluated does not depend on the number of workers.
"""

from __future__ import annotations

from dataclasses import replace
import itertools
from typing import TYPE_CHECKING

import numpy as np

from dse.search._certificate import Certificate
from dse.search._proposals import Batch, Effort, Proposal, Rejection
from dse.search._records import TrialStatus
from dse.search.analyse._hypervolume import hypervolume
from dse.search.analyse._pareto import pareto_mask
from dse.search.propose._strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dse.search._records import Params, TrialRecord
    from dse.search.evaluate._distinct import EnumeratedSpace
    from dse.search.evaluate._evaluator import Evaluator
    from dse.search.space import SearchSpace

#: Reasons of configurations that break a hard limit that are kept, for the reader.
_EXAMPLES = 20

#: Most objectives of which the hypervolume is known.
_MOST_OBJECTIVES = 3


#: Relative gain in an objective below which two answers tie. Where the host binds, many
#: configurations take the same time; one of them is enough.
_TIE = 1e-4

#: Bounds and evaluations of a round that keep a few workers busy, and open outcomes for each one
#: in a large space: there are thousands of bounds, and rounds of few would cost more than these.
_BUSY = 8
_OPEN_A_BOUND = 256


def _next(effort: Effort) -> Effort:
    """Returns the bound that comes after an effort."""
    return Effort.SHARED_BOUND if effort < Effort.SHARED_BOUND else Effort.OWN_BOUND


class _State:
    """What is known of an outcome; values of an array."""

    OPEN = 0
    PENDING = 1
    ANSWERED = 2
    CLOSED = 3
    INFEASIBLE = 4


class BestFirst(Strategy):
    """Looks at the outcomes of a space in the order of what they could be at best.

    Args:
        space: The search space.
        found: Its distinct configurations.
        evaluator: Says what they cannot beat.
    """

    def __init__(self, space: SearchSpace, found: EnumeratedSpace, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._maximize = [objective.maximize for objective in space.objectives]
        self._signs = np.where(self._maximize, -1.0, 1.0)
        self._finest = evaluator.finest_bound
        self._distinct = found.distinct
        self._parameters = [each.parameters for each in found.distinct]
        self._index = {params: index for index, params in enumerate(self._parameters)}
        count = len(self._parameters)
        self._costs = np.empty((count, len(self._signs)))
        self._effort = np.full(count, int(Effort.OPTIMISTIC))
        self._state = np.full(count, _State.OPEN)
        self._reasons: dict[int, str] = {}
        for index in range(count):
            self._note(index, evaluator.answer(self._proposal(index, Effort.OPTIMISTIC)))
        self._favourable = self._classes()
        self._least_s: dict[Hashable, float] = {}
        self._front = np.empty((0, len(self._signs)))
        self._rejections = self._examples(found)
        self._numbers = itertools.count()
        self._low, self._width = self._ranges()

    @property
    def exhausted(self) -> bool:
        """Whether no outcome can enter the front any more, and the reasons of others are told."""
        return not self._rejections and not (self._state <= _State.PENDING).any()

    def ask(self, count: int, *, hurried: bool = False) -> Batch:
        """Returns the outcomes to evaluate and to bound next; at most `count` of each.

        Outcomes are evaluated only if no other one could dominate them. Those behind them are
        bounded meanwhile, so that workers have something to do. A hurried round evaluates the
        outcomes that look best by what is known.
        """
        rejections = tuple(
            Rejection(next(self._numbers), params, reason) for params, reason in self._rejections
        )
        self._rejections = ()
        proposals: list[int] = []
        bounds: dict[Hashable, Proposal] = {}
        waiting = int((self._state == _State.OPEN).sum())
        enough = min(count, max(_BUSY, waiting // _OPEN_A_BOUND))
        for layer in self._layers(min(count, _BUSY) if hurried else count):
            first = hurried or (not proposals and not bounds)
            for index in layer:
                effort = Effort(int(self._effort[index]))
                if effort < self._finest and not hurried:
                    wanted = _next(effort)
                    bounds.setdefault(self._group(index, wanted), self._proposal(index, wanted))
                elif first:
                    proposals.append(index)
            if len(bounds) + len(proposals) >= enough:
                break
        proposals = proposals[:count]
        self._state[proposals] = _State.PENDING
        return Batch(
            tuple(Proposal(next(self._numbers), self._parameters[index]) for index in proposals),
            rejections,
            tuple(bounds.values()),
        )

    def tell(self, records: Sequence[TrialRecord]) -> None:
        """Takes answers to proposals, or those of other runs of the study."""
        feasible = []
        for record in records:
            index = self._index.get(record.parameters)
            # What is evaluated although it is closed, for comparison, stays proven.
            if index is not None and self._state[index] != _State.CLOSED:
                self._state[index] = _State.ANSWERED
            if record.status is TrialStatus.FEASIBLE:
                feasible.append(np.array(record.values) * self._signs)
        if feasible:
            new = np.array(feasible)
            self._front = np.vstack((self._front, new))
            self._front = np.unique(
                self._front[pareto_mask(self._front, [False] * len(self._signs))], axis=0
            )
            waiting = np.flatnonzero(self._state == _State.OPEN)
            self._close(waiting)

    def tell_bounds(self, records: Sequence[TrialRecord]) -> None:
        """Takes answers to bounds."""
        for record in sorted(records, key=lambda record: record.number):
            index = record.number
            wanted = _next(Effort(int(self._effort[index])))
            # Without an answer nothing is known.
            self._least_s[self._group(index, wanted)] = record.lower_bound_s or 0.0
            self._refine(index)

    def mark_in_flight(self, in_flight: Iterable[Params]) -> None:
        """Excludes outcomes that other runs are evaluating."""
        for params in in_flight:
            index = self._index.get(params)
            if index is not None and self._state[index] == _State.OPEN:
                self._state[index] = _State.PENDING

    def annotated(self, record: TrialRecord) -> TrialRecord:
        """Returns an answer with the configurations that it also holds for."""
        index = self._index.get(record.parameters)
        if index is None:
            return record
        same = self._distinct[index]
        return replace(record, equal_count=same.equal_count, equal_because=same.equal_because)

    def certificate(self) -> Certificate:
        """Returns what has been proven so far."""
        counts = np.bincount(self._state, minlength=_State.INFEASIBLE + 1)
        waiting = int(counts[_State.OPEN] + counts[_State.PENDING])
        closed = self._costs[self._state == _State.CLOSED]
        dominated = np.zeros(len(closed), dtype=bool)
        for point in self._front:
            dominated |= (point <= closed).all(axis=1)
        return Certificate(
            complete=waiting == 0,
            distinct=len(self._state),
            evaluated=int(counts[_State.ANSWERED]),
            proven_dominated=int(dominated.sum()),
            proven_infeasible=int(counts[_State.INFEASIBLE]),
            hypervolume_missing_at_most=self._missing(),
            tied=int((~dominated).sum()),
        )

    # --- choice ---------------------------------------------------------------------------------

    def _layers(self, count: int) -> Iterator[list[int]]:
        """Yields open outcomes whose points no other point dominates, then those behind them.

        Points that a known bound moves are moved first.
        """
        while any(self._refine(index) for index in next(self._peeled(count), [])):
            pass
        yield from self._peeled(count)

    def _peeled(self, count: int) -> Iterator[list[int]]:
        waiting = np.flatnonzero(self._state == _State.OPEN)
        costs = self._costs[waiting]
        scaled = np.maximum((costs - self._low) / self._width, -1.0).sum(axis=1)
        order = np.argsort(scaled, kind="stable")
        waiting, costs = waiting[order], costs[order]
        while len(waiting):
            layer: list[int] = []
            ahead = np.ones(len(waiting), dtype=bool)
            taken = np.zeros(len(waiting), dtype=bool)
            while ahead.any() and len(layer) < count:
                best = int(np.argmax(ahead))
                layer.append(int(waiting[best]))
                taken[best] = True
                # Equal points wait for the answer to the first of them.
                ahead &= ~(costs[best] <= costs).all(axis=1)
            yield layer
            waiting, costs = waiting[~taken], costs[~taken]

    def _refine(self, index: int) -> bool:
        """Takes the next bound of an outcome if it is known; returns whether it was."""
        effort = Effort(int(self._effort[index]))
        if effort >= self._finest:
            return False
        wanted = _next(effort)
        time_s = self._least_s.get(self._group(index, wanted))
        if time_s is None:
            return False
        shared = wanted is Effort.SHARED_BOUND
        alone = shared and self._favourable[index] == self._own(index)
        self._effort[index] = int(Effort.OWN_BOUND if alone else wanted)
        self._note(index, self._evaluator.bounded(self._proposal(index, wanted), time_s))
        self._close(np.array([index]))
        return True

    def _note(self, index: int, record: TrialRecord) -> None:
        """Keeps the values of a bound; they do not get better."""
        costs = np.array(record.values) * self._signs
        if record.status is not TrialStatus.FEASIBLE:
            self._state[index] = _State.INFEASIBLE
            self._reasons[index] = record.reason
        elif self._effort[index] > Effort.OPTIMISTIC:
            costs = np.maximum(costs, self._costs[index])
        self._costs[index] = costs

    def _close(self, indices: NDArray[np.int64]) -> None:
        """Closes outcomes that a feasible answer dominates or ties with."""
        indices = indices[self._state[indices] == _State.OPEN]
        for point in self._front:
            costs = self._costs[indices]
            tie = _TIE * np.abs(np.where(np.isfinite(costs), costs, 0.0))
            behind = (point <= costs + tie).all(axis=1)
            self._state[indices[behind]] = _State.CLOSED
            indices = indices[~behind]

    # --- outcomes -------------------------------------------------------------------------------

    def _proposal(self, index: int, effort: Effort) -> Proposal:
        return Proposal(index, self._parameters[index], effort)

    def _own(self, index: int) -> Hashable:
        return self._evaluator.outcome(dict(self._parameters[index]))

    def _group(self, index: int, effort: Effort) -> Hashable:
        """Returns what a bound of this effort is the same for."""
        if effort is Effort.SHARED_BOUND:
            return effort, self._favourable[index]
        return effort, index

    def _classes(self) -> list[Hashable]:
        """Returns the outcome that each outcome shares its first bound with."""
        if self._finest < Effort.SHARED_BOUND:
            return list(range(len(self._parameters)))
        return [self._evaluator.favourable(dict(params)) for params in self._parameters]

    def _examples(self, found: EnumeratedSpace) -> tuple[tuple[Params, str], ...]:
        """Returns configurations that break a hard limit, a few of each reason's beginning."""
        examples: dict[str, tuple[Params, str]] = {}
        broken = [(each.parameters, each.reason) for each in found.impossible]
        broken += [(self._parameters[index], why) for index, why in self._reasons.items()]
        for params, reason in broken:
            examples.setdefault(" ".join(reason.split()[:3]), (params, reason))
        return tuple(examples.values())[:_EXAMPLES]

    def _ranges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the least cost of each objective and how far costs spread above it."""
        low, width = np.zeros(len(self._signs)), np.ones(len(self._signs))
        for column, costs in enumerate(self._costs.T):
            known = costs[np.isfinite(costs)]
            if len(known):
                low[column] = known.min()
                width[column] = np.ptp(known) or 1.0
        return low, width

    def _missing(self) -> float:
        """Returns the share of the hypervolume that outcomes not looked at could add at most."""
        waiting = self._costs[self._state <= _State.PENDING]
        if not len(waiting):
            return 0.0
        points = np.vstack((self._front, waiting))
        if len(self._signs) > _MOST_OBJECTIVES or not np.isfinite(points).all():
            return float("nan")
        if not len(self._front):
            return 1.0
        worst, minimize = points.max(axis=0), [False] * len(self._signs)
        most = hypervolume(points, worst, minimize)
        return 0.0 if most <= 0 else 1.0 - hypervolume(self._front, worst, minimize) / most
