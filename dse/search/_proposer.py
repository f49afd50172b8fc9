"""Asking Optuna for outer configurations: no duplicates, no configuration over a hard limit.

The sampler works on a study in memory. Proposals come in batches of a fixed size, all of them
asked before any is answered and answered in the order of asking; so the sequence depends on the
seed and the answers alone, not on the number of workers or on which of them was quick. Resuming
replays the sequence and takes the answers from the journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import OptionalDependencyError
from dse.space import SamplerName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import optuna

    from dse.search._records import TrialRecord
    from dse.space import Parameter, ParameterValue, SearchSpace

#: Proposals in a row that bring nothing new before an unseen configuration is drawn instead.
_MAX_STALE = 20

#: Random draws of an unseen configuration before the space is enumerated.
_MAX_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Proposal:
    """One outer configuration to evaluate.

    Attributes:
        number: Position among all proposals and rejections of the study.
        parameters: Value of every outer parameter, in the space's order.
    """

    number: int
    parameters: tuple[tuple[str, ParameterValue], ...]


@dataclass(frozen=True, slots=True)
class Rejection:
    """One outer configuration that breaks a hard limit.

    Attributes:
        number: As in `Proposal`.
        parameters: As in `Proposal`.
        reason: Why, in words.
    """

    number: int
    parameters: tuple[tuple[str, ParameterValue], ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What one round of asking brought.

    Attributes:
        proposals: New configurations, in the order of asking; empty when the space is used up.
        rejections: Configurations over a hard limit that were met on the way.
    """

    proposals: tuple[Proposal, ...]
    rejections: tuple[Rejection, ...]


def make_sampler(name: SamplerName, seed: int, space: SearchSpace) -> optuna.samplers.BaseSampler:
    """Returns the Optuna sampler of that name.

    Raises:
        OptionalDependencyError: The Gaussian-process sampler was chosen and torch is missing.
    """
    from optuna import samplers

    if name is SamplerName.NSGA2:
        return samplers.NSGAIISampler(seed=seed)
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
            """Leaves it to the proposer to see that the space is used up.

            Optuna's own stops the loop of `optimize`, which there is not, and raises.
            """

            def after_trial(self, *args: object) -> None:
                """Does not stop anything."""

        return Grid(grid, seed=seed)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise OptionalDependencyError(
            "the `gp` sampler needs torch, which is not installed; install `dse[validate]` or "
            "choose the sampler `nsga2` or `tpe`"
        ) from error
    return samplers.GPSampler(seed=seed, deterministic_objective=True)


class Proposer:
    """Turns a sampler into a sequence of new, allowed configurations.

    Args:
        space: The search space.
        sampler: Which sampler.
        seed: Its seed.
        reject: Says why a configuration breaks a hard limit, or nothing.
    """

    def __init__(
        self,
        space: SearchSpace,
        sampler: SamplerName,
        seed: int,
        reject: Callable[[Mapping[str, ParameterValue]], str],
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._reject = reject
        self._rng = np.random.default_rng(seed)
        self._distributions = {
            parameter.name: _distribution(parameter)
            for parameter in space.parameters
            if len(parameter.choices) > 1
        }
        self._study = optuna.create_study(
            directions=["maximize" if axis.maximize else "minimize" for axis in space.objectives],
            sampler=make_sampler(sampler, seed, space),
        )
        self._answers: dict[tuple[int, ...], TrialRecord | None] = {}
        self._asked: dict[int, list[optuna.trial.Trial]] = {}
        self._keys: dict[int, tuple[int, ...]] = {}
        self._next_number = 0

    @property
    def exhausted(self) -> bool:
        """Whether every configuration of the space has been proposed or rejected."""
        return len(self._answers) >= self._space.size

    def ask(self, count: int) -> Batch:
        """Asks until `count` new configurations are there or the space is used up.

        All of them must be answered by :meth:`tell` before the next call.
        """
        proposals: list[Proposal] = []
        rejections: list[Rejection] = []
        stale = 0
        while len(proposals) < count and not self.exhausted:
            if stale >= _MAX_STALE:
                self._study.enqueue_trial(self._encode(self._draw_unseen()))
                stale = 0
            trial = self._study.ask(self._distributions)
            key = tuple(
                int(trial.params.get(parameter.name, 0)) for parameter in self._space.parameters
            )
            if key in self._answers:
                stale += 1
                self._repeat(trial, key)
                continue
            parameters = self._decode(key)
            number = self._next_number
            self._next_number += 1
            self._answers[key] = None
            reason = self._reject(dict(parameters))
            if reason:
                stale += 1
                rejections.append(Rejection(number, parameters, reason))
                self._fail(trial)
                continue
            stale = 0
            self._keys[number] = key
            self._asked[number] = [trial]
            proposals.append(Proposal(number, parameters))
        return Batch(tuple(proposals), tuple(rejections))

    def tell(self, records: list[TrialRecord]) -> None:
        """Answers the configurations of the last batch, in any order."""
        for record in sorted(records, key=lambda record: record.number):
            self._answers[self._keys[record.number]] = record
            for trial in self._asked.pop(record.number):
                self._answer(trial, record)

    def _repeat(self, trial: optuna.trial.Trial, key: tuple[int, ...]) -> None:
        """Answers a configuration that was met before, now or together with the first one."""
        record = self._answers[key]
        if record is not None:
            self._answer(trial, record)
            return
        for number, trials in self._asked.items():
            if self._keys[number] == key:
                trials.append(trial)
                return
        self._fail(trial)

    def _answer(self, trial: optuna.trial.Trial, record: TrialRecord) -> None:
        values = list(record.values)
        if not values or not np.all(np.isfinite(values)):
            self._fail(trial)
            return
        if record.prediction is not None:
            trial.set_constraint("memory", -record.prediction.memory_headroom_fraction)
        metrics = record.metrics
        for index, constraint in enumerate(self._space.constraints):
            value = metrics.get(constraint.metric)
            if value is not None:
                trial.set_constraint(f"limit {index}", constraint.violation(value))
        self._study.tell(trial, values)

    def _fail(self, trial: optuna.trial.Trial) -> None:
        import optuna

        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def _decode(self, key: tuple[int, ...]) -> tuple[tuple[str, ParameterValue], ...]:
        return tuple(
            (parameter.name, parameter.choices[index])
            for parameter, index in zip(self._space.parameters, key, strict=True)
        )

    def _encode(self, key: tuple[int, ...]) -> dict[str, int]:
        named = zip(self._space.parameters, key, strict=True)
        return {parameter.name: index for parameter, index in named if len(parameter.choices) > 1}

    def _draw_unseen(self) -> tuple[int, ...]:
        sizes = [len(parameter.choices) for parameter in self._space.parameters]
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


def _distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    """Positions in the list of choices: numbers keep their order, words do not."""
    from optuna import distributions

    last = len(parameter.choices) - 1
    if parameter.ordered:
        return distributions.IntDistribution(0, last)
    return distributions.CategoricalDistribution(list(range(last + 1)))
