"""Sharding tasks drawn from 856 production-like tables, and the methods that plan them.

A task is a number of tables, drawn without replacement, on a number of ranks. The same number of a
task gives the same tables on every platform, number of ranks and memory, so columns of the table
differ in one thing only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
import importlib.util
import time
from typing import TYPE_CHECKING

import numpy as np
from torchrec_planner import TorchRecRequest, plan_with_torchrec

from dse.errors import DseError
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.sharding import PLANNERS, ShardingType
from dse.workload import PlanEffort
from dse.workload.dlrm import DlrmJob, DlrmProblem, DlrmRuntime, PlanScorer
from dse.workload.dlrm.solver import lower_bound, planning_request, solve

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.model import DlrmModel
    from dse.sharding import ShardingPlan

MODEL = "dlrm_meta2021"
ALL_TYPES = frozenset(ShardingType)

#: Share of the memory free for tables that they fill, with what comes with them, in a tight task.
TIGHT_FILL = 0.875

#: Host memory of one rank, for TorchRec's planner.
_HOST_MEMORY_BYTES = 128 * 2**30


@dataclass(frozen=True, slots=True)
class ShardingTask:
    """What has to be placed, and where.

    Attributes:
        problem: Tables, machines and batch.
        tight: Whether the memory of the devices was reduced.
        number: Which draw of tables it is.
    """

    problem: DlrmProblem
    tight: bool
    number: int

    @property
    def setting(self) -> tuple[int, int, str, str]:
        """Tables, ranks, platform and memory: what a row of the table is about."""
        cluster = self.problem.cluster
        memory = "tight" if self.tight else "loose"
        return len(self.problem.model.tables), cluster.world_size, cluster.name, memory


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one method made of one task.

    Attributes:
        method: Its name.
        planning_time_s: Wall-clock time until it had a plan; for `ours` the performance model of
            the problem is made in it.
        cpu_time_s: Processor time of the same; wall-clock time where nothing else runs.
        iteration_time_s: Of its plan, as predicted; infinite where it has none that fits.
        plans_scored: Plans that it weighed.
    """

    method: str
    planning_time_s: float
    cpu_time_s: float
    iteration_time_s: float
    plans_scored: int

    @property
    def feasible(self) -> bool:
        """Whether there is a plan that fits."""
        return bool(np.isfinite(self.iteration_time_s))


@dataclass(frozen=True, slots=True)
class TaskResult:
    """All methods on one task.

    Attributes:
        task: The task.
        outcomes: One for each method.
        lower_bound_s: No plan that fits is faster.
        bound_time_s: Wall-clock time of the bound.
    """

    task: ShardingTask
    outcomes: tuple[Outcome, ...]
    lower_bound_s: float
    bound_time_s: float

    def outcome(self, method: str) -> Outcome:
        """Returns what a method made of the task."""
        return next(one for one in self.outcomes if one.method == method)

    def gap(self, method: str) -> float:
        """Returns the time above the lower bound, as a share of it; infinite without a plan."""
        return self.outcome(method).iteration_time_s / self.lower_bound_s - 1.0

    @property
    def others_best_s(self) -> float:
        """The shortest iteration of the methods that are not ours; infinite where none fits."""
        others = [one for one in self.outcomes if not one.method.startswith("ours")]
        return min((one.iteration_time_s for one in others), default=float("inf"))


@cache
def _model() -> DlrmModel:
    return load_model(MODEL)


def draw_task(
    tables: int,
    ranks: int,
    *,
    platform: str = "h100_sxm",
    tight: bool = False,
    seed: int = 0,
    number: int = 0,
) -> ShardingTask:
    """Draws a task; the same arguments give the same task.

    Args:
        tables: Tables to draw, at most the model's.
        ranks: Ranks: at most a node's, or a multiple of it.
        platform: Name of the platform.
        tight: Reduce the devices' memory until tables fill :data:`TIGHT_FILL` of what is free.
        seed: Seed of all draws.
        number: Which draw.
    """
    model = _model()
    rng = np.random.default_rng([seed, tables, number])
    chosen = np.sort(rng.choice(len(model.tables), tables, replace=False))
    drawn = replace(model, tables=tuple(model.tables[index] for index in chosen.tolist()))
    machine = load_platform(platform)
    if tight:
        loose = _problem(drawn, machine.cluster(ranks))
        bytes_ = _tight_memory_bytes(loose)
        machine = replace(machine, device=replace(machine.device, memory_bytes=bytes_))
    return ShardingTask(_problem(drawn, machine.cluster(ranks)), tight, number)


