"""Gist: outputs of activations are stored encoded until the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import Role
from dse.trace.whatif._kernel_kinds import POOLING, RELU
from dse.trace.whatif._layers import layers_with_backward
from dse.trace.whatif._steps import Factor, Optimization
from dse.trace.whatif._tensors import tensors_of

if TYPE_CHECKING:
    from dse.trace.whatif._job import Job


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

    def apply(self, job: Job) -> None:
        """Inserts encoders and decoders."""
        layers = layers_with_backward(
            job,
            lambda task: (
                job.role_of(task) == Role.KERNEL
                and (RELU.fits(job, task) or POOLING.fits(job, task))
            ),
        )
        if not layers:
            raise ConfigError(
                "no activation or pooling has both forward and backward kernels in the captured "
                "step"
            )
        for layer in layers:
            last, first = layer.forward[-1], layer.backward[0]
            duration_s = self._duration_s(job, last)
            for name, neighbour in (("encode", last), ("decode", first)):
                _beside(job, name, neighbour, duration_s)

    def _duration_s(self, job: Job, task: int) -> float:
        tensors = tensors_of(job.inputs_of(task))
        if self.share is None and tensors and job.machine.platform is not None:
            moved = tensors[0].size_bytes * (1 + self.encoded)
            time_s = job.machine.platform.kernel_time("elementwise", traffic_bytes=moved)
            return float(time_s)
        return job.duration_of(task) * (1.0 if self.share is None else self.share)


def _beside(job: Job, name: str, neighbour: int, duration_s: float) -> None:
    """Inserts a kernel behind (`encode`) or ahead of another one, launched as that one was."""
    behind = name == "encode"
    call, launch = job.launch_of(neighbour), -1
    if call >= 0 and not job.is_removed(call):
        launch = job.insert(
            f"launch of {name}",
            Role.CALL,
            (job.rank_of(call), job.lane_of(call)),
            job.duration_of(call),
            behind=call if behind else None,
            ahead_of=None if behind else call,
        )
    job.insert(
        name,
        Role.KERNEL,
        (job.rank_of(neighbour), job.lane_of(neighbour)),
        duration_s,
        after=(launch,) if launch >= 0 else (),
        behind=neighbour if behind else None,
        ahead_of=None if behind else neighbour,
    )
