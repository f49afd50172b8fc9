"""Evaluation of configurations: limits first, then the plan, then the prediction.

One evaluator serves every kind of workload: what differs between kinds is in their jobs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, replace
import math
import traceback
from typing import TYPE_CHECKING

from dse.errors import ConfigError, DseError, StudyError
from dse.search._proposals import Effort
from dse.search._records import TrialRecord, TrialStatus
from dse.search.space import SearchSpace
from dse.workload import (
    IDEAL,
    MEMORY_HEADROOM,
    PREDICTED_FIGURES,
    PRICE_FIGURES,
    Configuration,
    Figures,
    MemoryAccount,
    ParameterValue,
    PlanEffort,
    Prediction,
    Workload,
    explain_job,
    predict_job,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from dse.machine import Cluster, Quote
    from dse.machine.platforms import Platform
    from dse.search._proposals import Proposal
    from dse.search._records import Params
    from dse.search.space import Objective
    from dse.workload import Job, Metric

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

    def answer(self, proposal: Proposal) -> TrialRecord:
        """Returns what a proposal asks for: bounds as :meth:`bound`, else :meth:`evaluate`."""
        if proposal.effort < Effort.QUICK:
            try:
                return self.bound(proposal)
            except Exception:  # nothing is known; the evaluation will raise it too
                return unbounded(self.space, proposal)
        if proposal.effort is Effort.THOROUGH:
            return self.evaluate_thoroughly(proposal.number, dict(proposal.parameters))
        return self.evaluate(proposal.number, dict(proposal.parameters))

    def evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        """Answers for a configuration.

        Args:
            number: Trial number, for the record.
            parameters: Value of every parameter.

        Returns:
            A record; an evaluation that raises, whatever it is, gives one with status failed and
            the traceback.
        """
        return self._answered_or_failed(self._evaluate, number, parameters)

    def evaluate_thoroughly(
        self, number: int, parameters: Mapping[str, ParameterValue]
    ) -> TrialRecord:
        """Answers with a plan that is searched as thoroughly as by :func:`dse.shard`."""
        return self._answered_or_failed(self._evaluate_thoroughly, number, parameters)

    def _answered_or_failed(
        self,
        evaluate: Callable[[int, Mapping[str, ParameterValue]], TrialRecord],
        number: int,
        parameters: Mapping[str, ParameterValue],
    ) -> TrialRecord:
        try:
            return evaluate(number, parameters)
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

    @property
    def finest_bound(self) -> Effort:
        """The most effort that bounds can take; more gives nothing new."""
        return Effort.OPTIMISTIC

    @property
    def bounds_time(self) -> bool:
        """Whether bounds say anything about the time of a configuration."""
        return False

    def outcome(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns what decides the answer; equal for configurations with equal answers.

        Args:
            parameters: Value of every parameter.

        Raises:
            DseError: The configuration is impossible.
        """
        return tuple(parameters.items())

    def favourable(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns the outcome whose bound :attr:`Effort.SHARED_BOUND` takes.

        Args:
            parameters: Value of every parameter of a possible configuration.
        """
        return tuple(parameters.items())

    def bound(self, proposal: Proposal) -> TrialRecord:
        """Returns a record with values that a configuration cannot beat.

        A configuration that cannot be feasible is infeasible in the record too, with the reason.
        The time of the record's prediction is the bound; minus infinity or infinity stand for
        values that nothing limits.

        Args:
            proposal: The configuration and the effort.
        """
        return unbounded(self.space, proposal)

    def bounded(self, proposal: Proposal, time_s: float) -> TrialRecord:
        """Returns the same for a time that the configuration cannot beat.

        Args:
            proposal: The configuration.
            time_s: Infinite if it is certain that no plan fits.
        """
        del time_s
        return unbounded(self.space, proposal)

    @abstractmethod
    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        """Does the same as :meth:`evaluate`, but may raise."""

    def _evaluate_thoroughly(
        self, number: int, parameters: Mapping[str, ParameterValue]
    ) -> TrialRecord:
        """Does the same with more effort; where there is nothing to search, the same."""
        return self._evaluate(number, parameters)


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
        self._least_s: dict[tuple[Hashable, bool], float] = {}
        self._favourable: dict[Params, Job] = {}
        self._choices = {each.name: each.choices for each in context.space.parameters}

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
        return self._lower_bound_s(self.open_job(parameters))

    def _lower_bound_s(self, job: Job) -> float | None:
        key = job.key()
        if key is None:
            return job.lower_bound_s()
        if key not in self._bounds:
            self._bounds[key] = job.lower_bound_s()
        return self._bounds[key]

    # --- bounds ---------------------------------------------------------------------------------

    @property
    def finest_bound(self) -> Effort:
        """The closer of the times that jobs cannot beat, if there is any."""
        return Effort.OWN_BOUND if self.bounds_time else Effort.OPTIMISTIC

    @property
    def bounds_time(self) -> bool:
        """Whether jobs of this workload know a time that they cannot beat."""
        return self.workload.bounds_time

    def outcome(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns the platform, which has the prices, and what decides the prediction."""
        job = self.open_job(parameters)
        job.check_parameters()
        key = job.key()
        return super().outcome(parameters) if key is None else (parameters.get("platform"), key)

    def favourable(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns the outcome of parameters that are never slower."""
        chosen = self.workload.favourable(parameters, self._choices)
        key = self._favourable_job(parameters).key()
        return super().outcome(chosen) if key is None else (chosen.get("platform"), key)

    def _favourable_job(self, parameters: Mapping[str, ParameterValue]) -> Job:
        """Returns the job of parameters that are never slower; many configurations share it."""
        chosen = self.workload.favourable(parameters, self._choices)
        named = tuple(chosen.items())
        if named not in self._favourable:
            self._favourable[named] = self.open_job(chosen)
        return self._favourable[named]

    def bound(self, proposal: Proposal) -> TrialRecord:
        """Returns values that no plan of a configuration beats; see :meth:`Evaluator.bound`."""
        parameters = dict(proposal.parameters)
        if not self.bounds_time:
            return unbounded(self.space, proposal, self.rejection(parameters))
        if reason := self._cannot_run(self.open_job(parameters), parameters):
            return unbounded(self.space, proposal, reason)
        shared = proposal.effort < Effort.OWN_BOUND
        bounded = self._favourable_job(parameters) if shared else self.open_job(parameters)
        return self.bounded(
            proposal, self._least_time_s(bounded, closer=proposal.effort > Effort.OPTIMISTIC)
        )

    def _cannot_run(self, job: Job, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why no plan makes a job feasible; empty if one may."""
        return self._over_limit(job, self._platform_of(parameters)) or job.cannot_fit()

    def bounded(self, proposal: Proposal, time_s: float) -> TrialRecord:
        """Returns the record of a bound; see :meth:`Evaluator.bounded`."""
        parameters = dict(proposal.parameters)
        job = self.open_job(parameters)
        if math.isinf(time_s):
            reason = "out of memory: no plan of the allowed sharding types fits"
            return unbounded(self.space, proposal, reason)
        quote = self._quote(job, self._platform_of(parameters))
        throughput = job.samples_per_iteration / time_s if time_s > 0 else math.inf
        cost = None if quote is None else quote.cost_usd_per_million(throughput)
        cluster = job.cluster
        prediction = Prediction(
            iteration_time_s=time_s,
            iteration_time_p5_s=math.nan,
            iteration_time_p95_s=math.nan,
            throughput_samples_per_s=throughput,
            price_usd_per_hour=None if quote is None else quote.usd_per_hour,
            cost_usd_per_million_samples=cost,
            breakdown=(),
            memory=(MemoryAccount((("all", job.least_memory_bytes()),)),),
            usable_memory_bytes=(
                math.nan if cluster is None else cluster.device.usable_memory_bytes
            ),
            feasible=True,
            infeasible_reason="",
            metrics=job.metrics(time_s) if time_s > 0 else (),
        )
        record = replace(
            without_answer(proposal.number, TrialStatus.FEASIBLE, "", parameters),
            configuration=self.configuration(job, parameters),
            prediction=prediction,
        )
        return optimistic(record, self.space, self.workload)

    def _least_time_s(self, job: Job, *, closer: bool) -> float:
        """Returns a time that a job cannot beat; equal jobs are looked at once."""
        key = job.key()
        if key is None:
            return job.optimistic_time_s(closer=closer)
        if (key, closer) not in self._least_s:
            self._least_s[key, closer] = job.optimistic_time_s(closer=closer)
        return self._least_s[key, closer]

    # --- answers --------------------------------------------------------------------------------

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        return self._answered(number, parameters, self._planned)

    def _evaluate_thoroughly(
        self, number: int, parameters: Mapping[str, ParameterValue]
    ) -> TrialRecord:
        return replace(self._answered(number, parameters, self._thorough), thorough=True)

    def _thorough(self, job: Job) -> Job:
        """Returns a job with the plan that is found with the effort of :func:`dse.shard`."""
        return job.planned(replace(self._effort, quick=False))

    def _answered(
        self,
        number: int,
        parameters: Mapping[str, ParameterValue],
        planned: Callable[[Job], Job],
    ) -> TrialRecord:
        try:
            job = planned(self.open_job(parameters))
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
        parameters = dict(configuration.parameters)
        if self.workload.default_program and "program" not in parameters:
            # Studies of earlier versions name no program; theirs was the ideal one.
            parameters["program"] = configuration.program or IDEAL
        job = self.open_job(parameters)
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
            program=job.program,
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
        metric = self.workload.metric
        if quote is None and any(
            metric(objective.metric).needs(*PRICE_FIGURES) for objective in space.objectives
        ):
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
        known = Figures(
            world_size=job.world_size,
            # Those of a captured step depend on changes that are not made yet.
            global_batch_size=math.nan
            if self.workload.brings_machine
            else job.samples_per_iteration,
            price_usd_per_hour=math.nan if quote is None else quote.usd_per_hour,
        )
        for constraint in space.constraints:
            value = metric(constraint.metric).of(known)
            if constraint.violation(value) > 0:
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


def optimistic(record: TrialRecord, space: SearchSpace, workload: Workload) -> TrialRecord:
    """Returns a record of bounds with its objective values, its status and the reason for it.

    A bound on the time bounds other metrics on their good side. An objective or a limit that
    wants the other direction is not bounded: the objective is infinitely good, the limit kept.

    Args:
        record: A record whose prediction cannot be beaten.
        space: Objectives and constraints.
        workload: Knows the metrics.
    """
    values, prediction = record.metrics, record.prediction
    reasons = []
    if prediction is not None and not prediction.feasible:
        reasons.append(prediction.infeasible_reason)
    for constraint in space.constraints:
        one_sided, metric = constraint, workload.metric(constraint.metric)
        if metric.needs(*PREDICTED_FIGURES) or metric.value is None:
            # The true value may be anywhere on the other side of the bound.
            if metric.maximize:
                one_sided = replace(constraint, at_most=None)
            else:
                one_sided = replace(constraint, at_least=None)
        value = values.get(constraint.metric, math.nan)
        if one_sided.violation(value) > 0:
            reasons.append(one_sided.reason(value))
    return replace(
        record,
        status=TrialStatus.INFEASIBLE if reasons else TrialStatus.FEASIBLE,
        reason="; ".join(reasons),
        values=tuple(
            _best_value(
                objective,
                workload.metric(objective.metric),
                values.get(objective.metric, math.nan),
            )
            for objective in space.objectives
        ),
    )


def _best_value(objective: Objective, metric: Metric, value: float) -> float:
    """Returns an optimistic value of an objective; infinitely good where nothing bounds it."""
    predicted = metric.needs(*PREDICTED_FIGURES) or metric.value is None
    if not math.isnan(value) and (not predicted or metric.maximize == objective.maximize):
        return value
    return math.inf if objective.maximize else -math.inf


def unbounded(space: SearchSpace, proposal: Proposal, reason: str = "") -> TrialRecord:
    """Returns the bounds of a configuration of whose time nothing is known.

    Args:
        space: Its objectives give the values.
        proposal: The configuration.
        reason: Why it breaks a hard limit; empty if it does not.
    """
    status = TrialStatus.INFEASIBLE if reason else TrialStatus.FEASIBLE
    record = without_answer(proposal.number, status, reason, dict(proposal.parameters))
    values = tuple(math.inf if axis.maximize else -math.inf for axis in space.objectives)
    return replace(record, values=values)


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
        if constraint.metric == MEMORY_HEADROOM.name and constraint.at_least is not None
    ]
    return max(limits, default=0.0)


def _reason(error: Exception) -> str:
    """Returns the error message, one line with its type unless it is a `DseError`."""
    if isinstance(error, DseError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
