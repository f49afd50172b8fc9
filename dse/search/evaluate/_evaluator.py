"""Evaluation of configurations: limits first, then the plan, then the prediction.

One evaluator serves every kind of workload: what differs between kinds is in their jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, replace
import traceback
from typing import TYPE_CHECKING

from dse.errors import ConfigError, DseError, StudyError
from dse.search._records import TrialRecord, TrialStatus
from dse.search.space import SearchSpace
from dse.workload import (
    Configuration,
    Metric,
    ParameterValue,
    PlanEffort,
    Workload,
    explain_job,
    predict_job,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from dse.machine import Cluster, Quote
    from dse.machine.platforms import Platform
    from dse.workload import Job, Prediction

#: Innermost calls that a record keeps of where an evaluation raised.
_CALLS_KEPT = 50

#: Plans that are remembered: on one node the network makes no difference, so many configurations
#: have the same answer.
_PLANS_KEPT = 512

#: Distance of a quick plan from its bound up to which a thorough search is not worth it.
_CLOSE_ENOUGH = 0.05


@dataclass(frozen=True)
class EvaluationContext(ABC):
    """All that an evaluation needs besides the parameters; sent once to every worker.

    Attributes:
        space: The search space.
        seed: Seed of the study.
    """

    space: SearchSpace
    seed: int

    @abstractmethod
    def make_evaluator(self) -> Evaluator:
        """Returns an evaluator, in whichever process it is needed."""


@dataclass(frozen=True)
class WorkloadContext(EvaluationContext):
    """What evaluations of a workload need.

    Attributes:
        workload: What is trained.
        platforms: Every platform that configurations name, by that name. A captured step runs on
            its own machine under names that are not among them.
    """

    workload: Workload
    platforms: Mapping[str, Platform]

    def make_evaluator(self) -> ConfigurationEvaluator:
        """Returns an evaluator."""
        return ConfigurationEvaluator(self)


class Evaluator(ABC):
    """Answers for configurations, in whichever process it lives.

    Args:
        space: The search space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space

    @abstractmethod
    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit; empty if it may be evaluated."""

    def evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        """Answers for a configuration.

        Args:
            number: Trial number, for the record.
            parameters: Value of every parameter.

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
        """Returns the same as :meth:`reject`, but never raises.

        An error is not a rejection: the evaluation will raise it too, and keeps the traceback.

        Args:
            parameters: Value of every parameter.
        """
        try:
            return self.reject(parameters)
        except Exception:  # one candidate must not end a study
            return ""

    def lower_bound_s(self, parameters: Mapping[str, ParameterValue]) -> float | None:
        """Returns a time that no plan of a configuration beats; None if it has no plan.

        Args:
            parameters: Value of every parameter.
        """
        del parameters
        return None

    @abstractmethod
    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        """Does the same as :meth:`evaluate`, but may raise."""


