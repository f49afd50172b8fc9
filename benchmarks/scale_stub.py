"""Evaluations that answer at once, or sleep: what is left of a run is what asking costs.

Limits are judged, equal configurations are found and plans are there as in a real study. Only the
numbers are made up: of every choice of a parameter an effect of its own on each objective, so
there is something to find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
import time
from typing import TYPE_CHECKING
import zlib

from dse.search import TrialRecord, TrialStatus, read_inputs
from dse.search.evaluate import ConfigurationEvaluator, Evaluator, WorkloadContext
from dse.search.propose import Proposer
from dse.search.space import SamplerName

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from dse.search import StudyInputs
    from dse.workload import ParameterValue

#: Real answers that the made-up ones are copies of.
TEMPLATES = 8


@dataclass(frozen=True)
class StubContext(WorkloadContext):
    """What evaluations need.

    Attributes:
        templates: Real answers.
        mean_s: How long an evaluation sleeps, on average.
    """

    templates: tuple[TrialRecord, ...]
    mean_s: float = 0.0

    def make_evaluator(self) -> StubEvaluator:
        """Returns an evaluator that answers at once."""
        return StubEvaluator(self)


class StubEvaluator(Evaluator):
    """Answers with a copy of a real answer."""

    def __init__(self, context: StubContext) -> None:
        super().__init__(context.space)
        self._real = ConfigurationEvaluator(context)
        self._templates = context.templates
        self._mean_s = context.mean_s

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit, or nothing."""
        return self._real.reject(parameters)

    def outcome(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns what decides the answer."""
        return self._real.outcome(parameters)

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        words = [f"{name}={value}" for name, value in parameters.items()]
        time.sleep(duration_s(self._mean_s, parameters))
        template = self._templates[zlib.crc32(" ".join(words).encode()) % len(self._templates)]
        factors = [
            math.exp(sum(effect(f"{objective} {word}") for word in words))
            for objective in range(len(template.values))
        ]
        return replace(
            template,
            number=number,
            parameters=tuple(parameters.items()),
            values=tuple(
                value * factor for value, factor in zip(template.values, factors, strict=True)
            ),
            prediction=replace(
                template.prediction,
                throughput_samples_per_s=template.prediction.throughput_samples_per_s * factors[0],
            ),
        )


def effect(words: str) -> float:
    """Returns a number between -0.5 and 0.5 that the words decide."""
    return zlib.crc32(words.encode()) / 2**32 - 0.5


def duration_s(mean_s: float, parameters: Mapping[str, ParameterValue]) -> float:
    """Returns how long an evaluation sleeps: a quarter to seven quarters of the mean."""
    return mean_s * (1.0 + 1.5 * effect(f"duration {sorted(parameters.items())}"))


def stub_inputs(space: str, mean_s: float = 0.0) -> StudyInputs:
    """Returns the inputs of a study whose evaluations take no processor time.

    Args:
        space: The space.
        mean_s: How long they sleep, on average.
    """
    inputs = read_inputs(space)
    evaluator = inputs.context.make_evaluator()
    proposer = Proposer(inputs.space, SamplerName.RANDOM, 0, evaluator)
    templates: list[TrialRecord] = []
    while len(templates) < TEMPLATES:
        batch = proposer.ask(1)
        records = [evaluator.evaluate(one.number, dict(one.parameters)) for one in batch.proposals]
        proposer.tell(records)
        templates += [one for one in records if one.status is TrialStatus.FEASIBLE]
    real = inputs.context
    context = StubContext(real.space, 0, real.workload, real.platforms, tuple(templates), mean_s)
    return replace(inputs, context=context)
