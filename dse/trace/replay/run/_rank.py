"""Replay of one rank in this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
import time
from typing import TYPE_CHECKING, Any

from dse._torch import load_torch
from dse.errors import ConfigError
from dse.trace.replay._results import OriginalTime, RankResult, coverage_of, skipped_of
from dse.trace.replay.plan import CollectiveBinder, OperatorFinder, Planner, outside_constraints
from dse.trace.replay.read import Recording, UnitSelector, node_range, steps_in
from dse.trace.replay.run._batch import BatchScaler
from dse.trace.replay.run._memory import MemoryBudget, MemoryWatch
from dse.trace.replay.run._runner import PlanRunner
from dse.trace.replay.run._streams import Streams, set_streams
from dse.trace.replay.run._tensors import TensorFactory

if TYPE_CHECKING:
    from dse.trace import ExecutionTrace, RankTrace
    from dse.trace.capture import CaptureRecord
    from dse.trace.replay._options import ReplayOptions
    from dse.trace.replay.plan import ReplayPlan
    from dse.trace.replay.read import UnitTimes


@dataclass(frozen=True, slots=True, eq=False)
class RankInput:
    """Traces and record of one rank.

    Attributes:
        et: Its execution trace, with arguments.
        kineto: Its Kineto trace, if there is one.
        record: Record of its capture, if there is one.
    """

    et: ExecutionTrace
    kineto: RankTrace | None = None
    record: CaptureRecord | None = None


def replay_rank(
    given: RankInput,
    options: ReplayOptions,
    mode: str,
    groups: dict[tuple[int, ...], Any] | None = None,
) -> RankResult:
    """Replays a rank.

    Args:
        given: Its traces.
        options: The options.
        mode: Handling of collectives: `run`, `mock`, `skip` or `none`.
        groups: Process groups by their ranks, for `run`.

    Raises:
        ConfigError: The trace or the options do not allow it.
        OptionalDependencyError: torch is not installed.
        WorkerError: A collective failed.
    """
    torch = load_torch()
    et = given.et
    first, after = node_range(et, options.begin, options.end)
    finder = OperatorFinder(torch, options.device)
    units = UnitSelector(et, finder).units(first, after)
    plan = Planner(et, finder, options.part, skip_collectives=mode == "skip").plan(units)
    if not plan.calls:
        raise ConfigError(
            f"{et.file}: nothing in the range can be replayed: {_why_nothing(plan)}; choose "
            "another range or part"
        )
    notes = [*et.notes]
    times, original = None, OriginalTime(steps_in(et, first, after))
    if given.kineto is not None:
        recording = Recording(et, given.kineto)
        notes += recording.notes
        times = recording.unit_times(units, first, after)
        whole = not options.begin and not options.end and options.part == "all"
        original = recording.original(first, after, given.record, whole=whole)
        original = replace(original, operators_s=sum(times.host_s))
        if options.part == "communication":
            # Collectives overlap the operators that start them: there is no time to compare with.
            original = replace(original, profiled_s=None, unprofiled_s=None)
        elif mode == "skip":
            original = replace(
                original,
                profiled_s=_chosen_s(plan, times),
                unprofiled_s=None,
                source="operators of the chosen part on the host",
            )
    budget = MemoryBudget.of_device(torch, options.device, options.memory_limit_bytes)
    scaler = BatchScaler(plan, options.scale_batch, options.batch)
    factory = TensorFactory(torch, options.device, options.indices, options.seed, budget)
    watch = MemoryWatch(torch, budget)
    with torch.no_grad():
        slots = factory.make_all(plan, outside_constraints(plan), scaler)
        binder = CollectiveBinder(torch, groups if mode == "run" else None, scaler)
        streams = _streams(torch, plan, times) if options.device == "cuda" else None
        runner = PlanRunner(torch, plan, slots, scaler, binder, factory, watch, streams)
        runner.settle()
        wall_s, cpu_s = _time(torch, runner, options, together=mode == "run" and bool(groups))
        runner.close()
    if runner.redrawn:
        notes.append(
            f"{runner.redrawn} arguments with indices that are not sure to be in range were drawn"
        )
    if runner.reshaped:
        notes.append(
            f"{runner.reshaped} results have another shape than recorded, because it depends on "
            "values; tensors of the recorded shape take their place"
        )
    return RankResult(
        rank=et.rank,
        file=et.file,
        schema=et.schema,
        nodes=len(et),
        iteration_s=tuple(wall_s),
        cpu_s=tuple(cpu_s),
        original=original,
        coverage=coverage_of(plan, times),
        skipped=skipped_of(et, plan, times),
        collectives=runner.collectives,
        memory_bytes=budget.peak_bytes,
        batch=(scaler.before, scaler.after) if scaler.active else None,
        notes=tuple(notes),
    )


def _streams(torch: Any, plan: ReplayPlan, times: UnitTimes | None) -> Streams | None:
    """Returns the streams of a replay on a GPU, if the recording had several."""
    if times is None:
        return None
    set_streams(plan, times.stream)
    streams = Streams(torch, plan)
    return streams if streams.several else None


def _why_nothing(plan: ReplayPlan) -> str:
    if not plan.units:
        return "it has no operators with signatures"
    reasons = sorted(set(plan.reasons.values()))
    return "; ".join(reasons[:3])


def _chosen_s(plan: ReplayPlan, times: UnitTimes) -> float:
    return sum(times.host_s[at] for at in range(len(plan.units)) if at not in plan.by_option)


def _time(
    torch: Any, runner: PlanRunner, options: ReplayOptions, *, together: bool
) -> tuple[list[float], list[float]]:
    on_gpu = options.device == "cuda"
    wall_s: list[float] = []
    cpu_s: list[float] = []
    for number in range(options.warm_up + options.iterations):
        if on_gpu:
            torch.cuda.synchronize()
        if together:
            torch.distributed.barrier()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        runner.run()
        if on_gpu:
            torch.cuda.synchronize()
        ended_cpu_s, ended_s = time.process_time(), time.perf_counter()
        if number >= options.warm_up:
            wall_s.append(ended_s - began_s)
            cpu_s.append(ended_cpu_s - began_cpu_s)
    return wall_s, cpu_s
