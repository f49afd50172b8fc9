"""Attribution of a step's time: what each part of a pass is for, and what binds it.

Groups are attention, feed-forward, norms and elementwise, recomputation, embedding, head and loss,
the collectives by purpose, and the optimizer. Within a pass the layers take them in turn; here
they follow each other with their sums, which leaves all times as they are. The time of a kernel
counts for the resource that binds it, so a resource that is 10 % faster gains a little less than
stated where another one is close behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.explanation import ROW, Resource, TaskResources, resource_names
from dse.workload._explain import AttributedGraph
from dse.workload.transformer.explain._parts import LAUNCHES, StepParts
from dse.workload.transformer.step._costs import make_structure
from dse.workload.transformer.step._iteration import Segment, step_graph
from dse.workload.transformer.step._tasks import make_tasks

if TYPE_CHECKING:
    from dse.workload.transformer._job import TransformerJob


def attributed_step(problem: TransformerJob) -> AttributedGraph:
    """Returns the graph of a step, with each pass divided by what its kernels are for.

    Ranks are pipeline stages.

    Args:
        problem: What is trained, where and how; checked by the caller.
    """
    structure, parts = make_structure(problem), StepParts(problem)
    tasks = make_tasks(structure)
    costs = [parts.cost(kind) for kind in tasks.kinds]
    by_kind = [parts.of(kind) for kind in tasks.kinds]
    segments = tuple(
        tuple(Segment(f": {part.group}" if len(own) > 1 else "", part.kind) for part in own)
        for own in by_kind
    )
    step = step_graph(problem, structure, costs, segments)
    groups: list[str] = []
    columns: list[tuple[Resource, float, int]] = []
    for cost, own, count in zip(costs, by_kind, tasks.stands_for, strict=True):
        columns.append((Resource.HOST, count * cost.dispatch_s, len(groups)))
        groups.append(LAUNCHES)
        for part in own:
            columns += [
                (resource, count * time_s, len(groups)) for resource, time_s in part.seconds
            ]
            groups.append(part.group)
    seconds_of = np.zeros((len(Resource), len(groups)))
    for resource, seconds, column in columns:
        seconds_of[ROW[resource], column] += seconds
    sequential_s = seconds_of[:, step.duration]
    duration_s = sequential_s.sum(axis=0)
    names = resource_names(problem.cluster, problem.precision)
    return AttributedGraph(
        step.graph.with_durations(duration_s),
        TaskResources.of(duration_s, np.zeros_like(sequential_s), sequential_s, names),
        tuple(groups[number] for number in step.duration.tolist()),
    )
