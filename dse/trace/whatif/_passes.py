"""Training steps inside a captured graph: which forward and backward work belongs together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dse.trace import Phase, Role
from dse.trace.whatif._select import Selector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.trace.whatif._job import Job

_WORK = (Role.KERNEL, Role.COPY, Role.FILL)


@dataclass(slots=True)
class TrainingPass:
    """Forward work, and the backward work that follows it, of one rank in order of issue.

    Attributes:
        rank: The rank.
        forward: Forward work, copies and fills included.
        backward: Backward work; empty if the trace ends before it.
    """

    rank: int
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)


def in_order_of_issue(job: Job, tasks: Iterable[int]) -> list[int]:
    """Returns tasks in order of their issue."""
    return sorted(tasks, key=lambda task: (job.issued_of(task), job.start_of(task), task))


def training_passes(job: Job, rank: int) -> list[TrainingPass]:
    """Cuts the work of a rank where a forward kernel follows backward work."""
    selector = Selector(rank=(rank,), role=_WORK, phase=(Phase.FORWARD, Phase.BACKWARD))
    passes = [TrainingPass(rank)]
    for task in in_order_of_issue(job, job.select(selector)):
        forward = job.phase_of(task) == Phase.FORWARD
        if forward and passes[-1].backward and job.role_of(task) == Role.KERNEL:
            passes.append(TrainingPass(rank))
        (passes[-1].forward if forward else passes[-1].backward).append(task)
    return passes


def optimizer_steps(job: Job, rank: int) -> list[list[int]]:
    """Returns the tasks of each optimizer step of a rank in order of issue, gaps included.

    A step ends where backward work follows.
    """
    selector = Selector(rank=(rank,), phase=(Phase.BACKWARD, Phase.OPTIMIZER))
    steps: list[list[int]] = [[]]
    for task in in_order_of_issue(job, job.select(selector)):
        if job.phase_of(task) == Phase.OPTIMIZER:
            steps[-1].append(task)
        elif steps[-1] and job.role_of(task) == Role.KERNEL:
            steps.append([])
    return [step for step in steps if step]
