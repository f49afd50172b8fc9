"""Evaluators: limits first, then the prediction of a configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
import traceback
from typing import TYPE_CHECKING, TypeAlias

from dse.errors import DseError, StudyError
from dse.search._records import TrialRecord, TrialStatus
from dse.search.space import SearchSpace
from dse.workload import Metric, ParameterValue, explain_job, predict_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Cluster
    from dse.machine.platforms import Platform
    from dse.workload import Job, Prediction
    from dse.workload.dlrm import Configuration
    from dse.workload.transformer import StepConfiguration

    AnyConfiguration: TypeAlias = Configuration | StepConfiguration

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
        return price_of(platform, world_size, self._space)

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


class ConfigurationEvaluator(Evaluator):
    """Evaluates configurations of a model on the platforms of a space.

    Args:
        space: The search space.
        platforms: Every platform that configurations name, by that name.
    """

    def __init__(self, space: SearchSpace, platforms: Mapping[str, Platform]) -> None:
        super().__init__(space)
        self._platforms = platforms

    @abstractmethod
    def job(self, configuration: AnyConfiguration) -> Job:
        """Returns a complete configuration as the performance model takes it.

        Raises:
            StudyError: It names a platform that is not one of these.
            ConfigError: It is impossible.
            PlanError: Its plan is not one of the model.
        """

    def predict(self, configuration: AnyConfiguration) -> Prediction:
        """Predicts a complete configuration, without any search; raises as :meth:`job`."""
        return predict_job(self.job(configuration), self.price_usd_per_hour(configuration))

    @abstractmethod
    def refusal(self, configuration: AnyConfiguration) -> str:
        """Returns why a configuration cannot run with any plan, or nothing when it may."""

    def limit(self, configuration: AnyConfiguration) -> str:
        """Returns a sentence on what limits a complete configuration."""
        return explain_job(self.job(configuration)).sentence

    def fits(self, configuration: AnyConfiguration) -> bool:
        """Returns whether every rank fits its device, without predicting the time."""
        job = self.job(configuration)
        usable_bytes = job.cluster.device.usable_memory_bytes
        return all(account.total_bytes <= usable_bytes for account in job.memory())

    def cluster(self, configuration: AnyConfiguration) -> Cluster:
        """Returns the machines of a configuration."""
        return self._platform(configuration.platform).cluster(
            configuration.world_size,
            link=configuration.link,
            network=configuration.network,
            extra_links=self._space.links,
            extra_networks=self._space.networks,
        )

    def price_usd_per_hour(self, configuration: AnyConfiguration) -> float | None:
        """Returns the price of all machines of a configuration; None without a price."""
        return self._price(self._platform(configuration.platform), configuration.world_size)

    def _platform(self, name: str) -> Platform:
        try:
            return self._platforms[name]
        except KeyError:
            raise StudyError(
                f"the study keeps no platform `{name}`; its study.yaml was changed"
            ) from None


def price_of(platform: Platform, world_size: int, space: SearchSpace) -> float | None:
    """Returns USD per hour of as many devices at a space's prices, or None without a price."""
    quote = platform.quote(world_size, basis=space.price_basis, provider=space.price_provider)
    return None if quote is None else quote.usd_per_hour


def judged(record: TrialRecord, space: SearchSpace) -> TrialRecord:
    """Returns an evaluated record with its objective values, its status and the reason for it.

    A constraint on a metric that is not known is broken.

    Args:
        record: With a prediction, or the answer for a captured trace.
        space: Objectives and constraints.
    """
    values, prediction = record.metrics, record.prediction
    reasons = []
    if prediction is not None and not prediction.feasible:
        reasons.append(prediction.infeasible_reason)
    reasons += [
        constraint.reason(values[constraint.metric])
        for constraint in space.constraints
        if not constraint.violation(values[constraint.metric]) <= 0
    ]
    return replace(
        record,
        status=TrialStatus.INFEASIBLE if reasons else TrialStatus.FEASIBLE,
        reason="; ".join(reasons),
        values=tuple(values[objective.metric] for objective in space.objectives),
        on_front=False,
    )


def _reason(error: Exception) -> str:
    """Returns the error message, one line with its type unless it is a `DseError`."""
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
