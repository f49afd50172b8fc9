"""Draft of a graph, whose dependencies may still change."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from dse.graph import GraphBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.graph import ExecutionGraph
    from dse.trace._step_graph import TaskRole


class Draft:
    """Collects tasks of all ranks; times are whole nanoseconds.

    Attributes:
        role: Role of each task.
        rank: Rank of each task.
        event: Event of each task, or -1.
        start: Measured start of each task after time zero.
        duration: Duration of each task.
        after: Dependencies of each task; may be extended until the graph is built.
        collectives: Members of each collective.
    """

    def __init__(self) -> None:
        self.role: list[TaskRole] = []
        # Traces have millions of tasks: numbers side by side take a fifth of a list's memory.
        self.rank = array("i")
        self.event = array("q")
        self.start = array("q")
        self.duration = array("q")
        self.after: list[list[int]] = []
        self.collectives: list[list[int]] = []
        self._names: list[str] = []
        self._streams: dict[tuple[int, str], int] = {}
        self._stream = array("i")

    def add(
        self,
        name: str,
        role: TaskRole,
        stream: tuple[int, str],
        span: tuple[int, int],
        *,
        event: int = -1,
        after: Iterable[int] = (),
    ) -> int:
        """Adds a task at the end of a stream or thread and returns its number.

        Args:
            name: Name in timelines.
            role: What it stands for.
            stream: Rank and name of the stream or thread; added if new.
            span: Measured start and duration, in ns.
            event: Its event, or -1.
            after: Tasks it waits for.
        """
        self._names.append(name)
        self.role.append(role)
        self.rank.append(stream[0])
        self._stream.append(self._streams.setdefault(stream, len(self._streams)))
        self.event.append(event)
        self.start.append(span[0])
        self.duration.append(max(0, span[1]))
        self.after.append(list(after))
        return len(self._names) - 1

    def synchronise(self, members: list[int]) -> int:
        """Makes tasks one collective: each lasts from the last one's start to its own end.

        Returns:
            How many had ended before the last one started, which only happens with wrong clocks.
        """
        ready = max(self.start[task] for task in members)
        left = [self.start[task] + self.duration[task] - ready for task in members]
        for task, duration in zip(members, left, strict=True):
            self.duration[task] = max(0, duration)
            self.start[task] = ready
        self.collectives.append(members)
        return sum(duration < 0 for duration in left)

    def build(self) -> ExecutionGraph:
        """Returns the graph."""
        builder = GraphBuilder()
        for rank, name in self._streams:
            builder.add_stream(rank, name)
        for task, name in enumerate(self._names):
            seconds = self.duration[task] / 1e9
            builder.add_task(
                name, self.role[task].kind, self._stream[task], seconds, self.after[task]
            )
        for members in self.collectives:
            builder.add_collective(members)
        return builder.build()
