"""Evaluating configurations of a model: the inner search for a plan, then the prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
import math
from typing import TYPE_CHECKING, NamedTuple

from dse.errors import ConfigError, DseError
from dse.machine import Precision
from dse.search._records import TrialRecord, TrialStatus
from dse.search.evaluate._base import (
    ConfigurationEvaluator,
    EvaluationContext,
    judged,
    named,
    without_answer,
)
from dse.search.propose._joint import joint_plan
from dse.search.space import PlanSearch
from dse.sharding import ShardingPlan, ShardingType, check_plan
from dse.workload import Metric, ParameterValue
from dse.workload.dlrm import (
    TYPE_SEPARATOR,
    Configuration,
    DlrmJob,
    DlrmRuntime,
    LaunchMode,
    PlanScorer,
    predict_plan,
    problem_of,
    software_profile,
)
from dse.workload.dlrm.solver import SolverSettings, lower_bound, planning_request, solve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.search.evaluate._base import AnyConfiguration
    from dse.workload.dlrm import DlrmProblem, Prediction

_WIRE_BYTES = {"fp32": 4, "fp16": 2}

#: On one node the network makes no difference, so many configurations have the same answer.
_ANSWERS_KEPT = 512

#: A study solves thousands of problems, so each gets less than a single one: half of the restarts
#: and of the neighbours, and no programs.
_RESTARTS = 1
_NEIGHBOURS = 512

#: Distance of a quick plan from its bound up to which a thorough search is not worth it.
_CLOSE_ENOUGH = 0.05


class Found(NamedTuple):
    """A plan, how it was found, and its prediction."""

    plan: ShardingPlan
    planner: str
    prediction: Prediction


@dataclass(frozen=True)
class ModelContext(EvaluationContext):
    """What evaluations of a model need.

    Attributes:
        model: What is trained.
        platforms: Every platform that the space names, by that name.
    """

    model: DlrmModel
    platforms: Mapping[str, Platform]

    def make_evaluator(self) -> ModelEvaluator:
        """Returns an evaluator of the model."""
        return ModelEvaluator(self)


class ModelEvaluator(ConfigurationEvaluator):
    """Finds the best sharding plan of each configuration and predicts it.

    Args:
        context: Everything fixed.
    """

    def __init__(self, context: ModelContext) -> None:
        super().__init__(context.space, context.platforms)
        self._context = context
        self._found = lru_cache(maxsize=_ANSWERS_KEPT)(self._find_plan)
        self._bound = lru_cache(maxsize=None)(self.bound_s)

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit, or nothing when it may be evaluated."""
        try:
            configuration = self._configuration(parameters)
        except DseError as error:
            return str(error)
        known = {
            Metric.PRICE: self.price_usd_per_hour(configuration),
            Metric.WORLD_SIZE: float(configuration.world_size),
            Metric.GLOBAL_BATCH_SIZE: float(configuration.global_batch_size),
        }
        platform = self._context.platforms[configuration.platform]
        impossible = self._impossible(configuration)
        return impossible or self._over_limit(platform, known) or self._cannot_hold(configuration)

    def refusal(self, configuration: AnyConfiguration) -> str:
        """Returns why no plan of a configuration can run, or nothing."""
        return self._impossible(configuration) or self._cannot_hold(configuration)

    def bound_s(
        self,
        configuration: Configuration,
        types: frozenset[ShardingType],
        incumbent_s: float | None = None,
    ) -> float:
        """Returns an iteration time that no plan of a configuration beats.

        Args:
            configuration: The configuration, whatever its plan.
            types: Sharding types that plans may use.
            incumbent_s: Refine the bound until it exceeds this time; None for a quick one.
        """
        scorer = self._scorer(configuration)
        request = planning_request(scorer, types, self._context.seed)
        if incumbent_s is None:
            return lower_bound(scorer, request, max_programs=0).iteration_time_s
        return lower_bound(scorer, request, incumbent_s=incumbent_s).iteration_time_s

    def planned(
        self,
        configuration: Configuration,
        types: frozenset[ShardingType],
        bound_s: float | None = None,
    ) -> Found:
        """Searches a plan for a configuration: quickly, and thoroughly where that may be better.

        Args:
            configuration: The configuration, whatever its plan.
            types: Sharding types that plans may use.
            bound_s: No plan has a shorter iteration; a quick plan close to it is good enough.
                None for the effort of a study.
        """
        quick = self._find_plan(configuration, types)
        fits = quick.prediction.feasible
        time_s = quick.prediction.iteration_time_s
        if bound_s is None or (fits and time_s <= (1 + _CLOSE_ENOUGH) * bound_s):
            return quick
        scorer = self._scorer(configuration)
        solved = solve(scorer, types, SolverSettings(lp_start=True), self._context.seed)
        thorough = self._predicted(scorer, configuration, solved.plan, solved.planner)
        if not thorough.prediction.feasible:
            return quick
        faster = thorough.prediction.iteration_time_s < time_s
        return thorough if faster or not fits else quick

    def lower_bound_s(self, parameters: Mapping[str, ParameterValue]) -> float:
        """Returns a quick bound; equal problems with equal types are bounded once.

        Args:
            parameters: Value of every outer parameter.
        """
        configuration = self._without_choices(self._configuration(parameters))
        return self._bound(configuration, _allowed_types(parameters))

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        configuration = self._configuration(parameters)
        same = self._without_choices(configuration)
        if self._context.space.search.plan is PlanSearch.JOINT:
            found = self._joint(same, parameters)
        else:
            found = self._found(same, _allowed_types(parameters))
        record = replace(
            without_answer(number, TrialStatus.FEASIBLE, "", parameters),
            configuration=replace(configuration, plan=found.plan),
            prediction=found.prediction,
            planner=found.planner,
        )
        return judged(record, self._context.space)

    def job(self, configuration: AnyConfiguration) -> DlrmJob:
        """Returns a configuration with its plan."""
        assert isinstance(configuration, Configuration)
        scorer = self._scorer(configuration)
        cluster = scorer.problem.cluster
        plan = check_plan(
            configuration.plan,
            scorer.problem.model.tables,
            cluster.world_size,
            cluster.devices_per_node,
        )
        return DlrmJob(scorer, plan)

    def _without_choices(self, configuration: Configuration) -> Configuration:
        """Returns the configuration without the choice of a network where there is none."""
        platform = self._context.platforms[configuration.platform]
        if configuration.world_size <= platform.devices_per_node:
            return replace(configuration, network="")
        return configuration

    def _joint(
        self, configuration: Configuration, parameters: Mapping[str, ParameterValue]
    ) -> Found:
        """Predicts the plan that the parameters describe."""
        scorer = self._scorer(configuration)
        request = planning_request(scorer, _allowed_types(parameters), self._context.seed)
        return self._predicted(scorer, configuration, *joint_plan(scorer, request, parameters))

    def _find_plan(self, configuration: Configuration, types: frozenset[ShardingType]) -> Found:
        """Searches a plan and predicts it."""
        search = self._context.space.search
        settings = SolverSettings(
            search.planners,
            search.improvement_rounds,
            max_neighbours=_NEIGHBOURS,
            restarts=_RESTARTS,
            lns=False,
            quick=True,
        )
        scorer, seed = self._scorer(configuration), self._context.seed
        solved = solve(scorer, types, settings, seed)
        found = self._predicted(scorer, configuration, solved.plan, solved.planner)
        least = self._least_headroom()
        if not 0.0 <= found.prediction.memory_headroom_fraction < least:
            return found
        # The fastest plan fits the devices but not the study: once more with what it may fill.
        solved = solve(_with_headroom(scorer, least), types, settings, seed)
        within = self._predicted(scorer, configuration, solved.plan, solved.planner)
        return within if within.prediction.memory_headroom_fraction >= least else found

    def _least_headroom(self) -> float:
        """Returns the share of the memory that the space wants free."""
        limits = [
            constraint.at_least
            for constraint in self._context.space.constraints
            if constraint.metric is Metric.MEMORY_HEADROOM and constraint.at_least is not None
        ]
        return max(limits, default=0.0)

    def _predicted(
        self, scorer: PlanScorer, configuration: Configuration, plan: ShardingPlan, planner: str
    ) -> Found:
        price = self.price_usd_per_hour(configuration)
        return Found(plan, planner, predict_plan(scorer, plan, price))

    def _configuration(self, parameters: Mapping[str, ParameterValue]) -> Configuration:
        """Returns the configuration, still without a plan."""
        world_size = int(parameters["world_size"])
        if "global_batch_size" in parameters:
            global_batch_size = int(parameters["global_batch_size"])
        else:
            global_batch_size = int(parameters["local_batch_size"]) * world_size
        precision = parameters.get("precision", self._context.model.precision.value)
        return Configuration(
            platform=str(parameters["platform"]),
            world_size=world_size,
            global_batch_size=global_batch_size,
            plan=ShardingPlan(world_size, ()),
            precision=Precision(str(precision)),
            link=named(parameters["link"]),
            network=named(parameters["network"]),
            software=_software(parameters, Precision(str(precision))),
        )

    def _problem(self, configuration: AnyConfiguration) -> DlrmProblem:
        assert isinstance(configuration, Configuration)
        space = self._context.space
        return problem_of(
            self._context.model,
            self._platform(configuration.platform),
            configuration,
            extra_links=space.links,
            extra_networks=space.networks,
        )

    def _scorer(self, configuration: AnyConfiguration) -> PlanScorer:
        """Returns a model that has been asked nothing: no answer depends on earlier ones."""
        return PlanScorer(self._problem(configuration))

    def _impossible(self, configuration: AnyConfiguration) -> str:
        """Returns why a configuration does not exist, such as a batch that does not divide."""
        try:
            self._problem(configuration)
        except DseError as error:
            return str(error)
        return ""

    def _cannot_hold(self, configuration: AnyConfiguration) -> str:
        """Says so when the tables exceed the cluster's memory under any plan."""
        device = self._context.platforms[configuration.platform].device
        needed = self._context.model.embedding_bytes
        available = device.usable_memory_bytes * configuration.world_size
        if needed <= available:
            return ""
        enough = math.ceil(needed / device.usable_memory_bytes)
        return (
            f"the tables take {needed / 2**30:.1f} GiB, more than the {available / 2**30:.1f} GiB "
            f"usable on {configuration.world_size} × {device.name}; at least {enough} are needed"
        )


