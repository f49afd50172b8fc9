"""From the words of `dse predict` to a prediction with everything around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dse.cli._versus import SAME_PLAN, SEARCH_PLAN

if TYPE_CHECKING:
    from dse.cli._versus import Asked
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.sharding import ShardingPlan
    from dse.trace.overheads import HostProfile
    from dse.workload.dlrm import PlanScorer, Prediction


@dataclass(frozen=True, slots=True)
class Predicted:
    """One configuration with its prediction.

    Attributes:
        asked: The words.
        model: What is trained.
        platform: Where.
        scorer: Its performance model.
        plan: Its plan.
        planner: Where the plan comes from, in words.
        profile: Host overheads from traces, if any.
        prediction: The answer.
    """

    asked: Asked
    model: DlrmModel
    platform: Platform
    scorer: PlanScorer
    plan: ShardingPlan
    planner: str
    profile: HostProfile | None
    prediction: Prediction

    def document(self) -> dict[str, object]:
        """Returns the fields of the public contract."""
        from dse.cli._problem import prediction_json

        asked = self.asked
        return {
            "model": self.model.name,
            "platform": self.platform.name,
            "world_size": asked.world_size,
            "global_batch_size": asked.global_batch_size,
            "precision": self.scorer.problem.precision.value,
            "planner": self.planner,
            "host_overheads": asked.host_profile or self.platform.name,
            "software_profile": asked.software_profile or None,
            **prediction_json(self.prediction),
        }


def predicted(asked: Asked, first: Predicted | None = None) -> Predicted:
    """Predicts a configuration; finds a plan where none is given.

    Args:
        asked: The words.
        first: The configuration whose plan `same` means.

    Raises:
        ConfigError: A word does not name anything, or values do not fit the platform.
        PlanError: The plan is for another model or another number of ranks.
    """
    from dse.cli._problem import configuration_of
    from dse.machine.platforms import load_platform
    from dse.model import load_dlrm
    from dse.trace.overheads import load_host_profile
    from dse.workload.dlrm import PlanScorer, predict_plan, problem_of

    model = load_dlrm(asked.model)
    asked.check_kind(model)
    platform = load_platform(asked.platform)
    configuration = configuration_of(
        model,
        platform,
        asked.world_size,
        global_batch_size=asked.global_batch_size,
        link=asked.link,
        network=asked.network,
        precision=asked.precision,
        launch=asked.launch,
        software_profile=asked.software_profile,
    )
    profile = load_host_profile(Path(asked.host_profile)) if asked.host_profile else None
    problem = problem_of(model, platform, configuration, host_profile=profile)
    scorer = PlanScorer(problem)
    plan, planner = _plan(asked.plan or SEARCH_PLAN, scorer, first)
    quote = platform.quote(asked.world_size)
    return Predicted(
        asked=asked,
        model=model,
        platform=platform,
        scorer=scorer,
        plan=plan,
        planner=planner,
        profile=profile,
        prediction=predict_plan(scorer, plan, quote.usd_per_hour if quote else None),
    )


def _plan(chosen: str, scorer: PlanScorer, first: Predicted | None) -> tuple[ShardingPlan, str]:
    from dse.sharding import ShardingType, check_plan, read_plan
    from dse.workload.dlrm.solver import SolverSettings, solve

    if chosen == SEARCH_PLAN:
        solved = solve(scorer, frozenset(ShardingType), SolverSettings(lp_start=True))
        return solved.plan, solved.planner
    tables, cluster = scorer.problem.model.tables, scorer.problem.cluster
    if chosen == SAME_PLAN and first is not None:
        plan, planner = first.plan, "the same"
    else:
        plan, planner = read_plan(Path(chosen), tables), chosen
    checked = check_plan(plan, tables, cluster.world_size, cluster.devices_per_node)
    return checked, planner
