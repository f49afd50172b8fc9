"""Operator fusion: chains of element-wise kernels become one kernel each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.trace import Phase, Role
from dse.trace.whatif._host_operators import HostOperators
from dse.trace.whatif._kernel_kinds import ELEMENTWISE, accumulates
from dse.trace.whatif._select import Selector, matches
from dse.trace.whatif._steps import Factor, Numbers, Optimization, Patterns
from dse.trace.whatif._tensors import tensors_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from dse.trace.whatif._job import Job


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

    def apply(self, job: Job) -> None:
        """Scales layers, then fuses chains."""
        phases = (Phase.FORWARD, Phase.BACKWARD)
        selector = Selector(role=(Role.KERNEL,), phase=phases, layer=tuple(self.layer or ()))
        kernels = job.select(selector)
        if self.scale_layer is not None:
            if not self.layer:
                raise ConfigError("scale_layer needs `layer`: the numbers of the layers to scale")
            if not kernels:
                raise ConfigError(f"no kernel belongs to layer {self.layer}; the first one is 0")
            job.scale(kernels, self.scale_layer)
            if self.scale_layer == 1.0:
                raise ConfigError("scale_layer=1 changes nothing; give another factor")
        chains = [chain for chain in self._chains(job, frozenset(kernels)) if len(chain) > 1]
        if not chains and self.scale_layer is None:
            raise ConfigError("no two kernels that could be fused follow each other on a stream")
        for chain in chains:
            job.set_duration(chain[0], max(job.duration_of(task) for task in chain))
        gone = [task for chain in chains for task in chain[1:]]
        if gone:
            job.remove([*gone, *HostOperators(job).host_work_of(gone)])

    def _chains(self, job: Job, kernels: Collection[int]) -> Iterator[list[int]]:
        followers = job.followers()
        for lane in job.lanes_of(kernels):
            chain: list[int] = []
            for task in job.tasks_on(*lane):
                # Gaps break no chain, and neither does what a thread does between kernels.
                if job.role_of(task) < Role.KERNEL and job.role_of(task) != Role.AFTER_WAIT:
                    continue
                fits = task in kernels and self._fits(job, task)
                if not (fits and chain and _goes_on(job, chain[-1], task, followers)):
                    yield chain
                    chain = []
                if fits:
                    chain.append(task)
            yield chain

    def _fits(self, job: Job, task: int) -> bool:
        # Sums of gradients of different weights follow each other without using each other.
        if accumulates(job, task):
            return False
        if self.names:
            return matches(job.name_of(task), tuple(self.names))
        if job.launch_of(task) >= 0:
            return matches(job.name_of(task), ELEMENTWISE.names)
        return ELEMENTWISE.fits(job, task)


def _goes_on(job: Job, last: int, task: int, followers: Mapping[int, Sequence[int]]) -> bool:
    """Says whether a kernel may be the next one of a chain.

    Both are of one pass and, as far as is known, work on as many values; nothing else waits for
    the one before, and the new one waits for nothing but its launch.
    """
    if job.phase_of(last) != job.phase_of(task):
        return False
    own = (task, *job.delays_of(task))
    if any(other not in own for other in followers.get(last, ())):
        return False
    if any(job.role_of(other) >= Role.KERNEL and other != last for other in job.waits_of(task)):
        return False
    sizes = [
        tensors[0].elements for one in (last, task) if (tensors := tensors_of(job.inputs_of(one)))
    ]
    return len(set(sizes)) < 2
