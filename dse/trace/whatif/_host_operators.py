"""Removing kernels together with the host work of the operators that launched them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.trace import Role

if TYPE_CHECKING:
    from collections.abc import Collection

    from dse.trace.whatif._job import Job


class HostOperators:
    """Finds what a top-level operator does on its thread: its own work and its calls.

    Args:
        job: The job; its threads must not change while this is in use.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rows: dict[tuple[int, str], tuple[int, ...]] = {}
        self._place: dict[int, int] = {}

    def around(self, call: int) -> tuple[int, ...]:
        """Returns the tasks of the top-level operator that a call is part of, in their order."""
        job = self._job
        lane = (job.rank_of(call), job.lane_of(call))
        if lane not in self._rows:
            self._rows[lane] = job.tasks_on(*lane)
            self._place.update((task, at) for at, task in enumerate(self._rows[lane]))
        row, place = self._rows[lane], self._place[call]
        operator = -1
        ends = []
        for step in (-1, 1):
            end = place
            while 0 <= end + step < len(row):
                task = row[end + step]
                role = job.role_of(task)
                if role == Role.HOST_WORK:
                    operator = operator if operator >= 0 else job.operator_of(task)
                    if job.operator_of(task) != operator:
                        break
                elif role != Role.CALL:
                    break
                end += step
            ends.append(end)
        return row[ends[0] : ends[1] + 1]

    def host_work_of(self, works: Collection[int]) -> list[int]:
        """Returns the host work of the operators all of whose launches are among some works.

        Calls that wait for a device are left out.
        """
        job, gone = self._job, frozenset(works)
        found: dict[int, None] = {}
        for work in works:
            call = job.launch_of(work)
            if call < 0 or call in found or job.is_removed(call):
                continue
            span = self.around(call)
            if all(one in gone for task in span for one in job.launched_by(task)):
                found.update((task, None) for task in span if not job.synchronises(task))
        return list(found)


def remove_operators(job: Job, works: Collection[int]) -> None:
    """Removes works of devices, their launches, and the operators that did nothing else."""
    job.remove([*works, *HostOperators(job).host_work_of(works)])
