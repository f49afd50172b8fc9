"""Gradients of weights in a captured backward pass: their sizes, and when they are ready."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.trace import TaskRole
from dse.trace.whatif.core._kernel_kinds import ACCUMULATE
from dse.trace.whatif.core._select import Selector
from dse.trace.whatif.core._structure import in_order_of_issue
from dse.trace.whatif.core._tensors import tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.whatif.core._editor import StepEditor
    from dse.trace.whatif.core._structure import TrainingPass

_EVALUATES = f"autograd::engine::evaluate_function: {ACCUMULATE}"


#: Tasks of a thread; where the CPU is the device, kernels are among them.
_ON_THREADS = (TaskRole.HOST_WORK, TaskRole.CALL, TaskRole.KERNEL)


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient of a weight, or a share of all gradients.

    Attributes:
        size_bytes: Its size.
        ready: Tasks after which it is ready; the last one is the work that computed it.
    """

    size_bytes: float
    ready: tuple[int, ...]


def gradients_of(
    editor: StepEditor, passes: Sequence[TrainingPass], total_bytes: float | None
) -> list[list[Gradient]]:
    """Returns the gradients of each backward pass, in the order in which they get ready.

    Autograd hands a gradient over (`AccumulateGrad`) once the work that makes it was issued; it is
    ready when all work issued until then has run.

    Args:
        editor: The captured step.
        passes: Passes of one rank that have backward work, in order.
        total_bytes: Size of all gradients of a pass, spread evenly over them, or over the layers
            where the trace does not show them; None to take the recorded shapes.

    Raises:
        ConfigError: Sizes are needed and not recorded.
    """
    starts = [min(editor.issued_of(task) for task in one.backward) for one in passes]
    handed_over: list[list[list[int]]] = [[] for _ in passes]
    for tasks in _accumulations(editor, passes[0].rank):
        number = bisect_right(starts, editor.start_of(tasks[0])) - 1
        if number >= 0:
            handed_over[number].append(tasks)
    return [
        _spread(editor, one, tasks, total_bytes) if total_bytes else _recorded(editor, one, tasks)
        for one, tasks in zip(passes, handed_over, strict=True)
    ]


def _spread(
    editor: StepEditor, one: TrainingPass, handed_over: Sequence[Sequence[int]], total_bytes: float
) -> list[Gradient]:
    ready = [_ready(editor, one, tasks[-1]) for tasks in handed_over]
    if not ready:
        last = {editor.layer_of(task): task for task in one.backward if editor.layer_of(task) >= 0}
        # A layer that comes up again late is ready late; the order is that of the last works.
        ready = [(task,) for task in in_order_of_issue(editor, last.values())]
    ready = ready or [(one.backward[-1],)]
    return [Gradient(total_bytes / len(ready), tasks) for tasks in ready]


def _recorded(
    editor: StepEditor, one: TrainingPass, handed_over: Sequence[Sequence[int]]
) -> list[Gradient]:
    gradients = []
    for tasks in handed_over:
        tensors = next(filter(None, (tensors_of(editor.inputs_of(task)) for task in tasks)), ())
        # A gradient without dimensions is one value and leaves no shape behind.
        size_bytes = tensors[0].size_bytes if tensors else 0
        gradients.append(Gradient(size_bytes, _ready(editor, one, tasks[-1])))
    if not any(gradient.size_bytes for gradient in gradients):
        raise ConfigError(
            "the trace does not say how large gradients are: capture it with shapes "
            "(`record_shapes=True` of the profiler, as `dse trace capture` does), or give "
            "their size, for example gradients=100MB"
        )
    return gradients


def _accumulations(editor: StepEditor, rank: int) -> list[list[int]]:
    """Returns the tasks of threads that hand over each gradient, in order of time."""
    result: list[list[int]] = []
    last: dict[str, int] = {}
    for task in editor.select(Selector(rank=(rank,), role=_ON_THREADS, operator=(_EVALUATES,))):
        if editor.launch_of(task) >= 0:
            continue
        stream, operator = editor.stream_of(task), editor.operator_of(task)
        outer = editor.stack_of(task)[-1] == _EVALUATES and editor.role_of(task) != TaskRole.CALL
        if outer and operator != last.get(stream, -1):
            last[stream] = operator
            result.append([])
        if result:
            result[-1].append(task)
    return result


def _ready(editor: StepEditor, one: TrainingPass, handed_over: int) -> tuple[int, ...]:
    """Returns the hand-over and the last work of each stream issued until then."""
    until = editor.start_of(handed_over)
    last: dict[str, int] = {}
    for task in one.backward:
        if editor.issued_of(task) <= until:
            last[editor.stream_of(task)] = task
    ready = in_order_of_issue(editor, last.values())
    return tuple(dict.fromkeys((handed_over, *ready)))