class ConfigurationEvaluator(Evaluator):
    """Predicts configurations of a workload on the platforms of a space.

    Args:
        context: Everything fixed.
    """

    def __init__(self, context: WorkloadContext) -> None:
        super().__init__(context.space)
        self._context = context
        self._effort = PlanEffort(
            seed=context.seed,
            planners=context.space.search.planners,
            improvement_rounds=context.space.search.improvement_rounds,
            quick=True,
            headroom=_least_headroom(context.space),
        )
        self._plans: OrderedDict[Hashable, Job] = OrderedDict()
        self._bounds: dict[Hashable, float | None] = {}

    @property
    def workload(self) -> Workload:
        """What is trained."""
        return self._context.workload

    # --- studies --------------------------------------------------------------------------------

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit; empty if it may be evaluated."""
        try:
            job = self.open_job(parameters)
            job.check_parameters()
        except DseError as error:
            return str(error)
        platform = self._platform_of(parameters)
        return self._over_limit(job, platform) or job.cannot_fit()

    def lower_bound_s(self, parameters: Mapping[str, ParameterValue]) -> float | None:
        """Returns a quick bound; equal jobs are bounded once."""
        job = self.open_job(parameters)
        key = job.key()
        if key is None:
            return None
        if key not in self._bounds:
            self._bounds[key] = job.lower_bound_s()
        return self._bounds[key]

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        try:
            job = self._planned(self.open_job(parameters))
        except ConfigError as error:
            # This configuration asks for something impossible; another one may not.
            return without_answer(number, TrialStatus.REJECTED, str(error), parameters)
        quote = self._quote(job, self._platform_of(parameters))
        record = replace(
            without_answer(number, TrialStatus.FEASIBLE, "", parameters),
            configuration=self.configuration(job, parameters),
            prediction=predict_job(job, quote),
        )
        return judged(record, self.space)

    def _planned(self, job: Job) -> Job:
        """Returns a job with its plan; equal jobs are searched once."""
        key = job.key()
        if key is None:
            return job.planned(self._effort)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = job.planned(self._effort)
            if len(self._plans) > _PLANS_KEPT:
                self._plans.popitem(last=False)
        return found

    # --- jobs -----------------------------------------------------------------------------------

    def open_job(self, parameters: Mapping[str, ParameterValue]) -> Job:
        """Returns the job of parameters, its plan still open.

        Raises:
            StudyError: They name a platform that is not one of these.
            ConfigError: They are impossible.
        """
        return self.workload.job(
            self._platform_of(parameters),
            parameters,
            links=self.space.links,
            networks=self.space.networks,
        )

    def job(self, configuration: Configuration) -> Job:
        """Returns a complete configuration as the performance model takes it.

        Raises:
            StudyError: It names a platform that is not one of these.
            ConfigError: It is impossible.
            PlanError: Its plan is not one of the model.
        """
        job = self.open_job(dict(configuration.parameters))
        if configuration.plan is None:
            return job
        return job.with_plan(configuration.plan, configuration.planner)

    def configuration(self, job: Job, parameters: Mapping[str, ParameterValue]) -> Configuration:
        """Returns what was chosen for a job.

        Args:
            job: The job, with its plan.
            parameters: Value of every parameter.
        """
        samples = job.samples_per_iteration
        platform = str(parameters.get("platform", ""))
        if self.workload.brings_machine:
            # Changes may have moved the step to another machine than the parameters name.
            platform = "" if job.platform is None else job.platform.name
        return Configuration(
            kind=self.workload.kind,
            platform=platform,
            world_size=job.world_size,
            global_batch_size=0 if samples != samples else round(samples),
            parameters=tuple(parameters.items()),
            program=str(parameters.get("program", "")),
            plan=job.plan,
            planner=job.planner,
        )

    def predict(self, configuration: Configuration) -> Prediction:
        """Predicts a complete configuration, without any search; raises as :meth:`job`."""
        job = self.job(configuration)
        return predict_job(job, self.quote(configuration))

    def planned(self, parameters: Mapping[str, ParameterValue], bound_s: float | None) -> Job:
        """Searches a plan: quickly, and thoroughly where that may be better.

        Args:
            parameters: Value of every parameter.
            bound_s: A time that no plan beats; a quick plan close to it is good enough. None for
                the effort of a study.
        """
        quick = self._planned(self.open_job(parameters))
        time_s = quick.simulated()[0]
        fits = _fits(quick)
        if (
            bound_s is None
            or quick.plan is None
            or (fits and time_s <= (1 + _CLOSE_ENOUGH) * bound_s)
        ):
            return quick
        effort = replace(self._effort, quick=False)
        return self.open_job(parameters).planned(effort, quick.plan)

    def refusal(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration cannot run with any plan; empty if it may."""
        try:
            job = self.open_job(parameters)
            job.check_parameters()
        except DseError as error:
            return str(error)
        return job.cannot_fit()

    def fits(self, parameters: Mapping[str, ParameterValue]) -> bool:
        """Returns whether every rank fits its device, without predicting the time."""
        return _fits(self.open_job(parameters))

    def platform(self, name: str) -> Platform:
        """Returns a platform by the name that configurations carry."""
        return self._context.platforms[name]

    def limit(self, configuration: Configuration) -> str:
        """Returns a sentence on what limits a complete configuration."""
        return explain_job(self.job(configuration)).sentence

    def cluster(self, configuration: Configuration) -> Cluster | None:
        """Returns the machines of a configuration; None if they are not known."""
        return self.job(configuration).cluster

    def quote(self, configuration: Configuration) -> Quote | None:
        """Returns the price of all machines of a configuration; None without a price."""
        parameters = dict(configuration.parameters)
        return self._quote(self.open_job(parameters), self._platform_of(parameters))

    # --- prices and limits ----------------------------------------------------------------------

    def _platform_of(self, parameters: Mapping[str, ParameterValue]) -> Platform | None:
        """Returns the platform that parameters name; None for that of a captured step."""
        name = str(parameters.get("platform", ""))
        if name in self._context.platforms:
            return self._context.platforms[name]
        if not self.workload.brings_machine:
            raise StudyError(f"the study keeps no platform `{name}`; its study.yaml was changed")
        return None

    def _quote(self, job: Job, platform: Platform | None) -> Quote | None:
        found = job.platform or platform
        return None if found is None else quote_for(found, job.world_size, self.space)

    def _over_limit(self, job: Job, platform: Platform | None) -> str:
        """Returns which limit is broken by what is known before the evaluation."""
        space = self.space
        quote = self._quote(job, platform)
        priced = {Metric.PRICE, Metric.COST}
        if quote is None and any(objective.metric in priced for objective in space.objectives):
            found = job.platform or platform
            if found is None:
                return (
                    "what the trace was captured on is not known, so it has no price; name it as "
                    "`workload.platform` or drop the cost objective"
                )
            return (
                f"platform {found.name} has no {space.price_basis} price"
                + (f" of {space.price_provider}" if space.price_provider else "")
                + "; add one to its file or drop the cost objective"
            )
        known = {
            Metric.PRICE: None if quote is None else quote.usd_per_hour,
            Metric.WORLD_SIZE: float(job.world_size),
        }
        if Metric.GLOBAL_BATCH_SIZE in self.workload.metrics:
            known[Metric.GLOBAL_BATCH_SIZE] = job.samples_per_iteration
        for constraint in space.constraints:
            value = known.get(constraint.metric)
            if value is not None and constraint.violation(value) > 0:
                return constraint.reason(value)
        return ""


