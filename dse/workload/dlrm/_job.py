"""Job of a recommendation model: a problem with the sharding plan that is searched for it."""

from __future__ import annotations

from functools import lru_cache
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import PlanError
from dse.sharding import ShardingType, check_plan, read_plan
from dse.workload._iteration import DurationClass, ErrorSource, Iteration
from dse.workload._job import Job, PlanEffort
from dse.workload.dlrm._explain import attributed_plan
from dse.workload.dlrm._joint import joint_plan
from dse.workload.dlrm._scorer import PlanScorer

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.sharding import ShardingPlan, TableConstraints
    from dse.workload._explain import AttributedGraph
    from dse.workload._prediction import MemoryAccount
    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.solver import ShardingSolution

_ALL_TYPES = frozenset(ShardingType)


class DlrmJob(Job):
    """A recommendation model on a cluster, with or without its sharding plan.

    Args:
        problem: Everything but the plan.
        plan: A plan that has been checked against model and cluster; None while it is open.
        planner: How it was found.
        allowed_types: Sharding types that may be used.
        placements: How each table is sharded, by its name, where the parameters say so.
        scorer: The performance model of the problem, if there is one already.
    """

    def __init__(
        self,
        problem: DlrmProblem,
        plan: ShardingPlan | None = None,
        *,
        planner: str = "",
        allowed_types: frozenset[ShardingType] = _ALL_TYPES,
        placements: tuple[tuple[str, str], ...] = (),
        scorer: PlanScorer | None = None,
    ) -> None:
        self.problem = problem
        self.allowed_types = allowed_types
        self._plan = plan
        self._planner = planner
        self._placements = placements
        self._scorer = scorer

    @staticmethod
    def scored(scorer: PlanScorer, plan: ShardingPlan) -> DlrmJob:
        """Returns a plan with the performance model of its problem."""
        return DlrmJob(scorer.problem, plan, scorer=scorer)

    @property
    def scorer(self) -> PlanScorer:
        """The performance model of the problem."""
        if self._scorer is None:
            self._scorer = PlanScorer(self.problem)
        return self._scorer

    @property
    def plan(self) -> ShardingPlan | None:
        """The sharding plan; None while it is open."""
        return self._plan

    @property
    def planner(self) -> str:
        """How the plan was found; empty without a plan."""
        return self._planner

    def with_plan(self, plan: ShardingPlan, planner: str = "") -> DlrmJob:
        """Returns the job with a plan.

        Args:
            plan: The plan.
            planner: How it was found.

        Raises:
            PlanError: The plan is for another model or another number of ranks.
        """
        problem, cluster = self.problem, self.problem.cluster
        checked = check_plan(
            plan, problem.model.tables, cluster.world_size, cluster.devices_per_node
        )
        return self._with(checked, planner)

    def read_plan(self, path: str | PathLike[str]) -> ShardingPlan:
        """Reads a plan for this job from a file in our own form or TorchRec's."""
        return read_plan(Path(path), self.problem.model.tables)

    def solve(
        self,
        *,
        allowed_types: Iterable[str] | None = None,
        constraints: Sequence[TableConstraints] = (),
        allow_uvm: bool = False,
        time_limit_s: float | None = None,
        seed: int = 0,
    ) -> ShardingSolution:
        """Searches a plan thoroughly; see :meth:`Job.solve`."""
        from dse.workload.dlrm.solver import find_plan

        types = self.allowed_types
        if allowed_types is not None:
            types = frozenset(ShardingType(name) for name in allowed_types)
        return find_plan(
            self.scorer,
            PlanEffort(seed=seed, time_limit_s=time_limit_s),
            allowed_types=types,
            constraints=constraints,
            allow_uvm=allow_uvm,
        )

    def _with(self, plan: ShardingPlan, planner: str) -> DlrmJob:
        return DlrmJob(
            self.problem,
            plan,
            planner=planner,
            allowed_types=self.allowed_types,
            placements=self._placements,
            scorer=self._scorer,
        )

    def key(self) -> Hashable:
        """Returns the problem with what restricts its plan."""
        return self.problem, self.allowed_types, self._placements

    def planned(self, effort: PlanEffort, incumbent: ShardingPlan | None = None) -> DlrmJob:
        """Returns the job with the fastest plan found that fits; see :meth:`Job.planned`.

        If none fits, the plan is the one that misses by least. Nothing is searched where the
        parameters place every table.
        """
        if self._plan is not None:
            return self
        if self._placements:
            from dse.workload.dlrm.solver import planning_request

            request = planning_request(self.scorer, self.allowed_types, effort.seed)
            return self._with(*joint_plan(self.scorer, request, dict(self._placements)))
        from dse.workload.dlrm.solver import solve

        known = None if incumbent is None else self.with_plan(incumbent).plan
        found = solve(self.scorer, effort, allowed_types=self.allowed_types, incumbent=known)
        return self._with(found.plan, found.planner)

    def cannot_fit(self) -> str:
        """Returns why the tables exceed the cluster's memory under any plan."""
        cluster = self.cluster
        device, needed = cluster.device, self.problem.model.embedding_bytes
        available = device.usable_memory_bytes * cluster.world_size
        if needed <= available:
            return ""
        enough = math.ceil(needed / device.usable_memory_bytes)
        return (
            f"the tables take {needed / 2**30:.1f} GiB, more than the {available / 2**30:.1f} GiB "
            f"usable on {cluster.world_size} × {device.name}; at least {enough} are needed"
        )

    def check_parameters(self) -> None:
        """Does nothing: the problem was checked when it was made."""

    def optimistic_time_s(self) -> float:
        """Returns the quick bound on all plans."""
        return self.lower_bound_s()

    def lower_bound_s(self, incumbent_s: float | None = None) -> float:
        """Returns a time that no plan of the allowed types beats; see :class:`Job`."""
        from dse.workload.dlrm.solver import lower_bound, planning_request

        # A separate scorer, so that the bound does not depend on what was scored before.
        scorer = PlanScorer(self.problem)
        request = planning_request(scorer, self.allowed_types, 0)
        if incumbent_s is None:
            return lower_bound(scorer, request, max_programs=0).iteration_time_s
        return lower_bound(scorer, request, incumbent_s=incumbent_s).iteration_time_s

    @property
    def cluster(self) -> Cluster:
        """Where the job runs."""
        return self.problem.cluster

    @property
    def samples_per_iteration(self) -> float:
        """Global batch size."""
        return float(self.problem.global_batch_size)

    def check(self) -> None:
        """Checks that the plan has been found; problem and plan were checked when made."""
        self._decided()

    def _decided(self) -> ShardingPlan:
        if self._plan is None:
            raise PlanError(
                f"the sharding plan of {self.problem.model.name} has not been found yet; call "
                "`planned` first"
            )
        return self._plan

    def iteration(self) -> Iteration:
        """Returns the iteration of one rank, or of all ranks where these differ.

        Tasks of the same name are wrong in the same way on all ranks.
        """
        filled = self.scorer.filled(self._decided())
        group = _groups(filled.layout.graph.names)
        errors = tuple(
            ErrorSource(
                duration_class,
                (filled.layout.duration_class == duration_class).astype(np.float64),
                filled.spread,
                group,
            )
            for duration_class in DurationClass
        )
        return Iteration(filled.ranks, filled.duration_s, errors, self.problem.software.spread)

    def setup(self) -> str:
        """Returns how the plan was found, or its file."""
        return f"plan: {self._planner}"

    def document(self) -> dict[str, object]:
        """Returns the arithmetic, and how the plan was found."""
        return {"precision": self.problem.precision.value, "planner": self._planner}

    def memory(self) -> tuple[MemoryAccount, ...]:
        """Returns the account of every rank."""
        features, memory = self.scorer.features(self._decided()), self.scorer.memory
        return tuple(memory.by_purpose(features, rank) for rank in range(self.cluster.world_size))

    def attributed(self) -> AttributedGraph:
        """Returns the iteration of all ranks; lookups and updates could be on other ranks."""
        return attributed_plan(self.scorer, self._decided())


@lru_cache(maxsize=256)
def _groups(names: tuple[str, ...]) -> NDArray[np.int64]:
    """Numbers names; equal names have equal numbers."""
    return np.unique(names, return_inverse=True)[1]