def _problem(model: DlrmModel, cluster: Cluster) -> DlrmProblem:
    return DlrmProblem(model, cluster, model.global_batch_size, model.precision, DlrmRuntime())


def _tight_memory_bytes(problem: DlrmProblem) -> float:
    """Returns the device memory that an even plan's weights, state and buffers nearly fill."""
    scorer = PlanScorer(problem)
    plan = PLANNERS["memory_balanced"](planning_request(scorer, ALL_TYPES, 0))
    held = np.mean([account.total_bytes for account in DlrmJob.scored(scorer, plan).memory()])
    fixed = scorer.memory.fixed_bytes
    usable = fixed + (float(held) - fixed) / TIGHT_FILL
    return usable + problem.cluster.device.reserved_memory_bytes


def torchrec_installed() -> bool:
    """Returns whether TorchRec's planner can run here."""
    return importlib.util.find_spec("torchrec") is not None


def ours(task: ShardingTask, limit_s: float | None) -> Outcome:
    """Runs the search, with a limit on its time or to its end.

    The limit holds for all of it: what making the performance model takes is taken off.
    """
    clock = _Clock()
    scorer = PlanScorer(task.problem)
    left_s = None if limit_s is None else max(1e-3, limit_s - clock.times_s()[0])
    found = solve(scorer, PlanEffort(time_limit_s=left_s))
    seconds = clock.times_s()
    name = "ours" if limit_s is None else f"ours, {limit_s:g} s"
    return _outcome(name, scorer, found.plan, seconds, found.plans_scored)


def baseline(task: ShardingTask, name: str, scorer: PlanScorer) -> Outcome:
    """Runs one of the baseline planners."""
    request = planning_request(scorer, ALL_TYPES, task.number)
    clock = _Clock()
    plan = PLANNERS[name](request)
    return _outcome(name, scorer, plan, clock.times_s(), 0)


def torchrec(task: ShardingTask, scorer: PlanScorer) -> Outcome:
    """Runs TorchRec's planner, with the memory that a job has on a device."""
    from torchrec.distributed.planner.types import PlannerError

    problem = task.problem
    device = problem.cluster.device
    request = TorchRecRequest(
        tables=problem.model.tables,
        optimizer=problem.model.sparse_optimizer,
        world_size=problem.cluster.world_size,
        devices_per_node=problem.cluster.devices_per_node,
        global_batch_size=problem.global_batch_size,
        device_memory_bytes=device.usable_memory_bytes,
        host_memory_bytes=_HOST_MEMORY_BYTES,
        allowed_types=ALL_TYPES,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
    )
    clock = _Clock()
    try:
        answer = plan_with_torchrec(request)
    except (PlannerError, DseError):
        return Outcome("TorchRec", *clock.times_s(), float("inf"), 0)
    return _outcome("TorchRec", scorer, answer.plan, clock.times_s(), answer.proposals)


def _outcome(
    name: str,
    scorer: PlanScorer,
    plan: ShardingPlan,
    seconds: tuple[float, float],
    scored: int,
) -> Outcome:
    scores = scorer.score([plan])
    time_s = float(scores.iteration_time_s[0]) if scores.fits[0] else float("inf")
    return Outcome(name, *seconds, time_s, scored)


class _Clock:
    """Wall-clock and processor time since it was made."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def times_s(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s


def run_task(
    task: ShardingTask, limits_s: tuple[float, ...], *, with_torchrec: bool = True
) -> TaskResult:
    """Runs all methods on a task, and bounds it from below.

    All plans are scored by one performance model.

    Args:
        task: The task.
        limits_s: Time limits of our search, one run for each.
        with_torchrec: Run TorchRec's planner where it is installed.
    """
    scorer = PlanScorer(task.problem)
    outcomes = [baseline(task, name, scorer) for name in PLANNERS]
    if with_torchrec and torchrec_installed():
        outcomes.append(torchrec(task, scorer))
    outcomes += [ours(task, limit_s) for limit_s in limits_s]
    best_s = min(one.iteration_time_s for one in outcomes)
    start = time.perf_counter()
    bound = lower_bound(
        scorer,
        planning_request(scorer, ALL_TYPES, 0),
        incumbent_s=best_s if np.isfinite(best_s) else None,
    )
    seconds = time.perf_counter() - start
    return TaskResult(task, tuple(outcomes), bound.iteration_time_s, seconds)
