"""Embedding tables whose rows live in host memory, with or without a cache on the device.

TorchRec's kernels `fused_uvm` and `fused_uvm_caching` (FBGEMM's managed tables). Without a cache
every lookup reads its row over the host link, and every different row is written back by the
update. With one, the rows of a batch that the cache lacks are fetched before the lookup, once
each, and evicted ones go back; only rows for which the cache has no room are read in place.

Reads and writes use the two directions of the link at the same time, so a row that is fetched and
written back costs one crossing.
"""

from __future__ import annotations

from dataclasses import dataclass
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

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dse.machine import Cluster, DeviceSpec, HostLinkSpec
    from dse.machine.kernels.embedding._fused import EmbeddingShape, IndexStatistics

#: Most bytes of one read of host memory: a cache line, which a warp reads in one request.
_REQUEST_BYTES = 128

#: Share of the line rate that reads of whole requests reach, and the bytes of line rate that the
#: smallest one costs: 12.3 and 4.7 of 15.75 GB/s with 128 and 32 bytes (EMOGI, PCIe 3.0 x16).
_LINK_EFFICIENCY = 0.78
_SMALLEST_REQUEST_BYTES = 32 * 15.75 / 4.7

#: How far off a duration over the host link may be; nothing of it was measured here.
HOST_ROWS_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class HostRowsWork:
    """Additive cost of one shard in host memory.

    Attributes:
        device: What the device's own memory and cache have to do.
        forward_link_bytes: Bytes of line rate of the host link before and during the lookup.
        backward_link_bytes: The same of the update.
        fetched_link_bytes: Those before the lookup, for rows that enter a cache on the device.
    """

    device: EmbeddingWork
    forward_link_bytes: float
    backward_link_bytes: float
    fetched_link_bytes: float = 0.0


def host_rows_work(
    device: DeviceSpec,
    shape: EmbeddingShape,
    indices: IndexStatistics,
    *,
    cached_rows: float,
    state_on_host: bool,
) -> HostRowsWork:
    """Returns what lookup and update of a shard in host memory move, and where.

    The cache is taken to hold the most popular rows: the steady state of LFU, and the best that
    LRU can come to. A larger cache never costs more.

    Args:
        device: The device.
        shape: What is looked up.
        indices: How rows are drawn.
        cached_rows: Rows of the shard that the device caches; 0 without a cache.
        state_on_host: Whether the optimizer state is with the rows; state of one value a row
            stays in device memory.
    """
    if shape.bags <= 0 or shape.lookups <= 0:
        return HostRowsWork(EmbeddingWork(0.0, 0.0, 0.0, 0.0), 0.0, 0.0)
    row_cost = request_bytes(shape.dim * shape.value_bytes)
    state_cost = request_bytes(shape.state_bytes_per_row) if state_on_host else 0.0
    traffic = embedding_traffic(device, shape, indices)
    if cached_rows <= 0:
        forward, backward = learned_ratios(device, shape, traffic)
        state_bytes = 0.0 if state_on_host else traffic.state_row_bytes
        update_bytes = 2.0 * traffic.unique_rows * state_bytes
        return HostRowsWork(
            EmbeddingWork(
                forward_memory_bytes=forward[0] * traffic.stream_memory_bytes,
                forward_cache_bytes=0.0,
                backward_memory_bytes=backward[0]
                * (traffic.sort_memory_bytes + traffic.gradient_memory_bytes + update_bytes),
                backward_cache_bytes=backward[0]
                * traffic.gradient_hit_rate
                * traffic.gradient_bytes,
                forward_spread=forward[1],
                backward_spread=backward[1],
            ),
            forward_link_bytes=shape.lookups * row_cost,
            backward_link_bytes=traffic.unique_rows * (row_cost + state_cost),
        )
    missing_lookups, missing_rows = indices.expected_tail(shape.rows, shape.lookups, cached_rows)
    room = max(0.0, cached_rows - (traffic.unique_rows - missing_rows))
    fetched = min(1.0, room / missing_rows) if missing_rows else 1.0
    resident = embedding_work(device, shape, indices)
    # Prefetching sorts the indices to find the different rows; a row that enters the cache is
    # written to it, and the one that leaves is read. Counted for all missing rows.
    prefetch_bytes = (
        traffic.sort_memory_bytes + 2.0 * missing_rows * traffic.row_bytes / traffic.efficiency
    )
    return HostRowsWork(
        EmbeddingWork(
            forward_memory_bytes=resident.forward_memory_bytes + prefetch_bytes,
            forward_cache_bytes=resident.forward_cache_bytes,
            backward_memory_bytes=resident.backward_memory_bytes,
            backward_cache_bytes=resident.backward_cache_bytes,
            forward_spread=resident.forward_spread,
            backward_spread=resident.backward_spread,
        ),
        forward_link_bytes=(fetched * missing_rows + (1.0 - fetched) * missing_lookups) * row_cost,
        backward_link_bytes=missing_rows * ((1.0 - fetched) * row_cost + state_cost),
        fetched_link_bytes=fetched * missing_rows * row_cost,
    )


def request_bytes(size_bytes: float) -> float:
    """Returns the bytes of line rate that reading `size_bytes` in one place of host memory costs.

    Reads go out in whole sectors, at most a cache line a request; small requests are bound by how
    many of them the link can have under way.
    """
    sectors = whole_sectors(size_bytes)
    whole, rest = divmod(sectors, _REQUEST_BYTES)
    cost = whole * _REQUEST_BYTES / _LINK_EFFICIENCY
    return cost + (max(_SMALLEST_REQUEST_BYTES, rest / _LINK_EFFICIENCY) if rest else 0.0)


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