def quote_for(platform: Platform, world_size: int, space: SearchSpace) -> Quote | None:
    """Returns what as many devices cost at a space's prices; None without a price."""
    return platform.quote(world_size, basis=space.price_basis, provider=space.price_provider)


def judged(record: TrialRecord, space: SearchSpace) -> TrialRecord:
    """Returns an evaluated record with its objective values, its status and the reason for it.

    A constraint on a metric that is not known is broken.

    Args:
        record: A record with a prediction.
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


def without_answer(
    number: int, status: TrialStatus, reason: str, parameters: Mapping[str, ParameterValue]
) -> TrialRecord:
    """Returns the record of a configuration that has no prediction."""
    return TrialRecord(number, status, reason, tuple(parameters.items()), (), None, None)


def _fits(job: Job) -> bool:
    """Returns whether every rank fits its device."""
    cluster = job.cluster
    return cluster is None or all(
        account.total_bytes <= cluster.device.usable_memory_bytes for account in job.memory()
    )


def _least_headroom(space: SearchSpace) -> float:
    """Returns the share of the memory that the space wants free."""
    limits = [
        constraint.at_least
        for constraint in space.constraints
        if constraint.metric is Metric.MEMORY_HEADROOM and constraint.at_least is not None
    ]
    return max(limits, default=0.0)


def _reason(error: Exception) -> str:
    """Returns the error message, one line with its type unless it is a `DseError`."""
    if isinstance(error, DseError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
