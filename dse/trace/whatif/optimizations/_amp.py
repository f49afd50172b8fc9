"""Automatic mixed precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import TaskRole, TrainingPhase
from dse.trace.whatif.core import (
    MATRIX,
    Factor,
    Optimization,
    Patterns,
    Selector,
    accumulates,
    innermost_operator,
    matches,
    tensors_of,
)

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor


class Amp(Optimization):
    """Automatic mixed precision: matrix kernels 3 times as fast, others twice.

    Attributes:
        matmul: Speed-up of matrix products, convolutions and attention.
        other: Speed-up of other kernels of the forward and the backward pass.
        communication: Speed-up of all-reduces; gradients stay in fp32 by default.
        keep: Patterns of operators that stay in fp32.
    """

    main_option: ClassVar[str] = "matmul"

    optimization: Literal["amp"] = "amp"
    matmul: Factor = 3.0
    other: Factor = 2.0
    communication: Factor = 1.0
    keep: Patterns | None = None

    def apply(self, editor: StepEditor) -> None:
        """Scales kernels."""
        if editor.machine.kind == "cpu" and not {"matmul", "other"} <= self.model_fields_set:
            raise ConfigError(
                "the default speed-ups were measured on GPUs and the step was captured on a CPU; "
                "use precision=bf16 for the platform's models, or give both matmul=… and other=…"
            )
        if self.matmul == self.other == self.communication == 1.0:
            raise ConfigError("all speed-ups are 1, so nothing changes; give others")
        kernels = editor.select(Selector(role=(TaskRole.KERNEL,)))
        kernels = tuple(task for task in kernels if self._in_fp32(editor, task))
        if not kernels:
            raise ConfigError(
                "no kernel of the forward or backward pass computes in fp32, so mixed precision "
                "changes nothing"
            )
        matrix = {task for task in kernels if MATRIX.fits(editor, task)}
        reduces = editor.select(Selector(role=(TaskRole.COLLECTIVE,), collective=("all_reduce",)))
        for tasks, speed_up in (
            ([task for task in kernels if task in matrix], self.matmul),
            ([task for task in kernels if task not in matrix], self.other),
            (reduces, self.communication),
        ):
            if tasks:
                editor.scale(tasks, 1.0 / speed_up)

    def _in_fp32(self, editor: StepEditor, task: int) -> bool:
        phase, known = editor.phase_of(task), bool(editor.stack_of(task))
        # Without operators the phases of a step are not known.
        if phase == TrainingPhase.OPTIMIZER or (phase == TrainingPhase.OTHER and known):
            return False
        # Gradients of weights are added up in the type of the weights.
        operator = innermost_operator(editor, task)
        if accumulates(editor, task) or matches(operator, tuple(self.keep or ())):
            return False
        types = {tensor.dtype for tensor in tensors_of(editor.inputs_of(task))} - {""}
        return not types or "fp32" in types
