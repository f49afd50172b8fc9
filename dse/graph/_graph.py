"""Execution graph: the tasks of all ranks, their streams and their dependencies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TaskKind(IntEnum):
    """What a task occupies its stream with; decides its share in a breakdown."""

    COMPUTE = 0
    COLLECTIVE = 1
    COPY = 2
    HOST = 3


@dataclass(frozen=True, slots=True)
class Stream:
    """One serial resource of a rank: a GPU stream or a host thread.

    Attributes:
        rank: Rank it belongs to.
        name: ``compute``, ``communication``, ``copy``, ``host`` …
    """

    rank: int
    name: str


@dataclass(frozen=True, slots=True, repr=False)
class ExecutionGraph:
    """Tasks in structure-of-arrays form.

    Rules of execution, the same for every simulator:

    1. Tasks of one stream run one at a time in the order of their index (program order).
    2. A task is *ready* when its predecessor on the stream and all its dependencies have ended.
    3. A task outside any collective starts when it is ready and ends `duration_s` later.
    4. Tasks of one collective (at most one per stream) all start at the moment the last of them
       is ready; each ends its own `duration_s` after that. The time between a
       member's readiness and the start is waiting, not transfer.

    Attributes:
        streams: All streams; a task refers to one by index.
        names: Name of each task.
        kind: `TaskKind` of each task; shape `(tasks,)`, int8.
        stream: Stream index of each task; shape `(tasks,)`, int32.
        duration_s: Duration of each task in seconds; shape `(tasks,)`, float64.
        collective: Collective index of each task, or -1; shape `(tasks,)`, int32.
        dependency_offsets: Row starts of the dependency lists; shape `(tasks + 1,)`, int32.
        dependency_tasks: Concatenated lists of the tasks that each task waits for, without its
            predecessor on the stream; shape `(dependencies,)`, int32.
    """

    streams: tuple[Stream, ...]
    names: tuple[str, ...]
    kind: NDArray[np.int8]
    stream: NDArray[np.int32]
    duration_s: NDArray[np.float64]
    collective: NDArray[np.int32]
    dependency_offsets: NDArray[np.int32]
    dependency_tasks: NDArray[np.int32]

    def __repr__(self) -> str:
        return f"ExecutionGraph({self.task_count} tasks on {len(self.streams)} streams)"

    @property
    def task_count(self) -> int:
        """Number of tasks."""
        return len(self.names)

    def dependencies_of(self, task: int) -> NDArray[np.int32]:
        """Returns the tasks that `task` waits for, without its predecessor on the stream."""
        return self.dependency_tasks[
            self.dependency_offsets[task] : self.dependency_offsets[task + 1]
        ]

    def with_durations(self, duration_s: NDArray[np.float64]) -> ExecutionGraph:
        """Returns the same graph with other durations.

        Args:
            duration_s: Seconds, finite and not negative; shape `(tasks,)`.

        Raises:
            SimulationError: The shape or a value does not fit.
        """
        durations = np.array(duration_s, dtype=np.float64)
        if durations.shape != (self.task_count,):
            raise SimulationError(
                f"durations of shape {durations.shape}; expected ({self.task_count},), "
                "one for each task"
            )
        impossible = ~(np.isfinite(durations) & (durations >= 0))
        if impossible.any():
            task = int(np.argmax(impossible))
            raise SimulationError(
                f"task `{self.names[task]}`: duration {durations[task]} s; expected a finite "
                "value of at least 0"
            )
        return replace(self, duration_s=durations)
