"""Iteration of a transformer: the execution graph of one rank of each pipeline stage.

The host dispatches the kernels of a pass, or of another task of the compute stream, and runs ahead
of the device as far as it can. The device starts a task when the host has dispatched all earlier
ones; where kernels are shorter than their dispatch, the stream runs dry. Transfers that nothing
hides follow the kernels of their task. Between processes on a CPU, host, kernels and transfers
take the cores of a rank in turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.graph import ExecutionGraph, GraphBuilder, TaskKind
from dse.simulate import SymmetricRanks
from dse.workload._iteration import DurationClass, ErrorSource, Iteration, RepeatedIteration
from dse.workload._step_errors import TRANSFORMER_MEDIAN, program_errors
from dse.workload.transformer._types import Schedule
from dse.workload.transformer.step._cost import Cost
from dse.workload.transformer.step._costs import StepCosts, make_structure
from dse.workload.transformer.step._schedule import Pass
from dse.workload.transformer.step._spread import model_spreads
from dse.workload.transformer.step._structure import Kind, Role, pass_parts
from dse.workload.transformer.step._tasks import MOST_MICRO_BATCHES, StreamName, make_tasks

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer.step._structure import Structure

#: Graphs that are kept; a study has a few dozen structures.
_KEPT = 48

#: Rounds of a pipeline, of as many micro-batches as it has stages, until they repeat each other.
_LEAST_ROUNDS = 8

#: Model of each field of a :class:`Cost`.
_CLASSES = Cost(
    product_s=DurationClass.DENSE,
    attention_s=DurationClass.ATTENTION,
    elementwise_s=DurationClass.ELEMENTWISE,
    dispatch_s=DurationClass.HOST,
    inside_s=DurationClass.COMMUNICATION,
    network_s=DurationClass.NETWORK,
    host_link_s=DurationClass.COPY,
)


class Segment(NamedTuple):
    """A part of a task with its own duration.

    Attributes:
        suffix: Ends the name of the task.
        kind: What it occupies its stream with.
    """

    suffix: str
    kind: TaskKind


_KERNELS = Segment("", TaskKind.COMPUTE)
_TRANSFER = Segment("", TaskKind.COLLECTIVE)
_EXPOSED = Segment(": collectives", TaskKind.COLLECTIVE)


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """The graph of a step's structure, without durations.

    Durations are numbered by kind of task: the dispatch by the host, then its segments.

    Attributes:
        graph: Tasks of all stages.
        duration: Number of each task's duration; shape `(tasks,)`.
    """

    graph: ExecutionGraph
    duration: NDArray[np.int64]


def step_iteration(problem: TransformerJob) -> Iteration:
    """Returns one training step with its durations and their errors.

    Args:
        problem: What is trained, where and how; checked by the caller.
    """
    return _iteration(problem, make_structure(problem), StepCosts(problem))


def short_iteration(problem: TransformerJob) -> Iteration:
    """Returns the same step without the rounds of a pipeline that repeat each other.

    Args:
        problem: What is trained, where and how; checked by the caller.
    """
    structure, costs = make_structure(problem), StepCosts(problem)
    kept = simulated_micro_batches(problem)
    if kept == structure.micro_batches or structure.pipeline == 1:
        return _iteration(problem, structure, costs)
    longer, shorter = (
        _iteration(problem, replace(structure, micro_batches=count), costs)
        for count in (kept, kept - structure.pipeline)
    )
    rounds = (structure.micro_batches - kept) / structure.pipeline
    own = {field.name: getattr(longer, field.name) for field in fields(Iteration)}
    return RepeatedIteration(**own, shorter=shorter, rounds=rounds)


def simulated_micro_batches(problem: TransformerJob) -> int:
    """Returns how many micro-batches of a step are simulated; the others repeat them."""
    stages, count = problem.parallelism.pipeline, problem.micro_batches
    if stages == 1:
        return min(count, MOST_MICRO_BATCHES)
    most = stages * max(_LEAST_ROUNDS, -(-MOST_MICRO_BATCHES // stages))
    return most if count > 2 * most else count


def _iteration(problem: TransformerJob, structure: Structure, costs: StepCosts) -> Iteration:
    tasks = make_tasks(structure)
    by_kind = [
        costs.of(kind).times(count)
        for kind, count in zip(tasks.kinds, tasks.stands_for, strict=True)
    ]
    segments: list[tuple[Segment, ...]] = []
    parts: list[Cost] = []
    for kind, cost in zip(tasks.kinds, by_kind, strict=True):
        kernels = Cost(*cost[: 3 if structure.own_engines else 4])
        transfer = cost._replace(**dict.fromkeys(Cost._fields[:4], 0.0))
        parts.append(Cost(dispatch_s=cost.dispatch_s))
        if kind.role.is_transfer:
            segments.append((_TRANSFER,))
            parts.append(transfer if structure.own_engines else cost)
        elif transfer.transfer_s:
            segments.append((_KERNELS, _EXPOSED))
            parts += [kernels, transfer]
        else:
            segments.append((_KERNELS,))
            parts.append(kernels)
    step = step_graph(problem, structure, by_kind, tuple(segments))
    seconds = np.array(parts)
    total_s = seconds.sum(axis=1)
    spreads = model_spreads(problem, costs.product_spread, costs.attention_spread)
    share = np.divide(seconds.T, total_s, out=np.zeros(seconds.T.shape), where=total_s > 0)
    same_on_all = np.zeros(len(total_s), dtype=np.int64)
    errors = tuple(
        ErrorSource(
            DurationClass(int(duration_class)), own, np.full(len(total_s), spread), same_on_all
        )
        for duration_class, own, spread in zip(_CLASSES, share, spreads, strict=True)
    )
    duration_s = total_s[step.duration]
    graph = step.graph.with_durations(duration_s)
    remaining = program_errors(
        problem.program,
        experts=problem.model.experts is not None,
        median=TRANSFORMER_MEDIAN,
    )
    return Iteration(
        SymmetricRanks.single(graph), duration_s[:, None], errors, step.duration, remaining
    )


class _StageTimes(NamedTuple):
    """Seconds of a stage: all passes but those of weights, these, single passes, the optimizer."""

    passes_s: float
    weights_s: float
    first_forward_s: float
    last_backward_s: float
    optimizer_s: float


def kernels_time_s(problem: TransformerJob) -> float:
    """Returns a time in seconds that the step cannot beat, without its graph.

    A stage is busy with the passes of all micro-batches; before its first one, earlier stages work
    on it, and after its last one the gradient returns through them. The optimizer waits for all.

    Args:
        problem: What is trained, where and how; checked by the caller.
    """
    structure, costs = make_structure(problem), StepCosts(problem)
    known: dict[Hashable, float] = {}
    chunks = structure.pipeline * structure.interleave

    def pass_s(stage: int, one: Pass) -> float:
        # Passes through chunks of the same layers differ only at the ends, and in what they move.
        place = one.chunk * structure.pipeline + stage
        moves = structure.gathers(one), structure.gathers_root(one), structure.reduces_in(one)
        kinds = structure.chunk_kinds(stage, one.chunk)
        key = (place == 0, place == chunks - 1, moves, kinds, one.backward, one.weights)
        if key not in known:
            parts = Counter(pass_parts(structure, stage, one))
            known[key] = sum(
                count * costs.of(Kind(part.role, stage, one.chunk, part.layer)).device_s
                for part, count in parts.items()
            )
        return known[key]

    last = structure.micro_batches - 1
    # The passes of all micro-batches but the first and the last are the same.
    counts = {0: 1, last: 1} if last < 2 else {0: 1, 1: last - 1, last: 1}
    # Directions of passes, and of those for the gradients of weights alone.
    directions: list[tuple[bool, ...]] = [(False, True)]
    if structure.schedule is Schedule.ZERO_BUBBLE:
        directions.append((True,))

    def stage_s(stage: int) -> _StageTimes:
        seconds = [0.0, 0.0]
        for chunk in range(structure.interleave):
            for weights, backwards in enumerate(directions):
                for micro_batch, count in counts.items():
                    for backward in backwards:
                        one = Pass(backward, chunk, micro_batch, bool(weights))
                        seconds[weights] += count * pass_s(stage, one)
        return _StageTimes(
            passes_s=seconds[0],
            weights_s=seconds[1],
            first_forward_s=pass_s(stage, Pass(False, 0, 0)),
            last_backward_s=pass_s(stage, Pass(True, 0, last)),
            optimizer_s=costs.of(Kind(Role.OPTIMIZER, stage)).device_s,
        )

    # Between the ends, stages with the same layers take the same time.
    alike: dict[Hashable, _StageTimes] = {}
    longest_s = forth_s = back_s = optimizer_s = 0.0
    for stage in range(structure.pipeline):
        kinds = [structure.chunk_kinds(stage, chunk) for chunk in range(structure.interleave)]
        key = (stage == 0, stage == structure.pipeline - 1, *kinds)
        if key not in alike:
            alike[key] = stage_s(stage)
        times = alike[key]
        # Nothing waits for gradients of weights but what comes after all passes.
        after_s = max(times.weights_s, back_s)
        longest_s = max(longest_s, forth_s + times.passes_s + after_s)
        forth_s += times.first_forward_s
        back_s += times.last_backward_s
        optimizer_s = max(optimizer_s, times.optimizer_s)
    return longest_s + optimizer_s


def step_graph(
    problem: TransformerJob,
    structure: Structure,
    costs: Sequence[Cost],
    segments: tuple[tuple[Segment, ...], ...],
) -> StepGraph:
    """Returns the graph of a step.

    Args:
        problem: What is trained, where and how.
        structure: What the structure of the step depends on.
        costs: Cost of each kind of task.
        segments: Parts of each kind of task.
    """
    # A host that is always ahead of its device never matters.
    launch_bound = structure.own_engines and any(cost.dispatch_s > cost.device_s for cost in costs)
    waits = problem.software.host_waits_for_stages
    return _build_graph(structure, segments, launch_bound, launch_bound and waits)


@lru_cache(maxsize=_KEPT)
def _build_graph(
    structure: Structure,
    segments: tuple[tuple[Segment, ...], ...],
    launch_bound: bool,
    host_waits: bool,
) -> StepGraph:
    """Returns the graph of a structure.

    Args:
        structure: What the tasks and their dependencies depend on.
        segments: Parts of each kind of task.
        launch_bound: Whether the host can delay its device.
        host_waits: Whether the host waits for all that a task waits for before it dispatches it.
    """
    tasks, builder = make_tasks(structure), GraphBuilder()
    streams = [builder.add_stream(stage, name.value) for stage, name in tasks.streams]
    stages = sorted({stage for stage, _ in tasks.streams})
    transfers = {stage: builder.add_stream(stage, "communication") for stage in stages}
    threads = {stage: builder.add_stream(stage, "host") for stage in stages if launch_bound}
    first = list(accumulate((1 + len(own) for own in segments), initial=0))
    numbers: list[int] = []
    dispatched: dict[int, int] = {}
    ends: list[tuple[int, ...]] = []
    for kind, stream, waits in zip(tasks.kind, tasks.stream, tasks.waits, strict=True):
        role, stage, chunk, _ = tasks.kinds[kind]
        name = role.value if chunk == 0 else f"{role.value} chunk {chunk}"
        after = [task for other in waits for task in ends[other]]
        end: tuple[int, ...] = ()
        if launch_bound and tasks.streams[stream][1] is StreamName.COMPUTE:
            before = dispatched.get(stage)
            thread = threads[stage]
            dispatched[stage] = builder.add_task(
                f"launch {name}", TaskKind.HOST, thread, 0.0, after if host_waits else ()
            )
            numbers.append(first[kind])
            end = (dispatched[stage],)
            after += [] if before is None else [before]
        for number, (suffix, task_kind) in enumerate(segments[kind], first[kind] + 1):
            apart = task_kind is TaskKind.COLLECTIVE and not role.is_transfer
            place = transfers[stage] if apart else streams[stream]
            after = [builder.add_task(name + suffix, task_kind, place, 0.0, after)]
            numbers.append(number)
        ends.append((*after, *end))
    return StepGraph(builder.build(), np.array(numbers, dtype=np.int64))
