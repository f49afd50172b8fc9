"""Passes, layers, optimizer steps and chains of kernels in a captured graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.trace import COMPUTING, TaskRole, TrainingPhase
from dse.trace.whatif.core._select import Selector
from dse.trace.whatif.core._tensors import tensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from dse.trace.whatif.core._editor import StepEditor


def in_order_of_issue(editor: StepEditor, tasks: Iterable[int]) -> list[int]:
    """Returns tasks in the order in which they were issued."""
    return sorted(tasks, key=lambda task: (editor.issued_of(task), editor.start_of(task), task))


# --- passes -------------------------------------------------------------------------------------


@dataclass(slots=True)
class TrainingPass:
    """Forward work of one rank and the backward work that follows it, in order of issue.

    Attributes:
        rank: The rank.
        forward: Forward work, copies and fills included.
        backward: Backward work; empty if the trace ends before it.
    """

    rank: int
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)


def training_passes(editor: StepEditor, rank: int) -> list[TrainingPass]:
    """Cuts the work of a rank where a forward kernel follows backward work."""
    selector = Selector(
        rank=(rank,), role=COMPUTING, phase=(TrainingPhase.FORWARD, TrainingPhase.BACKWARD)
    )
    passes = [TrainingPass(rank)]
    for task in in_order_of_issue(editor, editor.select(selector)):
        forward = editor.phase_of(task) == TrainingPhase.FORWARD
        if forward and passes[-1].backward and editor.role_of(task) == TaskRole.KERNEL:
            passes.append(TrainingPass(rank))
        (passes[-1].forward if forward else passes[-1].backward).append(task)
    return passes


def optimizer_steps(editor: StepEditor, rank: int) -> list[list[int]]:
    """Returns the tasks of each optimizer step of a rank in order of issue, gaps included.

    A step ends where backward work follows.
    """
    selector = Selector(rank=(rank,), phase=(TrainingPhase.BACKWARD, TrainingPhase.OPTIMIZER))
    steps: list[list[int]] = [[]]
    for task in in_order_of_issue(editor, editor.select(selector)):
        if editor.phase_of(task) == TrainingPhase.OPTIMIZER:
            steps[-1].append(task)
        elif steps[-1] and editor.role_of(task) == TaskRole.KERNEL:
            steps.append([])
    return [step for step in steps if step]


def after_backward(editor: StepEditor, one_pass: TrainingPass) -> list[int]:
    """Returns the next task after a backward pass on each stream that it ran on.

    Streams wait for gradients before their next work. Where the CPU is the device the thread
    itself waits for gloo before `backward()` returns, so nothing that follows overlaps.
    """
    mine = frozenset(one_pass.backward)
    following: list[int] = []
    for stream in editor.streams_of(one_pass.backward):
        row = editor.tasks_on(*stream)
        last = max(place for place, task in enumerate(row) if task in mine)
        if editor.machine.kind == "cpu":
            following += row[_end_of_backward(editor, row, last) + 1 :][:1]
            continue
        rest = (task for task in row[last + 1 :] if editor.role_of(task) in COMPUTING)
        following += [task for task in rest if editor.phase_of(task) != TrainingPhase.BACKWARD][:1]
    return following


def _end_of_backward(editor: StepEditor, row: Sequence[int], last: int) -> int:
    """Returns the place of the last task of a pass on a thread, gradient accumulation included."""
    for place in range(last + 1, len(row)):
        phase = editor.phase_of(row[place])
        if phase == TrainingPhase.BACKWARD:
            last = place
        elif phase in (TrainingPhase.FORWARD, TrainingPhase.OPTIMIZER):
            break
    return last


# --- layers -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in one training pass.

    Attributes:
        rank: Its rank.
        forward: The selected forward work, in order of issue.
        backward: All its backward work.
        begin: First backward work of the pass.
    """

    rank: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    begin: int

    def input_bytes(self, editor: StepEditor) -> int:
        """Returns the size of the layer's input: the first matrix or larger among its inputs.

        Raises:
            ConfigError: No shapes were recorded.
        """
        for task in self.forward:
            # `addmm` and similar operators take the bias first.
            for tensor in tensors_of(editor.inputs_of(task)):
                if len(tensor.shape) > 1:
                    return tensor.size_bytes
        raise ConfigError(
            f"the inputs of `{editor.name_of(self.forward[0])}` were not recorded: capture with "
            "shapes (`record_shapes=True` of the profiler, as `dse trace capture` does)"
        )


