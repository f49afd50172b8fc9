"""The kernels of a pass by what they are for and by what binds each of them.

Durations come from the models that predict the step. Which side of a product's roofline binds is
found by asking its analytical model again on devices without one limit; what was learned of it is
a ratio to that model and stretches all beyond the latency alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dse.explanation import Resource
from dse.machine import UNLIMITED_PEAK, UNLIMITED_RATE
from dse.machine.kernels import gemm_estimate
from dse.workload.transformer.kernels._durations import KernelTimes
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.kernels._operators import Attention, Product
from dse.workload.transformer.memory._recompute import chosen_share, recomputed_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import DeviceSpec, Precision
    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer.kernels._operators import Kernel

ATTENTION = "attention"
FEED_FORWARD = "feed-forward"
ELEMENTWISE = "norms and elementwise"
RECOMPUTATION = "recomputation"
EMBEDDING = "embedding"
HEAD = "head and loss"
MODULE = "multi-token prediction"


class Side(NamedTuple):
    """Part of a kernel list's time.

    Attributes:
        group: What the kernels are for.
        resource: What takes the time.
    """

    group: str
    resource: Resource


@dataclass(frozen=True, slots=True)
class KernelSides:
    """Seconds of a list of kernels, by the model that they come from and by side.

    Attributes:
        product: Of single products.
        attention: Of fused attention and batched products.
        elementwise: Of kernels that move bytes.
    """

    product: dict[Side, float]
    attention: dict[Side, float]
    elementwise: dict[Side, float]

    def times(self, count: float) -> KernelSides:
        """Returns the same kernels several times."""
        return KernelSides(
            *({side: count * value for side, value in part.items()} for part in self.parts())
        )

    def __sub__(self, part: KernelSides) -> KernelSides:
        """Leaves a part of the kernels out."""
        return KernelSides(
            *(
                {side: max(0.0, value - its.get(side, 0.0)) for side, value in mine.items()}
                for mine, its in zip(self.parts(), part.parts(), strict=True)
            )
        )

    def __add__(self, other: object) -> KernelSides:
        """Adds kernels that run one after the other; those of `self` come first."""
        if not isinstance(other, KernelSides):
            return NotImplemented
        joined = []
        for mine, its in zip(self.parts(), other.parts(), strict=True):
            sides = dict.fromkeys((*mine, *its))
            joined.append({side: mine.get(side, 0.0) + its.get(side, 0.0) for side in sides})
        return KernelSides(*joined)

    def parts(self) -> tuple[dict[Side, float], dict[Side, float], dict[Side, float]]:
        """Returns the three parts in the order of `dse.workload.transformer.step._cost.Cost`."""
        return self.product, self.attention, self.elementwise


NO_KERNELS = KernelSides({}, {}, {})


class LayerSides(NamedTuple):
    """The kernels of one layer.

    Attributes:
        forward: Its forward pass.
        backward: Its backward pass, with what is recomputed.
        weights: The gradients of weights among it.
        core_forward_s: The core of attention in the forward pass, in seconds.
        core_backward_s: The same in the backward pass.
    """

    forward: KernelSides
    backward: KernelSides
    weights: KernelSides
    core_forward_s: float
    core_backward_s: float


class StepKernels:
    """The kernels of one problem's passes.

    Args:
        problem: What is trained, where and how.

    Attributes:
        layers: Passes of each kind of layer.
        embedding: Both directions of the embedding.
        head: Both directions of the head and the loss.
        head_weights: The gradients of weights among the backward one.
    """

    def __init__(self, problem: TransformerJob) -> None:
        work, device = LayerWork(problem), problem.cluster.device
        self._device, self._precision = device, problem.precision
        self._times = KernelTimes(device, problem.precision, problem.software)
        embedding, head = work.embedding(), work.head()
        self.layers = tuple(self._layer(job) for job in problem.layer_jobs)
        self.embedding = tuple(
            self._sides(one, [EMBEDDING] * len(one))
            for one in (embedding.forward, embedding.backward)
        )
        self.head = tuple(
            self._sides(one, [HEAD] * len(one)) for one in (head.forward, head.backward)
        )
        weights = work.head_weight_gradients()
        self.head_weights = self._sides(weights, [HEAD] * len(weights))

    def _layer(self, problem: TransformerJob) -> LayerSides:
        work = LayerWork(problem)
        products, core = work.attention.products, work.attention.core_forward()
        kernels = work.layer_forward()
        forward = self._sides(kernels, _layer_groups(kernels, core, products))
        kernels, core_backward = work.layer_backward(), work.attention.core_backward()
        backward = self._sides(kernels, _layer_groups(kernels, core_backward, 2 * products))
        again, module = recomputed_kernels(problem, work), work.prediction_module()
        weights = work.weight_gradients()
        share = chosen_share(problem, problem.parallelism.recompute_layers)
        core_s = [one.total_s for one in self._times.measure([core, core_backward])]
        return LayerSides(
            forward + self._sides(module.forward, [MODULE] * len(module.forward)),
            backward
            + self._sides(module.backward, [MODULE] * len(module.backward))
            + self._sides(again, [RECOMPUTATION] * len(again)).times(share),
            self._sides(weights, _layer_groups(weights, (), products)),
            core_s[0],
            core_s[1],
        )

    def _sides(self, kernels: Sequence[Kernel], groups: Sequence[str]) -> KernelSides:
        found = KernelSides({}, {}, {})
        bound = _product_sides(
            self._device, self._precision, [k for k in kernels if isinstance(k, Product)]
        )
        measured = self._times.measure([[kernel] for kernel in kernels])
        for kernel, group, time in zip(kernels, groups, measured, strict=True):
            if isinstance(kernel, Product):
                resource, latency_s = bound[kernel]
            elif isinstance(kernel, Attention):
                resource, latency_s = Resource.ARITHMETIC, self._device.kernel_floor_s
            else:
                resource = Resource.MEMORY
                latency_s = self._device.kernel_floor_s * kernel.launches
            for part, seconds in zip(found.parts(), time[:3], strict=True):
                if not seconds:
                    continue
                first_s = min(latency_s, seconds)
                for one, value in ((resource, seconds - first_s), (_LATENCY, first_s)):
                    part[Side(group, one)] = part.get(Side(group, one), 0.0) + value
        return found


_LATENCY = Resource.KERNEL_LATENCY


def _layer_groups(kernels: Sequence[Kernel], core: Sequence[Kernel], attention: int) -> list[str]:
    """Names what each kernel of a layer is for.

    Args:
        kernels: The kernels of one pass.
        core: Those of the core of attention among them.
        attention: How many of the other products, the first ones, are attention's.
    """
    left = Counter(core)
    groups, seen = [], 0
    for kernel in kernels:
        if left[kernel] > 0:
            left[kernel] -= 1
            groups.append(ATTENTION)
        elif isinstance(kernel, Product):
            groups.append(ATTENTION if seen < attention else FEED_FORWARD)
            seen += 1
        else:
            groups.append(ELEMENTWISE)
    return groups


def _product_sides(
    device: DeviceSpec, precision: Precision, products: Sequence[Product]
) -> dict[Product, tuple[Resource, float]]:
    """Returns what binds each product, and its latency in seconds."""
    found: dict[Product, tuple[Resource, float]] = {}
    for low in (False, True):
        chosen = [product for product in dict.fromkeys(products) if product.low == low]
        if chosen:
            found |= _sides_in(device, precision if low else precision.outside_products, chosen)
    return found


def _sides_in(
    device: DeviceSpec, precision: Precision, unknown: Sequence[Product]
) -> dict[Product, tuple[Resource, float]]:
    m, n, k, batch = np.array([product[:4] for product in unknown]).T
    bare = replace(device, calibrations=())

    def seconds(**changes: Any) -> Any:
        changed = replace(bare, **changes)
        return gemm_estimate(changed, m, n, k, precision, batch).time_s

    bandwidths = ("memory_bandwidth_bytes_per_s", "l2_bandwidth_bytes_per_s")
    memory = dict.fromkeys(bandwidths, UNLIMITED_RATE)
    latency_s = seconds(peak=UNLIMITED_PEAK, **memory)
    arithmetic_s, memory_s = seconds(**memory), seconds(peak=UNLIMITED_PEAK)
    return {
        product: (Resource.ARITHMETIC if arithmetic else Resource.MEMORY, float(floor_s))
        for product, arithmetic, floor_s in zip(
            unknown, (arithmetic_s >= memory_s).tolist(), latency_s.tolist(), strict=True
        )
    }
