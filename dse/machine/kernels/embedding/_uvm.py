"""Embedding tables whose rows live in host memory, with or without a cache on the device.

TorchRec's kernels `fused_uvm` and `fused_uvm_caching` (FBGEMM's managed tables). Without a cache
every lookup reads its row over the host link, and every different row is read and written back by
the update. With one, the rows of a batch that the cache lacks are fetched before the lookup, once
each, and evicted ones go back; only rows for which the cache has no room are read in place.
Optimizer state of every value is never cached: an update reads and writes it over the link.

Constants are fitted on times of FBGEMM on an H100 (`benchmarks/accuracy.py --embedding`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.kernels.embedding._fused import (
    EmbeddingWork,
    embedding_traffic,
    embedding_work,
    learned_ratios,
    whole_sectors,
)
from dse.machine.kernels.embedding._unfused import FBGEMM, EmbeddingKernels, index_order_bytes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dse.indices import IndexDistribution
    from dse.machine import Cluster, DeviceSpec, HostLinkSpec
    from dse.machine.kernels.embedding._fused import (
        EmbeddingShape,
        EmbeddingTraffic,
    )

#: Most bytes of one read of host memory: a cache line, which a warp reads in one request.
_REQUEST_BYTES = 128

#: Bytes of line rate that the smallest request costs: 4.7 of 15.75 GB/s with 32 bytes (EMOGI, PCIe
#: 3.0 x16).
_SMALLEST_REQUEST_BYTES = 32 * 15.75 / 4.7

#: Time from a read of host memory to its data. By Little's law it keeps as many bytes in flight;
#: another read of a row on its way joins the first.
_READ_LATENCY_S = 2.0e-6

#: Standard deviation of the logarithm of actual over expected duration over the host link, from
#: rows of published tables that were left out of the fit.
HOST_ROWS_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class HostRowsKernels:
    """What kernels with rows in host memory take; the defaults are fitted for FBGEMM.

    Attributes:
        order: Ordering of indices, as of tables in device memory.
        link_efficiency: Share of the line rate that reads of whole requests reach (0.78 in EMOGI,
            PCIe 3.0 x16).
        written_back: How much longer a row takes that is read and written back: both directions
            work at once, but requests of reads share the way of the written rows.
        probe_unit_s: Time of one compute unit to find the place of one different row in the cache.
        prefetch_floor_kernels: Shortest kernels that take as long as the many small ones of
            filling a cache.
    """

    order: EmbeddingKernels = FBGEMM
    link_efficiency: float = 0.8
    written_back: float = 1.19
    probe_unit_s: float = 0.35e-6
    prefetch_floor_kernels: float = 65.0


_FBGEMM_HOST_ROWS = HostRowsKernels()


@dataclass(frozen=True, slots=True)
class HostRowsWork:
    """Additive cost of one shard in host memory.

    Attributes:
        device: What the device's own memory and cache have to do, less what they do while they
            wait for the link.
        forward_link_bytes: Bytes of line rate of the host link before and during the lookup.
        backward_link_bytes: The same of the update.
        fetched_link_bytes: Those before the lookup, for rows that enter a cache on the device.
        forward_waiting_bytes: Bytes at device-memory speed of `device` that the lookup moves while
            it waits for other devices that use the same path.
        backward_waiting_bytes: The same of the update.
    """

    device: EmbeddingWork
    forward_link_bytes: float
    backward_link_bytes: float
    fetched_link_bytes: float = 0.0
    forward_waiting_bytes: float = 0.0
    backward_waiting_bytes: float = 0.0


def host_rows_work(
    device: DeviceSpec,
    host_link: HostLinkSpec,
    shape: EmbeddingShape,
    indices: IndexDistribution,
    *,
    cached_rows: float,
    host_state_bytes_per_row: float,
    call_share: float = 1.0,
    slowdown: float = 1.0,
    kernels: HostRowsKernels = _FBGEMM_HOST_ROWS,
) -> HostRowsWork:
    """Returns what lookup and update of a shard in host memory move, and where.

    The cache evicts the row that was not used for longest, FBGEMM's default, and has long been
    running. A larger cache never costs more.

    Args:
        device: The device.
        host_link: Its path to host memory.
        shape: What is looked up.
        indices: How rows are drawn.
        cached_rows: Rows of the shard that the device caches; 0 without a cache.
        host_state_bytes_per_row: Optimizer state that is with the rows, in bytes of one; the
            rest, one value a row, stays in device memory.
        call_share: The shard's part of a call that fills the caches of several tables.
        slowdown: How much longer the device's own work takes than that of plain sums.
        kernels: What the kernels take.
    """
    if shape.bags <= 0 or shape.lookups <= 0:
        return HostRowsWork(EmbeddingWork(0.0, 0.0, 0.0, 0.0), 0.0, 0.0)
    traffic = embedding_traffic(device, shape, indices)
    row_cost = request_bytes(shape.dim * shape.value_bytes, kernels.link_efficiency)
    state_cost = request_bytes(host_state_bytes_per_row, kernels.link_efficiency)
    sort_bytes = traffic.sort_memory_bytes + index_order_bytes(device, shape, kernels.order)
    state_bytes = whole_sectors(shape.state_bytes_per_row - host_state_bytes_per_row)
    update_bytes = traffic.gradient_memory_bytes + 2.0 * traffic.unique_rows * state_bytes
    ratios = learned_ratios(device, shape, traffic, kernels.order.spread)
    forward, backward = ((slowdown * ratio, spread) for ratio, spread in ratios)
    if cached_rows <= 0:
        forward_link = _crossing_lookups(host_link, shape, indices, traffic) * row_cost
        streamed_bytes = forward[0] * traffic.stream_memory_bytes
        left = _left(device, host_link, streamed_bytes, 0.0, forward_link)
        forward_bytes = waiting_bytes = left * streamed_bytes
        forward_cache_bytes = fetched_link = 0.0
        in_place_rows = traffic.unique_rows
    else:
        missing_lookups, missing_rows = indices.expected_misses(
            shape.rows, shape.lookups, cached_rows
        )
        room = max(0.0, cached_rows - (traffic.unique_rows - missing_rows))
        fetched = min(1.0, room / missing_rows) if missing_rows else 1.0
        in_place_rows = (1.0 - fetched) * missing_rows
        fetched_link = fetched * missing_rows * row_cost
        forward_link = fetched_link + (1.0 - fetched) * missing_lookups * row_cost
        bare = replace(device, calibrations=())
        resident = embedding_work(bare, replace(shape, state_bytes_per_row=0.0), indices)
        # Prefetching sorts the indices to find the different rows, and each one's place in the
        # cache; a row that enters the cache is written to it, and the one that leaves is read.
        # Counted for all missing rows.
        moved_bytes = 2.0 * missing_rows * traffic.row_bytes / traffic.efficiency
        probe_s = traffic.unique_rows * kernels.probe_unit_s / device.compute_units
        probe_s += call_share * kernels.prefetch_floor_kernels * device.kernel_floor_s
        probe_bytes = probe_s * device.memory_bandwidth_bytes_per_s
        forward_bytes = resident.forward_memory_bytes + sort_bytes + moved_bytes + probe_bytes
        forward_bytes, waiting_bytes = forward[0] * forward_bytes, 0.0
        forward_cache_bytes = resident.forward_cache_bytes
        update_bytes += 2.0 * traffic.unique_rows * traffic.row_bytes / traffic.efficiency
    written_cost = in_place_rows * row_cost + traffic.unique_rows * state_cost
    backward_link = kernels.written_back * written_cost
    cache_bytes = backward[0] * traffic.gradient_hit_rate * traffic.gradient_bytes
    update_bytes *= backward[0]
    left = _left(device, host_link, update_bytes, cache_bytes, backward_link)
    return HostRowsWork(
        EmbeddingWork(
            forward_memory_bytes=forward_bytes,
            forward_cache_bytes=forward[0] * forward_cache_bytes,
            backward_memory_bytes=backward[0] * sort_bytes + left * update_bytes,
            backward_cache_bytes=left * cache_bytes,
            forward_spread=forward[1],
            backward_spread=backward[1],
        ),
        forward_link_bytes=forward_link,
        backward_link_bytes=backward_link,
        fetched_link_bytes=fetched_link,
        forward_waiting_bytes=waiting_bytes,
        backward_waiting_bytes=left * update_bytes,
    )


def _crossing_lookups(
    host_link: HostLinkSpec,
    shape: EmbeddingShape,
    indices: IndexDistribution,
    traffic: EmbeddingTraffic,
) -> float:
    """Lookups whose row is not yet on its way for another one."""
    in_flight = _READ_LATENCY_S * host_link.bandwidth_bytes_per_s / traffic.row_bytes
    on_their_way = indices.expected_unique_rows(shape.rows, in_flight)
    return shape.lookups * (1.0 - indices.hit_rate(shape.rows, shape.lookups, on_their_way))


def _left(
    device: DeviceSpec,
    host_link: HostLinkSpec,
    memory_bytes: float,
    cache_bytes: float,
    link_bytes: float,
) -> float:
    """Share of the device's own work that is left when the host link has done its part.

    The slower of memory and cache decides how long that work takes. At least a byte is left, as
    the launch of the kernel is.
    """
    own_s = max(
        memory_bytes / device.memory_bandwidth_bytes_per_s,
        cache_bytes / device.l2_bandwidth_bytes_per_s,
    )
    link_s = link_bytes / host_link.bandwidth_bytes_per_s
    return max(1.0 / memory_bytes, 1.0 - link_s / own_s)


def request_bytes(size_bytes: float, efficiency: float) -> float:
    """Returns the bytes of line rate that reading `size_bytes` in one place of host memory costs.

    Reads go out in whole sectors, at most a cache line a request; small requests are bound by how
    many of them the link can have under way.

    Args:
        size_bytes: What is read.
        efficiency: Share of the line rate that whole requests reach.
    """
    sectors = whole_sectors(size_bytes)
    whole, rest = divmod(sectors, _REQUEST_BYTES)
    cost = whole * _REQUEST_BYTES / efficiency
    return cost + (max(_SMALLEST_REQUEST_BYTES, rest / efficiency) if rest else 0.0)


def host_rows_time_s(host_link: HostLinkSpec, link_bytes: ArrayLike) -> NDArray[np.float64]:
    """Returns the time of the host link for rows; comes on top of the device's own part.

    Args:
        host_link: The link.
        link_bytes: Sum of the shards' bytes of line rate; any shape.

    Returns:
        Seconds, in the same shape; zero where nothing crosses.
    """
    size = np.asarray(link_bytes, dtype=np.float64)
    busy_s = host_link.latency_s + size / host_link.bandwidth_bytes_per_s
    return np.where(size > 0, busy_s, 0.0)


def host_rows_waiting_s(
    cluster: Cluster, link_bytes: NDArray[np.float64], *, accesses: int
) -> NDArray[np.float64]:
    """Returns how much longer rows take because the ranks of a node share what they come from.

    Ranks that share a path get equal parts of it until they are done, so with `b` bytes each, rank
    `i` is done after `Σ min(b_j, b_i)` bytes. Host memory serves rows no better than a link does.

    Args:
        cluster: The cluster.
        link_bytes: Sum of each rank's bytes of line rate; shape `(ranks, ...)`.
        accesses: How often host memory is read or written for each of these bytes.

    Returns:
        Seconds on top of :func:`host_rows_time_s`, in the same shape.
    """
    link, memory = cluster.host_link, cluster.host_memory_bandwidth_bytes_per_s
    alone_s = link_bytes / link.bandwidth_bytes_per_s
    shared_s = alone_s
    if link.devices > 1:
        behind_one = _in_equal_parts(link_bytes, cluster.local_size, link.devices)
        shared_s = behind_one / link.bandwidth_bytes_per_s
    if memory is not None:
        of_node = _in_equal_parts(link_bytes, cluster.local_size, cluster.local_size)
        shared_s = np.maximum(shared_s, accesses * of_node / memory)
    return shared_s - alone_s


def _in_equal_parts(
    size: NDArray[np.float64], local_size: int, sharers: int
) -> NDArray[np.float64]:
    """Bytes that cross a path until each of its sharers on a node is done."""
    by_node = size.reshape(-1, local_size, *size.shape[1:])
    crossed = np.zeros_like(by_node)
    for start in range(0, local_size, sharers):
        sharing = by_node[:, start : start + sharers]
        for one in range(sharing.shape[1]):
            crossed[:, start : start + sharers] += np.minimum(sharing, sharing[:, one : one + 1])
    return crossed.reshape(size.shape)


def cached_row_count(rows: int, cached_share: float) -> int:
    """Returns the rows of a shard of `rows` rows that a cache of that share holds."""
    return min(rows, math.ceil(cached_share * rows))
