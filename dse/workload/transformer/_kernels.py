"""Durations of a transformer's kernels on one device, as they are in the middle of training.

Two things differ from kernels that are measured alone. A device that multiplies matrices for
minutes is limited by its power, one that is measured for milliseconds is not. And kernels that
stream run among others which fill the cache with their own data.

Four constants are fitted, together, on the published steps of two families (8 of GPT under
Megatron-LM, 65 of MPT under FSDP, all on A100); docs/transformers.md has what subsets give.
"""

from __future__ import annotations

from collections import OrderedDict
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.machine.kernels import elementwise_time_s, gemm_estimate
from dse.workload.transformer._types import FlashKernel
from dse.workload.transformer._work import Attention, Elementwise, Product

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.machine import DeviceSpec, Precision
    from dse.workload.transformer._types import TransformerRuntime
    from dse.workload.transformer._work import Kernel

#: Arithmetic rate of one compute unit up to which a device sustains what it reaches in short
#: measurements: that of a V100.
_SUSTAINED_UNIT_RATE = 125e12 / 80

#: Loss of sustained rate for each e-fold of arithmetic per compute unit beyond that: peak rates
#: grew faster than the power that feeds them. Fitted.
SUSTAINED_LOSS_PER_EFOLD = 0.115

#: Time of batched products over that of the analytical model: one head's product is too short and
#: too narrow to fill the pipeline that single large products fill. Fitted.
BATCHED_FACTOR = 1.65

#: Time of PyTorch's separate elementwise kernels over that of their bytes: exact GELU is bound by
#: arithmetic and the gradient of a norm's weights by reductions across rows. Fitted.
EAGER_FACTOR = 1.47


class FlashRate(NamedTuple):
    """What an implementation of fused attention reaches.

    Attributes:
        forward: Share of the matrix rate with wide heads, forward.
        backward: The same backward.
        half_width: Head width that halves it: exponentials are worth as many products.
    """

    forward: float
    backward: float
    half_width: float


#: FlashAttention-2 after the figures of its paper (arXiv 2307.08691), where heads of 64 reach 0.85
#: of heads of 128. The Triton kernel's forward share is fitted, its backward pass has three
#: quarters of that rate as in those figures, and the width of heads makes no difference.
FLASH_RATES = {
    FlashKernel.FLASH2: FlashRate(0.75, 0.62, 27.0),
    FlashKernel.TRITON: FlashRate(0.385, 0.29, 0.0),
}

#: Share of the matrix rate that instructions of the generation before reach on devices of compute
#: capability 9.0 and above, for which these kernels were not written: about 335 TFLOP/s on an H100
#: against 225 on an A100 (the same paper), whose peaks are 989 and 312.
_OLDER_INSTRUCTIONS = 0.47

#: Rate of one compute unit from which on a device has the newer instructions.
_NEWER_UNIT_RATE = 5e12

#: Products whose time is remembered, the oldest forgotten first.
_REMEMBERED = 200_000


class KernelTime(NamedTuple):
    """Seconds of kernels by what limits them.

    Attributes:
        product_s: Products of matrices.
        attention_s: Fused attention, and batched products.
        elementwise_s: Kernels that move bytes.
        launches: Number of kernels.
    """

    product_s: float
    attention_s: float
    elementwise_s: float
    launches: float

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.product_s + self.attention_s + self.elementwise_s

    def __add__(self, other: object) -> KernelTime:
        """Adds kernels that run one after the other."""
        if not isinstance(other, KernelTime):
            return NotImplemented
        return KernelTime(*(own + its for own, its in zip(self, other, strict=True)))


def sustained_share(device: DeviceSpec, precision: Precision) -> float:
    """Returns the sustained rate of products over that of short measurements."""
    if device.kind != "gpu":
        return 1.0
    unit_rate = device.peak.of(precision) / device.compute_units
    efolds = max(0.0, math.log(unit_rate / _SUSTAINED_UNIT_RATE))
    return max(0.5, 1.0 - SUSTAINED_LOSS_PER_EFOLD * efolds)


def flash_rate(
    device: DeviceSpec, precision: Precision, kernel: Attention, kind: FlashKernel
) -> float:
    """Returns the arithmetic rate of fused attention in FLOP/s."""
    rates = FLASH_RATES[kind]
    share = rates.backward if kernel.backward else rates.forward
    peak = device.peak.of(precision)
    if peak / device.compute_units > _NEWER_UNIT_RATE:
        share *= _OLDER_INSTRUCTIONS
    return peak * share / (1.0 + rates.half_width / kernel.head_dim)


class KernelTimes:
    """Durations on one device; those of products are remembered.

    Args:
        device: The device.
        precision: Arithmetic.
        software: How the training program is written.
    """

    def __init__(
        self, device: DeviceSpec, precision: Precision, software: TransformerRuntime
    ) -> None:
        self._device = device
        self._precision = precision
        self._flash_kernel = software.flash_kernel
        self._elementwise_factor = 1.0 if software.fused_elementwise else EAGER_FACTOR
        self._share = sustained_share(device, precision)
        self._products: OrderedDict[Product, tuple[float, float]] = OrderedDict()

    def measure(self, lists: Sequence[Sequence[Kernel]]) -> list[KernelTime]:
        """Returns the time of each list of kernels.

        All products that are not cached are evaluated in one call: a learned model costs by the
        call, hardly by the point.
        """
        self._learn({k for kernels in lists for k in kernels if isinstance(k, Product)})
        return [self._sum(kernels) for kernels in lists]

    def product_spread(self, kernels: Iterable[Kernel]) -> float:
        """Returns the spread of the products among kernels, weighted by their time."""
        known = [self._products[k] for k in kernels if isinstance(k, Product) and k.batch == 1]
        total_s = sum(seconds for seconds, _ in known)
        return sum(s * spread for s, spread in known) / total_s if total_s else 0.0

    def _learn(self, products: set[Product]) -> None:
        unknown = sorted(products - self._products.keys())
        if not unknown:
            return
        m, n, k, batch = np.array(unknown).T
        estimate = gemm_estimate(self._device, m, n, k, self._precision, batch)
        factor = np.where(batch > 1, BATCHED_FACTOR, 1.0 / self._share)
        seconds = (estimate.time_s * factor).tolist()
        spreads = estimate.spread.tolist()
        self._products.update(
            (product, (s, spread))
            for product, s, spread in zip(unknown, seconds, spreads, strict=True)
        )
        while len(self._products) > _REMEMBERED:
            self._products.popitem(last=False)

    def _sum(self, kernels: Sequence[Kernel]) -> KernelTime:
        product_s = attention_s = elementwise_s = 0.0
        launches = 0.0
        device = self._device
        for kernel in kernels:
            if isinstance(kernel, Product):
                seconds = self._products[kernel][0]
                launches += 1
                if kernel.batch == 1:
                    product_s += seconds
                else:
                    attention_s += seconds
            elif isinstance(kernel, Attention):
                rate = flash_rate(device, self._precision, kernel, self._flash_kernel)
                attention_s += device.kernel_floor_s + kernel.flops / rate
                launches += 2 if kernel.backward else 1
            else:
                elementwise_s += self._elementwise_s(kernel)
                launches += kernel.launches
        return KernelTime(product_s, attention_s, elementwise_s, launches)

    def _elementwise_s(self, kernel: Elementwise) -> float:
        each = kernel.traffic_bytes / kernel.launches
        busy_s = float(elementwise_time_s(self._device, each)) * self._elementwise_factor
        return kernel.launches * busy_s
