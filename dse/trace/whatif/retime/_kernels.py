"""Kernels on another device, in another precision, or of other shapes.

The measured time stays the base: it is multiplied by the kernel model's time afterwards over its
time before. What a model misses in absolute terms cancels out as far as it misses both alike.
"""

from __future__ import annotations

from dataclasses import dataclass
import re
from typing import TYPE_CHECKING

from dse.machine import Precision
from dse.trace import TaskRole
from dse.trace.whatif.core import arguments_of, innermost_operator, tensors_of
from dse.trace.whatif.retime._kernel_calls import (
    KernelCall,
    is_product_operator,
    kernel_calls,
    operator_name,
    traffic,
)
from dse.trace.whatif.retime._lookups import lookups_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine.platforms import Platform
    from dse.trace import OperatorInputs
    from dse.trace.whatif.core import StepEditor
    from dse.trace.whatif.retime._lookups import Lookup

_PRODUCT_NAME = re.compile(
    r"gemm|gemv|winograd|cudnn.*(?:conv|scudnn|dgrad|wgrad)|(?:dgrad|wgrad)_|xmma|cutlass|conv2d"
    r"|implicit_con|attention|flash_(?:fwd|bwd)|fmha",
    re.IGNORECASE,
)
#: Patterns in names of kernels that show their arithmetic.
_ARITHMETIC = (
    (re.compile(r"tf32|s1688gemm(?!_fp16)", re.IGNORECASE), Precision.TF32),
    (re.compile(r"bf16|bfloat16", re.IGNORECASE), Precision.BF16),
    (re.compile(r"f16|half|hgemm|h884|h1688|s884|s16816|h16816", re.IGNORECASE), Precision.FP16),
)
#: Values of state for each weight, by the optimizer's name.
_STATE = {"adagrad": 1, "rmsprop": 1, "adamw": 2, "adam": 2, "nadam": 2, "lamb": 2}
#: Operators that sum over fewer weights than this share of the busiest one update counters.
_WHOLE = 0.5
_COPIES = {"htod": "memcpy_h2d", "dtoh": "memcpy_d2h"}


@dataclass(frozen=True, slots=True, eq=False)
class ModelTimes:
    """Times of tasks by the kernel models of a platform.

    Attributes:
        platform: The platform.
        seconds: Time of each task whose operator recorded shapes, or whose size is known.
        precision: Arithmetic of products and type of values where no shapes were recorded; None
            for what the names of kernels show.
    """

    platform: Platform
    seconds: Mapping[int, float]
    precision: Precision | None = None


def kernel_times(
    editor: StepEditor,
    tasks: Sequence[int],
    platform: Platform,
    precision: Precision | None = None,
    lookups: Mapping[int, Lookup] | None = None,
) -> ModelTimes:
    """Returns the times of tasks by the kernel models.

    All kernels of an operator get the operator's time; only ratios of such times mean something.

    Args:
        editor: The captured step.
        tasks: Computing tasks.
        platform: Whose device and host link.
        precision: Of what has no recorded shapes.
        lookups: Work of tasks that do fused lookups; by default as recorded.
    """
    if lookups is None:
        lookups = {task: one.lookup for one in lookups_of(editor) for task in one.tasks}
    known: dict[_Key, float | None] = {}
    calls_s: dict[KernelCall, float] = {}
    seconds = {}
    for task in tasks:
        key = _key(editor, task, lookups.get(task))
        if key not in known:
            calls = _calls(key)
            if calls is None:
                known[key] = None
            else:
                for call in calls:
                    if call not in calls_s:
                        calls_s[call] = call.time_s(platform)
                known[key] = sum(calls_s[call] for call in calls)
        time_s = known[key]
        if time_s is not None:
            seconds[task] = time_s
    return ModelTimes(platform, seconds, precision)


def retime_kernels(
    editor: StepEditor, tasks: Sequence[int], before: ModelTimes, after: ModelTimes
) -> tuple[int, ...]:
    """Scales measured durations by the ratio of two models.

    If the models do not know an operator, the part of its time beyond the floor of a kernel scales
    with the peak rate of its arithmetic if it multiplies matrices, else with the memory bandwidth.
    Operators that move no data keep their time.

    Args:
        editor: The captured step.
        tasks: Computing tasks.
        before: Times before the change.
        after: Times after the change.

    Returns:
        The tasks whose ratio is not from models.
    """
    without = []
    for task in tasks:
        old, new = before.seconds.get(task), after.seconds.get(task)
        if old is None or new is None:
            without.append(task)
            duration_s = _by_rates(editor, task, before, after)
        else:
            duration_s = editor.duration_of(task) * (new / old if old > 0 else 1.0)
        editor.set_duration(task, duration_s)
    return tuple(without)


