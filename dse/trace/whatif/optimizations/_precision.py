"""Another arithmetic: products by their models, everything else by its bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from dse.errors import ConfigError
from dse.machine import Precision
from dse.trace import COMPUTING, Phase, Role
from dse.trace.whatif._arguments import arguments_of, with_precision
from dse.trace.whatif._operators import is_lookup, operator_name, traffic, weight_of
from dse.trace.whatif._resize_collectives import resize_collectives
from dse.trace.whatif._retime_kernels import (
    describe_inputs,
    is_product,
    kernel_times,
    retime_kernels,
)
from dse.trace.whatif._select import Selector, matches_any
from dse.trace.whatif._steps import Optimization, Patterns

if TYPE_CHECKING:
    from dse.trace.whatif._job import Job

#: What autocast leaves in FP32, and where gradients of master weights are gathered.
_KEPT = [
    "*softmax*",
    "*layer_norm*",
    "*batch_norm*",
    "*group_norm*",
    "*_loss*",
    "*cross_entropy*",
    "*cumsum*",
    "*AccumulateGrad*",
]


class ChangedPrecision(Optimization):
    """Mixed precision or back: `precision=bf16`; fp32, tf32, fp16 and bf16 are known.

    Attributes:
        precision: Arithmetic and values of operators from now on.
        keep: Patterns of operators that stay as captured; by default those that autocast leaves in
            FP32. Fused lookups stay as well, for their tables have a type of their own.
        optimizer: Whether the optimizer changes, too: no master weights.
        communication: Whether collectives of floating-point values carry the new type.
        casts: Adds the conversions that autocast makes, one of the weights ahead of each product
            and one of its gradients behind the last product of its backward pass.
    """

    main_option: ClassVar[str] = "precision"

    optimization: Literal["precision"] = "precision"
    precision: Literal["fp32", "tf32", "fp16", "bf16"]
    keep: Patterns = _KEPT
    optimizer: bool = False
    communication: bool = False
    casts: bool = False

    def apply(self, job: Job) -> None:
        """Re-times what computes in floating point."""
        precision = Precision(self.precision)
        platform = job.machine.known_platform("precision")
        tasks = [task for task in job.select(Selector(role=COMPUTING)) if self._changes(job, task)]
        if not tasks:
            raise ConfigError(
                "the captured step has no operator whose precision could change; `keep` leaves "
                "out " + ", ".join(self.keep)
            )
        inserted = self._weights(job, tasks, precision) if self.casts else []
        before = kernel_times(job, tasks, platform)
        for task in tasks:
            inputs = job.inputs_of(task)
            if inputs is not None:
                describe_inputs(job, task, with_precision(inputs, precision))
        after = kernel_times(job, tasks, platform, precision)
        without = retime_kernels(job, tasks, before, after)
        if without:
            job.notes.append(
                f"{len(without)} of {len(tasks)} kernels have no shapes: products go with the "
                "peak rates of the two precisions, others with the bytes of a value"
            )
        peak = platform.device.peak
        if precision != Precision.FP32 and peak.of(precision) == peak.of(Precision.FP32):
            job.notes.append(
                f"{platform.device.name} has no {precision.value} arithmetic faster than its fp32"
            )
        self._cast(job, inserted)
        if self.communication:
            self._communicate(job, precision)

    def _changes(self, job: Job, task: int) -> bool:
        stack = job.stack_of(task)
        if job.phase_of(task) == Phase.OPTIMIZER and not self.optimizer:
            return False
        name = job.name_of(task).lower()
        if job.role_of(task) == Role.COPY and ("htod" in name or "dtoh" in name):
            return False
        if is_lookup(operator_name(stack)) or matches_any(stack, tuple(self.keep)):
            return False
        inputs = job.inputs_of(task)
        floats = [one for one in arguments_of(inputs) if one.precision] if inputs else []
        return bool(floats) or inputs is None or (is_product(job, task) and not inputs.shapes)

    def _weights(
        self, job: Job, tasks: list[int], precision: Precision
    ) -> list[tuple[int, bool, float]]:
        """Returns tasks beside which a conversion goes, whether ahead, and its bytes."""
        first: dict[tuple[int, int], int] = {}
        last: dict[tuple[int, int], int] = {}
        for task in tasks:
            if not is_product(job, task):
                continue
            if job.phase_of(task) == Phase.FORWARD:
                first.setdefault((job.rank_of(task), job.operator_of(task)), task)
            elif job.phase_of(task) == Phase.BACKWARD:
                last[job.rank_of(task), job.layer_of(task)] = task
        result = []
        for task in first.values():
            inputs = job.inputs_of(task)
            weight = weight_of(job.stack_of(task), inputs) if inputs is not None else None
            if weight is None or weight.value_bytes == precision.value_bytes:
                continue
            moved = float(weight.elements * (weight.value_bytes + precision.value_bytes))
            result.append((task, True, moved))
            behind = last.get((job.rank_of(task), job.layer_of(task)))
            if behind is not None and job.layer_of(task) >= 0:
                result.append((behind, False, moved))
        return result

    def _cast(self, job: Job, places: list[tuple[int, bool, float]]) -> None:
        platform = job.machine.known_platform("precision")
        for task, ahead, moved in places:
            job.insert(
                "cast of weights" if ahead else "cast of gradients",
                Role.KERNEL,
                (job.rank_of(task), job.lane_of(task)),
                traffic(moved).time_s(platform),
                ahead_of=task if ahead else None,
                behind=None if ahead else task,
            )
        if places:
            job.notes.append(
                f"{len(places)} conversions were added without the calls that launch them"
            )

    def _communicate(self, job: Job, precision: Precision) -> None:
        known = {one.value for one in Precision}
        after = {}
        for task in job.select(Selector(role=(Role.COLLECTIVE,))):
            info = job.collective_of(task)
            if info is None or info.dtype not in known:
                continue
            factor = precision.value_bytes / Precision(info.dtype).value_bytes
            if factor != 1.0:
                # As many elements of another type.
                size = round(info.message_bytes * factor)
                dtype = Precision.FP32 if precision == Precision.TF32 else precision
                after[task] = replace(
                    info, message_bytes=size if info.message_bytes >= 0 else -1, dtype=dtype.value
                )
        if after:
            resize_collectives(job, after, job.machine.cluster("precision"))
