"""Automatic mixed precision: kernels that compute in fp32 get shorter."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import Phase, Role
from dse.trace.whatif._kernel_kinds import MATRIX, accumulates, operator_name
from dse.trace.whatif._select import Selector, matches
from dse.trace.whatif._steps import Factor, Optimization, Patterns
from dse.trace.whatif._tensors import tensors_of

if TYPE_CHECKING:
    from dse.trace.whatif._job import Job


class Amp(Optimization):
    """Automatic mixed precision: matrix kernels 3 times as fast, others twice.

    Attributes:
        matmul: Speed-up of matrix products, convolutions and attention.
        other: Speed-up of other kernels of the forward and the backward pass.
        communication: Speed-up of all-reduces; gradients stay in fp32 by default.
        keep: Patterns of operators that keep fp32.
    """

    main_option: ClassVar[str] = "matmul"

    optimization: Literal["amp"] = "amp"
    matmul: Factor = 3.0
    other: Factor = 2.0
    communication: Factor = 1.0
    keep: Patterns | None = None

    def apply(self, job: Job) -> None:
        """Scales kernels."""
        if job.machine.kind == "cpu" and not {"matmul", "other"} <= self.model_fields_set:
            raise ConfigError(
                "the usual speed-ups were measured on GPUs and the step was captured on a CPU; "
                "precision=bf16 asks the platform's models, or give both matmul=… and other=…"
            )
        if self.matmul == self.other == self.communication == 1.0:
            raise ConfigError("all speed-ups are 1, so nothing changes; give others")
        kernels = [
            task for task in job.select(Selector(role=(Role.KERNEL,))) if self._fits(job, task)
        ]
        if not kernels:
            raise ConfigError(
                "no kernel of the forward or backward pass computes in fp32, so mixed precision "
                "changes nothing"
            )
        matrix = [task for task in kernels if MATRIX.fits(job, task)]
        plain = sorted(set(kernels) - set(matrix))
        for tasks, speed_up in ((matrix, self.matmul), (plain, self.other)):
            if tasks:
                job.scale(tasks, 1.0 / speed_up)
        reduces = job.select(Selector(role=(Role.COLLECTIVE,), collective=("all_reduce",)))
        if reduces and self.communication != 1.0:
            job.scale(reduces, 1.0 / self.communication)

    def _fits(self, job: Job, task: int) -> bool:
        phase, known = job.phase_of(task), bool(job.stack_of(task))
        # Without operators nothing tells the parts of a step apart.
        if phase == Phase.OPTIMIZER or (phase == Phase.OTHER and known):
            return False
        # Gradients of weights are added up in the type of the weights.
        if accumulates(job, task) or matches(operator_name(job, task), tuple(self.keep or ())):
            return False
        types = {tensor.dtype for tensor in tensors_of(job.inputs_of(task))} - {""}
        return not types or "fp32" in types
