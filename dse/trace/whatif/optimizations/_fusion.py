"""Operator fusion: chains of element-wise kernels become one kernel each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import TaskRole, TrainingPhase
from dse.trace.whatif.core import (
    ELEMENTWISE,
    Factor,
    Numbers,
    Optimization,
    Patterns,
    Selector,
    accumulates,
    chains_of_kernels,
    matches,
)
from dse.trace.whatif.retime import remove_operators

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor


class Fusion(Optimization):
    """Fusion of consecutive element-wise kernels; and layers scaled as other kernels would.

    Attributes:
        names: Patterns of names of kernels to fuse; element-wise ones by default.
        layer: Only these layers.
        scale_layer: Durations of all kernels of these layers, times this.
    """

    main_option: ClassVar[str] = "names"

    optimization: Literal["fusion"] = "fusion"
    names: Patterns | None = None
    layer: Numbers | None = None
    scale_layer: Factor | None = None

    def apply(self, editor: StepEditor) -> None:
        """Scales layers, then fuses chains."""
        phases = (TrainingPhase.FORWARD, TrainingPhase.BACKWARD)
        selector = Selector(role=(TaskRole.KERNEL,), phase=phases, layer=tuple(self.layer or ()))
        kernels = editor.select(selector)
        if self.scale_layer is not None:
            if not self.layer:
                raise ConfigError("scale_layer needs `layer`: the numbers of the layers to scale")
            if not kernels:
                raise ConfigError(f"no kernel belongs to layer {self.layer}; the first one is 0")
            if self.scale_layer == 1.0:
                raise ConfigError("scale_layer=1 changes nothing; give another factor")
            editor.scale(kernels, self.scale_layer)
        chains = list(
            chains_of_kernels(editor, frozenset(kernels), lambda task: self._fits(editor, task))
        )
        if not chains and self.scale_layer is None:
            raise ConfigError("no two kernels that could be fused follow each other on a stream")
        for chain in chains:
            editor.set_duration(chain[0], max(map(editor.duration_of, chain)))
        gone = [task for chain in chains for task in chain[1:]]
        if gone:
            remove_operators(editor, gone)

    def _fits(self, editor: StepEditor, task: int) -> bool:
        # Sums of gradients of different weights follow each other without using each other.
        if accumulates(editor, task):
            return False
        if self.names:
            return matches(editor.name_of(task), tuple(self.names))
        if editor.launch_of(task) >= 0:
            return matches(editor.name_of(task), ELEMENTWISE.names)
        return ELEMENTWISE.fits(editor, task)
