"""Reconstructed batch normalisation: half of it moves into the convolutions around."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import TaskRole, TrainingPhase
from dse.trace.whatif.core import BATCH_NORM, RELU, Factor, Optimization, Selector, neighbours
from dse.trace.whatif.retime import remove_operators

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor


class BatchNorm(Optimization):
    """Batch normalisation split and fused into the convolutions and activations around it.

    Attributes:
        factor: Duration of batch-norm kernels, times this.
        activations: Whether activations next to a batch norm vanish in the fused kernels.
    """

    main_option: ClassVar[str] = "factor"

    optimization: Literal["batch_norm"] = "batch_norm"
    factor: Factor = 0.5
    activations: bool = True

    def apply(self, editor: StepEditor) -> None:
        """Scales batch-norm kernels and removes the activations next to them."""
        kernels = editor.select(Selector(role=(TaskRole.KERNEL,)))
        norms = [task for task in kernels if BATCH_NORM.fits(editor, task)]
        if not norms:
            raise ConfigError("the captured step has no batch-norm kernel")
        if self.factor == 1.0 and not self.activations:
            raise ConfigError("factor=1 without activations changes nothing; give another factor")
        if editor.machine.kind == "cpu" and "factor" not in self.model_fields_set:
            editor.notes.append(
                "batch_norm: half the time is a rule for GPUs and the step was captured on a CPU; "
                "give factor=… if it is known, and for another arithmetic use `precision`"
            )
        editor.scale(norms, self.factor)
        if not self.activations:
            return
        # An activation follows its batch norm; in the backward pass it comes right before it.
        before, behind = neighbours(editor, kernels, (TaskRole.KERNEL,))
        fused = []
        for norm in norms:
            backward = editor.phase_of(norm) == TrainingPhase.BACKWARD
            other = (before if backward else behind).get(norm)
            if (
                other is not None
                and other not in norms
                and editor.phase_of(other) == editor.phase_of(norm)
                and RELU.fits(editor, other)
            ):
                fused.append(other)
        if fused:
            remove_operators(editor, fused)