def _with_headroom(scorer: PlanScorer, share: float) -> PlanScorer:
    """Returns the model of devices that have a share of their usable memory less."""
    cluster = scorer.problem.cluster
    device = cluster.device
    reserved_bytes = device.reserved_memory_bytes + share * device.usable_memory_bytes
    smaller = replace(cluster, device=replace(device, reserved_memory_bytes=reserved_bytes))
    return PlanScorer(replace(scorer.problem, cluster=smaller))


def _software(parameters: Mapping[str, ParameterValue], precision: Precision) -> DlrmRuntime:
    """Returns the training program that a trial's parameters describe."""
    if "software_profile" in parameters:
        return software_profile(str(parameters["software_profile"])).software_for(precision)
    return DlrmRuntime(
        launch=LaunchMode(str(parameters["launch"])),
        overlap_dense_all_reduce=bool(parameters["overlap_dense_all_reduce"]),
        prefetch_input=bool(parameters["prefetch_input"]),
        communication_precision_bytes=_WIRE_BYTES[str(parameters["communication_precision"])],
    )


def _allowed_types(parameters: Mapping[str, ParameterValue]) -> frozenset[ShardingType]:
    names = str(parameters["sharding_types"]).split(TYPE_SEPARATOR)
    try:
        return frozenset(ShardingType(name) for name in names)
    except ValueError as error:
        raise ConfigError(f"unknown sharding type: {error}") from error
