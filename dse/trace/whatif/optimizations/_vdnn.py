"""vDNN: inputs of layers wait in host memory for the backward pass."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import COMPUTING, Role
from dse.trace.whatif._kernel_kinds import CONVOLUTION, MATRIX
from dse.trace.whatif._layers import layers_with_backward
from dse.trace.whatif._steps import Optimization
from dse.trace.whatif._tensors import tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.whatif._job import Job
    from dse.trace.whatif._layers import Layer

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

    def apply(self, job: Job) -> None:
        """Inserts copies to and from the host."""
        kind = CONVOLUTION if self.layers == "convolution" else MATRIX
        layers = layers_with_backward(
            job, lambda task: job.role_of(task) == Role.KERNEL and kind.fits(job, task)
        )
        if not layers:
            raise ConfigError(
                f"the captured step has no {self.layers} layer with forward and backward kernels"
            )
        platform = job.machine.known_platform("vdnn")
        if platform.device.kind == "cpu":
            raise ConfigError(f"{platform.device.name} works in host memory: nothing to offload")
        sizes = [_input_bytes(job, layer) for layer in layers]
        rows = _Rows(
            job, [task for one in layers for task in (*one.forward, *one.backward, one.begin)]
        )
        previous: dict[int, tuple[Layer, int]] = {}
        for layer, size in zip(layers, sizes, strict=True):
            last = layer.forward[-1]
            offload_s = platform.kernel_time("memcpy_d2h", size_bytes=size)
            offload = job.insert(
                "offload",
                Role.COPY,
                (layer.rank, _OUT),
                float(offload_s),
                after=(last,),
                before=rows.following(last) if self.sync else (),
                like=last,
                size_bytes=size,
            )
            # A layer's input is fetched while the layer before it in the pass is at work.
            first = layer.backward[0]
            earlier, fetched = previous.get(layer.rank, (layer, -1))
            start, awaited = layer.begin, [offload]
            if fetched >= 0 and earlier.begin == layer.begin:
                start, awaited = earlier.backward[0], [offload, fetched]
            prefetch_s = platform.kernel_time("memcpy_h2d", size_bytes=size)
            fetched = job.insert(
                "prefetch",
                Role.COPY,
                (layer.rank, _BACK),
                float(prefetch_s),
                after=(*awaited, *rows.preceding(start)),
                before=(first,),
                like=first,
                size_bytes=size,
            )
            previous[layer.rank] = (layer, fetched)
        _in_order_of_time(job, layers)


def _in_order_of_time(job: Job, layers: Sequence[Layer]) -> None:
    """Lets copies go as they get ready, the earlier first; they were added in backward order."""
    ranks = dict.fromkeys(layer.rank for layer in layers)
    lanes = [(rank, lane) for rank in ranks for lane in (_OUT, _BACK)]
    job.schedule(lanes, job.start_of)


class _Rows:
    """Neighbours of works on their lanes."""

    def __init__(self, job: Job, tasks: Sequence[int]) -> None:
        self._before: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        for lane in job.lanes_of(tasks):
            row = [task for task in job.tasks_on(*lane) if job.role_of(task) in COMPUTING]
            for first, second in pairwise(row):
                self._before[second], self._behind[first] = first, second

    def preceding(self, task: int) -> tuple[int, ...]:
        return (self._before[task],) if task in self._before else ()

    def following(self, task: int) -> tuple[int, ...]:
        return (self._behind[task],) if task in self._behind else ()


def _input_bytes(job: Job, layer: Layer) -> int:
    """Returns the size of what a layer works on: the first matrix or larger among its inputs."""
    for task in layer.forward:
        tensors = tensors_of(job.inputs_of(task))
        # `addmm` and its kind have the bias in front.
        whole = [tensor for tensor in tensors if len(tensor.shape) > 1]
        if whole:
            return whole[0].size_bytes
    raise ConfigError(
        f"the inputs of `{job.name_of(layer.forward[0])}` were not recorded: capture with shapes "
        "(`record_shapes=True` of the profiler, as `dse trace capture` does)"
    )
