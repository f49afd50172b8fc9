"""Graph editor: scale, insert, remove, join and reorder tasks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError
from dse.graph._graph import ExecutionGraph, Stream, TaskKind
from dse.graph._order import topological_order
from dse.graph._removal import bypass_removed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class EditedGraph:
    """A graph after changes, and what became of the tasks.

    Attributes:
        graph: The graph.
        task: Number in the editor of each task of the graph; numbers below `original_count` are
            those of the graph that was changed. Shape `(tasks,)`.
        place: Number in the graph of each task of the editor, -1 for removed ones.
        original_count: Number of tasks of the graph that was changed.
    """

    graph: ExecutionGraph
    task: NDArray[np.int64]
    place: NDArray[np.int64]
    original_count: int


class GraphEditor:
    """A graph whose tasks can be scaled, added, removed and reordered.

    Tasks keep their numbers while the graph is edited, and new ones get the next numbers. What
    waited for a removed task waits for what that task waited for, its predecessor on the stream
    included, so order is never lost by a removal.

    Args:
        graph: The graph to start from; it is not changed.
    """

    def __init__(self, graph: ExecutionGraph) -> None:
        self._original = graph
        self._streams = list(graph.streams)
        self._stream_of = {stream: index for index, stream in enumerate(self._streams)}
        self._names = list(graph.names)
        self._kind: list[int] = graph.kind.tolist()
        self._stream: list[int] = graph.stream.tolist()
        self._duration_s: list[float] = graph.duration_s.tolist()
        self._collective: list[int] = graph.collective.tolist()
        self._collective_count = max(self._collective, default=_NONE) + 1
        offsets, waits = graph.dependency_offsets.tolist(), graph.dependency_tasks.tolist()
        self._after = [waits[start:end] for start, end in pairwise(offsets)]
        self._removed = bytearray(graph.task_count)
        self._rows: list[list[int]] = [[] for _ in self._streams]
        for task, stream in enumerate(self._stream):
            self._rows[stream].append(task)
        # Tasks that go right behind or ahead of another one; put into their rows by `build`.
        self._behind: dict[int, list[int]] = {}
        self._ahead: dict[int, list[int]] = {}
        self._restructured = False

    @property
    def task_count(self) -> int:
        """Number of tasks so far, removed ones included."""
        return len(self._names)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Streams so far."""
        return tuple(self._streams)

    def name_of(self, task: int) -> str:
        """Returns the name of a task."""
        return self._names[task]

    def stream_of(self, task: int) -> int:
        """Returns the stream of a task."""
        return self._stream[task]

    def kind_of(self, task: int) -> TaskKind:
        """Returns the kind of a task."""
        return TaskKind(self._kind[task])

    def collective_of(self, task: int) -> int:
        """Returns the collective of a task, or -1."""
        return self._collective[task]

    def duration_of(self, task: int) -> float:
        """Returns the duration of a task, in seconds."""
        return self._duration_s[task]

    def is_removed(self, task: int) -> bool:
        """Returns whether a task was removed."""
        return bool(self._removed[task])

    def waits_of(self, task: int) -> tuple[int, ...]:
        """Returns the dependencies of a task, removed tasks included."""
        return tuple(self._after[task])

    def followers(self) -> dict[int, list[int]]:
        """Returns, for each task, the tasks that name it as a dependency, without removed ones."""
        result: dict[int, list[int]] = {}
        for task, waits in enumerate(self._after):
            if not self._removed[task]:
                for other in dict.fromkeys(waits):
                    result.setdefault(other, []).append(task)
        return result

    def tasks_of_stream(self, stream: int) -> tuple[int, ...]:
        """Returns the tasks of a stream in their present order, without removed ones."""
        self._settle()
        return tuple(task for task in self._rows[stream] if not self._removed[task])

    def stream(self, rank: int, name: str) -> int:
        """Returns the index of a stream; adds the stream when it is new."""
        stream = Stream(rank, name)
        if stream not in self._stream_of:
            self._stream_of[stream] = len(self._streams)
            self._streams.append(stream)
            self._rows.append([])
            self._restructured = True
        return self._stream_of[stream]

    def scale(self, tasks: Iterable[int], factor: float) -> None:
        """Multiplies the durations of tasks.

        Raises:
            SimulationError: The factor is not a finite number of at least 0, or a task is gone.
        """
        if not math.isfinite(factor) or factor < 0:
            raise SimulationError(
                f"scale: factor {factor}; expected a finite number of at least 0"
            )
        for task in self._present(tasks):
            self._duration_s[task] *= factor

    def set_duration(self, task: int, duration_s: float) -> None:
        """Gives a task another duration, in seconds.

        Raises:
            SimulationError: The duration is impossible, or the task is gone.
        """
        (task,) = self._present([task])
        self._duration_s[task] = self._checked(self._names[task], duration_s)

    def insert(
        self,
        name: str,
        kind: TaskKind,
        stream: int,
        duration_s: float,
        *,
        after: Iterable[int] = (),
        before: Iterable[int] = (),
        behind: int | None = None,
        ahead_of: int | None = None,
    ) -> int:
        """Adds a task and returns its number.

        Args:
            name: Name for time lines.
            kind: What it occupies the stream with.
            stream: Index of its stream.
            duration_s: Seconds.
            after: Tasks that it waits for.
            before: Tasks that will wait for it.
            behind: Task of the same stream right behind which it goes; of several that were put
                behind the same task the first stays first.
            ahead_of: Task of the same stream right ahead of which it goes. Without either the new
                task goes to the end of the stream.

        Raises:
            SimulationError: The stream or a task does not exist, the neighbour is on another
                stream, or the duration is impossible.
        """
        if not 0 <= stream < len(self._streams):
            raise SimulationError(f"task `{name}`: stream {stream} does not exist; add it first")
        neighbour = behind if behind is not None else ahead_of
        if behind is not None and ahead_of is not None:
            raise SimulationError(f"task `{name}`: give `behind` or `ahead_of`, not both")
        if neighbour is not None:
            self._known([neighbour])
            if self._stream[neighbour] != stream:
                raise SimulationError(
                    f"task `{name}` goes to {_title(self._streams[stream])}, its neighbour "
                    f"`{self._names[neighbour]}` is elsewhere; name one on the same stream"
                )
        duration_s = self._checked(name, duration_s)
        waits, followers = list(self._known(after)), list(self._known(before))
        task = len(self._names)
        self._names.append(name)
        self._kind.append(int(kind))
        self._stream.append(stream)
        self._duration_s.append(duration_s)
        self._collective.append(_NONE)
        self._after.append(waits)
        self._removed.append(0)
        for follower in followers:
            self._after[follower].append(task)
        if behind is not None:
            self._behind.setdefault(behind, []).append(task)
        elif ahead_of is not None:
            self._ahead.setdefault(ahead_of, []).append(task)
        else:
            self._settle()
            self._rows[stream].append(task)
        self._restructured = True
        return task

    def remove(self, tasks: Iterable[int]) -> None:
        """Removes tasks; what waited for them waits for what they waited for.

        Raises:
            SimulationError: A task is gone already.
        """
        for task in self._present(tasks):
            self._removed[task] = 1
            self._collective[task] = _NONE
        self._restructured = True

    def add_dependencies(self, task: int, on: Iterable[int]) -> None:
        """Adds tasks that a task waits for."""
        (task,) = self._known([task])
        self._after[task] += self._known(on)
        self._restructured = True

    def add_collective(self, tasks: Sequence[int]) -> int:
        """Joins tasks into one collective and returns its number.

        Raises:
            SimulationError: A task is in a collective already, or two are on one stream.
        """
        members = self._present(tasks)
        for task in members:
            if self._collective[task] >= 0:
                raise SimulationError(f"task `{self._names[task]}` is in a collective already")
        if len({self._stream[task] for task in members}) < len(members):
            raise SimulationError(
                f"collective `{self._names[members[0]]}`: two members share a stream, so they "
                "could never run at the same time"
            )
        for task in members:
            self._collective[task] = self._collective_count
        self._collective_count += 1
        self._restructured = True
        return self._collective_count - 1

    def reorder(self, stream: int, tasks: Sequence[int]) -> None:
        """Puts the tasks of a stream into another order.

        Args:
            stream: The stream.
            tasks: All its tasks that are not removed.

        Raises:
            SimulationError: These are not the tasks of the stream.
        """
        if sorted(tasks) != sorted(self.tasks_of_stream(stream)):
            raise SimulationError(
                f"{_title(self._streams[stream])}: an order needs each of its tasks once"
            )
        gone = [task for task in self._rows[stream] if self._removed[task]]
        if gone:
            bypass_removed(self._rows, self._after, self._removed, self._stream)
        self._rows[stream] = list(tasks)
        self._restructured = True

    def build(self, *, checked: bool = True) -> EditedGraph:
        """Returns the graph as it is now.

        Args:
            checked: Whether to look for cycles.

        Raises:
            SimulationError: Tasks wait for each other; one shortest cycle is named.
        """
        if not self._restructured:
            graph = self._original.with_durations(np.array(self._duration_s))
            every = np.arange(graph.task_count)
            return EditedGraph(graph, every, every, graph.task_count)
        self._settle()
        bypass_removed(self._rows, self._after, self._removed, self._stream)
        kept = [task for row in self._rows for task in row if not self._removed[task]]
        place = np.full(self.task_count, _NONE, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        waits = [
            list(dict.fromkeys(int(place[other]) for other in self._after[task])) for task in kept
        ]
        lengths = np.array([len(others) for others in waits], dtype=np.int64)
        used = {collective: 0 for task in kept if (collective := self._collective[task]) >= 0}
        number = {collective: index for index, collective in enumerate(sorted(used))}
        graph = ExecutionGraph(
            streams=tuple(self._streams),
            names=tuple(self._names[task] for task in kept),
            kind=np.array([self._kind[task] for task in kept], dtype=np.int8),
            stream=np.array([self._stream[task] for task in kept], dtype=np.int32),
            duration_s=np.array([self._duration_s[task] for task in kept], dtype=np.float64),
            collective=np.array(
                [number.get(self._collective[task], _NONE) for task in kept], dtype=np.int32
            ),
            dependency_offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
            dependency_tasks=np.array(
                [other for others in waits for other in others], dtype=np.int32
            ),
        )
        if checked:
            topological_order(graph)
        return EditedGraph(graph, np.array(kept, dtype=np.int64), place, self._original.task_count)

    def _settle(self) -> None:
        """Puts the tasks that were placed next to others into their rows."""
        if not self._behind and not self._ahead:
            return
        streams = {self._stream[task] for task in (*self._behind, *self._ahead)}
        for stream in streams:
            row: list[int] = []
            # Neighbours may themselves have been placed next to others.
            open_ends = list(reversed(self._rows[stream]))
            while open_ends:
                task = open_ends.pop()
                if task in self._ahead:
                    open_ends += [task, *reversed(self._ahead.pop(task))]
                    continue
                row.append(task)
                open_ends += reversed(self._behind.pop(task, []))
            self._rows[stream] = row

    def _known(self, tasks: Iterable[int]) -> list[int]:
        numbers = [int(task) for task in tasks]
        for task in numbers:
            if not 0 <= task < len(self._names):
                raise SimulationError(
                    f"task {task} does not exist; the graph has {len(self._names)}"
                )
        return numbers

    def _present(self, tasks: Iterable[int]) -> list[int]:
        numbers = self._known(tasks)
        for task in numbers:
            if self._removed[task]:
                raise SimulationError(f"task `{self._names[task]}` was removed before")
        return numbers

    @staticmethod
    def _checked(name: str, duration_s: float) -> float:
        if not math.isfinite(duration_s) or duration_s < 0:
            raise SimulationError(
                f"task `{name}`: duration {duration_s} s; expected a finite value of at least 0"
            )
        return float(duration_s)


def _title(stream: Stream) -> str:
    return f"stream `{stream.name}` of rank {stream.rank}"
