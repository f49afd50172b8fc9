"""Durations of a transformer's kernels on one device, as they are in the middle of training.

Two things differ from kernels that are measured alone. A device that multiplies matrices for
minutes is limited by its power, one that is measured for milliseconds is not. And kernels that
stream run among others which fill the cache with their own data.

Three constants are fitted, together with the energy of an operation on A100, on the published
steps of two families (8 of GPT under Megatron-LM, 65 of MPT under FSDP, all on A100);
docs/transformers.md has what subsets give.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.machine.kernels import (
    ATTENTION_OPTIONS,
    ATTENTION_SIZES,
    FLASH_RATES,
    attention_estimate,
    elementwise_time_s,
    gemm_estimate,
    grouped_gemm_estimate,
    streaming_estimate,
    sustained_share,
)
from dse.workload.transformer.kernels._operators import (
    Attention,
    Elementwise,
    OperatorCall,
    Product,
)
from dse.workload.transformer.step._cost import Cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.machine import DeviceSpec, Precision
    from dse.workload.transformer._types import TransformerRuntime
    from dse.workload.transformer.kernels._operators import Kernel

#: Time of batched products over that of the analytical model: one head's product is too short and
#: too narrow to fill the pipeline that single large products fill. Fitted.
BATCHED_FACTOR = 1.65

#: Time of PyTorch's separate elementwise kernels over that of their bytes: exact GELU is bound by
#: arithmetic and the gradient of a norm's weights by reductions across rows. Fitted.
EAGER_FACTOR = 1.47

#: Products whose time is remembered, the oldest forgotten first, and operators; bounds memory.
_REMEMBERED = 200_000


class KernelTime(NamedTuple):
    """Seconds of kernels by what limits them.

    Attributes:
        product_s: Products of matrices.
        attention_s: Fused attention, and batched products.
        elementwise_s: Kernels that move bytes.
        launches: Number of kernels.
        routed_launches: Those of them whose sizes depend on which experts the tokens visit.
    """

    product_s: float
    attention_s: float
    elementwise_s: float
    launches: float
    routed_launches: float

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.product_s + self.attention_s + self.elementwise_s

    def scaled(self, factor: float) -> KernelTime:
        """Returns a multiple of the kernels."""
        return KernelTime(*(factor * value for value in self))

    def cost(self, dispatch_s: float) -> Cost:
        """Returns the kernels with the time of the host to dispatch them.

        Args:
            dispatch_s: Time of the host for one kernel.
        """
        host_s = self.launches * dispatch_s
        return Cost(self.product_s, self.attention_s, self.elementwise_s, host_s)

    def __add__(self, other: object) -> KernelTime:
        """Adds kernels that run one after the other."""
        if not isinstance(other, KernelTime):
            return NotImplemented
        return KernelTime(*(own + its for own, its in zip(self, other, strict=True)))

    def __sub__(self, part: KernelTime) -> KernelTime:
        """Leaves a part of the kernels out."""
        return KernelTime(*(max(0.0, own - its) for own, its in zip(self, part, strict=True)))


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
        self._dense = precision.outside_products
        self._flash = _flash_implementation(device, self._dense, software)
        self._elementwise_factor = 1.0 if software.fused_elementwise else EAGER_FACTOR
        self._fused = software.fused_elementwise
        self._calls: dict[OperatorCall, float | None] = {}
        self._products: OrderedDict[Product, tuple[float, float]] = OrderedDict()
        self._attentions: dict[Attention, tuple[float, float]] = {}

    def measure(self, lists: Sequence[Sequence[Kernel]]) -> list[KernelTime]:
        """Returns the time of each list of kernels.

        All products that are not cached are evaluated in one call: a learned model costs by the
        call, hardly by the point.
        """
        self._learn({k for kernels in lists for k in kernels if isinstance(k, Product)})
        return [self._sum(kernels) for kernels in lists]

    def product_spread(self, kernels: Iterable[Kernel]) -> float:
        """Returns the spread of the products among kernels, weighted by their time."""
        return _weighted(
            self._products[k] for k in kernels if isinstance(k, Product) and k.batch == 1
        )

    def attention_spread(self, kernels: Iterable[Kernel]) -> float | None:
        """Returns the spread of fused attention among kernels; None where there is none."""
        found = [self._attention(k) for k in kernels if isinstance(k, Attention)]
        return _weighted(found) if found else None

    def _learn(self, products: set[Product]) -> None:
        unknown = sorted(products - self._products.keys())
        if not unknown:
            return
        kinds = {one: (one.low, one.experts > 1, one.batch > 1) for one in unknown}
        for low, grouped, batched in sorted({*kinds.values()}):
            chosen = [one for one in unknown if kinds[one] == (low, grouped, batched)]
            precision = self._precision if low else self._dense
            m, n, k, batch = np.array([product[:4] for product in chosen]).T
            experts = np.array([product.experts for product in chosen])
            share = sustained_share(self._device, precision)
            if grouped:
                estimate = grouped_gemm_estimate(
                    self._device, m, n, k, experts, precision, sustained=share
                )
            elif batched:
                estimate = gemm_estimate(self._device, m, n, k, precision, batch)
            else:
                estimate = gemm_estimate(self._device, m, n, k, precision, sustained=share)
            seconds = ((BATCHED_FACTOR if batched else 1.0) * estimate.time_s).tolist()
            spreads = estimate.spread.tolist()
            self._products.update(
                (product, (s, spread))
                for product, s, spread in zip(chosen, seconds, spreads, strict=True)
            )
        while len(self._products) > _REMEMBERED:
            self._products.popitem(last=False)

    def _sum(self, kernels: Sequence[Kernel]) -> KernelTime:
        product_s = attention_s = elementwise_s = 0.0
        launches = routed = 0.0
        for kernel in kernels:
            count = 1
            if isinstance(kernel, Product):
                seconds = self._products[kernel][0]
                if kernel.batch == 1:
                    product_s += seconds
                else:
                    attention_s += seconds
            elif isinstance(kernel, Attention):
                attention_s += self._attention(kernel)[0]
                count = 2 if kernel.backward else 1
            else:
                elementwise_s += self._elementwise_s(kernel)
                count = kernel.launches
            launches += count
            if kernel.routed:
                routed += count
        return KernelTime(product_s, attention_s, elementwise_s, launches, routed)

    def _attention(self, kernel: Attention) -> tuple[float, float]:
        """Returns the time of fused attention and its spread."""
        if kernel not in self._attentions and (found := self._measured_attention(kernel)):
            self._attentions[kernel] = found
        if kernel not in self._attentions:
            names = (*ATTENTION_SIZES, *ATTENTION_OPTIONS)
            sizes = {name: getattr(kernel, name) for name in names}
            estimate = attention_estimate(
                self._device,
                sizes,
                self._dense,
                implementation=self._flash,
                causal=kernel.causal,
                backward=kernel.backward,
            )
            self._attentions[kernel] = (float(estimate.time_s), float(estimate.spread))
        return self._attentions[kernel]

    def _measured_attention(self, kernel: Attention) -> tuple[float, float] | None:
        """Returns time and spread where PyTorch's own attention was measured in training."""
        plain = kernel.causal and kernel.queries == kernel.keys <= kernel.window
        op = "causal_attention_backward" if kernel.backward else "causal_attention"
        known = self._device.calibration(op, self._dense) is not None
        if not (plain and kernel.dim == kernel.value_dim and known and self._calls_torch):
            return None
        sizes = {"tokens": kernel.keys, "batch": kernel.batch, "heads": kernel.heads}
        estimate = streaming_estimate(self._device, op, {**sizes, "dim": kernel.dim}, self._dense)
        return float(estimate.time_s), float(estimate.spread)

    @property
    def _calls_torch(self) -> bool:
        """Whether attention is PyTorch's own: FlashAttention-2, or any on a CPU."""
        return self._device.kind == "cpu" or self._flash == "flash_attention_2"

    def _call_s(self, call: OperatorCall) -> float | None:
        """Returns the time of a measured operator; None if it was not measured."""
        if call not in self._calls:
            if len(self._calls) >= _REMEMBERED:
                self._calls.clear()
            time_s: float | None = None
            if self._device.calibration(call.op) is not None:
                estimate = streaming_estimate(self._device, call.op, dict(call.sizes))
                time_s = call.share * float(estimate.time_s)
            self._calls[call] = time_s
        return self._calls[call]

    def _elementwise_s(self, kernel: Elementwise) -> float:
        calls_s = [] if self._fused else [self._call_s(call) for call in kernel.calls]
        measured_s = [seconds for seconds in calls_s if seconds is not None]
        if measured_s and len(measured_s) == len(calls_s):
            return sum(measured_s)
        each = kernel.traffic_bytes / kernel.launches
        factor = EAGER_FACTOR if kernel.separate else self._elementwise_factor
        if kernel.copies:
            factor = 1.0
        busy_s = float(elementwise_time_s(self._device, each)) * factor
        return kernel.launches * busy_s


def _flash_implementation(
    device: DeviceSpec, precision: Precision, software: TransformerRuntime
) -> str:
    """Returns the preferred implementation that was measured on the device, or published."""
    names = software.flash_kernel.implementations
    known = (
        name
        for name in names
        if name in FLASH_RATES or device.calibration("attention", precision, name) is not None
    )
    return next(known, names[-1])


def _weighted(known: Iterable[tuple[float, float]]) -> float:
    """Returns the mean of spreads, weighted by time."""
    pairs = list(known)
    total_s = sum(seconds for seconds, _ in pairs)
    return sum(s * spread for s, spread in pairs) / total_s if total_s else 0.0
