"""Evaluation of configurations: limits first, then the plan, then the prediction.

One evaluator serves every kind of workload: what differs between kinds is in their jobs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError, DseError, StudyError
from dse.search._proposals import Effort
from dse.search._records import TrialRecord, TrialStatus
from dse.search.evaluate._evaluator import EvaluationContext, Evaluator
from dse.search.evaluate._judge import judged, optimistic, unbounded, without_answer
from dse.search.evaluate._rent import Rent
from dse.workload import (
    IDEAL,
    MEMORY_HEADROOM,
    Configuration,
    Figures,
    ParameterValue,
    PlanEffort,
    Prediction,
    Workload,
    explain_job,
    predict_job,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from dse.machine import Cluster, Quote
    from dse.machine.platforms import Platform
    from dse.search._proposals import Proposal
    from dse.search._records import Params
    from dse.search.space import SearchSpace
    from dse.sharding import ShardingPlan
    from dse.workload import Job

#: Plans that are remembered: on one node the network makes no difference, so many configurations
#: have the same answer.
_PLANS_KEPT = 512


@dataclass(frozen=True)
class WorkloadContext(EvaluationContext):
    """What evaluations of a workload need.

    Attributes:
        workload: What is trained.
        platforms: Every platform that configurations name, by that name. A captured step runs on
            its own machine under names that are not among them.
    """

    preloaded = ("dse.workload.dlrm.solver", "scipy.optimize", "xgboost")

    workload: Workload
    platforms: Mapping[str, Platform]

    def make_evaluator(self) -> ConfigurationEvaluator:
        """Returns an evaluator."""
        return ConfigurationEvaluator(self)


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
        self._plans: OrderedDict[Hashable, tuple[ShardingPlan, str]] = OrderedDict()
        self._least_s: dict[tuple[Hashable, bool], float] = {}
        self._favourable: dict[Params, Job] = {}
        self._choices = {each.name: each.choices for each in context.space.parameters}
        self._rent = Rent(context.space, context.workload)
        self._workload = context.workload.with_table_constraints(
            dict(context.space.table_constraints)
        )

    @property
    def workload(self) -> Workload:
        """What is trained."""
        return self._workload

    # --- studies --------------------------------------------------------------------------------

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit; empty if it may be evaluated."""
        try:
            job = self.open_job(parameters)
            job.check_parameters()
        except DseError as error:
            return str(error)
        return self._over_limit(job, parameters) or job.cannot_fit()

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
        return super().outcome(parameters) if key is None else self._keyed(parameters, key)

    def favourable(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns the outcome of parameters that are never slower."""
        chosen = self.workload.favourable(parameters, self._choices)
        key = self._favourable_job(parameters).key()
        return super().outcome(chosen) if key is None else self._keyed(chosen, key)

    def _keyed(self, parameters: Mapping[str, ParameterValue], key: Hashable) -> Hashable:
        """Returns a key with the platform, unless the key itself tells platforms apart."""
        # The machine of a captured step has two names: its own, and that of the captured one.
        return (None if self.workload.brings_machine else parameters.get("platform"), key)

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
        return self.bounded(
            proposal, self._least_time_s(self._favourable_job(parameters), closer=False)
        )

    def closer_time_s(self, proposal: Proposal) -> float:
        """Returns the bound of a job, or of the one that it shares its bound with."""
        parameters = dict(proposal.parameters)
        shared = proposal.effort < Effort.OWN_BOUND
        job = self._favourable_job(parameters) if shared else self.open_job(parameters)
        if proposal.incumbent_s is None:
            return self._least_time_s(job, closer=True)
        refined_s = job.lower_bound_s(proposal.incumbent_s)
        return 0.0 if refined_s is None else refined_s

    def _cannot_run(self, job: Job, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why no plan makes a job feasible; empty if one may."""
        return self._over_limit(job, parameters) or job.cannot_fit()

    def bounded(self, proposal: Proposal, time_s: float) -> TrialRecord:
        """Returns the record of a bound; see :meth:`Evaluator.bounded`."""
        parameters = dict(proposal.parameters)
        job = self.open_job(parameters)
        if math.isinf(time_s):
            reason = "out of memory: no plan of the allowed sharding types fits"
            return unbounded(self.space, proposal, reason)
        quote = self._quote(job, parameters)
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
            memory=job.least_memory(),
            usable_memory_bytes=(
                math.nan if cluster is None else cluster.device.usable_memory_bytes
            ),
            feasible=True,
            infeasible_reason="",
            metrics=job.metrics(time_s) if time_s > 0 else (),
        )
        record = self.predicted(proposal.number, parameters, job, prediction)
        return optimistic(record, self.space, self.workload)

    def least_time_s(self, parameters: Mapping[str, ParameterValue], *, closer: bool) -> float:
        """Returns a time that no plan of a configuration beats; 0 where none is known.

        Args:
            parameters: Value of every parameter.
            closer: With what a job knows of itself, instead of what many jobs share.
        """
        if not self.bounds_time:
            return 0.0
        job = self.open_job(parameters) if closer else self._favourable_job(parameters)
        least_s = self._least_time_s(job, closer=closer)
        return least_s if math.isfinite(least_s) else 0.0

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

    def with_plans_of(
        self, record: TrialRecord, others: Sequence[TrialRecord]
    ) -> tuple[TrialRecord, ...]:
        """Returns an answer with each faster plan of other configurations that is feasible."""
        known = record.prediction
        configurations = [other.configuration for other in others]
        if known is None:
            return ()
        try:
            jobs = [self.job(each) for each in configurations if each is not None]
            own = self.open_job(dict(record.parameters))
            planned = own.with_plans_of(jobs, known.iteration_time_s)
            found = [self._record(record.number, record.parameters, job) for job in planned]
        except Exception:  # one candidate must not end a study
            return ()
        return tuple(
            replace(each, borrowed=True)
            for each in found
            if each.status is TrialStatus.FEASIBLE
            and each.prediction is not None
            and each.prediction.iteration_time_s < known.iteration_time_s
        )

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
        return self._record(number, tuple(parameters.items()), job)

    def _record(self, number: int, chosen: Params, job: Job) -> TrialRecord:
        """Returns the answer for a job with its plan."""
        parameters = dict(chosen)
        prediction = predict_job(job, self._quote(job, parameters))
        record = self.predicted(number, parameters, job, prediction)
        return judged(record, self.space, self.workload)

    def predicted(
        self,
        number: int,
        parameters: Mapping[str, ParameterValue],
        job: Job,
        prediction: Prediction,
    ) -> TrialRecord:
        """Returns the record of a prediction, before it is judged."""
        record = without_answer(number, TrialStatus.FEASIBLE, "", parameters)
        configuration = self.configuration(job, parameters)
        return replace(record, configuration=configuration, prediction=prediction)

    def _planned(self, job: Job) -> Job:
        """Returns a job with its plan; equal jobs are searched once."""
        key = job.key()
        if key is None:
            return job.planned(self._effort)
        known = self._plans.get(key)
        if known is not None:
            return job.with_plan(*known)
        found = job.planned(self._effort)
        if found.plan is not None:
            # Not the job, whose performance model takes much more memory.
            self._plans[key] = found.plan, found.planner
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
        platform = self._platform_of(parameters)
        return self.workload.job(
            platform,
            self._rent.connected(platform, parameters),
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

    def planned(self, parameters: Mapping[str, ParameterValue]) -> Job:
        """Returns the job of parameters with a plan that was searched thoroughly.

        Args:
            parameters: Value of every parameter.
        """
        return self._thorough(self.open_job(parameters))

    def refusal(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration cannot run with any plan; empty if it may."""
        try:
            job = self.open_job(parameters)
            job.check_parameters()
        except DseError as error:
            return str(error)
        return job.cannot_fit()

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
        return self._quote(self.open_job(parameters), parameters)

    # --- prices and limits ----------------------------------------------------------------------

    def _platform_of(self, parameters: Mapping[str, ParameterValue]) -> Platform | None:
        """Returns the platform that parameters name; None for that of a captured step."""
        name = str(parameters.get("platform", ""))
        if name in self._context.platforms:
            return self._context.platforms[name]
        if not self.workload.brings_machine:
            raise StudyError(f"the study keeps no platform `{name}`; its study.yaml was changed")
        return None

    def _quote(self, job: Job, parameters: Mapping[str, ParameterValue]) -> Quote | None:
        platform = job.platform or self._platform_of(parameters)
        return None if platform is None else self._rent.quote(job, platform, parameters)

    def _over_limit(self, job: Job, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns which limit is broken by what is known before the evaluation."""
        space = self.space
        quote = self._quote(job, parameters)
        metric = self.workload.metric
        if quote is None and self._rent.required:
            platform = job.platform or self._platform_of(parameters)
            if platform is not None:
                return self._rent.no_price_reason(job, platform, parameters)
            return (
                "what the trace was captured on is not known, so it has no price; name it as "
                "`workload.platform` or drop the cost objective"
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
            limited = metric(constraint.metric)
            value = limited.of(known)
            if constraint.violation(value) > 0:
                return constraint.reason(value, limited)
        return ""


def _least_headroom(space: SearchSpace) -> float:
    """Returns the share of the memory that the space wants free."""
    limits = [
        constraint.at_least
        for constraint in space.constraints
        if constraint.metric == MEMORY_HEADROOM.name and constraint.at_least is not None
    ]
    return max(limits, default=0.0)
