"""Explanation of a predicted step, for every kind of workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
import re
from typing import TYPE_CHECKING, TypeAlias

from dse.explanation import Resource, explain_graph

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dse.explanation import Explanation, TaskResources
    from dse.graph import ExecutionGraph
    from dse.simulate import FoldedRanks
    from dse.workload._job import Job

#: Names and values that a time line shows of a task.
Details: TypeAlias = tuple[tuple[str, str | float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class AttributedGraph:
    """The graph of a step with what each task is for and what takes its time.

    Attributes:
        graph: Tasks of all ranks, or of one representative of each group of equal ranks.
        resources: What its tasks keep busy; parts add up to the durations.
        groups: What each task is for, such as ``embedding lookups``.
        movable: Tasks whose work could be on another rank; shape `(tasks,)`, or None.
        sizes: Sizes of each task's operator or message, by name.
        folded: The ranks, where some of them stand for others.
    """

    graph: ExecutionGraph
    resources: TaskResources
    groups: tuple[str, ...]
    movable: NDArray[np.bool_] | None = None
    sizes: tuple[Details, ...] = ()
    folded: FoldedRanks | None = None


def explain_job(job: Job) -> Explanation:
    """Explains the predicted time of a job.

    Args:
        job: What is trained, where and how.

    Returns:
        The binding resources along the critical path, every rank's time, and what faster
        resources or evenly spread work would bring.

    Raises:
        ConfigError: The job is impossible.
    """
    job.check()
    attributed = job.distinct()
    found = explain_graph(
        attributed.graph,
        attributed.resources,
        attributed.groups,
        attributed.movable,
        attributed.folded,
    )
    ranks = {stream.rank for stream in attributed.graph.streams}
    if len(ranks) == 1 and job.rank_word != "rank":
        return replace(found, sentence=found.sentence.replace(" on rank 0", ""))
    return replace(found, sentence=re.sub(r"\brank(s?)\b", rf"{job.rank_word}\1", found.sentence))


def task_details(attributed: AttributedGraph) -> tuple[Details, ...]:
    """Returns names and values for each task, as a time line shows them.

    Args:
        attributed: The graph.

    Returns:
        One entry for each task: its group, what binds it, sizes of its operator or message, and
        the microseconds of each resource.
    """
    resources, graph = attributed.resources, attributed.graph
    parts_us = (1e6 * resources.parts_s()).T.tolist()
    names = dict(zip(Resource, resources.names, strict=True))
    sizes = attributed.sizes or ((),) * graph.task_count
    result = []
    for group, resource, seconds, parts, own in zip(
        attributed.groups,
        resources.bound_by(),
        graph.duration_s.tolist(),
        parts_us,
        sizes,
        strict=True,
    ):
        details: list[tuple[str, str | float]] = [("group", group)]
        if seconds > 0:
            details.append(("bound by", names[resource]))
        details += own
        details += [
            (f"{name} us", round(part_us, 3))
            for name, part_us in zip(resources.names, parts, strict=True)
            if part_us > 0
        ]
        result.append(tuple(details))
    return tuple(result)
