"""Another arithmetic: products by their models, everything else by its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.machine import Precision
from dse.trace import COMPUTING, TaskRole, TrainingPhase
from dse.trace.whatif.core import (
    Optimization,
    Patterns,
    Selector,
    arguments_of,
    matches_any,
    with_precision,
)
from dse.trace.whatif.retime import (
    convert_collectives,
    describe_inputs,
    is_lookup,
    is_product,
    kernel_times,
    operator_name,
    retime_kernels,
    traffic,
    weight_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.whatif.core import StepEditor

#: What autocast leaves in FP32, and where gradients of master weights are gathered.
_KEPT = [
    "*softmax*",
    "*layer_norm*",
    "*batch_norm*",
    "*group_norm*",
    "*_loss*",
    "*cross_entropy*",
    "*cumsum*",
    "*AccumulateGrad*",
]


class ChangedPrecision(Optimization):
    """Mixed precision or back: `precision=bf16`; fp32, tf32, fp16 and bf16 are known.

    Attributes:
        precision: Arithmetic and values of operators from now on.
        keep: Patterns of operators that stay as captured; by default those that autocast leaves in
            FP32. Fused lookups stay as well, for their tables have a type of their own.
        optimizer: Whether the optimizer changes, too: no master weights.
        communication: Whether collectives of floating-point values carry the new type.
        casts: Adds the conversions that autocast makes, one of the weights ahead of each product
            and one of its gradients behind the last product of its backward pass.
    """

    main_option: ClassVar[str] = "precision"

    optimization: Literal["precision"] = "precision"
    precision: Literal["fp32", "tf32", "fp16", "bf16"]
    keep: Patterns = _KEPT
    optimizer: bool = False
    communication: bool = False
    casts: bool = False

    def apply(self, editor: StepEditor) -> None:
        """Re-times what computes in floating point."""
        precision = Precision(self.precision)
        platform = editor.machine.known_platform("precision")
        tasks = [
            task for task in editor.select(Selector(role=COMPUTING)) if self._changes(editor, task)
        ]
        if not tasks:
            raise ConfigError(
                "the captured step has no operator whose precision could change; `keep` leaves "
                "out " + ", ".join(self.keep)
            )
        casts = _weights_to_cast(editor, tasks, precision) if self.casts else []
        before = kernel_times(editor, tasks, platform)
        for task in tasks:
            inputs = editor.inputs_of(task)
            if inputs is not None:
                describe_inputs(editor, task, with_precision(inputs, precision))
        after = kernel_times(editor, tasks, platform, precision)
        without = retime_kernels(editor, tasks, before, after)
        if without:
            editor.notes.append(
                f"{len(without)} of {len(tasks)} kernels have no shapes: products go with the "
                "peak rates of the two precisions, others with the bytes of a value"
            )
        peak = platform.device.peak
        if precision != Precision.FP32 and peak.of(precision) == peak.of(Precision.FP32):
            editor.notes.append(
                f"{platform.device.name} has no {precision.value} arithmetic faster than its fp32"
            )
        for task, ahead, moved_bytes in casts:
            editor.insert(
                "cast of weights" if ahead else "cast of gradients",
                TaskRole.KERNEL,
                (editor.rank_of(task), editor.stream_of(task)),
                traffic(moved_bytes).time_s(platform),
                ahead_of=task if ahead else None,
                behind=None if ahead else task,
            )
        if casts:
            editor.notes.append(
                f"{len(casts)} conversions were added without the calls that launch them"
            )
        if self.communication:
            convert_collectives(editor, precision, editor.machine.cluster("precision"))

    def _changes(self, editor: StepEditor, task: int) -> bool:
        stack = editor.stack_of(task)
        if editor.phase_of(task) == TrainingPhase.OPTIMIZER and not self.optimizer:
            return False
        name = editor.name_of(task).lower()
        if editor.role_of(task) == TaskRole.COPY and ("htod" in name or "dtoh" in name):
            return False
        if is_lookup(operator_name(stack)) or matches_any(stack, tuple(self.keep)):
            return False
        inputs = editor.inputs_of(task)
        if inputs is None:
            return True
        if any(argument.precision for argument in arguments_of(inputs)):
            return True
        return is_product(editor, task) and not inputs.shapes


def _weights_to_cast(
    editor: StepEditor, tasks: Sequence[int], precision: Precision
) -> list[tuple[int, bool, float]]:
    """Returns tasks next to which a conversion goes, whether ahead of it, and its bytes.

    The weights are converted ahead of the first kernel of a forward product, their gradients
    behind the last one of its layer's backward pass.
    """
    first: dict[tuple[int, int], int] = {}
    last: dict[tuple[int, int], int] = {}
    for task in tasks:
        if not is_product(editor, task):
            continue
        if editor.phase_of(task) == TrainingPhase.FORWARD:
            first.setdefault((editor.rank_of(task), editor.operator_of(task)), task)
        elif editor.phase_of(task) == TrainingPhase.BACKWARD:
            last[editor.rank_of(task), editor.layer_of(task)] = task
    result = []
    for task in first.values():
        inputs = editor.inputs_of(task)
        weight = weight_of(editor.stack_of(task), inputs) if inputs is not None else None
        if weight is None or weight.value_bytes == precision.value_bytes:
            continue
        moved = float(weight.elements * (weight.value_bytes + precision.value_bytes))
        result.append((task, True, moved))
        behind = last.get((editor.rank_of(task), editor.layer_of(task)))
        if behind is not None and editor.layer_of(task) >= 0:
            result.append((behind, False, moved))
    return result