def layers_with_backward(editor: StepEditor, wanted: Callable[[int], bool]) -> list[Layer]:
    """Returns the layers that have both selected forward work and backward work.

    Args:
        editor: The captured step.
        wanted: Whether a forward task is selected.

    Returns:
        In the order of their backward work, rank by rank.
    """
    found = []
    for rank in editor.ranks:
        for one_pass in training_passes(editor, rank):
            forward: dict[int, list[int]] = {}
            for task in one_pass.forward:
                if editor.layer_of(task) >= 0 and wanted(task):
                    forward.setdefault(editor.layer_of(task), []).append(task)
            backward: dict[int, list[int]] = {}
            for task in one_pass.backward:
                if editor.layer_of(task) in forward:
                    backward.setdefault(editor.layer_of(task), []).append(task)
            found += [
                Layer(rank, tuple(forward[layer]), tuple(tasks), one_pass.backward[0])
                for layer, tasks in backward.items()
            ]
    return found


def backward_position(
    editor: StepEditor, passes: Sequence[TrainingPass], task: int
) -> tuple[int, int]:
    """Returns the pass of a task and its layer, counted from the first layer of the pass.

    The layer is the lowest whose backward work had begun when the task started.
    """
    start = editor.start_of(task)
    begun = (
        number
        for number, one in enumerate(passes)
        if one.backward and editor.start_of(one.backward[0]) <= start
    )
    number = max(begun, default=0)
    layers = [
        editor.layer_of(work)
        for work in passes[number].backward
        if editor.layer_of(work) >= 0 and editor.start_of(work) <= start
    ]
    first = _first_layer(editor, passes[number])
    return number, max(min(layers, default=first) - first, 0)


def first_of_layer(
    editor: StepEditor, passes: Sequence[TrainingPass], number: int, layer: int
) -> list[int]:
    """Returns the first forward task of a layer of a pass, or of the next layer that has work."""
    if number >= len(passes):
        return []
    wanted = _first_layer(editor, passes[number]) + layer
    return [task for task in passes[number].forward if editor.layer_of(task) >= wanted][:1]


def _first_layer(editor: StepEditor, one_pass: TrainingPass) -> int:
    layers = map(editor.layer_of, one_pass.forward)
    return min((layer for layer in layers if layer >= 0), default=0)


# --- kernels in a row ---------------------------------------------------------------------------


def neighbours(
    editor: StepEditor, tasks: Sequence[int], roles: Collection[TaskRole]
) -> tuple[dict[int, int], dict[int, int]]:
    """Returns the previous and the next work of certain roles on the streams of some tasks."""
    before: dict[int, int] = {}
    behind: dict[int, int] = {}
    for stream in editor.streams_of(tasks):
        row = [task for task in editor.tasks_on(*stream) if editor.role_of(task) in roles]
        behind.update(pairwise(row))
        before.update((second, first) for first, second in pairwise(row))
    return before, behind


def chains_of_kernels(
    editor: StepEditor, kernels: Collection[int], wanted: Callable[[int], bool]
) -> Iterator[list[int]]:
    """Yields rows of two or more kernels that may be one kernel: each only feeds the next.

    Args:
        editor: The captured step.
        kernels: Kernels to choose from.
        wanted: Whether one of them may be part of a chain.
    """
    followers = editor.followers()
    for stream in editor.streams_of(kernels):
        chain: list[int] = []
        for task in editor.tasks_on(*stream):
            # Gaps break no chain, and neither does what a thread does between kernels.
            if (
                editor.role_of(task) < TaskRole.KERNEL
                and editor.role_of(task) != TaskRole.AFTER_WAIT
            ):
                continue
            fits = task in kernels and wanted(task)
            if not (fits and chain and _continues(editor, chain[-1], task, followers)):
                if len(chain) > 1:
                    yield chain
                chain = []
            if fits:
                chain.append(task)
        if len(chain) > 1:
            yield chain


def _continues(
    editor: StepEditor, last: int, task: int, followers: Mapping[int, Sequence[int]]
) -> bool:
    """Returns whether a kernel may continue a chain.

    Both are of one phase and, as far as is known, work on as many values; nothing else waits for
    the previous one, and the next one waits for nothing but its launch.
    """
    if editor.phase_of(last) != editor.phase_of(task):
        return False
    own = (task, *editor.delays_of(task))
    if any(other not in own for other in followers.get(last, ())):
        return False
    waits = (other for other in editor.waits_of(task) if other != last)
    if any(editor.role_of(other) >= TaskRole.KERNEL for other in waits):
        return False
    inputs = (tensors_of(editor.inputs_of(one)) for one in (last, task))
    return len({tensors[0].elements for tensors in inputs if tensors}) < 2
