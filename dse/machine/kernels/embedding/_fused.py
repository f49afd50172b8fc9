"""Embedding lookup and its backward pass with the fused optimizer, from the bytes they move.

Follows the HiPC'22 lookup model (32-byte sectors, one warp a bag, rows served by L2 or by device
memory) with two changes: the table's own index distribution replaces the uniform draw (the
TPDS'24 step; Che's approximation gives the hit rate), and the work of several tables in one fused
kernel is summed before it is turned into time, because their warps share the device.

A device with a calibration multiplies the work of each shard by a learned ratio; the constants
below then only shape the reference. Without one they are the model: published orders of magnitude.

:func:`embedding_work` therefore yields *additive* quantities of one shard of a table;
:func:`embedding_time_s` turns a sum of them into a duration.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.kernels._memory import HEURISTIC_SPREAD
from dse.machine.kernels.embedding._cpu import cpu_lookup_bytes, cpu_update_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from dse.indices import IndexDistribution
    from dse.machine import DeviceSpec

#: Bytes of one memory transaction.
_SECTOR_BYTES = 32

#: Table offset (one sector) and the bag's two offsets (two sectors) that each warp reads.
_BAG_HEADER_BYTES = 96

#: Share of the cache that table rows can hold; the rest serves indices, offsets and outputs.
_CACHE_SHARE = 0.9

#: Share of peak bandwidth that a gather of wide rows reaches.
_GATHER_EFFICIENCY = 0.80

#: Row bytes at which a gather reaches half its efficiency: narrow rows waste issue slots.
_HALF_EFFICIENCY_ROW_BYTES = 40.0

#: Row bytes below which a lookup is no faster: its instructions take as long as those bytes.
_NARROWEST_ROW_BYTES = 96.0

#: Bytes of the value, next to the index, that a radix sort carries along for one lookup.
_SORT_VALUE_BYTES = 4

#: Bits of the key that one radix-sort pass orders.
_SORT_BITS_PER_PASS = 8


#: Kernels of a fused lookup, and of its backward pass (sort, segments, gradient, update).
LOOKUP_LAUNCHES = 1
UPDATE_LAUNCHES = 8

#: Sizes of one shard that a calibration looks at.
EMBEDDING_SIZES = ("rows", "row_bytes", "bags", "lookups", "unique_rows")


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """The part of one table that one rank works on in one iteration.

    Attributes:
        rows: Rows of the shard.
        dim: Columns of the shard.
        value_bytes: Bytes of one stored value, with its part of the row's scale.
        bags: Bags (samples times features) that the rank pools.
        lookups: Row reads in all bags together.
        output_value_bytes: Bytes of one pooled value.
        state_bytes_per_row: Optimizer state of one row, in bytes.
        index_bytes: Bytes of one index.
    """

    rows: int
    dim: int
    value_bytes: float
    bags: float
    lookups: float
    output_value_bytes: int
    state_bytes_per_row: float
    index_bytes: int = 8


@dataclass(frozen=True, slots=True)
class EmbeddingWork:
    """Additive cost of one shard: bytes at device-memory speed and bytes at cache speed.

    The bytes are already divided by the efficiency of their access pattern. The spreads, standard
    deviations of the logarithm of actual over expected time, are those of the shard alone.
    """

    forward_memory_bytes: float
    forward_cache_bytes: float
    backward_memory_bytes: float
    backward_cache_bytes: float
    forward_spread: float = 0.0
    backward_spread: float = 0.0


@dataclass(frozen=True, slots=True)
class EmbeddingTraffic:
    """The bytes of one shard by purpose, before anything learned and before they become time.

    Attributes:
        row_bytes: One row of weights in whole sectors.
        efficiency: Share of the bandwidth that a gather of such rows reaches.
        hit_rate: Share of row reads that the last-level cache serves.
        unique_rows: Expected different rows among the lookups.
        streamed_bytes: Offsets, indices and pooled outputs of the lookup.
        gathered_bytes: Rows read by the lookup, over `efficiency`.
        sort_bytes: Sorting the (row, bag) pairs, once.
        gradient_bytes: Gradients read by the backward pass, over the efficiency of their width.
        gradient_hit_rate: Share of those that the cache serves.
        state_row_bytes: Optimizer state of one row in whole sectors.
    """

    row_bytes: float
    efficiency: float
    hit_rate: float
    unique_rows: float
    streamed_bytes: float
    gathered_bytes: float
    sort_bytes: float
    gradient_bytes: float
    gradient_hit_rate: float
    state_row_bytes: float

    @property
    def stream_memory_bytes(self) -> float:
        """Streams of the lookup at device-memory speed."""
        return self.streamed_bytes / _GATHER_EFFICIENCY

    @property
    def sort_memory_bytes(self) -> float:
        """The sort at device-memory speed."""
        return self.sort_bytes / _GATHER_EFFICIENCY

    @property
    def gradient_memory_bytes(self) -> float:
        """Gradient reads that miss the cache, at device-memory speed."""
        return (1.0 - self.gradient_hit_rate) * self.gradient_bytes

    @property
    def update_memory_bytes(self) -> float:
        """Each different row and its state, read and written, at device-memory speed."""
        return 2.0 * self.unique_rows * (self.row_bytes / self.efficiency + self.state_row_bytes)


def embedding_work(
    device: DeviceSpec,
    shape: EmbeddingShape,
    indices: IndexDistribution,
    spread: float = HEURISTIC_SPREAD,
    implementation: str = "",
) -> EmbeddingWork:
    """Returns the bytes that lookup and update of one shard of a table move.

    Args:
        device: The device; on a GPU its cache size and warp count decide the hit rate.
        shape: What is looked up.
        indices: How rows are drawn.
        spread: Of the kernels on a GPU without a calibration.
        implementation: Library whose kernels a CPU uses; those of torch where its own were not
            measured.
    """
    if shape.bags <= 0 or shape.lookups <= 0:
        return EmbeddingWork(0.0, 0.0, 0.0, 0.0)
    if device.kind == "cpu":
        return _framework_work(device, shape, indices, implementation)
    traffic = embedding_traffic(device, shape, indices)
    forward_memory = (
        traffic.stream_memory_bytes + (1.0 - traffic.hit_rate) * traffic.gathered_bytes
    )
    backward_memory = traffic.sort_memory_bytes + traffic.gradient_memory_bytes
    backward_memory += traffic.update_memory_bytes
    forward, backward = learned_ratios(device, shape, traffic, spread)
    return EmbeddingWork(
        forward_memory_bytes=forward[0] * forward_memory,
        forward_cache_bytes=forward[0] * traffic.hit_rate * traffic.gathered_bytes,
        backward_memory_bytes=backward[0] * backward_memory,
        backward_cache_bytes=backward[0] * traffic.gradient_hit_rate * traffic.gradient_bytes,
        forward_spread=forward[1],
        backward_spread=backward[1],
    )


def _framework_work(
    device: DeviceSpec, shape: EmbeddingShape, indices: IndexDistribution, implementation: str
) -> EmbeddingWork:
    """As `embedding_work`, by the operators of a framework on a CPU."""
    unique_rows = _unique_rows(shape, indices)
    sizes = embedding_sizes(shape, unique_rows)
    forward, forward_spread = _learned(
        device, "embedding_forward", sizes, HEURISTIC_SPREAD, implementation
    )
    backward, backward_spread = _learned(
        device, "embedding_backward", sizes, HEURISTIC_SPREAD, implementation
    )
    return EmbeddingWork(
        forward_memory_bytes=forward * cpu_lookup_bytes(shape),
        forward_cache_bytes=0.0,
        backward_memory_bytes=backward * cpu_update_bytes(shape, unique_rows),
        backward_cache_bytes=0.0,
        forward_spread=forward_spread,
        backward_spread=backward_spread,
    )


def _unique_rows(shape: EmbeddingShape, indices: IndexDistribution) -> float:
    expected = indices.expected_unique_rows(shape.rows, shape.lookups)
    return min(expected, shape.lookups, shape.rows)


def embedding_traffic(
    device: DeviceSpec, shape: EmbeddingShape, indices: IndexDistribution
) -> EmbeddingTraffic:
    """Returns the bytes of one shard by purpose; there must be lookups.

    Args:
        device: The device; its cache size and warp count decide the hit rates.
        shape: What is looked up.
        indices: How rows are drawn.
    """
    row_bytes = whole_sectors(shape.dim * shape.value_bytes)
    efficiency = _gather_efficiency(row_bytes)
    cache_rows = _cache_rows(device, shape.bags, row_bytes)
    hit_rate = indices.hit_rate(shape.rows, shape.lookups, cache_rows)
    unique_rows = _unique_rows(shape, indices)

    output_bytes = shape.bags * whole_sectors(shape.dim * shape.output_value_bytes)
    index_bytes = float(shape.index_bytes) * shape.lookups
    streamed_bytes = shape.bags * _BAG_HEADER_BYTES + index_bytes + output_bytes
    gathered_bytes = shape.lookups * row_bytes / efficiency

    # Backward: sort (row, bag) pairs, read the bag's gradient once a lookup, update each row once.
    passes = math.ceil(max(1.0, math.log2(max(2, shape.rows))) / _SORT_BITS_PER_PASS)
    # Each pass reads and writes both.
    pass_bytes = 2 * (shape.index_bytes + _SORT_VALUE_BYTES)
    sort_bytes = shape.lookups * pass_bytes * passes
    gradient_row_bytes = whole_sectors(shape.dim * shape.output_value_bytes)
    # They have a type of their own, and with it another width than the rows.
    gradient_reads = shape.lookups * gradient_row_bytes / _gather_efficiency(gradient_row_bytes)
    gradient_cached = _repeat_hit_rate(device, shape.bags * gradient_row_bytes, shape)
    return EmbeddingTraffic(
        row_bytes=row_bytes,
        efficiency=efficiency,
        hit_rate=hit_rate,
        unique_rows=unique_rows,
        streamed_bytes=streamed_bytes,
        gathered_bytes=gathered_bytes,
        sort_bytes=sort_bytes,
        gradient_bytes=gradient_reads,
        gradient_hit_rate=gradient_cached,
        state_row_bytes=_state_sectors(shape),
    )


def _gather_efficiency(row_bytes: float) -> float:
    """Returns the share of the bandwidth that a gather of rows reaches."""
    slots_bytes = max(row_bytes, _NARROWEST_ROW_BYTES) + _HALF_EFFICIENCY_ROW_BYTES
    return _GATHER_EFFICIENCY * row_bytes / slots_bytes


def learned_ratios(
    device: DeviceSpec, shape: EmbeddingShape, traffic: EmbeddingTraffic, spread: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns factor and spread of a shard's lookup, and of its update, as far as measured.

    Args:
        device: The device.
        shape: What is looked up.
        traffic: Its bytes.
        spread: Where the device has no calibration.
    """
    sizes = embedding_sizes(shape, traffic.unique_rows)
    return _learned(device, "embedding_forward", sizes, spread), _learned(
        device, "embedding_backward", sizes, spread
    )


