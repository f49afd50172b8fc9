"""A fused optimizer: all weights are updated by one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.errors import ConfigError
from dse.trace import COMPUTING, TaskRole
from dse.trace.whatif.core import Optimization, optimizer_steps
from dse.trace.whatif.retime import merge_kernels, optimizer_step_s

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor


class FusedOptimizer(Optimization):
    """Fused weight update: one kernel for each optimizer step instead of many.

    Attributes:
        kernels: Kernels that remain for each step.
    """

    main_option: ClassVar[str] = "kernels"

    optimization: Literal["fused_optimizer"] = "fused_optimizer"
    kernels: Annotated[int, Field(ge=1)] = 1

    def apply(self, editor: StepEditor) -> None:
        """Removes all but the first kernels of each step, and the host work of the others."""
        fused = False
        for step in (step for rank in editor.ranks for step in optimizer_steps(editor, rank)):
            works = [task for task in step if editor.role_of(task) in COMPUTING]
            kernels = [task for task in works if editor.role_of(task) == TaskRole.KERNEL]
            kept = kernels[: self.kernels]
            if len(kernels) == len(kept):
                continue
            total_s = sum(map(editor.duration_of, works))
            modelled_s = optimizer_step_s(editor, kernels)
            if modelled_s is not None:
                duration_s = min(modelled_s, total_s)
            else:
                # Every launch of a kernel has a shortest time, whatever it moves.
                floor_s = min(map(editor.duration_of, kernels))
                duration_s = total_s - floor_s * (len(works) - len(kept))
                duration_s = max(duration_s, floor_s * len(kept))
            merge_kernels(editor, step, kept, duration_s)
            fused = True
        if not fused:
            raise ConfigError(
                f"no optimizer step has more than {self.kernels} kernels; an optimizer step is "
                "what PyTorch annotates as `Optimizer.step#...`"
            )
