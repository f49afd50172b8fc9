"""Proposer of configurations: Optuna's samplers without duplicates and within hard limits.

The sampler works on a study in memory. Proposals come in batches of a fixed size. A batch is
proposed before any of it is answered, and answered in the order of proposing; so the sequence
depends on the seed and the answers alone, not on the number of workers or their speed. Resuming
repeats the sequence and takes the answers from the journal. In a study that several runs share,
the sampler also learns what others have finished, and does not propose what they are evaluating.
"""

from __future__ import annotations

import itertools
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
import warnings

import numpy as np

from dse.errors import OptionalDependencyError
from dse.search._proposals import Batch, Proposal, Rejection
from dse.search.evaluate._distinct import Canonical
from dse.search.propose._genetic_study import GeneticStudy
from dse.search.propose._strategy import Strategy
from dse.search.space import SamplerName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import optuna

    from dse.search._records import Params, TrialRecord
    from dse.search.evaluate._evaluator import Evaluator
    from dse.search.space import SearchSpace
    from dse.workload import Parameter, ParameterValue

#: Proposals in a row that bring nothing new before an unseen configuration is drawn instead. A
#: sampler that has settled repeats itself, so every draw halves this number, down to the minimum.
_MAX_STALE = 20
_MIN_STALE = 3

#: The same for Gaussian processes: each proposal takes them long, and they repeat it until they
#: have learned something.
_MAX_STALE_GP = 2

#: Draws of an unseen configuration near the last proposal, then of any, before the space is
#: enumerated.
_MAX_NEAR_DRAWS = 20
_MAX_DRAWS = 200


class _Lesson(NamedTuple):
    """What the sampler learns from an answer; it may propose the same configuration many times.

    Attributes:
        values: Of the objectives; empty if there is nothing to learn.
        violations: By how much each limit is broken; zero or less is kept.
    """

    values: tuple[float, ...] = ()
    violations: Mapping[str, float] = MappingProxyType({})


def make_sampler(name: SamplerName, seed: int, space: SearchSpace) -> optuna.samplers.BaseSampler:
    """Returns the Optuna sampler of that name, which is not NSGA-II.

    Raises:
        OptionalDependencyError: The Gaussian-process sampler was chosen and torch is missing.
    """
    from optuna import samplers

    if name is SamplerName.TPE:
        return samplers.TPESampler(seed=seed)
    if name is SamplerName.RANDOM:
        return samplers.RandomSampler(seed=seed)
    if name is SamplerName.GRID:
        grid = {
            parameter.name: list(range(len(parameter.choices)))
            for parameter in space.parameters
            if len(parameter.choices) > 1
        }

        class Grid(samplers.GridSampler):
            """A grid that does not end the study; the proposer notices that the space is used up.

            Optuna's grid stops the loop of `optimize`, which is not used here, and raises.
            """

            def after_trial(self, *args: object) -> None:
                """Does not stop anything."""

        return Grid(grid, seed=seed)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise OptionalDependencyError(
            "the `gp` sampler needs torch, which is not installed: pip install '.[validate]' in "
            "the project's folder, or choose the sampler `nsga2` or `tpe`"
        ) from error
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        # Optuna warns that the argument is experimental; without it, equal trials count as noise.
        warnings.simplefilter("ignore", ExperimentalWarning)
        return samplers.GPSampler(seed=seed, deterministic_objective=True)


