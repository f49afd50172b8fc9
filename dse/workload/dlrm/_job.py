"""Job of a recommendation model: a problem with the sharding plan that is searched for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import PlanError
from dse.model import model_flops
from dse.sharding import ShardingType, check_plan, parse_sharding_types, read_plan
from dse.simulate import simulate
from dse.workload._iteration import DurationClass, ErrorSource, Iteration
from dse.workload._job import Job, PlanEffort
from dse.workload._notes import precision_notes
from dse.workload._prediction import MemoryAccount
from dse.workload._step_errors import program_errors
from dse.workload.dlrm._chosen import possible_types
from dse.workload.dlrm._joint import joint_plan
from dse.workload.dlrm._requests import (
    check_demands,
    constrained_request,
    fixed_bytes,
    least_device_bytes,
    on_one_node,
    tables_bytes,
)
from dse.workload.dlrm.explain._attribution import attributed_plan, operator_groups
from dse.workload.dlrm.iteration._layout import build_layout
from dse.workload.dlrm.iteration._reading import read_time_s, reading_notes
from dse.workload.dlrm.iteration._waiting import waiting_notes
from dse.workload.dlrm.scoring._scorer import PlanScorer

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence
    from os import PathLike

    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.sharding import ShardingPlan, TableConstraints
    from dse.workload._explain import AttributedGraph
    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.solver import ShardingSolution

_ALL_TYPES = frozenset(ShardingType)


class DlrmJob(Job):
    """A recommendation model on a cluster, with or without its sharding plan.

    Args:
        problem: Everything but the plan.
        plan: A plan that has been checked against model and cluster; None while it is open.
        planner: How it was found.
        program: Name of the training program; empty where only its runtime is known.
        allowed_types: Sharding types that may be used.
        constraints: Constraints on tables that every plan keeps.
        placements: How each table is sharded, by its name, where the parameters say so.
        scorer: The performance model of the problem, if there is one already.
    """

    def __init__(
        self,
        problem: DlrmProblem,
        plan: ShardingPlan | None = None,
        *,
        planner: str = "",
        program: str = "",
        allowed_types: frozenset[ShardingType] = _ALL_TYPES,
        constraints: tuple[TableConstraints, ...] = (),
        placements: tuple[tuple[str, str], ...] = (),
        scorer: PlanScorer | None = None,
    ) -> None:
        self.problem = problem
        self.allowed_types = possible_types(allowed_types, problem.software)
        self.constraints = constraints
        self._plan = plan
        self._planner = planner
        self._program = program
        self._placements = placements
        self._scorer = scorer
        self._iteration: Iteration | None = None

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
    def program(self) -> str:
        """Name of the training program; empty where only its runtime is known."""
        return self._program

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
            plan: The plan, of one sharding group.
            planner: How it was found.

        Raises:
            PlanError: The plan is for another model or another number of ranks.
        """
        problem, cluster = self.problem, self.problem.cluster
        checked = check_plan(
            plan,
            problem.model.tables,
            cluster.world_size,
            cluster.devices_per_domain,
            rows_on_some=problem.software.rows_on_some,
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
            types = possible_types(parse_sharding_types(allowed_types), self.problem.software)
        return find_plan(
            self.scorer,
            PlanEffort(seed=seed, time_limit_s=time_limit_s),
            allowed_types=types,
            constraints=(*self.constraints, *constraints),
            allow_uvm=allow_uvm,
        )

    def _with(self, plan: ShardingPlan, planner: str) -> DlrmJob:
        return DlrmJob(
            self.problem,
            plan,
            planner=planner,
            program=self._program,
            allowed_types=self.allowed_types,
            constraints=self.constraints,
            placements=self._placements,
            scorer=self._scorer,
        )

    def key(self) -> Hashable:
        """Returns the problem and the name of its program, with what restricts the plan."""
        types = self.allowed_types
        if self.problem.cluster.domain_count == 1 and all(
            table.pooled for table in self.problem.model.tables
        ):
            types = on_one_node(types)
        demanded = tuple(replace(rule, origin="") for rule in self.constraints)
        return self.problem, self._program, types, demanded, self._placements

    def planned(self, effort: PlanEffort) -> DlrmJob:
        """Returns the job with the fastest plan found that fits; see :meth:`Job.planned`.

        If none fits, the plan is the one that misses by least. Nothing is searched where the
        parameters place every table.
        """
        if self._plan is not None:
            return self
        if self._placements:
            request = constrained_request(
                self.scorer, self.allowed_types, self.constraints, effort.seed
            )
            return self._with(*joint_plan(self.scorer, request, dict(self._placements)))
        from dse.workload.dlrm.solver import solve

        found = solve(
            self.scorer,
            effort,
            allowed_types=self.allowed_types,
            constraints=self.constraints,
        )
        return self._with(found.plan, found.planner)

    def with_plans_of(self, others: Sequence[Job], most_s: float) -> tuple[DlrmJob, ...]:
        """Returns the job with each of other jobs' plans that may be used, fits and is fast.

        Plans are taken from jobs with the same constraints and program, whose tables are sharded
        only in ways that this one allows.
        """
        if self._placements:
            return ()
        plans: dict[ShardingPlan, str] = {}
        for other in others:
            if not isinstance(other, DlrmJob) or other.plan is None:
                continue
            alike = (self.constraints, self._program) == (other.constraints, other.program)
            types = {table.sharding_type for table in other.plan.tables}
            if alike and types <= self.allowed_types:
                with suppress(PlanError):  # it is for another number of ranks
                    plans.setdefault(self.with_plan(other.plan)._decided(), other.planner)
        if not plans:
            return ()
        scores = self.scorer.score([*plans])
        fast = scores.fits & (scores.iteration_time_s < most_s)
        return tuple(
            self._with(plan, planner)
            for (plan, planner), chosen in zip(plans.items(), fast, strict=True)
            if chosen
        )

    def least_memory(self) -> tuple[MemoryAccount, ...]:
        """Returns what every rank holds if the tables are spread evenly."""
        table_bytes = self._least_tables_bytes() / self.problem.cluster.world_size
        parts = (("tables", table_bytes), ("everything else", fixed_bytes(self.problem)))
        return (MemoryAccount(parts),)

    def cannot_fit(self) -> str:
        """Returns why the tables exceed the cluster's memory under any plan."""
        cluster = self.problem.cluster
        device, other_bytes = cluster.device, fixed_bytes(self.problem)
        (least,) = self.least_memory()
        if least.total_bytes <= device.usable_memory_bytes:
            return self._hosts_cannot_fit()
        free_bytes = device.usable_memory_bytes - other_bytes
        available_bytes = max(0.0, cluster.world_size * free_bytes)
        least_bytes = self._least_tables_bytes()
        of_group = (
            f" of each of {cluster.replicas} sharding groups" if cluster.replicas > 1 else ""
        )
        reason = (
            f"the tables take {least_bytes / 2**30:.1f} GiB with their optimizer state, and "
            f"{cluster.world_size} × {device.name}{of_group} have "
            f"{available_bytes / 2**30:.1f} GiB for them besides {other_bytes / 2**30:.1f} GiB a "
            "rank for everything else"
        )
        reason += "; use more ranks or a smaller batch a rank"
        if free_bytes > 0 and self._host_could_hold(least_bytes - available_bytes):
            reason += ", or rows in host memory (compute kernels fused,fused_uvm_caching)"
        return reason

    def _hosts_cannot_fit(self) -> str:
        """Returns why the tables exceed the memory of devices and hosts together."""
        cluster, node_bytes = self.problem.cluster, self.problem.cluster.host_memory_bytes
        if node_bytes is None or not any(rule.allows_host for rule in self.constraints):
            return ""
        free_bytes = cluster.device.usable_memory_bytes - fixed_bytes(self.problem)
        available_bytes = cluster.world_size * free_bytes
        host_bytes = cluster.node_count * node_bytes
        least_bytes = tables_bytes(self.problem.model)
        if least_bytes <= available_bytes + host_bytes:
            return ""
        return (
            f"the tables take {least_bytes / 2**30:.1f} GiB with their optimizer state, and "
            f"{cluster.world_size} × {cluster.device.name} have {available_bytes / 2**30:.1f} GiB "
            f"for them and {host_bytes / 2**30:.1f} GiB of host memory; use more ranks"
        )

    def _host_could_hold(self, missing_bytes: float) -> bool:
        """Returns whether host memory is not in use yet, and has room for that much of tables."""
        cluster = self.problem.cluster
        if cluster.device.kind != "gpu" or any(rule.allows_host for rule in self.constraints):
            return False
        node_bytes = cluster.host_memory_bytes
        return node_bytes is None or missing_bytes <= node_bytes * cluster.node_count

    def check_parameters(self) -> None:
        """Checks the constraints on tables; the problem was checked when it was made."""
        if self.constraints:
            check_demands(self.problem, self.allowed_types, self.constraints)

    def _least_tables_bytes(self) -> float:
        """Returns the least device memory that all tables take together."""
        if not any(rule.allows_host for rule in self.constraints):
            return tables_bytes(self.problem.model)
        return least_device_bytes(self.problem, self.allowed_types, self.constraints)

    def optimistic_time_s(self, *, closer: bool = False) -> float:
        """Returns the time of everything but the tables, to which every plan adds work.

        The closer one is the lower bound on all plans.
        """
        if closer:
            return self.lower_bound_s()
        graph = build_layout(self.problem, 0, one_rank=True).graph
        return simulate(graph).makespan_s

    def lower_bound_s(self, incumbent_s: float | None = None) -> float:
        """Returns a time that no plan of the allowed types beats; infinite if none can fit."""
        from dse.workload.dlrm.solver import lower_bound

        # A separate scorer, so that the bound does not depend on what was scored before.
        scorer = PlanScorer(self.problem)
        request = constrained_request(scorer, self.allowed_types, self.constraints)
        if incumbent_s is None:
            bound = lower_bound(scorer, request, max_programs=0)
        else:
            bound = lower_bound(scorer, request, incumbent_s=incumbent_s)
        return bound.iteration_time_s if bound.fits else math.inf

    @property
    def cluster(self) -> Cluster:
        """Where the job runs, with the ranks of all sharding groups."""
        return self.problem.cluster.whole

    @property
    def represented(self) -> Cluster:
        """The ranks of one sharding group, which stand for those of all."""
        return self.problem.cluster

    @property
    def samples_per_iteration(self) -> float:
        """Global batch size."""
        return float(self.problem.global_batch_size * self.problem.cluster.replicas)

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
        if self._iteration is None:
            # A prediction simulates it, and samples its errors.
            self._iteration = self._filled()
        return self._iteration

    def _filled(self) -> Iteration:
        filled = self.scorer.filled(self._decided())
        graph = filled.layout.graph
        group = _groups(graph.names)
        errors = tuple(
            ErrorSource(
                duration_class,
                (filled.layout.duration_class == duration_class).astype(np.float64),
                filled.spread,
                group,
            )
            for duration_class in DurationClass
        )
        return Iteration(
            filled.ranks,
            filled.duration_s,
            errors,
            np.arange(graph.task_count),
            program_errors(self._program),
            operator_groups(graph.names, tuple(graph.kind.tolist())),
        )

    def evaluation_time_s(self, samples: float) -> float:
        """Returns the time to evaluate samples, in batches of the program's own size.

        Training stands still meanwhile. Sharding groups evaluate equal parts at the same time.

        Args:
            samples: Samples of one evaluation, over all ranks.

        Raises:
            PlanError: There is no plan.
        """
        problem, plan = self.problem, self._decided()
        software, ranks = problem.software, problem.cluster.world_size
        # Of one group, as everything else.
        samples /= problem.cluster.replicas
        batch = problem.global_batch_size
        if software.evaluation_batch_size:
            each = software.evaluation_batch_size / self.cluster.world_size
            batch = ranks * math.ceil(each)
        scorer = self.scorer
        if batch != problem.global_batch_size:
            scorer = PlanScorer(replace(problem, global_batch_size=batch))
        overlapped = software.overlap_evaluation
        batch_s = scorer.forward_time_s(plan, overlapped=overlapped) + software.evaluation_batch_s
        evaluated_s = samples * (batch_s / batch + software.evaluation_s_per_sample / ranks)
        if software.evaluation_on_devices:
            return evaluated_s
        return max(evaluated_s, samples * read_time_s(problem) / problem.global_batch_size)

    def metrics(self, iteration_time_s: float) -> tuple[tuple[str, float], ...]:
        """Returns model FLOPs utilization (MFU) for models with a sequence.

        Others are bound by their tables, and their dense part says nothing of them.
        """
        problem = self.problem
        if problem.model.sequence is None:
            return ()
        # Batch and devices of one sharding group; all have the same.
        peak = problem.cluster.device.peak.of(problem.precision) * problem.cluster.world_size
        flops = model_flops(problem.model, problem.global_batch_size)
        return (("model_flops_utilization", flops / iteration_time_s / peak),)

    def notes(self) -> tuple[str, ...]:
        """Returns what the device, or the program, lacks of what was asked for."""
        found = precision_notes(self.problem.cluster.device, self.problem.precision)
        found += waiting_notes(self.problem) + reading_notes(self.problem)
        if self._plan is None:
            return found
        software, program = self.problem.software, self._program or "the program"
        tables = self._plan.tables
        whole = sum(table.sharding_type is ShardingType.DATA_PARALLEL for table in tables)
        hot = sum(table.hot_rows > 0 for table in tables)
        for what, count, can in (
            ("", whole, software.copies_rows),
            ("hot rows of ", hot, software.hot_rows),
        ):
            if count and not can:
                kept = "a table" if count == 1 else f"{count:,} tables"
                found += (f"the plan keeps {what}{kept} on every rank, which {program} cannot",)
        return found

    def setup(self) -> str:
        """Returns how the plan was found, or its file, and the sharding groups."""
        return "; ".join((f"plan: {self._planner}", *self._replicas()))

    def _replicas(self) -> Iterator[str]:
        """Yields what there is to say about sharding groups, if there are several."""
        cluster, sync = self.problem.cluster, self.problem.sync
        if sync is None:
            return
        where = "contiguous" if cluster.rank_stride == 1 else "strided"
        often = "every iteration" if sync.interval == 1 else f"every {sync.interval:,} iterations"
        yield (
            f"{cluster.replicas} sharding groups of {cluster.world_size} ranks, {where}, "
            f"synchronised {often}"
        )

    def document(self) -> dict[str, object]:
        """Returns the arithmetic, how the plan was found, and the sharding groups."""
        found: dict[str, object] = {
            "precision": self.problem.precision.value,
            "planner": self._planner,
        }
        cluster, sync = self.problem.cluster, self.problem.sync
        if sync is not None:
            found |= {
                "replicas": cluster.replicas,
                "sharding_group_size": cluster.world_size,
                "replica_placement": "contiguous" if cluster.rank_stride == 1 else "strided",
                "sync_interval": sync.interval,
                "sync_optimizer_state": sync.optimizer_state,
            }
        return found

    def memory(self) -> tuple[MemoryAccount, ...]:
        """Returns the account of every rank of a sharding group."""
        features, memory = self.scorer.features(self._decided()), self.scorer.memory
        # Ranks that hold the same have one account.
        held = [each.tobytes() for each in features[:, :, 0].T]
        rank_of = {each: rank for rank, each in enumerate(held)}
        known = {each: memory.by_purpose(features, rank) for each, rank in rank_of.items()}
        return tuple(known[each] for each in held)

    def attributed(self) -> AttributedGraph:
        """Returns the iteration of all ranks; lookups and updates could be on other ranks."""
        return attributed_plan(self.scorer, self._decided())

    def distinct(self) -> AttributedGraph:
        """Returns the same without nodes, and local ranks, that repeat others."""
        return attributed_plan(self.scorer, self._decided(), folded=True)


@lru_cache(maxsize=256)
def _groups(names: tuple[str, ...]) -> NDArray[np.int64]:
    """Numbers names; equal names have equal numbers."""
    return np.unique(names, return_inverse=True)[1]
