"""Building execution graphs task by task."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError
from dse.graph._graph import ExecutionGraph, Lane, TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class GraphBuilder:
    """Collects lanes, tasks and meetings; :meth:`build` checks them and packs them into arrays.

    Tasks of one lane run in the order in which they are added.
    """

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._names: list[str] = []
        self._kinds: list[int] = []
        self._task_lanes: list[int] = []
        self._durations_s: list[float] = []
        self._meetings: list[int] = []
        self._dependencies: list[tuple[int, ...]] = []
        self._meeting_count = 0

    def add_lane(self, rank: int, name: str) -> int:
        """Adds a serial resource of a rank and returns its index."""
        self._lanes.append(Lane(rank, name))
        return len(self._lanes) - 1

    def add_task(
        self, name: str, kind: TaskKind, lane: int, duration_s: float, after: Iterable[int] = ()
    ) -> int:
        """Adds a task at the end of a lane and returns its index.

        Args:
            name: Name for time lines.
            kind: What it occupies the lane with.
            lane: Lane index.
            duration_s: Seconds, finite and not negative.
            after: Tasks it waits for besides its predecessor on the lane.

        Raises:
            SimulationError: The lane does not exist or the duration is impossible.
        """
        if not 0 <= lane < len(self._lanes):
            raise SimulationError(f"task `{name}`: lane {lane} does not exist; add it first")
        if not math.isfinite(duration_s) or duration_s < 0:
            raise SimulationError(
                f"task `{name}`: duration {duration_s} s; expected a finite value of at least 0"
            )
        self._names.append(name)
        self._kinds.append(int(kind))
        self._task_lanes.append(lane)
        self._durations_s.append(float(duration_s))
        self._meetings.append(-1)
        self._dependencies.append(tuple(after))
        return len(self._names) - 1

    def add_meeting(self, tasks: Sequence[int]) -> int:
        """Makes tasks the members of one collective and returns the meeting's index.

        Raises:
            SimulationError: No members, two members on one lane, a task that does not exist or
                one that already meets.
        """
        if not tasks:
            raise SimulationError("a meeting needs at least one task")
        for task in tasks:
            if not 0 <= task < len(self._names):
                raise SimulationError(f"meeting: task {task} does not exist; add it first")
            if self._meetings[task] >= 0:
                raise SimulationError(f"task `{self._names[task]}` is in a meeting already")
        lanes = [self._task_lanes[task] for task in tasks]
        if len(set(lanes)) < len(lanes):
            raise SimulationError(
                f"meeting `{self._names[tasks[0]]}`: two members share a lane, so they could "
                "never run at the same time"
            )
        for task in tasks:
            self._meetings[task] = self._meeting_count
        self._meeting_count += 1
        return self._meeting_count - 1

    def build(self) -> ExecutionGraph:
        """Returns the graph.

        Raises:
            SimulationError: A task waits for one that does not exist.
        """
        count = len(self._names)
        for task, waits in enumerate(self._dependencies):
            for other in waits:
                if not 0 <= other < count:
                    raise SimulationError(
                        f"task `{self._names[task]}` waits for task {other}, which does not exist"
                    )
        lengths = np.array([len(waits) for waits in self._dependencies], dtype=np.int32)
        return ExecutionGraph(
            lanes=tuple(self._lanes),
            names=tuple(self._names),
            kind=np.array(self._kinds, dtype=np.int8),
            lane=np.array(self._task_lanes, dtype=np.int32),
            duration_s=np.array(self._durations_s, dtype=np.float64),
            meeting=np.array(self._meetings, dtype=np.int32),
            dependency_offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
            dependency_tasks=np.array(
                [other for waits in self._dependencies for other in waits], dtype=np.int32
            ),
        )
