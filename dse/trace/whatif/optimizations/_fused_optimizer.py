"""A fused optimizer: all weights are updated by one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.errors import ConfigError
from dse.trace import COMPUTING, Role
from dse.trace.whatif._host_operators import HostOperators
from dse.trace.whatif._kernel_kinds import operator_name
from dse.trace.whatif._passes import optimizer_steps
from dse.trace.whatif._steps import Optimization
from dse.trace.whatif._tensors import tensors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.whatif._job import Job

#: Values of state for each weight, by the optimizer's name.
_STATE = {"adagrad": 1, "rmsprop": 1, "adamw": 2, "adam": 2, "nadam": 2, "lamb": 2}
#: Operators that sum over fewer weights than this share of the busiest one update counters.
_WHOLE = 0.5


class FusedOptimizer(Optimization):
    """Fused weight update: one kernel for each optimizer step instead of many.

    Attributes:
        kernels: Kernels that remain for each step.
    """

    main_option: ClassVar[str] = "kernels"

    optimization: Literal["fused_optimizer"] = "fused_optimizer"
    kernels: Annotated[int, Field(ge=1)] = 1

    def apply(self, job: Job) -> None:
        """Removes all but the first kernels of each step, and the host work of the others."""
        fused = 0
        for rank in job.ranks:
            for step in optimizer_steps(job, rank):
                fused += self._fuse(job, step)
        if not fused:
            raise ConfigError(
                f"no optimizer step has more than {self.kernels} kernels; an optimizer step is "
                "what PyTorch annotates as `Optimizer.step#...`"
            )

    def _fuse(self, job: Job, step: Sequence[int]) -> bool:
        works = [task for task in step if job.role_of(task) in COMPUTING]
        kernels = [task for task in works if job.role_of(task) == Role.KERNEL]
        if len(kernels) <= self.kernels:
            return False
        kept = kernels[: self.kernels]
        total_s = sum(job.duration_of(task) for task in works)
        floor_s = min(job.duration_of(task) for task in kernels)
        # Every launch of a kernel has a shortest time, whatever it moves.
        duration_s = max(total_s - floor_s * (len(works) - len(kept)), floor_s * len(kept))
        modelled_s = _modelled_s(job, kernels)
        if modelled_s is not None:
            duration_s = min(modelled_s, total_s)
        operators = HostOperators(job)
        calls = [job.launch_of(task) for task in kept]
        calls = [call for call in calls if call >= 0 and not job.is_removed(call)]
        stays = {task for call in calls for task in operators.around(call)}
        host = [task for task in step if job.role_of(task) < Role.LAUNCH_DELAY]
        host = [task for task in host if task not in stays and not job.synchronises(task)]
        for task in kept:
            job.set_duration(task, duration_s / len(kept))
        job.remove([*(task for task in works if task not in kept), *host])
        return True


def _modelled_s(job: Job, kernels: Sequence[int]) -> float | None:
    """Returns the update's time by the platform; None if sizes, optimizer or platform are unknown.

    Every operator over all weights sums up to the number of weights, or a multiple of it.
    """
    names = " ".join(
        dict.fromkeys(name for task in kernels for name in job.stack_of(task))
    ).lower()
    state = next((count for name, count in _STATE.items() if f"#{name}." in names), None)
    sums: dict[str, dict[int, int]] = {}
    for task in kernels:
        tensors = tensors_of(job.inputs_of(task))
        if tensors:
            calls = sums.setdefault(operator_name(job, task) or job.name_of(task), {})
            calls[job.operator_of(task)] = tensors[0].elements
    totals = [sum(calls.values()) for calls in sums.values()]
    if job.machine.platform is None or state is None or not totals:
        return None
    weights = min(total for total in totals if total >= _WHOLE * max(totals))
    time_s = job.machine.platform.kernel_time(
        "optimizer_step", parameters=weights, state_values=state
    )
    return float(time_s)
