"""Evaluating one outer configuration: limits first, then whatever answers for the workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
import traceback
from typing import TYPE_CHECKING

from dse.errors import DseError
from dse.search._records import TrialRecord, TrialStatus
from dse.search.space import Metric, ParameterValue, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine.platforms import Platform

#: Innermost calls that a record keeps of where an evaluation raised.
_CALLS_KEPT = 50


@dataclass(frozen=True)
class EvaluationContext(ABC):
    """All that an evaluation needs besides the outer parameters; sent once to every worker.

    Attributes:
        space: The search space.
        seed: Seed of the study.
    """

    space: SearchSpace
    seed: int

    @abstractmethod
    def make_evaluator(self) -> Evaluator:
        """Returns the evaluator of this kind of workload."""


class Evaluator(ABC):
    """Answers for outer configurations, in whichever process it lives.

    Args:
        space: The search space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    @abstractmethod
    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit, or nothing when it may be evaluated."""

    def evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        """Answers for a configuration.

        Args:
            number: Trial number, for the record.
            parameters: Value of every outer parameter.

        Returns:
            A record; an evaluation that raises, whatever it is, gives one with status failed and
            the traceback.
        """
        try:
            return self._evaluate(number, parameters)
        except Exception as error:  # one candidate must not end a study
            return replace(
                without_answer(number, TrialStatus.FAILED, _reason(error), parameters),
                traceback="".join(traceback.format_exception(error, limit=-_CALLS_KEPT)),
            )

    def rejection(self, parameters: Mapping[str, ParameterValue]) -> str:
        """As :meth:`reject`, but never raises.

        What raises is let pass: its evaluation will raise too, and keeps the traceback.

        Args:
            parameters: Value of every outer parameter.
        """
        try:
            return self.reject(parameters)
        except Exception:  # one candidate must not end a study
            return ""

    def lower_bound_s(self, parameters: Mapping[str, ParameterValue]) -> float | None:
        """Returns a time that no plan of a configuration beats; None where there are no plans.

        Args:
            parameters: Value of every outer parameter.
        """
        del parameters
        return None

    @abstractmethod
    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        """As :meth:`evaluate`, but may raise."""

    def _price(self, platform: Platform, world_size: int) -> float | None:
        """Returns USD per hour of as many devices, or None without a price."""
        space = self._space
        quote = platform.quote(world_size, basis=space.price_basis, provider=space.price_provider)
        return None if quote is None else quote.usd_per_hour

    def _over_limit(self, platform: Platform | None, known: Mapping[Metric, float | None]) -> str:
        """Says which limit is broken by what is known before the evaluation, or nothing.

        Args:
            platform: What it would run on; None if unknown.
            known: Metrics; None where there is no price.
        """
        space = self._space
        priced = {Metric.PRICE, Metric.COST}
        if known[Metric.PRICE] is None and any(
            objective.metric in priced for objective in space.objectives
        ):
            if platform is None:
                return (
                    "what the trace was captured on is not known, so it has no price; name it as "
                    "`workload.platform` or drop the cost objective"
                )
            return (
                f"platform {platform.name} has no {space.price_basis} price"
                + (f" of {space.price_provider}" if space.price_provider else "")
                + "; add one to its file or drop the cost objective"
            )
        for constraint in space.constraints:
            value = known.get(constraint.metric)
            if value is not None and constraint.violation(value) > 0:
                return constraint.reason(value)
        return ""

    def _broken_constraints(self, values: Mapping[Metric, float]) -> list[str]:
        """Says in words which limits an answer breaks; what is not known breaks them too."""
        return [
            constraint.reason(values[constraint.metric])
            for constraint in self._space.constraints
            if not constraint.violation(values[constraint.metric]) <= 0
        ]

    def _objectives(self, values: Mapping[Metric, float]) -> tuple[float, ...]:
        return tuple(values[objective.metric] for objective in self._space.objectives)


def _reason(error: Exception) -> str:
    """Returns what was raised in words; one line with its type if it is no error of ours."""
    if isinstance(error, DseError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def without_answer(
    number: int, status: TrialStatus, reason: str, parameters: Mapping[str, ParameterValue]
) -> TrialRecord:
    """Returns the record of a configuration that has no answer."""
    return TrialRecord(
        number, status, reason, tuple(parameters.items()), (), None, None, planner=""
    )


def named(value: ParameterValue) -> str:
    """Returns a link or network by name; `default` means the platform's own, an empty name."""
    return "" if value == "default" else str(value)
