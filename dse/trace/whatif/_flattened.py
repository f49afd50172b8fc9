"""Sizes in recorded shapes that a resize may have missed: products of several dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.trace.whatif._arguments import arguments_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dse.trace.whatif._arguments import ShapeChange
    from dse.trace.whatif._job import Job

#: Share of the time of kernels from which a size is worth a note.
_MUCH = 0.05
#: Sizes that a note or a message lists.
_LISTED = 5


def usual_sizes(job: Job, tasks: Sequence[int]) -> list[int]:
    """Returns the sizes of dimensions in whose operators most of the time goes, most first.

    Args:
        job: The job.
        tasks: Computing tasks.
    """
    times = _times(job, tasks)
    times.pop(1, None)
    return sorted(times, key=lambda size: (-times[size], size))[:_LISTED]


def flattened_note(
    job: Job, tasks: Sequence[int], dimensions: Mapping[int, int], probe: ShapeChange
) -> list[str]:
    """Notes sizes that are multiples of a resized one, stay, and matter.

    A shape does not tell whether 1152 is 12 samples of 96 words or a width; who asks knows.

    Args:
        job: The job with its shapes as they were.
        tasks: Computing tasks.
        dimensions: Old size → new size.
        probe: The change with an impossible value for each new size: what it leaves alone stays.

    Returns:
        One note for each old size with such multiples.
    """
    total_s = sum(map(job.duration_of, tasks))
    notes = []
    for old, new in dimensions.items():
        if old == new or old < 2 or not total_s:
            continue
        times = _times(job, tasks)
        found = [
            size
            for size, time_s in times.items()
            if size > old
            and size % old == 0
            and probe((size,)) == (size,)
            and time_s >= _MUCH * total_s
        ]
        if not found:
            continue
        share = _share(job, tasks, found, total_s)
        listed = sorted(found, key=lambda size: (-times[size], size))[:_LISTED]
        products = ", ".join(f"{size} = {old} · {size // old}" for size in listed)
        factors = ";".join(str(size // old) for size in listed)
        notes.append(
            f"{100 * share:.0f} % of the time works on sizes that are multiples of {old} and "
            f"stay: {products}; add times={factors}, without those that are no product with {old}"
        )
    return notes


def _times(job: Job, tasks: Sequence[int]) -> dict[int, float]:
    """Returns the time of the tasks that work on each size, in seconds."""
    times: dict[int, float] = {}
    for task in tasks:
        for size in _sizes(job, task):
            times[size] = times.get(size, 0.0) + job.duration_of(task)
    return times


def _share(job: Job, tasks: Sequence[int], sizes: Iterable[int], total_s: float) -> float:
    wanted = frozenset(sizes)
    return sum(job.duration_of(task) for task in tasks if wanted & _sizes(job, task)) / total_s


def _sizes(job: Job, task: int) -> frozenset[int]:
    inputs = job.inputs_of(task)
    if inputs is None:
        return frozenset()
    return frozenset(
        size for one in arguments_of(inputs) for shape in one.shapes for size in shape
    )