class Proposer(Strategy):
    """Turns a sampler into a sequence of new, allowed configurations.

    Args:
        space: The search space.
        sampler: Which sampler.
        seed: Its seed.
        evaluator: Says why a configuration breaks a hard limit, and which have the same answer.
    """

    def __init__(
        self,
        space: SearchSpace,
        sampler: SamplerName,
        seed: int,
        evaluator: Evaluator,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._reject = evaluator.rejection
        self._canonical = Canonical(space, evaluator)
        self._rng = np.random.default_rng(seed)
        self._distributions = _distributions(space)
        self._positions = [
            {value: index for index, value in enumerate(parameter.choices)}
            for parameter in space.parameters
        ]
        directions: list[Any] = [
            "maximize" if axis.maximize else "minimize" for axis in space.objectives
        ]
        # Both have `ask`, `tell`, `enqueue_trial` and `add_trial`.
        self._study: Any = (
            GeneticStudy(directions, seed)
            if sampler is SamplerName.NSGA2
            else optuna.create_study(
                directions=directions, sampler=make_sampler(sampler, seed, space)
            )
        )
        self._answers: dict[tuple[int, ...], _Lesson | None] = {}
        #: The configuration that stands for one with the same answer.
        self._same: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._pending: dict[tuple[int, ...], list[optuna.trial.Trial]] = {}
        self._sampler = sampler
        #: Proposals of the next round so far, how many in a row brought nothing new, and what was
        #: not answered when the round began.
        self._begun, self._stale = 0, 0
        self._unanswered: tuple[tuple[int, ...], ...] = ()
        #: How many in a row may bring nothing new: at first, and now.
        self._most_stale = _MAX_STALE_GP if sampler is SamplerName.GP else _MAX_STALE
        self._max_stale = self._most_stale
        #: Whether a configuration had to be drawn since the last new one.
        self._drawn = False
        #: The last proposal, new or not.
        self._latest = (0,) * len(space.parameters)
        self._numbers = itertools.count()

    @property
    def exhausted(self) -> bool:
        """Whether every configuration is proposed, rejected or evaluated by others."""
        return len(self._answers) >= self._space.size

    def ask(self, count: int, *, hurried: bool = False) -> Batch:
        """Proposes up to `count` new configurations; fewer when the space is used up.

        All of them must be answered by :meth:`tell` before the next call, except those that others
        evaluate. Hurried or not makes no difference: all are to be evaluated.
        """
        del hurried
        batch = self._propose(count - self._begun, ahead=False)
        self._begun, self._stale = 0, 0
        return batch

    def ask_ahead(self, count: int, most: int) -> Batch:
        """Begins the next round; see :meth:`Strategy.ask_ahead`."""
        if not self._begun:
            self._unanswered = tuple(self._pending)
        batch = self._propose(min(count - self._begun, most), ahead=True)
        self._begun += len(batch.proposals)
        return batch

    def _propose(self, count: int, *, ahead: bool) -> Batch:
        """Continues a round; a round ahead stops where the next proposal depends on an answer."""
        proposals: list[Proposal] = []
        rejections: list[Rejection] = []
        while len(proposals) < count and not self.exhausted and (not ahead or self._decided()):
            if self._stale >= self._max_stale:
                self._study.enqueue_trial(self._encode(self._draw_unseen()))
                self._stale, self._drawn = 0, True
                self._max_stale = min(self._most_stale, max(_MIN_STALE, self._max_stale // 2))
            trial = self._study.ask(self._distributions)
            chosen = trial.params
            key = tuple(int(chosen.get(parameter.name, 0)) for parameter in self._space.parameters)
            self._latest = key
            self._stale += 1
            if key in self._answers:
                self._repeat(trial, self._same.get(key, key))
                continue
            parameters = self._canonical(self._decode(key))
            first = self._key(parameters)
            if first != key:
                self._answers[key] = None
                self._same[key] = first
                if first in self._answers:
                    self._repeat(trial, first)
                    continue
                key = first
            self._answers[key] = None
            if reason := self._reject(dict(parameters)):
                rejections.append(Rejection(next(self._numbers), parameters, reason))
                self._fail(trial)
                continue
            if self._ruled_out(parameters, trial):
                continue
            if not self._drawn:
                self._max_stale = self._most_stale
            self._stale, self._drawn = 0, False
            self._pending[key] = [trial]
            proposals.append(Proposal(next(self._numbers), parameters))
        return Batch(tuple(proposals), tuple(rejections))

    def _decided(self) -> bool:
        """Returns whether the next proposal is the same whatever the missing answers are."""
        if isinstance(self._study, GeneticStudy):
            missing = sum(len(self._pending.get(key, ())) for key in self._unanswered)
            return self._study.decides_without(missing)
        return self._sampler is SamplerName.RANDOM

    def tell(self, records: Sequence[TrialRecord]) -> None:
        """Answers configurations of the last batch, in any order, or adds answers of others."""
        places = {key: place for place, key in enumerate(self._pending)}
        found = [(self._key(record.parameters), record) for record in records]
        found.sort(key=lambda answer: places.get(answer[0], len(places)))
        for key, record in found:
            lesson = self._lesson(record)
            self._answers[key] = lesson
            trials = self._pending.pop(key, [])
            for trial in trials:
                self._answer(trial, lesson)
            if not trials:
                self._learn(key, lesson)

    def mark_in_flight(self, in_flight: Iterable[Params]) -> None:
        """Excludes configurations that others are evaluating; :meth:`tell` adds their answers."""
        for params in in_flight:
            key = self._key(params)
            if key not in self._answers:
                self._answers[key] = None
                self._pending[key] = []

    def _ruled_out(self, parameters: Params, trial: optuna.trial.Trial) -> bool:
        """Answers a proposal that need not be evaluated; returns whether it did."""
        del parameters, trial
        return False

    def _repeat(self, trial: optuna.trial.Trial, key: tuple[int, ...]) -> None:
        """Answers a repeated proposal, now or together with the first one."""
        lesson = self._answers[key]
        if lesson is not None:
            self._answer(trial, lesson)
        elif key in self._pending:
            self._pending[key].append(trial)
        else:
            self._fail(trial)

    def _learn(self, key: tuple[int, ...], lesson: _Lesson) -> None:
        """Adds an answer to a configuration that this sampler has not proposed."""
        import optuna

        if not lesson.values:
            return
        self._study.add_trial(
            optuna.create_trial(
                values=list(lesson.values),
                params=self._encode(key),
                distributions=self._distributions,
                constraints=dict(lesson.violations),
            )
        )

    def _answer(self, trial: optuna.trial.Trial, lesson: _Lesson) -> None:
        if not lesson.values:
            self._fail(trial)
            return
        for name, violation in lesson.violations.items():
            trial.set_constraint(name, violation)
        self._study.tell(trial, list(lesson.values))

    def _lesson(self, record: TrialRecord) -> _Lesson:
        """Returns what the sampler learns from a record.

        What the memory of a captured step holds is not known; a limit on a figure that is not
        known is broken.
        """
        if not record.values or not np.all(np.isfinite(record.values)):
            return _Lesson()
        violations = {}
        if record.prediction is not None and record.prediction.memory:
            violations["memory"] = -record.prediction.memory_headroom_fraction
        metrics = record.metrics
        for index, constraint in enumerate(self._space.constraints):
            value = metrics.get(constraint.metric)
            if value is not None:
                broken_by = constraint.violation(value)
                violations[f"limit {index}"] = math.inf if math.isnan(broken_by) else broken_by
        return _Lesson(record.values, violations)

    def _fail(self, trial: optuna.trial.Trial) -> None:
        import optuna

        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def _decode(self, key: tuple[int, ...]) -> tuple[tuple[str, ParameterValue], ...]:
        return tuple(
            (parameter.name, parameter.choices[index])
            for parameter, index in zip(self._space.parameters, key, strict=True)
        )

    def _key(self, choice: Params) -> tuple[int, ...]:
        return tuple(
            positions[value] for positions, (_, value) in zip(self._positions, choice, strict=True)
        )

    def _encode(self, key: tuple[int, ...]) -> dict[str, int]:
        named = zip(self._space.parameters, key, strict=True)
        return {parameter.name: index for parameter, index in named if len(parameter.choices) > 1}

    def _draw_unseen(self) -> tuple[int, ...]:
        """Draws a configuration with one parameter other than in the last proposal, or else any.

        What the sampler repeats is good, and so may be what is next to it.
        """
        sizes = [len(parameter.choices) for parameter in self._space.parameters]
        free = [place for place, size in enumerate(sizes) if size > 1]
        for _ in range(_MAX_NEAR_DRAWS):
            near = list(self._latest)
            place = free[self._rng.integers(len(free))]
            near[place] = int(near[place] + self._rng.integers(1, sizes[place])) % sizes[place]
            if tuple(near) not in self._answers:
                return tuple(near)
        for _ in range(_MAX_DRAWS):
            key = tuple(int(index) for index in self._rng.integers(0, sizes))
            if key not in self._answers:
                return key
        # Nearly used up: walk through the space from a random place.
        start = int(self._rng.integers(0, self._space.size))
        for step in range(self._space.size):
            flat = (start + step) % self._space.size
            key = tuple(int(index) for index in np.unravel_index(flat, sizes))
            if key not in self._answers:
                return key
        raise AssertionError("unreachable: the space is not exhausted")


def _distributions(space: SearchSpace) -> dict[str, optuna.distributions.BaseDistribution]:
    """Returns what the sampler samples: all parameters with more than one choice."""
    return {
        parameter.name: _distribution(parameter)
        for parameter in space.parameters
        if len(parameter.choices) > 1
    }


def _distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    """Positions in the list of choices, ordered where the choices are numbers."""
    from optuna import distributions

    last = len(parameter.choices) - 1
    if parameter.ordered:
        return distributions.IntDistribution(0, last)
    return distributions.CategoricalDistribution(list(range(last + 1)))