def embedding_sizes(shape: EmbeddingShape, unique_rows: float) -> dict[str, float]:
    """Returns the sizes of one shard that a calibration looks at.

    Args:
        shape: What is looked up.
        unique_rows: Expected number of different rows among the lookups; it stands for the index
            distribution, whatever its kind.
    """
    return {
        "rows": float(shape.rows),
        "row_bytes": float(shape.dim * shape.value_bytes),
        "bags": shape.bags,
        "lookups": shape.lookups,
        "unique_rows": unique_rows,
    }


def embedding_time_s(
    device: DeviceSpec, memory_bytes: ArrayLike, cache_bytes: ArrayLike, launches: float = 1
) -> NDArray[np.float64]:
    """Returns the duration of a fused embedding kernel over any number of shards.

    Device memory and cache work at the same time, so the slower of the two decides.

    Args:
        device: The device.
        memory_bytes: Sum of the shards' bytes at device-memory speed, any shape.
        cache_bytes: Sum of the shards' bytes at cache speed, same shape.
        launches: Shortest kernels that take as long as the operator's take for next to nothing.

    Returns:
        Seconds, in the same shape; zero where there is no work.
    """
    memory = np.asarray(memory_bytes, dtype=np.float64)
    cache = np.asarray(cache_bytes, dtype=np.float64)
    busy_s = np.maximum(
        memory / device.memory_bandwidth_bytes_per_s, cache / device.l2_bandwidth_bytes_per_s
    )
    return np.where(memory + cache > 0, launches * device.kernel_floor_s + busy_s, 0.0)


