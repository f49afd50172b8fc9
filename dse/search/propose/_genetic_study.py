"""Optuna's NSGA-II without an Optuna study.

A study of Optuna keeps every trial, copies them, and goes through all of them at each proposal to
find the trial's generation, its parents, and the parameters that all trials share. Late in a
genetic search most proposals are known already, so this takes most of the time of the proposing
process. Here one process proposes and all trials have the same parameters, so counting is enough.
Breeding, selection and random numbers are Optuna's, and so are the proposals.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, TrialState


@dataclass(slots=True)
class GeneticTrial:
    """A proposal without an answer; the part of `optuna.trial.Trial` that is used here.

    Attributes:
        number: Position among all proposals.
        params: Value of each parameter.
        generation: Which generation it was bred for; None when all its values were given.
        constraints: By how much each limit is broken; zero or less is kept.
    """

    number: int
    params: dict[str, Any] = field(default_factory=dict)
    generation: int | None = None
    constraints: dict[str, float] = field(default_factory=dict)

    def set_constraint(self, name: str, violation: float) -> None:
        """Sets by how much a limit is broken."""
        self.constraints[name] = violation


class GeneticStudy:
    """An ask-and-tell study for NSGA-II; the part of `optuna.Study` that is used here.

    Args:
        directions: ``maximize`` or ``minimize`` for each objective.
        seed: Of its random numbers.
    """

    def __init__(self, directions: Sequence[Literal["maximize", "minimize"]], seed: int) -> None:
        import optuna

        self._sampler = _counting_sampler(seed)
        # For its directions; it never gets a trial.
        self._study = optuna.create_study(directions=list(directions), sampler=self._sampler)
        self._given: deque[dict[str, Any]] = deque()
        self._asked = 0

    def enqueue_trial(self, params: Mapping[str, Any]) -> None:
        """Uses these values for the next proposal."""
        self._given.append(dict(params))

    def add_trial(self, trial: FrozenTrial) -> None:
        """Adds an answer of another run to the current generation.

        Optuna's study would leave it out of all generations, and learn nothing from it.
        """
        trial.number = self._asked
        self._asked += 1
        self._sampler.keep(self._sampler.generation, trial)

    def ask(self, distributions: Mapping[str, BaseDistribution]) -> GeneticTrial:
        """Returns a proposal.

        Args:
            distributions: Parameters, always the same ones.
        """
        trial = GeneticTrial(self._asked)
        self._asked += 1
        given = self._given.popleft() if self._given else {}
        bred: dict[str, Any] = {}
        for name, distribution in distributions.items():
            if name in given:
                trial.params[name] = given[name]
                continue
            if trial.generation is None:
                trial.generation = self._sampler.generation
                bred = self._sampler.breed(self._study, distributions)
            trial.params[name] = (
                bred[name]
                if name in bred
                else self._sampler.sample_independent(self._study, _NO_TRIAL, name, distribution)
            )
        return trial

    def decides_without(self, missing: int) -> bool:
        """Returns whether the next proposal is the same whatever some answers will be.

        It is while they do not complete the generation, nor are among those that its parents are
        chosen from.

        Args:
            missing: How many answers are missing at most.
        """
        return missing == 0 or bool(self._sampler.decides_without(missing))

    def tell(
        self,
        trial: GeneticTrial,
        values: Sequence[float] | None = None,
        state: TrialState | None = None,
    ) -> None:
        """Answers a proposal.

        Args:
            trial: The proposal.
            values: Of the objectives.
            state: Failed, instead of values: the trial is ignored from here on.
        """
        import optuna

        if values is None or trial.generation is None:
            return
        frozen = optuna.trial.create_trial(
            values=[float(value) for value in values], constraints=trial.constraints
        )
        frozen.number = trial.number
        frozen.params = trial.params
        self._sampler.keep(trial.generation, frozen)


#: The sampler does not look at the trial that it gets.
_NO_TRIAL: Any = None


def _counting_sampler(seed: int) -> Any:
    from optuna.samplers import NSGAIISampler

    class CountingSampler(NSGAIISampler):
        """NSGA-II that counts generations instead of searching trials for them."""

        def __init__(self) -> None:
            super().__init__(seed=seed)
            self._members: dict[int, list[FrozenTrial]] = {}
            self._parents: dict[int, list[FrozenTrial]] = {}
            self._last = 0

        @property
        def generation(self) -> int:
            """The last generation until it is complete, then the next one."""
            answered = len(self._members.get(self._last, ()))
            return self._last + (answered >= int(self.population_size or 0))

        def decides_without(self, missing: int) -> bool:
            """Returns whether parents are chosen and this generation goes on with so many more."""
            answered = len(self._members.get(self.generation, ()))
            chosen = self.generation in {0, *self._parents}
            return chosen and answered + missing < int(self.population_size or 0)

        def breed(
            self, study: optuna.Study, distributions: Mapping[str, BaseDistribution]
        ) -> dict[str, Any]:
            """Returns values that a child has from its parents; none in the first generation."""
            return self.sample_relative(study, _NO_TRIAL, dict(sorted(distributions.items())))

        def keep(self, generation: int, answered: FrozenTrial) -> None:
            """Adds an answer to its generation."""
            self._members.setdefault(generation, []).append(answered)
            self._last = max(self._last, generation)

        def get_trial_generation(self, study: optuna.Study, trial: FrozenTrial) -> int:
            return self.generation

        def get_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
            return sorted(self._members.get(generation, ()), key=_number)

        def get_parent_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
            if generation == 0:
                return []
            if generation in self._parents:
                return self._parents[generation]
            selected = self.select_parent(study, generation)
            # Optuna, too, has them in another order from the second time on.
            self._parents[generation] = sorted(selected, key=_number)
            for older in (generation - 2, generation - 3):
                self._parents.pop(older, None)
                self._members.pop(older, None)
            return selected

    return CountingSampler()


def _number(trial: FrozenTrial) -> int:
    return trial.number
