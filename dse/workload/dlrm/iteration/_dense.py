"""Durations of the dense operators of one rank, and the buckets of their gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine.kernels import (
    Estimate,
    gemm_estimate,
    sequence_attention_estimate,
    streaming_estimate,
)
from dse.model import OperatorKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import DeviceSpec, Precision
    from dse.model import Operator

#: Added, in squares, when the measured interaction stands for another batched product.
_BORROWED_SPREAD = 0.2


def dense_estimate(
    device: DeviceSpec, precision: Precision, operators: Sequence[Operator]
) -> Estimate:
    """Returns duration and spread of each operator on the device; shape `(operators,)`.

    All products are evaluated in one call: a learned model costs per call, hardly per point.
    """
    time_s = np.zeros(len(operators))
    spread = np.zeros(len(operators))
    gemms = [index for index, operator in enumerate(operators) if operator.kind.is_product]
    if gemms:
        chosen = [operators[index] for index in gemms]
        m, n, k, batch = (
            np.array([getattr(operator, size) for operator in chosen])
            for size in ("m", "n", "k", "batch")
        )
        estimate = gemm_estimate(device, m, n, k, precision, batch)
        time_s[gemms], spread[gemms] = estimate.time_s, estimate.spread
    batched = [
        index
        for index, operator in enumerate(operators)
        if operator.kind is OperatorKind.BATCHED_GEMM
    ]
    if batched and device.calibration("interaction_dot") is not None:
        estimate = _batched_as_interaction(device, [operators[index] for index in batched])
        time_s[batched], spread[batched] = estimate.time_s, estimate.spread
    streams = [
        index
        for index, operator in enumerate(operators)
        if operator.kind is OperatorKind.ELEMENTWISE
    ]
    if streams:
        traffic_bytes = np.array([operators[index].traffic_bytes for index in streams])
        estimate = streaming_estimate(device, "elementwise", {"traffic_bytes": traffic_bytes})
        time_s[streams], spread[streams] = estimate.time_s, estimate.spread
    for index, operator in enumerate(operators):
        if operator.kind is OperatorKind.SEQUENCE_ATTENTION:
            estimate = sequence_attention_estimate(device, dict(operator.sizes), precision)
            time_s[index], spread[index] = estimate.time_s, estimate.spread
        elif operator.sizes:
            estimate = streaming_estimate(device, operator.kind.value, dict(operator.sizes))
            time_s[index], spread[index] = estimate.time_s, estimate.spread
    return Estimate(time_s, spread)


def _batched_as_interaction(device: DeviceSpec, products: Sequence[Operator]) -> Estimate:
    """Batched products by what was measured of `x xᵀ`, which has the same arithmetic.

    An interaction of `v` vectors of `d` has the `v² d` multiplications of a product whose sizes
    are `v`, `v` and `d` in any order; its gather of the triangle stays in, as a part that products
    of other shapes spend elsewhere.
    """
    sizes = np.array([sorted((product.m, product.n, product.k)) for product in products], float)
    vectors = sizes[:, 1]
    estimate = streaming_estimate(
        device,
        "interaction_dot",
        {
            "batch": np.array([product.batch for product in products], float),
            "vectors": vectors,
            "dim": sizes.prod(axis=1) / vectors**2,
            "value_bytes": 4,
        },
    )
    return Estimate(estimate.time_s, np.hypot(estimate.spread, _BORROWED_SPREAD))


def bucket_sizes(
    groups: Sequence[tuple[int, int]], bucket_bytes: int, value_bytes: int = 4
) -> list[tuple[int, int]]:
    """Packs dense gradients into buckets in the order in which they become ready (as DDP does).

    Args:
        groups: `(parameters, index of the backward operator that completes their gradient)`.
        bucket_bytes: A bucket is closed once it holds at least this much.
        value_bytes: Bytes of one gradient value.

    Returns:
        `(bytes, index of the operator that completes the bucket)` of each bucket.
    """
    buckets: list[tuple[int, int]] = []
    open_bytes = 0
    last_ready = 0
    for parameters, ready_after in groups:
        open_bytes += value_bytes * parameters
        last_ready = max(last_ready, ready_after)
        if open_bytes >= bucket_bytes:
            buckets.append((open_bytes, last_ready))
            open_bytes = 0
    if open_bytes:
        buckets.append((open_bytes, last_ready))
    return buckets