def describe_inputs(editor: StepEditor, task: int, inputs: OperatorInputs) -> None:
    """Changes the inputs of a task; the size of a copy or fill scales with the first input.

    Args:
        editor: The captured step.
        task: A computing task with inputs.
        inputs: The inputs from now on.
    """
    old, size = editor.inputs_of(task), editor.size_of(task)
    if old is None or inputs == old:
        return
    before, after = (
        next((one.size_bytes for one in arguments_of(some) if one.size_bytes), 0)
        for some in (old, inputs)
    )
    sized = editor.role_of(task) in (TaskRole.COPY, TaskRole.FILL) and size > 0 and before > 0
    editor.describe(
        task, inputs=inputs, size_bytes=round(size * after / before) if sized else None
    )


def share_of_time(editor: StepEditor, tasks: Sequence[int], of: Sequence[int]) -> float:
    """Returns the time of some tasks as a share of the time of others."""
    total = sum(map(editor.duration_of, of))
    return sum(map(editor.duration_of, tasks)) / total if total else 0.0


def optimizer_step_s(editor: StepEditor, kernels: Sequence[int]) -> float | None:
    """Returns the time of a fused weight update by the platform, in seconds.

    Every operator over all weights sums up to the number of weights, or a multiple of it.

    Args:
        editor: The captured step.
        kernels: Kernels of one optimizer step.

    Returns:
        None if sizes, optimizer or platform are unknown.
    """
    names = " ".join(
        dict.fromkeys(name for task in kernels for name in editor.stack_of(task))
    ).lower()
    state = next((count for name, count in _STATE.items() if f"#{name}." in names), None)
    sums: dict[str, dict[int, int]] = {}
    for task in kernels:
        tensors = tensors_of(editor.inputs_of(task))
        if tensors:
            calls = sums.setdefault(innermost_operator(editor, task) or editor.name_of(task), {})
            calls[editor.operator_of(task)] = tensors[0].elements
    totals = [sum(calls.values()) for calls in sums.values()]
    if editor.machine.platform is None or state is None or not totals:
        return None
    weights = min(total for total in totals if total >= _WHOLE * max(totals))
    time_s = editor.machine.platform.kernel_time(
        "optimizer_step", parameters=weights, state_values=state
    )
    return float(time_s)


@dataclass(frozen=True, slots=True)
class _Key:
    """All that the time of a task by the models depends on."""

    stack: tuple[str, ...]
    inputs: OperatorInputs | None
    lookup: Lookup | None
    role: TaskRole
    direction: str
    size_bytes: int


def _key(editor: StepEditor, task: int, lookup: Lookup | None) -> _Key:
    role = editor.role_of(task)
    direction = ""
    if role == TaskRole.COPY:
        name = editor.name_of(task).lower()
        direction = next((op for word, op in _COPIES.items() if word in name), "memcpy_d2d")
    size = editor.size_of(task) if role in (TaskRole.COPY, TaskRole.FILL) else -1
    stack = (operator_name(editor.stack_of(task)),)
    return _Key(stack, editor.inputs_of(task), lookup, role, direction, size)


def _calls(key: _Key) -> tuple[KernelCall, ...] | None:
    if key.role == TaskRole.COPY and key.size_bytes >= 0:
        return (KernelCall(key.direction, (("size_bytes", float(key.size_bytes)),)),)
    if key.role == TaskRole.FILL and key.size_bytes >= 0:
        return (traffic(key.size_bytes),)
    return kernel_calls(key.stack, key.inputs, key.lookup)


def _by_rates(editor: StepEditor, task: int, before: ModelTimes, after: ModelTimes) -> float:
    """Returns the new duration of a task without shapes."""
    old, new = before.platform.device, after.platform.device
    name = editor.name_of(task)
    arithmetic = before.precision or precision_of_kernel(name)
    wanted = after.precision or arithmetic
    if is_product(editor, task):
        ratio = old.peak.of(arithmetic) / new.peak.of(wanted)
    else:
        ratio = old.memory_bandwidth_bytes_per_s / new.memory_bandwidth_bytes_per_s
        ratio *= wanted.value_bytes / arithmetic.value_bytes
    duration_s, floor_s = editor.duration_of(task), old.kernel_floor_s
    if duration_s <= floor_s:
        return duration_s * new.kernel_floor_s / floor_s
    return (duration_s - floor_s) * ratio + new.kernel_floor_s


def is_product(editor: StepEditor, task: int) -> bool:
    """Returns whether a task multiplies matrices or convolves, by its operator or its name."""
    if editor.role_of(task) != TaskRole.KERNEL:
        return False
    operator = operator_name(editor.stack_of(task))
    if is_product_operator(operator):
        # Layouts and partial sums of a convolution or product are as its other kernels.
        return True
    return bool(_PRODUCT_NAME.search(editor.name_of(task)))


def precision_of_kernel(name: str) -> Precision:
    """Returns the arithmetic shown by the name of a kernel; FP32 if it shows none."""
    return next((kind for pattern, kind in _ARITHMETIC if pattern.search(name)), Precision.FP32)
