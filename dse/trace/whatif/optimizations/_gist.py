"""Gist: outputs of activations are stored encoded until the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import TaskRole
from dse.trace.whatif.core import (
    POOLING,
    RELU,
    Factor,
    Optimization,
    layers_with_backward,
    tensors_of,
)
from dse.trace.whatif.retime import insert_launched, traffic

if TYPE_CHECKING:
    from dse.trace.whatif.core import StepEditor


class Gist(Optimization):
    """Gist: encode outputs of activations after forward, decode them before backward.

    Attributes:
        share: Duration of each kernel as a share of the activation's; by default by the device's
            memory where shapes and platform are known, otherwise all of it.
        encoded: Size of the encoded output as a share of it.
    """

    main_option: ClassVar[str] = "share"

    optimization: Literal["gist"] = "gist"
    share: Factor | None = None
    encoded: Factor = 0.25

    def apply(self, editor: StepEditor) -> None:
        """Inserts encoders and decoders."""

        def wanted(task: int) -> bool:
            activation = RELU.fits(editor, task) or POOLING.fits(editor, task)
            return editor.role_of(task) == TaskRole.KERNEL and activation

        layers = layers_with_backward(editor, wanted)
        if not layers:
            raise ConfigError(
                "no activation or pooling has both forward and backward kernels in the captured "
                "step"
            )
        for layer in layers:
            duration_s = self._duration_s(editor, layer.forward[-1])
            insert_launched(editor, "encode", layer.forward[-1], duration_s, behind=True)
            insert_launched(editor, "decode", layer.backward[0], duration_s, behind=False)

    def _duration_s(self, editor: StepEditor, task: int) -> float:
        tensors = tensors_of(editor.inputs_of(task))
        if self.share is None and tensors and editor.machine.platform is not None:
            moved = traffic(tensors[0].size_bytes * (1 + self.encoded))
            return moved.time_s(editor.machine.platform)
        return editor.duration_of(task) * (1.0 if self.share is None else self.share)
