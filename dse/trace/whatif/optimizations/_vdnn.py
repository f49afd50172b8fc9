"""vDNN: inputs of layers wait in host memory for the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import COMPUTING, TaskRole
from dse.trace.whatif.core import (
    CONVOLUTION,
    MATRIX,
    Optimization,
    layers_with_backward,
    neighbours,
)

if TYPE_CHECKING:
    from dse.trace.whatif.core import Layer, StepEditor

_OUT, _BACK = "offload copies", "prefetch copies"


class Vdnn(Optimization):
    """vDNN offload: inputs of layers go to the host after forward and come back for backward.

    Attributes:
        layers: Which layers: convolutions, or all matrix products.
        sync: Whether the next kernel waits until the input has left the device.
    """

    main_option: ClassVar[str] = "layers"

    optimization: Literal["vdnn"] = "vdnn"
    layers: Literal["convolution", "matrix"] = "convolution"
    sync: bool = False

    def apply(self, editor: StepEditor) -> None:
        """Inserts copies to and from the host."""
        kind = CONVOLUTION if self.layers == "convolution" else MATRIX
        layers = layers_with_backward(
            editor,
            lambda task: editor.role_of(task) == TaskRole.KERNEL and kind.fits(editor, task),
        )
        if not layers:
            raise ConfigError(
                f"the captured step has no {self.layers} layer with forward and backward kernels"
            )
        platform = editor.machine.known_platform("vdnn")
        if platform.device.kind == "cpu":
            raise ConfigError(f"{platform.device.name} works in host memory: nothing to offload")
        sizes = [layer.input_bytes(editor) for layer in layers]
        works = [task for one in layers for task in (*one.forward, *one.backward, one.begin)]
        preceding, following = neighbours(editor, works, COMPUTING)

        def copy(
            layer: Layer, task: int, size: int, after: list[int | None], before: int | None
        ) -> int:
            out = task == layer.forward[-1]
            time_s = platform.kernel_time("memcpy_d2h" if out else "memcpy_h2d", size_bytes=size)
            return editor.insert(
                "offload" if out else "prefetch",
                TaskRole.COPY,
                (layer.rank, _OUT if out else _BACK),
                float(time_s),
                after=[one for one in after if one is not None],
                before=() if before is None else (before,),
                like=task,
                size_bytes=size,
            )

        previous: dict[int, tuple[Layer, int]] = {}
        for layer, size in zip(layers, sizes, strict=True):
            last, first = layer.forward[-1], layer.backward[0]
            waiting = following.get(last) if self.sync else None
            offload = copy(layer, last, size, [last], waiting)
            # A layer's input is fetched while the layer before it in the pass is at work.
            start, fetched = layer.begin, None
            if layer.rank in previous and previous[layer.rank][0].begin == layer.begin:
                earlier, fetched = previous[layer.rank]
                start = earlier.backward[0]
            awaited = [offload, fetched, preceding.get(start)]
            previous[layer.rank] = layer, copy(layer, first, size, awaited, first)
        # Copies were added in backward order; they go as they get ready, the earlier first.
        ranks = dict.fromkeys(layer.rank for layer in layers)
        editor.schedule(
            [(rank, stream) for rank in ranks for stream in (_OUT, _BACK)], editor.start_of
        )
