"""Why a training step takes as long as it does."""

from __future__ import annotations

from dataclasses import dataclass, replace
import re
from typing import TYPE_CHECKING

import numpy as np

from dse.explanation import ROW, Resource, TaskResources, explain_graph, resource_names
from dse.graph import GraphBuilder, TaskKind
from dse.workload.transformer._check import check_parallelism
from dse.workload.transformer._costs import structure_of
from dse.workload.transformer._explain_parts import StepParts
from dse.workload.transformer._program import program_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.explanation import Explanation
    from dse.graph import ExecutionGraph
    from dse.workload.transformer._explain_parts import Part
    from dse.workload.transformer._program import Role
    from dse.workload.transformer._types import StepProblem

Details = tuple[tuple[str, str | float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class StepDetails:
    """A step's graph with the reasons of its tasks.

    Attributes:
        graph: As :func:`step_graph`'s, with each pass divided by what its kernels are for.
        resources: What its tasks keep busy.
        groups: What each task is for.
    """

    graph: ExecutionGraph
    resources: TaskResources
    groups: tuple[str, ...]


def explain_step(problem: StepProblem) -> Explanation:
    """Explains the predicted time of one training step.

    Groups are attention, feed-forward, norms and elementwise, recomputation, embedding, head and
    loss, the collectives by purpose, and the optimizer. Within a pass the layers take them in
    turn; here they follow each other with their sums, which leaves all times as they are. The
    time of a kernel counts for the resource that binds it, so a resource that is 10 % faster
    gains a little less than stated where another one is close behind, and a faster host more: its
    part is only what kernels do not hide.

    Args:
        problem: What is trained, where and how.

    Returns:
        Ranks are pipeline stages. Their idle time is the pipeline's bubble: it is on no critical
        path, as some stage always works or transfers.

    Raises:
        ConfigError: The configuration is impossible; see :func:`check_parallelism`.
    """
    details = step_details(problem)
    found = explain_graph(details.graph, details.resources, details.groups)
    if problem.parallelism.pipeline == 1:
        sentence = found.sentence.replace(" on rank 0", "")
    else:
        sentence = re.sub(r"\brank(s?)\b", r"stage\1", found.sentence)
    return replace(found, sentence=sentence)


def step_details(problem: StepProblem) -> StepDetails:
    """Returns a step's graph with the reasons of its tasks; arguments as :func:`explain_step`."""
    check_parallelism(
        problem.model, problem.cluster, problem.global_batch_size, problem.parallelism
    )
    program, parts = program_of(structure_of(problem)), StepParts(problem)
    by_kind = [parts.of(kind) for kind in program.kinds]
    builder = GraphBuilder()
    lanes = [builder.add_lane(stage, name.value) for stage, name in program.lanes]
    stages = range(problem.parallelism.pipeline)
    beside = {
        TaskKind.COLLECTIVE: [builder.add_lane(stage, "communication") for stage in stages],
        TaskKind.HOST: [builder.add_lane(stage, "host") for stage in stages],
    }
    last: list[int] = []
    groups: list[str] = []
    columns: list[tuple[Resource, float, int]] = []
    for kind, lane, waits in zip(program.kind, program.lane, program.waits, strict=True):
        role, stage, chunk = program.kinds[kind]
        name = _name(role, chunk)
        after, alone = [last[other] for other in waits], len(by_kind[kind]) == 1
        task = -1
        for part in by_kind[kind]:
            # What nothing hides is shown beside the kernels that wait for it.
            own = alone or part.kind is TaskKind.COMPUTE
            task = builder.add_task(
                name if alone else f"{name}: {part.group}",
                part.kind,
                lanes[lane] if own else beside[part.kind][stage],
                part.total_s,
                after,
            )
            groups.append(part.group)
            columns += [(one, seconds, task) for one, seconds in part.seconds]
            after = [task]
        last.append(task)
    graph = builder.build()
    sequential_s = np.zeros((len(Resource), graph.task_count))
    for resource, seconds, task in columns:
        sequential_s[ROW[resource], task] += seconds
    names = resource_names(problem.cluster, problem.precision)
    resources = TaskResources.of(
        graph.duration_s, np.zeros_like(sequential_s), sequential_s, names
    )
    return StepDetails(graph, resources, tuple(groups))


def step_task_details(problem: StepProblem, graph: ExecutionGraph) -> tuple[Details, ...]:
    """Returns names and values for each task of :func:`step_graph`, as a time line shows them.

    Args:
        problem: What is trained, where and how.
        graph: Its graph.

    Returns:
        One entry a task: what binds most of it, and the microseconds of each purpose and resource.
    """
    parts, names = StepParts(problem), resource_names(problem.cluster, problem.precision)
    known = {
        (kind.stage, _name(kind.role, kind.chunk)): parts.of(kind)
        for kind in program_of(structure_of(problem)).kinds
    }
    found: dict[tuple[int, str, int], Details] = {}
    result = []
    for name, lane, kind in zip(
        graph.names, graph.lane.tolist(), graph.kind.tolist(), strict=True
    ):
        # Launches and exchanges carry the name of their pass before a colon.
        key = (graph.lanes[lane].rank, name.partition(": ")[0], kind)
        if key not in found:
            mine = [part for part in known[key[:2]] if part.kind == kind]
            found[key] = _details(mine, names)
        result.append(found[key])
    return tuple(result)


def _details(parts: Sequence[Part], names: Mapping[Resource, str]) -> Details:
    by_resource: dict[str, float] = {}
    entries: list[tuple[str, str | float]] = []
    for part in parts:
        for resource, seconds in part.seconds:
            if seconds:
                called = names.get(resource, resource.value.replace("_", " "))
                by_resource[called] = by_resource.get(called, 0.0) + seconds
                entries.append((f"{part.group}, {called}, us", 1e6 * seconds))
    if not by_resource:
        return ()
    return (("bound by", max(by_resource, key=lambda one: by_resource[one])), *entries)


def _name(role: Role, chunk: int) -> str:
    return role.value if chunk == 0 else f"{role.value} chunk {chunk}"
