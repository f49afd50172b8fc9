"""Tasks of a captured step: facts about each, and selection."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from dse.graph import GraphEditor
from dse.trace import TaskRole, TrainingPhase
from dse.trace.whatif.core._select import Selector, matches, matches_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dse.trace import CollectiveInfo, OperatorInputs, TaskFacts, TraceGraph

_NONE = -1


class StepTasks:
    """The tasks of a captured step by number, as they are at the moment.

    Args:
        made: The graph of the captured step.
        facts: Operators, shapes, launches and phases of its tasks.
    """

    def __init__(self, made: TraceGraph, facts: TaskFacts) -> None:
        self._made = made
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
        self._fragments: dict[tuple[int, int], list[int]] | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that were traced."""
        return tuple(part.rank for part in self._made.steps)

    def select(self, selector: Selector) -> tuple[int, ...]:
        """Returns the tasks that fit, in order of their measured start."""
        out = frozenset(self.select(selector.without)) if selector.without else frozenset()
        tests = self._tests(selector)
        # Members of enumerations are slow to look up.
        lead_in = int(TaskRole.LEAD_IN)
        tasks = (
            task
            for task in range(self._editor.task_count)
            if not self._editor.is_removed(task)
            and task not in out
            and self._role[task] != lead_in
            and all(test(task) for test in tests)
        )
        return tuple(sorted(tasks, key=lambda task: (self._start_ns[task], task)))

    def _tests(self, selector: Selector) -> list[Callable[[int], bool]]:
        """Returns a test for each condition of a selector."""
        editor, kinds, name = self._editor, frozenset(selector.kind), selector.name
        streams = {
            number
            for number, stream in enumerate(editor.streams)
            if matches(stream.name, selector.stream)
        }
        stacks = {
            number
            for number, stack in enumerate(self._stacks)
            if selector.operator and matches_any(stack, selector.operator)
        }
        longest = selector.longer_than_s or 0.0
        shortest = selector.shorter_than_s or 0.0
        least = selector.larger_than_bytes or 0.0
        tests: tuple[tuple[object, Callable[[int], bool]], ...] = (
            (selector.role, _among(selector.role, self._role)),
            (selector.phase, _among(selector.phase, self._phase)),
            (selector.rank, _among(selector.rank, self._rank)),
            (selector.layer, _among(selector.layer, self._layer)),
            (selector.kind, lambda task: editor.kind_of(task) in kinds),
            (selector.stream, lambda task: editor.stream_of(task) in streams),
            (selector.name, lambda task: matches(editor.name_of(task), name)),
            (selector.operator, lambda task: self._stack[task] in stacks),
            (
                selector.collective,
                lambda task: matches(self.operation_of(task), selector.collective),
            ),
            (selector.longer_than_s, lambda task: self.duration_of(task) > longest),
            (selector.shorter_than_s, lambda task: self.duration_of(task) < shortest),
            (selector.larger_than_bytes, lambda task: self.size_of(task) > least),
        )
        return [test for condition, test in tests if condition not in (None, ())]

    def name_of(self, task: int) -> str:
        """Returns the name of a task."""
        return self._editor.name_of(task)

    def duration_of(self, task: int) -> float:
        """Returns the duration of a task, in seconds."""
        return self._editor.duration_of(task)

    def role_of(self, task: int) -> TaskRole:
        """Returns the role of a task."""
        return TaskRole(self._role[task])

    def rank_of(self, task: int) -> int:
        """Returns the rank of a task."""
        return self._rank[task]

    def stream_of(self, task: int) -> str:
        """Returns the name of the stream of a task."""
        return self._editor.streams[self._editor.stream_of(task)].name

    def phase_of(self, task: int) -> TrainingPhase:
        """Returns the part of the step that a task is of."""
        return TrainingPhase(self._phase[task])

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

    def fragments_of(self, task: int) -> tuple[int, ...]:
        """Returns the tasks of the same operator on the same stream, this one included, in order.

        Nested calls split an operator of a thread into several tasks; other tasks are alone.
        """
        known = self._made.event
        if task >= len(known) or known[task] < 0:
            return (task,)
        if self._fragments is None:
            self._fragments = {}
            for other, event in enumerate(known.tolist()):
                self._fragments.setdefault((self._rank[other], event), []).append(other)
        stream = self._editor.stream_of(task)
        mine = (
            other
            for other in self._fragments[self._rank[task], int(known[task])]
            if not self._editor.is_removed(other) and self._editor.stream_of(other) == stream
        )
        return tuple(sorted(mine, key=lambda other: (self._start_ns[other], other)))

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
        """Returns whether a task was removed."""
        return self._editor.is_removed(task)

    def launched_by(self, call: int) -> tuple[int, ...]:
        """Returns the works of a device that a call launched, without removed ones."""
        works = sorted(self._launched.get(call, ()))
        return tuple(work for work in works if not self._editor.is_removed(work))

    def delays_of(self, task: int) -> tuple[int, ...]:
        """Returns the delay of the launch and the gap that come before a work of a device."""
        delays = self._owned.get(task, ())
        return tuple(delay for delay in delays if not self._editor.is_removed(delay))

    def synchronises(self, task: int) -> bool:
        """Returns whether a task of a thread waits for a device."""
        return self._role[task] < TaskRole.KERNEL and any(
            self._role[other] >= TaskRole.KERNEL for other in self._editor.waits_of(task)
        )

    def collective_of(self, task: int) -> CollectiveInfo | None:
        """Returns operation, size and group of a collective; None for other tasks."""
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

    def by_collective(self, tasks: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Groups tasks by collective; those of a rank alone are groups of one."""
        groups: dict[tuple[int, int], list[int]] = {}
        for task in tasks:
            collective = self._editor.collective_of(task)
            groups.setdefault((collective, _NONE if collective >= 0 else task), []).append(task)
        return tuple(tuple(group) for group in groups.values())

    def waits_of(self, task: int) -> tuple[int, ...]:
        """Returns what a task and the gap before it wait for on other streams."""
        own = [gap for gap in self._gaps(task) if not self._editor.is_removed(gap)]
        waits = [other for one in (*own, task) for other in self._editor.waits_of(one)]
        return tuple(dict.fromkeys(other for other in waits if other not in own))

    def followers(self) -> dict[int, list[int]]:
        """Returns for each task those that wait for it, on other streams or by a named wait."""
        return self._editor.followers()

    def successors(self, tasks: Iterable[int]) -> dict[int, int]:
        """Returns the next task on the stream of each task that has one."""
        result: dict[int, int] = {}
        for stream in {self._editor.stream_of(task) for task in tasks}:
            result.update(pairwise(self._editor.tasks_of_stream(stream)))
        return result

    def streams_of(self, tasks: Iterable[int]) -> tuple[tuple[int, str], ...]:
        """Returns rank and name of the streams of some tasks, each once."""
        streams = dict.fromkeys(self._editor.stream_of(task) for task in tasks)
        return tuple(
            (self._editor.streams[stream].rank, self._editor.streams[stream].name)
            for stream in streams
        )

    def tasks_on(self, rank: int, stream: str) -> tuple[int, ...]:
        """Returns the tasks of a stream in their present order."""
        return self._editor.tasks_of_stream(self._editor.stream(rank, stream))

    def _gaps(self, task: int) -> list[int]:
        """Returns the gap right before a work, on its stream."""
        stream = self._editor.stream_of(task)
        return [gap for gap in self._owned.get(task, ()) if self._editor.stream_of(gap) == stream]


def _among(wanted: Iterable[int], column: Sequence[int]) -> Callable[[int], bool]:
    values = frozenset(map(int, wanted))
    return lambda task: column[task] in values
