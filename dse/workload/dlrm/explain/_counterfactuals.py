"""Limits of operators and exchanges, from their models on machines without limits.

A model's duration is taken apart by lifting limits one at a time: with infinitely fast arithmetic
what remains is memory, with hardly any bytes what remains is latency. So the formulas stay in one
place, `machine.kernels` and `machine.collectives`, and whatever they become is explained as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.machine import (
    UNLIMITED_PEAK,
    UNLIMITED_RATE,
    changed_cluster,
    unlimited_host_link,
    unlimited_link,
    unlimited_network,
)
from dse.machine.collectives import CollectiveOp, collective_time_s
from dse.workload.dlrm.iteration._dense import dense_estimate
from dse.workload.dlrm.iteration._durations import slot_durations_s
from dse.workload.dlrm.scoring._slots import CODEC_SLOTS, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dse.machine import Cluster, DeviceSpec
    from dse.model import Operator
    from dse.workload.dlrm._problem import DlrmProblem

#: What is left of a time at an unlimited rate, and a latency that is none.
_NO_TIME_S = 1e-15
_NO_LATENCY_S = 1.0 / UNLIMITED_RATE
#: Fields of a device.
_MEMORY, _CACHE = "memory_bandwidth_bytes_per_s", "l2_bandwidth_bytes_per_s"
_BANDWIDTHS = (_MEMORY, _CACHE)
#: Factor on sizes that leaves hardly anything to do.
_HARDLY_ANY = 1e-9
#: Bytes of a message that is latency only.
_SMALLEST_BYTES = 1e-3


@dataclass(frozen=True, slots=True)
class KernelSides:
    """Seconds for which a kernel keeps each part of the device busy, as if alone.

    Attributes:
        arithmetic_s: Arithmetic units.
        memory_s: Device memory.
        cache_s: Last-level cache; with `cache_overlaps` at the same time as memory.
        latency_s: With next to no work.
        host_link_s: Path to host memory, on top of the others.
        other_s: What no limit of the device explains, on top of the others.
        cache_overlaps: Whether cache and memory work at the same time, not one after the other.
    """

    arithmetic_s: NDArray[np.float64]
    memory_s: NDArray[np.float64]
    cache_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    host_link_s: NDArray[np.float64]
    other_s: NDArray[np.float64]
    cache_overlaps: bool


@dataclass(frozen=True, slots=True)
class CollectiveSides:
    """Seconds of a collective inside the nodes and between them, each as if alone.

    Attributes:
        inside_s: Inside, latency included.
        inside_latency_s: Inside, with hardly any bytes.
        between_s: Between, latency included.
        between_latency_s: Between, with hardly any bytes.
    """

    inside_s: NDArray[np.float64]
    inside_latency_s: NDArray[np.float64]
    between_s: NDArray[np.float64]
    between_latency_s: NDArray[np.float64]


def dense_sides(problem: DlrmProblem, operators: Sequence[Operator]) -> KernelSides:
    """Returns the sides of dense operators by their analytical models; shape `(operators,)`.

    What was learned of a kernel is a ratio to its analytical time and does not say which side it
    multiplies, so it is left out here.
    """
    device = replace(problem.cluster.device, calibrations=())

    def seconds(**changes: Any) -> NDArray[np.float64]:
        return dense_estimate(replace(device, **changes), problem.precision, operators).time_s

    free_memory = dict.fromkeys(_BANDWIDTHS, UNLIMITED_RATE)
    latency_s = seconds(peak=UNLIMITED_PEAK, **free_memory)
    streamed_s = seconds(peak=UNLIMITED_PEAK)
    uncached_s = seconds(peak=UNLIMITED_PEAK, **{_CACHE: UNLIMITED_RATE})
    arithmetic_s = seconds(**free_memory)
    return KernelSides(
        arithmetic_s=np.maximum(0.0, arithmetic_s - latency_s),
        memory_s=np.maximum(0.0, uncached_s - latency_s),
        cache_s=np.maximum(0.0, streamed_s - uncached_s),
        latency_s=latency_s,
        host_link_s=np.zeros(len(operators)),
        other_s=np.zeros(len(operators)),
        cache_overlaps=False,
    )


def slot_sides(problem: DlrmProblem, layout: int, features: NDArray[np.float64]) -> KernelSides:
    """Returns the sides of lookups and updates; shape `(slots, ranks)`."""
    cluster = problem.cluster
    device: DeviceSpec = cluster.device

    def seconds(changed: Cluster, work: NDArray[np.float64]) -> NDArray[np.float64]:
        return slot_durations_s(replace(problem, cluster=changed), layout, work)[:, :, 0]

    whole_s = seconds(cluster, features)
    host_link = replace(unlimited_host_link(cluster.host_link), latency_s=0.0)
    on_device = replace(cluster, host_link=host_link, host_memory_bandwidth_bytes_per_s=None)
    device_s = seconds(on_device, features)
    latency_s = np.minimum(seconds(on_device, features * _HARDLY_ANY), device_s)

    def without(*limits: str) -> NDArray[np.float64]:
        freed: dict[str, Any] = dict.fromkeys(limits, UNLIMITED_RATE)
        return seconds(replace(on_device, device=replace(device, **freed)), features)

    other_s = np.maximum(0.0, without(*_BANDWIDTHS) - latency_s)
    fixed_s = latency_s + other_s
    return KernelSides(
        arithmetic_s=np.zeros_like(whole_s),
        memory_s=np.maximum(0.0, without(_CACHE) - fixed_s),
        cache_s=np.maximum(0.0, without(_MEMORY) - fixed_s),
        latency_s=latency_s,
        host_link_s=whole_s - device_s,
        other_s=other_s,
        cache_overlaps=True,
    )


def exchange_sides(
    problem: DlrmProblem, layout: int, features: NDArray[np.float64]
) -> CollectiveSides:
    """Returns the sides of exchanges; shape `(slots, ranks)`."""

    def seconds(cluster: Cluster, work: NDArray[np.float64]) -> NDArray[np.float64]:
        changed = replace(problem, cluster=cluster)
        return slot_durations_s(changed, layout, work)[:, :, 0]

    return _levels(problem.cluster, seconds, features, features * _HARDLY_ANY)


def all_reduce_sides(problem: DlrmProblem, sizes_bytes: NDArray[np.float64]) -> CollectiveSides:
    """Returns the sides of all-reduces over all ranks; shape of the sizes."""

    def seconds(cluster: Cluster, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        return collective_time_s(cluster, CollectiveOp.ALL_REDUCE, nbytes)

    smallest = np.full(sizes_bytes.shape, _SMALLEST_BYTES)
    return _levels(problem.cluster.whole, seconds, sizes_bytes, smallest)


def _levels(
    cluster: Cluster,
    seconds: Callable[[Cluster, NDArray[np.float64]], NDArray[np.float64]],
    work: NDArray[np.float64],
    hardly_any: NDArray[np.float64],
) -> CollectiveSides:
    inside, between = _without_network(cluster), _without_link(cluster)

    def taken(changed: Cluster, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        time_s = seconds(changed, sizes)
        return np.where(time_s > _NO_TIME_S, time_s, 0.0)

    return CollectiveSides(
        inside_s=taken(inside, work),
        inside_latency_s=taken(inside, hardly_any),
        between_s=taken(between, work),
        between_latency_s=taken(between, hardly_any),
    )


#: Slots of kernels, not of collectives.
KERNEL_SLOTS = frozenset(
    {*range(Slot.INPUT_EXCHANGE), int(Slot.REPLICATED_UPDATE), *map(int, CODEC_SLOTS)}
)


def _without_network(cluster: Cluster) -> Cluster:
    """A network on which nothing takes time."""
    network = replace(
        unlimited_network(cluster.network), latency_s=_NO_LATENCY_S, spine_latency_s=0.0
    )
    return changed_cluster(cluster, network=network)


def _without_link(cluster: Cluster) -> Cluster:
    """Links inside the nodes on which nothing takes time."""
    link = replace(unlimited_link(cluster.link), latency_s=_NO_LATENCY_S)
    return changed_cluster(cluster, link=link)
