"""A captured step under change: choose tasks, scale, insert, remove and reorder them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.graph import GraphEditor, TaskKind
from dse.simulate import schedule
from dse.traces import COMPUTING, Phase, Role, TraceGraph
from dse.whatif._select import Selector, matches, matches_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dse.traces import CollectiveInfo, OperatorInputs, TaskFacts
    from dse.whatif._machines import Machine

_NONE = -1
_KINDS = {
    Role.KERNEL: TaskKind.COMPUTE,
    Role.FILL: TaskKind.COMPUTE,
    Role.COPY: TaskKind.COPY,
    Role.COLLECTIVE: TaskKind.COLLECTIVE,
}
#: Delays and gaps, which belong to the work that they come before.
_OWNED = (Role.LAUNCH_DELAY, Role.STREAM_GAP)


class Job:
    """The graph of a captured step, with what is known of its tasks, and the primitives on it.

    Tasks are numbers. A number stays valid while the job is changed; tasks that were removed are
    no longer selected. Selecting nothing is allowed, doing something to nothing is an error.

    Args:
        made: The graph of the captured step.
        facts: What is known of its tasks.
        machine: What the job ran on.

    Attributes:
        machine: What the job runs on; optimizations that change the machine set it.
        notes: What optimizations assumed, in the order of application.
        work_factor: Samples of the changed step per sample of the captured one, over all ranks.
        inserted: Tasks that were added so far.
        removed: Tasks that were removed so far.
    """

    def __init__(self, made: TraceGraph, facts: TaskFacts, machine: Machine) -> None:
        self._made = made
        self.machine = machine
        self.notes: list[str] = []
        self.work_factor = 1.0
        self._editor = GraphEditor(made.graph)
        self._role: list[int] = made.role.tolist()
        self._rank: list[int] = made.rank.tolist()
        self._stacks = list(facts.stacks)
        self._stack: list[int] = facts.stack.tolist()
        self._input_table = list(facts.input_table)
        self._inputs: list[int] = facts.inputs.tolist()
        self._operator: list[int] = facts.operator.tolist()
        self._launch: list[int] = facts.launch.tolist()
        self._phase: list[int] = facts.phase.tolist()
        self._layer: list[int] = facts.layer.tolist()
        self._collectives = list(facts.collectives)
        self._collective: list[int] = facts.collective.tolist()
        self._size_bytes: list[int] = facts.size_bytes.tolist()
        self._start_ns: list[int] = made.measured_start_ns.tolist()
        self._owned: dict[int, list[int]] = {}
        for task, owner in enumerate(facts.owner.tolist()):
            if owner >= 0:
                self._owned.setdefault(owner, []).append(task)
        self._launched: dict[int, set[int]] = {}
        for task, call in enumerate(self._launch):
            if call >= 0:
                self._launched.setdefault(call, set()).add(task)
        self._issued_ns: dict[int, int] = {}
        self._touched: set[int] = set()
        self.inserted = 0
        self.removed = 0

    # --- what is there --------------------------------------------------------------------------

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that were traced."""
        return tuple(part.rank for part in self._made.steps)

    def select(self, selector: Selector) -> tuple[int, ...]:
        """Returns the tasks that fit, in order of their measured start."""
        out = frozenset(self.select(selector.without)) if selector.without else frozenset()
        tasks: Iterable[int] = (
            task
            for task in range(self._editor.task_count)
            if not self._editor.is_removed(task) and task not in out
        )
        tasks = self._filtered(tasks, selector)
        return tuple(sorted(tasks, key=lambda task: (self._start_ns[task], task)))

    def _filtered(self, tasks: Iterable[int], selector: Selector) -> Iterable[int]:
        tests = [*self._category_tests(selector), *self._figure_tests(selector)]
        editor = self._editor
        if selector.lane:
            lanes = {
                index
                for index, lane in enumerate(editor.lanes)
                if matches(lane.name, selector.lane)
            }
            tests.append(lambda task: editor.lane_of(task) in lanes)
        if selector.name:
            tests.append(lambda task: matches(editor.name_of(task), selector.name))
        if selector.operator:
            stacks = {
                index
                for index, stack in enumerate(self._stacks)
                if matches_any(stack, selector.operator)
            }
            tests.append(lambda task: self._stack[task] in stacks)
        return (task for task in tasks if all(test(task) for test in tests))

    def _category_tests(self, selector: Selector) -> list[Callable[[int], bool]]:
        columns: tuple[tuple[Iterable[int], Sequence[int]], ...] = (
            (selector.role, self._role),
            (selector.phase, self._phase),
            (selector.rank, self._rank),
            (selector.layer, self._layer),
        )
        tests = [
            _among(frozenset(map(int, wanted)), column) for wanted, column in columns if wanted
        ]
        if selector.kind:
            kinds = frozenset(selector.kind)
            tests.append(lambda task: self._editor.kind_of(task) in kinds)
        if selector.collective:
            tests.append(lambda task: matches(self.operation_of(task), selector.collective))
        return tests

    def _figure_tests(self, selector: Selector) -> list[Callable[[int], bool]]:
        longest, shortest, least = (
            selector.longer_than_s,
            selector.shorter_than_s,
            selector.larger_than_bytes,
        )
        tests: list[Callable[[int], bool]] = []
        if longest is not None:
            tests.append(lambda task: self.duration_of(task) > longest)
        if shortest is not None:
            tests.append(lambda task: self.duration_of(task) < shortest)
        if least is not None:
            tests.append(lambda task: self.size_of(task) > least)
        return tests

    def kernels(self, selector: Selector) -> tuple[int, ...]:
        """Returns the computing tasks that fit: kernels, copies, fills; on a CPU operators."""
        return self.select(replace(selector, role=selector.role or COMPUTING))

    def name_of(self, task: int) -> str:
        """Returns the name of a task."""
        return self._editor.name_of(task)

    def duration_of(self, task: int) -> float:
        """Returns the duration of a task, in seconds."""
        return self._editor.duration_of(task)

    def role_of(self, task: int) -> Role:
        """Returns what a task stands for."""
        return Role(self._role[task])

    def rank_of(self, task: int) -> int:
        """Returns the rank of a task."""
        return self._rank[task]

    def lane_of(self, task: int) -> str:
        """Returns the name of the lane of a task."""
        return self._editor.lanes[self._editor.lane_of(task)].name

    def phase_of(self, task: int) -> Phase:
        """Returns the part of the step that a task is of."""
        return Phase(self._phase[task])

    def layer_of(self, task: int) -> int:
        """Returns the layer of a task, or -1."""
        return self._layer[task]

    def start_of(self, task: int) -> int:
        """Returns when a task was measured to start, in ns; an inserted one: its neighbour."""
        return self._start_ns[task]

    def stack_of(self, task: int) -> tuple[str, ...]:
        """Returns the operators and annotations around a task, the outermost first."""
        index = self._stack[task]
        return self._stacks[index] if index >= 0 else ()

    def operator_of(self, task: int) -> int:
        """Returns the number of the innermost operator around a task, or -1.

        Tasks of one rank with one number were issued by the same call of an operator.
        """
        return self._operator[task]

    def inputs_of(self, task: int) -> OperatorInputs | None:
        """Returns shapes and types of the inputs of the nearest operator that recorded any."""
        index = self._inputs[task]
        return self._input_table[index] if index >= 0 else None

    def launch_of(self, task: int) -> int:
        """Returns the call that launched a work of a device, or -1; it may be removed by now."""
        return self._launch[task]

    def issued_of(self, task: int) -> int:
        """Returns when a task was measured to be issued, in ns: as its launch, or itself, began.

        An inserted task is issued with its neighbour.
        """
        known = self._issued_ns.get(task)
        if known is None:
            call = self._launch[task]
            return self._start_ns[call if call >= 0 else task]
        return known

    def is_removed(self, task: int) -> bool:
        """Says whether a task was removed."""
        return self._editor.is_removed(task)

    def launched_by(self, call: int) -> tuple[int, ...]:
        """Returns the works of a device that a call launched, without removed ones."""
        works = sorted(self._launched.get(call, ()))
        return tuple(work for work in works if not self._editor.is_removed(work))

    def delays_of(self, task: int) -> tuple[int, ...]:
        """Returns the delay of the launch and the gap that come before a work of a device."""
        delays = self._owned.get(task, ())
        return tuple(one for one in delays if not self._editor.is_removed(one))

    def synchronises(self, task: int) -> bool:
        """Says whether a task of a thread waits for a device."""
        return self._role[task] < Role.KERNEL and any(
            self._role[other] >= Role.KERNEL for other in self._editor.waits_of(task)
        )

    def collective_of(self, task: int) -> CollectiveInfo | None:
        """Returns what is known of a collective; None for other tasks."""
        index = self._collective[task]
        return self._collectives[index] if index >= 0 else None

    def operation_of(self, task: int) -> str:
        """Returns the operation of a collective; empty for other tasks."""
        info = self.collective_of(task)
        return "" if info is None else info.operation

    def size_of(self, task: int) -> int:
        """Returns the bytes of a copy, fill or collective; -1 if unknown."""
        info = self.collective_of(task)
        return self._size_bytes[task] if info is None else info.message_bytes

    def members_of(self, task: int) -> tuple[int, ...]:
        """Returns all members of the meeting of a task; the task itself if it meets nobody."""
        meeting = self._editor.meeting_of(task)
        if meeting < 0:
            return (task,)
        return tuple(
            other
            for other in range(self._editor.task_count)
            if self._editor.meeting_of(other) == meeting
        )

    def meetings(self, tasks: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Groups collectives by their meeting; the ones that meet nobody are groups of one."""
        groups: dict[tuple[int, int], list[int]] = {}
        for task in tasks:
            meeting = self._editor.meeting_of(task)
            groups.setdefault((meeting, _NONE if meeting >= 0 else task), []).append(task)
        return tuple(tuple(group) for group in groups.values())

    def waits_of(self, task: int) -> tuple[int, ...]:
        """Returns what a task waits for on other lanes, through the gap before it as well."""
        own = [gap for gap in self._gaps(task) if not self._editor.is_removed(gap)]
        waits = [other for one in (*own, task) for other in self._editor.waits_of(one)]
        return tuple(dict.fromkeys(other for other in waits if other not in own))

    def followers(self) -> dict[int, list[int]]:
        """Returns for each task those that wait for it, on other lanes or by a named wait."""
        return self._editor.followers()

    def lanes_of(self, tasks: Iterable[int]) -> tuple[tuple[int, str], ...]:
        """Returns rank and name of the lanes of tasks, each once."""
        lanes = dict.fromkeys(self._editor.lane_of(task) for task in tasks)
        return tuple(
            (self._editor.lanes[lane].rank, self._editor.lanes[lane].name) for lane in lanes
        )

    def tasks_on(self, rank: int, lane: str) -> tuple[int, ...]:
        """Returns the tasks of a lane in their present order."""
        return self._editor.tasks_of_lane(self._editor.lane(rank, lane))

    # --- primitives -----------------------------------------------------------------------------

    def scale(self, tasks: Sequence[int], factor: float) -> None:
        """Multiplies the durations of tasks.

        Raises:
            ConfigError: There is no task.
            SimulationError: The factor is not a finite number of at least 0.
        """
        self._some(tasks, "scale")
        self._editor.scale(tasks, factor)

    def set_duration(self, task: int, duration_s: float) -> None:
        """Gives a task another duration, in seconds.

        Raises:
            SimulationError: It is not a finite number of at least 0.
        """
        self._some([task], "set_duration")
        self._editor.set_duration(task, duration_s)

    def describe(
        self,
        task: int,
        *,
        inputs: OperatorInputs | None = None,
        collective: CollectiveInfo | None = None,
        size_bytes: int | None = None,
    ) -> None:
        """Says what a task works on from now on, for later changes; its duration stays.

        Args:
            task: The task.
            inputs: Shapes and types of its operator's inputs.
            collective: Of a collective, what it is.
            size_bytes: Of a copy or fill, its size.
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
        role: Role,
        lane: tuple[int, str],
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
            role: What it stands for.
            lane: Rank and name of its lane, which is added if new.
            duration_s: Seconds.
            after: Tasks that it waits for.
            before: Tasks that shall wait for it.
            behind: Task of the lane right behind which it goes.
            ahead_of: Task of the lane right ahead of which it goes, its delays included. Without
                either it goes to the end of the lane.
            like: Task whose phase and layer it has; the neighbour by default.
            collective: Of a collective, what it is.
            size_bytes: Of a copy, its size.

        Raises:
            SimulationError: A task does not exist, is on another lane, or the duration is
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
            _KINDS.get(role, TaskKind.HOST),
            editor.lane(*lane),
            duration_s,
            after=after,
            before=before,
            behind=behind,
            ahead_of=ahead_of,
        )
        self._role.append(int(role))
        self._rank.append(lane[0])
        self._stack.append(_NONE)
        self._inputs.append(_NONE)
        self._operator.append(_NONE)
        self._launch.append(_NONE)
        self._phase.append(self._phase[model] if model >= 0 else int(Phase.OTHER))
        self._layer.append(self._layer[model] if model >= 0 else _NONE)
        self._start_ns.append(self._start_ns[model] if model >= 0 else 0)
        if model >= 0:
            self._issued_ns[task] = self.issued_of(model)
        self._size_bytes.append(size_bytes)
        self._collective.append(_NONE)
        if collective is not None:
            self._collective[task] = len(self._collectives)
            self._collectives.append(collective)
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
            ConfigError: There is no task.
        """
        self._some(tasks, "remove")
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

    def meet(self, tasks: Sequence[int]) -> None:
        """Makes collectives of several ranks one meeting.

        Raises:
            SimulationError: A task meets already, or two are on one lane.
        """
        self._some(tasks, "meet")
        self._editor.meet(tasks)

    def wait(self, task: int, on: Iterable[int]) -> None:
        """Lets a task wait for others as well; its delays do not wait."""
        self._some([task], "wait")
        self._editor.depend(task, on)

    def schedule(self, lanes: Sequence[tuple[int, str]], priority: Callable[[int], float]) -> None:
        """Lets lanes choose which of their ready tasks runs next, and fixes the order found.

        Args:
            lanes: Rank and name of each lane.
            priority: Of a task; the lowest goes first.

        Raises:
            ConfigError: There is no lane.
            SimulationError: Tasks wait for each other; one shortest cycle is named.
        """
        if not lanes:
            raise ConfigError("schedule: no lane was selected; `dse trace info` lists them")
        chosen = [self._editor.lane(*lane) for lane in lanes]
        edited = self._editor.build(checked=False)
        weights = [float(priority(task)) for task in edited.task.tolist()]
        for lane, order in schedule(edited.graph, chosen, weights).items():
            tasks = [int(edited.task[task]) for task in order]
            self._touched.update(tasks)
            self._editor.reorder(lane, tasks)

    # --- the result -----------------------------------------------------------------------------

    @property
    def touched(self) -> int:
        """Number of tasks that were scaled, added, removed or moved since `start_step`."""
        return len(self._touched)

    def start_step(self) -> None:
        """Counts the tasks that a step changes from zero."""
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
        """Returns the last tasks of the lanes that end each rank's step."""
        editor, result = self._editor, []
        for part, ends in zip(self._made.steps, self._made.end_tasks, strict=True):
            lanes = {editor.lane_of(task) for task in ends}
            if part.thread < 0:
                lanes |= {
                    index for index, lane in enumerate(editor.lanes) if lane.rank == part.rank
                }
            rows = (editor.tasks_of_lane(lane) for lane in sorted(lanes))
            result.append(tuple(place[row[-1]] for row in rows if row))
        return tuple(result)

    def _gaps(self, task: int) -> list[int]:
        """Returns the gap right before a work, on its lane."""
        lane = self._editor.lane_of(task)
        return [gap for gap in self._owned.get(task, ()) if self._editor.lane_of(gap) == lane]

    def _some(self, tasks: Sequence[int], doing: str) -> None:
        if not tasks:
            raise ConfigError(f"{doing}: no task was selected")
        self._touched.update(tasks)


def _among(wanted: frozenset[int], column: Sequence[int]) -> Callable[[int], bool]:
    return lambda task: column[task] in wanted
