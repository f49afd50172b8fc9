"""Host work of operators: removing it with their kernels, and replacing it by CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dse.trace import COMPUTING, TaskRole
from dse.trace.whatif.core import HOST_ROLES, Selector, optimizer_steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dse.trace.whatif.core import StepEditor


class HostOperators:
    """Finds what a top-level operator does on its thread: its own work and its calls.

    Args:
        editor: The captured step; its threads must not change while this is in use.
    """

    def __init__(self, editor: StepEditor) -> None:
        self._editor = editor
        self._rows: dict[tuple[int, str], tuple[int, ...]] = {}
        self._place: dict[int, int] = {}

    def around(self, call: int) -> tuple[int, ...]:
        """Returns the tasks of the top-level operator that a call is part of, in their order."""
        editor = self._editor
        stream = (editor.rank_of(call), editor.stream_of(call))
        if stream not in self._rows:
            self._rows[stream] = editor.tasks_on(*stream)
            self._place.update((task, at) for at, task in enumerate(self._rows[stream]))
        row, place = self._rows[stream], self._place[call]
        operator = -1
        ends = []
        for step in (-1, 1):
            end = place
            while 0 <= end + step < len(row):
                task = row[end + step]
                role = editor.role_of(task)
                if role == TaskRole.HOST_WORK:
                    operator = operator if operator >= 0 else editor.operator_of(task)
                    if editor.operator_of(task) != operator:
                        break
                elif role != TaskRole.CALL:
                    break
                end += step
            ends.append(end)
        return row[ends[0] : ends[1] + 1]

    def host_work_of(self, works: Collection[int]) -> list[int]:
        """Returns the host work of operators all of whose launches are among some works.

        Calls that wait for a device are left out.
        """
        editor, gone = self._editor, frozenset(works)
        found: dict[int, None] = {}
        for work in works:
            call = editor.launch_of(work)
            if call < 0 or call in found or editor.is_removed(call):
                continue
            span = self.around(call)
            if all(one in gone for task in span for one in editor.launched_by(task)):
                found.update((task, None) for task in span if not editor.synchronises(task))
        return list(found)


def remove_operators(editor: StepEditor, works: Collection[int]) -> None:
    """Removes works of devices, their launches, and the operators that did nothing else."""
    editor.remove([*works, *HostOperators(editor).host_work_of(works)])


def merge_kernels(
    editor: StepEditor, tasks: Sequence[int], kept: Sequence[int], duration_s: float
) -> None:
    """Replaces the tasks of one thread and its device by a few kernels among them.

    Host work goes too, except for the operators that launch what is kept and for calls that wait
    for a device.

    Args:
        editor: The captured step.
        tasks: Tasks of the host and of the device.
        kept: The kernels that remain.
        duration_s: Duration of these kernels together, in seconds.
    """
    operators = HostOperators(editor)
    calls = [call for task in kept if (call := editor.launch_of(task)) >= 0]
    calls = [call for call in calls if not editor.is_removed(call)]
    stays = {*kept, *(task for call in calls for task in operators.around(call))}
    gone = [
        task
        for task in tasks
        if task not in stays
        and (editor.role_of(task) in COMPUTING or editor.role_of(task) in HOST_ROLES)
        and not editor.synchronises(task)
    ]
    for task in kept:
        editor.set_duration(task, duration_s / len(kept))
    editor.remove(gone)


def insert_launched(
    editor: StepEditor, name: str, neighbour: int, duration_s: float, *, behind: bool
) -> None:
    """Inserts a kernel next to another one, with a launch as long as that one's.

    Args:
        editor: The captured step.
        name: Name of the kernel.
        neighbour: The other kernel.
        duration_s: Duration of the kernel, in seconds.
        behind: Whether it goes behind its neighbour rather than ahead of it.
    """

    def insert(name: str, role: TaskRole, near: int, duration_s: float, *after: int) -> int:
        return editor.insert(
            name,
            role,
            (editor.rank_of(near), editor.stream_of(near)),
            duration_s,
            after=after,
            behind=near if behind else None,
            ahead_of=None if behind else near,
        )

    call = editor.launch_of(neighbour)
    launch: tuple[int, ...] = ()
    if call >= 0 and not editor.is_removed(call):
        launch = (insert(f"launch of {name}", TaskRole.CALL, call, editor.duration_of(call)),)
    insert(name, TaskRole.KERNEL, neighbour, duration_s, *launch)


# --- CUDA graphs --------------------------------------------------------------------------------


@dataclass(slots=True)
class LaunchStretch:
    """Host work that nothing interrupts.

    Attributes:
        host: Its tasks, from the first to the last launch.
        calls: The calls among them that launch work.
    """

    host: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)

    def _leave_out(self, editor: StepEditor, waiting: int) -> None:
        """Drops a call that launches and then waits itself, as copies of pageable memory do."""
        if not self.calls or editor.role_of(waiting) != TaskRole.AFTER_WAIT:
            return
        call = self.calls[-1]
        if (editor.name_of(call), editor.stream_of(call)) == (
            editor.name_of(waiting),
            editor.stream_of(waiting),
        ):
            self.calls.pop()
            # Nothing was added behind the last launch.
            while self.host and self.host[-1] != (self.calls or [-1])[-1]:
                self.host.pop()


def launch_stretches(editor: StepEditor, rank: int) -> tuple[list[LaunchStretch], int]:
    """Cuts the launching threads of a rank at optimizer steps and at waits for devices.

    Returns:
        The stretches, and the number of calls that wait.
    """
    host = editor.select(Selector(rank=(rank,), role=HOST_ROLES))
    launching = {editor.stream_of(task) for task in host if editor.launched_by(task)}
    launches = (
        [task for task in step if editor.launched_by(task)]
        for step in optimizer_steps(editor, rank)
    )
    last_of_steps = {calls[-1] for calls in launches if calls}
    stretches = [LaunchStretch()]
    tail: list[int] = []
    waits = 0
    for task in host:
        if editor.stream_of(task) not in launching:
            continue
        current = stretches[-1]
        if editor.synchronises(task):
            waits += 1
            current._leave_out(editor, task)
        else:
            calls = editor.launched_by(task)
            if calls or current.calls:
                tail.append(task)
            if calls:
                # Only what a later launch follows is part of the graph.
                current.host += tail
                current.calls.append(task)
                tail = []
            if task not in last_of_steps:
                continue
        stretches.append(LaunchStretch())
        tail = []
    return [one for one in stretches if one.calls], waits


def capture_graph(editor: StepEditor, stretch: LaunchStretch, launch_s: float) -> bool:
    """Replaces a stretch by one launch if that is shorter; returns whether it did.

    Args:
        editor: The captured step.
        stretch: The host work.
        launch_s: Duration of the launch of a graph, in seconds.
    """
    # Threads may work at the same time, so only one of them counts.
    first = stretch.calls[0]
    thread = editor.stream_of(first)
    mine = [task for task in stretch.host if editor.stream_of(task) == thread]
    if len(stretch.calls) < 2 or launch_s >= sum(map(editor.duration_of, mine)):
        return False
    launched = [work for call in stretch.calls for work in editor.launched_by(call)]
    delays = [delay for work in launched for delay in editor.delays_of(work)]
    delays = [delay for delay in delays if editor.role_of(delay) == TaskRole.LAUNCH_DELAY]
    stream = (editor.rank_of(first), thread)
    graph = editor.insert("launch of a graph", TaskRole.CALL, stream, launch_s, ahead_of=first)
    for work in launched:
        editor.wait(work, [graph])
    editor.remove([*stretch.host, *delays], launches=False)
    return True
