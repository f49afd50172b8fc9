"""Reconstructed batch normalisation: half of it moves into the convolutions around."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import Phase, Role
from dse.trace.whatif._host_operators import remove_operators
from dse.trace.whatif._kernel_kinds import BATCH_NORM, RELU
from dse.trace.whatif._select import Selector
from dse.trace.whatif._steps import Factor, Optimization

if TYPE_CHECKING:
    from dse.trace.whatif._job import Job


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

    def apply(self, job: Job) -> None:
        """Scales batch-norm kernels and removes the activations beside them."""
        kernels = job.select(Selector(role=(Role.KERNEL,)))
        norms = [task for task in kernels if BATCH_NORM.fits(job, task)]
        if not norms:
            raise ConfigError("the captured step has no batch-norm kernel")
        if self.factor == 1.0 and not self.activations:
            raise ConfigError("factor=1 without activations changes nothing; give another factor")
        if job.machine.kind == "cpu" and "factor" not in self.model_fields_set:
            job.notes.append(
                "batch_norm: half the time is a rule for GPUs and the step was captured on a CPU; "
                "give factor=… if it is known, and for another arithmetic use `precision`"
            )
        job.scale(norms, self.factor)
        if self.activations:
            fused = _activations(job, frozenset(norms), kernels)
            if fused:
                remove_operators(job, fused)


def _activations(job: Job, norms: frozenset[int], kernels: tuple[int, ...]) -> list[int]:
    """Returns activations right after a batch norm, or backward right before its gradient."""
    fused = []
    for lane in job.lanes_of(kernels):
        row = [task for task in job.tasks_on(*lane) if job.role_of(task) == Role.KERNEL]
        for first, second in pairwise(row):
            backward = job.phase_of(second) == Phase.BACKWARD
            norm, other = (second, first) if backward else (first, second)
            if job.phase_of(first) != job.phase_of(second):
                continue
            if norm in norms and other not in norms and RELU.fits(job, other):
                fused.append(other)
    return list(dict.fromkeys(fused))