def _learned(
    device: DeviceSpec,
    op: str,
    sizes: Mapping[str, float],
    spread: float,
    implementation: str = "",
) -> tuple[float, float]:
    """Factor on the busy time of one shard, and the spread of what comes out."""
    calibration = device.calibration(op, implementation=implementation) or device.calibration(op)
    if calibration is None:
        return 1.0, spread
    ratio = calibration.ratio({name: np.array([sizes[name]]) for name in sizes})
    return float(ratio.factor[0]), float(ratio.spread[0])


def whole_sectors(size_bytes: float) -> float:
    """Returns the bytes of the memory transactions that `size_bytes` take."""
    return math.ceil(size_bytes / _SECTOR_BYTES) * _SECTOR_BYTES


def _state_sectors(shape: EmbeddingShape) -> float:
    return whole_sectors(shape.state_bytes_per_row) if shape.state_bytes_per_row else 0.0


def _cache_rows(device: DeviceSpec, bags: float, row_bytes: float) -> float:
    """Rows of one table that the cache holds while the table is being processed.

    Warps are issued table by table, so the tables alive at once are the resident warps over the
    bags of one table; they split the cache (HiPC'22).
    """
    resident_warps = device.compute_units * device.resident_warps_per_unit
    live_tables = max(1.0, resident_warps / bags)
    return _CACHE_SHARE * device.l2_bytes / live_tables / row_bytes


def _repeat_hit_rate(device: DeviceSpec, gradient_bytes: float, shape: EmbeddingShape) -> float:
    """Share of gradient reads that find the bag's gradient in the cache.

    The first read of a bag misses; a repeated one hits when the gradients of all bags fit.
    """
    repeated = max(0.0, 1.0 - shape.bags / shape.lookups)
    return repeated * min(1.0, _CACHE_SHARE * device.l2_bytes / gradient_bytes)
