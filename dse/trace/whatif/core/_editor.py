"""Step editor: the primitives that change a captured step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.graph import GraphEditor
from dse.simulate import schedule
from dse.trace import TaskRole, TrainingPhase
from dse.trace.whatif.core._select import HOST_ROLES
from dse.trace.whatif.core._tasks import StepTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dse.graph import EditedGraph, ExecutionGraph
    from dse.trace import CollectiveInfo, OperatorInputs, TaskFacts, TraceGraph
    from dse.trace.whatif.core._machine import CapturedMachine

_NONE = -1


class StepEditor(StepTasks):
    """The graph of a captured step with facts about its tasks, and the primitives that change it.

    Tasks are numbers. A number stays valid while the step is changed; removed tasks are no longer
    selected. Selecting nothing is allowed, changing nothing is an error.

    Args:
        made: The graph of the captured step.
        facts: Operators, shapes, launches and phases of its tasks.
        machine: The machine that the step ran on.

    Attributes:
        machine: The machine it runs on; optimizations that change the machine set it.
        notes: What optimizations assumed, in the order of application.
        work_factor: Samples of the changed step per sample of the captured one, over all ranks.
        inserted: Tasks that were added so far.
        removed: Tasks that were removed so far.
    """

    def __init__(self, made: TraceGraph, facts: TaskFacts, machine: CapturedMachine) -> None:
        super().__init__(made, facts)
        self.machine = machine
        self.notes: list[str] = []
        self.work_factor = 1.0
        self._touched: set[int] = set()
        self.inserted = 0
        self.removed = 0

    # --- primitives -----------------------------------------------------------------------------

    def scale(self, tasks: Sequence[int], factor: float) -> None:
        """Multiplies the durations of tasks.

        Raises:
            ConfigError: No task is given.
            SimulationError: The factor is not a finite number of at least 0.
        """
        self._some(tasks, "scale")
        self._editor.scale(tasks, factor)
        if factor != 1.0:
            self._touched.update(tasks)

    def set_duration(self, task: int, duration_s: float) -> None:
        """Sets the duration of a task, in seconds.

        Raises:
            SimulationError: The duration is not a finite number of at least 0.
        """
        before_s = self.duration_of(task)
        self._editor.set_duration(task, duration_s)
        if duration_s != before_s:
            self._touched.add(task)

    def describe(
        self,
        task: int,
        *,
        inputs: OperatorInputs | None = None,
        collective: CollectiveInfo | None = None,
        size_bytes: int | None = None,
    ) -> None:
        """Updates what a task works on, for later changes; its duration stays.

        Args:
            task: The task.
            inputs: Shapes and types of its operator's inputs.
            collective: Operation, size and group of a collective.
            size_bytes: Size of a copy or fill.
        """
        if inputs is not None:
            self._inputs[task] = len(self._input_table)
            self._input_table.append(inputs)
        if collective is not None:
            self._collective[task] = len(self._collectives)
            self._collectives.append(collective)
        if size_bytes is not None:
            self._size_bytes[task] = size_bytes

    def insert(
        self,
        name: str,
        role: TaskRole,
        stream: tuple[int, str],
        duration_s: float,
        *,
        after: Iterable[int] = (),
        before: Iterable[int] = (),
        behind: int | None = None,
        ahead_of: int | None = None,
        like: int | None = None,
        collective: CollectiveInfo | None = None,
        size_bytes: int = -1,
    ) -> int:
        """Adds a task and returns its number.

        Args:
            name: Name for time lines.
            role: Its role.
            stream: Rank and name of its stream, which is added if new.
            duration_s: Seconds.
            after: Tasks that it waits for.
            before: Tasks that wait for it.
            behind: Task of the stream that it follows.
            ahead_of: Task of the stream that it precedes, with that task's delays. Without either
                it goes to the end of the stream.
            like: Task whose phase and layer it gets; by default its neighbour.
            collective: Operation, size and group of a collective.
            size_bytes: Size of a copy.

        Raises:
            SimulationError: A task does not exist, is on another stream, or the duration is
                impossible.
        """
        after, before = tuple(after), tuple(before)
        known = [one for one in (like, behind, ahead_of, *after, *before) if one is not None]
        model = known[0] if known else _NONE
        editor = self._editor
        if ahead_of is not None:
            gaps = [gap for gap in self._gaps(ahead_of) if not editor.is_removed(gap)]
            ahead_of = gaps[0] if gaps else ahead_of
        task = editor.insert(
            name,
            role.kind,
            editor.stream(*stream),
            duration_s,
            after=after,
            before=before,
            behind=behind,
            ahead_of=ahead_of,
        )
        self._role.append(int(role))
        self._rank.append(stream[0])
        self._stack.append(_NONE)
        self._inputs.append(_NONE)
        self._operator.append(_NONE)
        self._launch.append(_NONE)
        self._phase.append(self._phase[model] if model >= 0 else int(TrainingPhase.OTHER))
        self._layer.append(self._layer[model] if model >= 0 else _NONE)
        self._start_ns.append(self._start_ns[model] if model >= 0 else 0)
        if model >= 0:
            self._issued_ns[task] = self.issued_of(model)
        self._size_bytes.append(size_bytes)
        self._collective.append(_NONE)
        self.describe(task, collective=collective)
        self._touched.add(task)
        self.inserted += 1
        return task

    def remove(self, tasks: Sequence[int], *, launches: bool = True) -> None:
        """Removes tasks; what waited for them waits for what they waited for.

        The delay and the gap before a work of a device go with it.

        Args:
            tasks: The tasks.
            launches: Whether the calls that launched nothing else go as well.

        Raises:
            ConfigError: No task is given.
        """
        self._some(tasks, "remove")
        self._touched.update(tasks)
        gone = dict.fromkeys(tasks)
        for task in tasks:
            gone.update(dict.fromkeys(self._owned.get(task, ())))
        if launches:
            for task in tasks:
                call = self._launch[task]
                if call >= 0 and gone.keys() >= set(self.launched_by(call)):
                    gone[call] = None
        present = [task for task in gone if not self._editor.is_removed(task)]
        self._editor.remove(present)
        self.removed += len(present)

    def join(self, tasks: Sequence[int]) -> None:
        """Makes tasks of several ranks one collective; a single task stays alone.

        Raises:
            SimulationError: A task is part of a collective already, or two are on one stream.
        """
        self._some(tasks, "join")
        if len(tasks) > 1:
            self._touched.update(tasks)
            self._editor.add_collective(tasks)

    def wait(self, task: int, on: Iterable[int]) -> None:
        """Makes a task wait for others as well; its delays do not wait."""
        self._touched.add(task)
        self._editor.add_dependencies(task, on)

    def schedule(
        self, streams: Sequence[tuple[int, str]], priority: Callable[[int], float]
    ) -> None:
        """Reorders streams by priority: of the ready works the lowest runs first.

        A work moves together with the gap before it, and works that were not launched in the step
        stay behind what they followed. Kernels of one stream may use each other's results without
        a recorded dependency; such dependencies are lost, which a note says.

        Args:
            streams: Rank and name of each; no host threads.
            priority: Of a task; the lowest goes first.

        Raises:
            ConfigError: No stream is given, or one is a thread, whose order is its program.
            SimulationError: Tasks wait for each other; one shortest cycle is named.
        """
        if not streams:
            raise ConfigError(
                "schedule: no stream was selected; `dse trace info --streams` lists them"
            )
        chosen = [self._editor.stream(*stream) for stream in streams]
        self._pin(chosen)
        edited = self._editor.build(checked=False)
        bare, kept, gaps = self._without_gaps(edited, set(chosen))
        weights = [float(priority(task)) for task in kept]
        moved = 0
        for stream, order in schedule(bare, chosen, weights).items():
            before = self._editor.tasks_of_stream(stream)
            tasks = [one for place in order for one in (*gaps.get(kept[place], ()), kept[place])]
            changed = [new for new, old in zip(tasks, before, strict=True) if new != old]
            self._touched.update(changed)
            moved += len(changed)
            self._editor.reorder(stream, tasks)
        self.notes.append(
            f"schedule: {moved} tasks changed places; kernels of one stream that use each other's "
            "results are not distinguished from those that do not"
        )

    def _pin(self, streams: Sequence[int]) -> None:
        """Makes works without a launch in the step wait for what they followed."""
        for stream in streams:
            row = self._editor.tasks_of_stream(stream)
            host = [task for task in row if self._role[task] in HOST_ROLES]
            if host:
                raise ConfigError(
                    f"schedule: `{self.stream_of(host[0])}` runs host code, whose order "
                    "must not change; choose streams of devices or collectives"
                )
            for before, task in pairwise(row):
                captured = task < self._made.graph.task_count
                unlaunched = self._role[task] >= TaskRole.KERNEL and self._launch[task] < 0
                if self._role[before] == TaskRole.LEAD_IN or (captured and unlaunched):
                    self._editor.add_dependencies(task, [before])
            if row and self._role[row[0]] == TaskRole.LEAD_IN:
                for task in row[2:]:
                    self._editor.add_dependencies(task, [row[0]])

    def _without_gaps(
        self, edited: EditedGraph, streams: set[int]
    ) -> tuple[ExecutionGraph, list[int], dict[int, tuple[int, ...]]]:
        """Merges gaps into the works behind them, so that they move together.

        Returns:
            The graph, the task of each of its tasks, and the gaps before each work.
        """
        editor = GraphEditor(edited.graph)
        gaps: dict[int, tuple[int, ...]] = {}
        for task in self._owned:
            mine = [gap for gap in self._gaps(task) if not self._editor.is_removed(gap)]
            gone = self._editor.is_removed(task) or self._editor.stream_of(task) not in streams
            if gone or not mine:
                continue
            gaps[task] = tuple(mine)
            work = int(edited.place[task])
            for gap in (int(edited.place[one]) for one in mine):
                editor.add_dependencies(work, editor.waits_of(gap))
                editor.set_duration(work, editor.duration_of(work) + editor.duration_of(gap))
                editor.remove([gap])
        bare = editor.build(checked=False)
        return bare.graph, [int(edited.task[place]) for place in bare.task.tolist()], gaps

    # --- the result -----------------------------------------------------------------------------

    @property
    def touched(self) -> int:
        """Number of tasks that were scaled, added, removed or moved since `start_change`."""
        return len(self._touched)

    def start_change(self) -> None:
        """Begins a change: touched tasks are counted from zero."""
        self._touched.clear()

    def build(self) -> TraceGraph:
        """Returns the graph as it is now; figures of the measured step stay.

        Raises:
            SimulationError: Tasks wait for each other; one shortest cycle is named.
        """
        made = self._made
        edited = self._editor.build()
        chosen = edited.task
        event = np.full(self._editor.task_count, _NONE, dtype=np.int64)
        event[: edited.original_count] = made.event
        return replace(
            made,
            graph=edited.graph,
            role=np.array(self._role, dtype=np.int8)[chosen],
            rank=np.array(self._rank, dtype=np.int32)[chosen],
            event=event[chosen],
            measured_start_ns=np.array(self._start_ns, dtype=np.int64)[chosen],
            end_tasks=self._ends(edited.place.tolist()),
            notes=(*made.notes, *self.notes),
        )

    def _ends(self, place: list[int]) -> tuple[tuple[int, ...], ...]:
        """Returns the last tasks of the streams that end each rank's step.

        Raises:
            ConfigError: Nothing of a rank is left.
        """
        editor, result = self._editor, []
        for part, ends in zip(self._made.steps, self._made.end_tasks, strict=True):
            every = [
                index for index, stream in enumerate(editor.streams) if stream.rank == part.rank
            ]
            named = [] if part.thread < 0 else sorted({editor.stream_of(task) for task in ends})
            rows = [row for stream in named if (row := self._row(stream))]
            rows = rows or [row for stream in every if (row := self._row(stream))]
            if not rows:
                raise ConfigError(f"nothing of rank {part.rank} is left to simulate")
            result.append(tuple(place[row[-1]] for row in rows))
        return tuple(result)

    def _row(self, stream: int) -> list[int]:
        """Returns the tasks of a stream that are part of the step."""
        tasks = self._editor.tasks_of_stream(stream)
        return [task for task in tasks if self._role[task] != TaskRole.LEAD_IN]

    def _some(self, tasks: Sequence[int], doing: str) -> None:
        if not tasks:
            raise ConfigError(f"{doing}: no task was selected")
