"""How fast an option can be at most, and how fast its best plan is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
import math
from typing import TYPE_CHECKING

from dse.errors import DseError
from dse.search.recommend._types import Solved
from dse.sharding import ShardingPlan, ShardingType
from dse.workload import explain_job
from dse.workload.dlrm import (
    Configuration,
    DlrmJob,
    DlrmRuntime,
    PlanScorer,
    predict_plan,
    problem_of,
)
from dse.workload.dlrm.solver import SolverSettings, lower_bound, planning_request, solve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.search.recommend._types import Option

#: The quick search of studies, and one that starts from the linear programs of the bound as well:
#: on several nodes its plans are up to a third faster, for a second or two.
_QUICK = SolverSettings(restarts=1, lns=False)
_THOROUGH = SolverSettings(lp_start=True)

_BEYOND = 1.001

#: Scorers that are kept between the bound of an option and its plan.
_SCORERS_KEPT = 64


class Bench(ABC):
    """Answers for the options of one model."""

    @abstractmethod
    def impossible(self, option: Option) -> str:
        """Says why an option cannot run at all; nothing when it may."""

    @abstractmethod
    def bound_per_s(self, option: Option) -> float:
        """Returns a throughput that no plan of an option exceeds."""

    def tight_bound_per_s(self, option: Option, required_per_s: float) -> float:
        """Returns a bound as :meth:`bound_per_s`, closer where that takes more time.

        Args:
            option: The option.
            required_per_s: What has to be ruled out; below that the bound is not refined.
        """
        del required_per_s
        return self.bound_per_s(option)

    @abstractmethod
    def solve(self, option: Option, bound_per_s: float, *, thorough: bool = False) -> Solved:
        """Returns an option with the best plan found.

        Args:
            option: The option.
            bound_per_s: Its bound, where it is known.
            thorough: Take some seconds for a better plan.
        """

    @abstractmethod
    def limit(self, solved: Solved) -> str:
        """Says in a sentence what limits a configuration."""


class ShardingBench(Bench):
    """Options of a recommendation model; the solver places the tables.

    Args:
        model: What is trained.
        platforms: By name.
        allowed_types: Sharding types that plans may use.
        software: How the training program is written.
        seed: Seed of the planners that draw.
    """

    def __init__(
        self,
        model: DlrmModel,
        platforms: Mapping[str, Platform],
        *,
        allowed_types: frozenset[ShardingType] = frozenset(ShardingType),
        software: DlrmRuntime | None = None,
        seed: int = 0,
    ) -> None:
        self._model = model
        self._platforms = platforms
        self._types = allowed_types
        self._software = software or DlrmRuntime()
        self._seed = seed
        self._scorer = lru_cache(maxsize=_SCORERS_KEPT)(self._make_scorer)

    def impossible(self, option: Option) -> str:
        """A batch that does not divide, half-empty nodes, or more tables than memory."""
        try:
            self._scorer(option)
        except DseError as error:
            return str(error)
        device = self._platforms[option.platform].device
        needed, available = (
            self._model.embedding_bytes,
            device.usable_memory_bytes * option.world_size,
        )
        if needed <= available:
            return ""
        enough = math.ceil(needed / device.usable_memory_bytes)
        return (
            f"the tables take {needed / 2**30:.1f} GiB, more than the {available / 2**30:.1f} GiB "
            f"usable on {option.world_size} × {device.name}; at least {enough} are needed"
        )

    def bound_per_s(self, option: Option) -> float:
        """By the linear programs that bound all sharding plans from below."""
        scorer = self._scorer(option)
        request = planning_request(scorer, self._types, self._seed)
        bound = lower_bound(scorer, request, max_programs=0)
        return option.global_batch_size / bound.iteration_time_s

    def tight_bound_per_s(self, option: Option, required_per_s: float) -> float:
        """By more linear programs, until they rule the required throughput out."""
        scorer = self._scorer(option)
        request = planning_request(scorer, self._types, self._seed)
        # A hair beyond it, so that ruling it out does not hang on rounding.
        enough_s = _BEYOND * option.global_batch_size / required_per_s
        bound = lower_bound(scorer, request, incumbent_s=enough_s)
        return option.global_batch_size / bound.iteration_time_s

    def solve(self, option: Option, bound_per_s: float, *, thorough: bool = False) -> Solved:
        """By the sharding solver."""
        scorer = self._scorer(option)
        settings = _THOROUGH if thorough else _QUICK
        found = solve(scorer, self._types, settings, self._seed)
        prediction = predict_plan(scorer, found.plan, option.price_usd_per_hour)
        configuration = self._configuration(option, found.plan)
        return Solved(
            option, configuration, prediction, found.planner, bound_per_s, thorough=thorough
        )

    def limit(self, solved: Solved) -> str:
        """By the critical path of its iteration."""
        configuration = solved.configuration
        assert isinstance(configuration, Configuration)
        if not solved.prediction.feasible:
            return solved.prediction.infeasible_reason
        return explain_job(
            DlrmJob.scored(self._scorer(solved.option), configuration.plan)
        ).sentence

    def _make_scorer(self, option: Option) -> PlanScorer:
        empty = ShardingPlan(option.world_size, ())
        return PlanScorer(
            problem_of(
                self._model,
                self._platforms[option.platform],
                self._configuration(option, empty),
            )
        )

    def _configuration(self, option: Option, plan: ShardingPlan) -> Configuration:
        return Configuration(
            platform=option.platform,
            world_size=option.world_size,
            global_batch_size=option.global_batch_size,
            plan=plan,
            precision=option.precision,
            software=self._software,
        )
