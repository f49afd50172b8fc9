"""Building execution graphs task by task."""

from __future__ import annotations

from array import array
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError
from dse.graph._graph import ExecutionGraph, Stream, TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class GraphBuilder:
    """Collects streams, tasks and collectives; :meth:`build` checks and packs them.

    Tasks of one stream run in the order in which they are added.
    """

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._names: list[str] = []
        # Graphs may have millions of tasks: numbers side by side take a fifth of a list's memory.
        self._kinds = array("b")
        self._task_streams = array("i")
        self._durations_s = array("d")
        self._collectives = array("i")
        self._offsets = array("q", (0,))
        self._dependencies = array("q")
        self._collective_count = 0

    def add_stream(self, rank: int, name: str) -> int:
        """Adds a serial resource of a rank and returns its index."""
        self._streams.append(Stream(rank, name))
        return len(self._streams) - 1

    def add_task(
        self, name: str, kind: TaskKind, stream: int, duration_s: float, after: Iterable[int] = ()
    ) -> int:
        """Adds a task at the end of a stream and returns its index.

        Args:
            name: Name for time lines.
            kind: What it occupies the stream with.
            stream: Stream index.
            duration_s: Seconds, finite and not negative.
            after: Tasks it waits for in addition to its predecessor on the stream.

        Raises:
            SimulationError: The stream does not exist or the duration is impossible.
        """
        if not 0 <= stream < len(self._streams):
            raise SimulationError(f"task `{name}`: stream {stream} does not exist; add it first")
        if not math.isfinite(duration_s) or duration_s < 0:
            raise SimulationError(
                f"task `{name}`: duration {duration_s} s; expected a finite value of at least 0"
            )
        self._names.append(name)
        self._kinds.append(int(kind))
        self._task_streams.append(stream)
        self._durations_s.append(float(duration_s))
        self._collectives.append(-1)
        self._dependencies.extend(after)
        self._offsets.append(len(self._dependencies))
        return len(self._names) - 1

    def add_collective(self, tasks: Sequence[int]) -> int:
        """Joins tasks into one collective and returns its index.

        Raises:
            SimulationError: No members, two members on one stream, a task that does not exist or
                one that is in a collective already.
        """
        if not tasks:
            raise SimulationError("a collective needs at least one task")
        for task in tasks:
            if not 0 <= task < len(self._names):
                raise SimulationError(f"collective: task {task} does not exist; add it first")
            if self._collectives[task] >= 0:
                raise SimulationError(f"task `{self._names[task]}` is in a collective already")
        streams = [self._task_streams[task] for task in tasks]
        if len(set(streams)) < len(streams):
            raise SimulationError(
                f"collective `{self._names[tasks[0]]}`: two members share a stream, so they could "
                "never run at the same time"
            )
        for task in tasks:
            self._collectives[task] = self._collective_count
        self._collective_count += 1
        return self._collective_count - 1

    def build(self) -> ExecutionGraph:
        """Returns the graph.

        Raises:
            SimulationError: A task waits for one that does not exist.
        """
        waits = np.array(self._dependencies, dtype=np.int64)
        missing = np.flatnonzero((waits < 0) | (waits >= len(self._names)))
        if len(missing):
            task = int(np.searchsorted(self._offsets, missing[0], side="right")) - 1
            raise SimulationError(
                f"task `{self._names[task]}` waits for task {waits[missing[0]]}, which does not "
                "exist"
            )
        return ExecutionGraph(
            streams=tuple(self._streams),
            names=tuple(self._names),
            kind=np.array(self._kinds, dtype=np.int8),
            stream=np.array(self._task_streams, dtype=np.int32),
            duration_s=np.array(self._durations_s, dtype=np.float64),
            collective=np.array(self._collectives, dtype=np.int32),
            dependency_offsets=np.array(self._offsets, dtype=np.int32),
            dependency_tasks=waits.astype(np.int32),
        )
