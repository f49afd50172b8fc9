"""Layers of a captured step: their forward work, and their backward work after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.trace.whatif._passes import training_passes

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.trace.whatif._job import Job


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer, once for each pass.

    Attributes:
        rank: Its rank.
        forward: Forward work that was asked for, in order of issue.
        backward: All its backward work.
        begin: First backward work of the pass.
    """

    rank: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    begin: int


def layers_with_backward(job: Job, wanted: Callable[[int], bool]) -> list[Layer]:
    """Returns the layers with forward work of a kind and with backward work.

    Args:
        job: The job.
        wanted: Says whether a forward work is of the kind.

    Returns:
        In the order of their backward work, rank by rank.
    """
    found = []
    for rank in job.ranks:
        for one in training_passes(job, rank):
            forward: dict[int, list[int]] = {}
            for task in one.forward:
                if job.layer_of(task) >= 0 and wanted(task):
                    forward.setdefault(job.layer_of(task), []).append(task)
            backward: dict[int, list[int]] = {}
            for task in one.backward:
                if job.layer_of(task) in forward:
                    backward.setdefault(job.layer_of(task), []).append(task)
            found += [
                Layer(rank, tuple(forward[layer]), tuple(tasks), one.backward[0])
                for layer, tasks in backward.items()
            ]
    return found
