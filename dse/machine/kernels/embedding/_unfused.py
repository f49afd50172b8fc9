"""Lookups and updates by framework operators instead of fused kernels.

A framework without fused embedding kernels looks rows up, sums them, and carries gradients as a
list of rows with their numbers. Whole rows are then read and written several times for each
lookup, numbers are sorted or united to add up the gradients of one row, and the sum over a popular
row's gradients is serial. The work comes on top of reading rows once and of one update a distinct
row, as additive bytes at device-memory speed, so that shards still add up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.machine.kernels._memory import HEURISTIC_SPREAD
from dse.machine.kernels.embedding._fused import (
    LOOKUP_LAUNCHES,
    UPDATE_LAUNCHES,
    EmbeddingWork,
    embedding_time_s,
    embedding_traffic,
    embedding_work,
    whole_sectors,
)

if TYPE_CHECKING:
    from dse.indices import IndexDistribution
    from dse.machine import DeviceSpec
    from dse.machine.kernels.embedding._fused import EmbeddingShape

#: Share of the peak bandwidth at which rows and numbers are streamed.
_STREAM_EFFICIENCY = 0.8

#: Bytes of a value while gradients are added up.
_GRADIENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class EmbeddingKernels:
    """What a program does around lookups and updates besides what fused kernels do.

    The defaults are those of fused kernels (FBGEMM, HugeCTR): one kernel over all tables, sums on
    chip, one update a distinct row.

    Attributes:
        fused: Gradients of a row are summed by the kernel that updates it; otherwise a gradient
            row is written for each lookup.
        forward_row_passes: Reads or writes of a four-byte row for each lookup, forward.
        backward_row_passes: The same in the backward pass, where the update is not fused.
        index_bytes: Bytes moved for each lookup to order or unite row numbers.
        index_unit_s: Time of one compute unit for each lookup to order or unite row numbers, where
            instructions and not memory take the time.
        hot_row_s: Time for each draw of the most popular row of the table.
        kernels_per_feature: Small kernels for each feature, both passes together, a third of them
            forward; each takes at least the device's shortest kernel time.
        one_table_at_a_time: Kernels are those of one table, one after the other: each has launches
            of its own, and the cache work of one does not hide behind the memory work of another.
        output_row_passes: Reads or writes of a four-byte pooled row, forward: sums of the tables
            of a rank brought side by side.
        joined_index_bytes: Bytes moved for each lookup to bring what all ranks sent into the order
            of tables, forward.
        routed_index_bytes: Bytes moved for each lookup of a table whose rows are cut, to sort
            indices by the rank that holds the row. Every rank does that for its own samples.
        update_floor_kernels: Shortest kernels of a GPU that take as long as the many small kernels
            of an update: sort, segments, their offsets.
        weight_gradients: Whether the backward pass of weighted lookups gathers the rows once
            more, for the gradients of the weights.
        spread: Standard deviation of the logarithm of actual over expected time of lookups and
            updates on a GPU without a calibration.
        implementation: Library of the kernels, as calibrations of CPUs name it; empty for torch.
    """

    fused: bool = True
    forward_row_passes: float = 0.0
    backward_row_passes: float = 0.0
    index_bytes: float = 0.0
    index_unit_s: float = 0.0
    hot_row_s: float = 0.0
    kernels_per_feature: float = 0.0
    one_table_at_a_time: bool = False
    output_row_passes: float = 0.0
    joined_index_bytes: float = 0.0
    routed_index_bytes: float = 0.0
    update_floor_kernels: float = float(UPDATE_LAUNCHES)
    weight_gradients: bool = False
    spread: float = HEURISTIC_SPREAD
    implementation: str = ""

    def update_launches(self, device: DeviceSpec) -> float:
        """Returns the shortest kernels that take as long as an update of next to nothing."""
        return self.update_floor_kernels if device.kind == "gpu" else UPDATE_LAUNCHES


#: FBGEMM's table-batched kernels. Index bytes and shortest kernels are fitted on times of updates
#: with rows in host memory on an H100, which the reading of rows does not hide; the spread is that
#: of rows of the same tables that were left out (docs/accuracy.md).
FBGEMM = EmbeddingKernels(
    index_bytes=410.0,
    update_floor_kernels=90.0,
    weight_gradients=True,
    spread=0.2,
    implementation="fbgemm",
)

#: Share of the kernels for each feature that is in the forward pass.
_FORWARD_SHARE = 1.0 / 3.0


def unfused_embedding_work(
    device: DeviceSpec,
    shape: EmbeddingShape,
    indices: IndexDistribution,
    kernels: EmbeddingKernels,
    features: int = 1,
    *,
    received: bool = True,
    routed_lookups: float = 0.0,
) -> EmbeddingWork:
    """Returns the bytes that lookup and update of one shard of a table move in such a program.

    Args:
        device: The device.
        shape: What is looked up.
        indices: How rows are drawn.
        kernels: What comes on top of the fused minimum.
        features: Pooled vectors a sample of the shard.
        received: Whether the indices come from other ranks.
        routed_lookups: Lookups of a table whose rows are cut that this rank sorts by the rank that
            holds the row.
    """
    work = embedding_work(device, shape, indices, kernels.spread, kernels.implementation)
    if kernels.one_table_at_a_time:
        work = _alone(device, work, kernels.update_launches(device))
    if shape.bags <= 0 or shape.lookups <= 0:
        return work
    bandwidth = device.memory_bandwidth_bytes_per_s
    row_bytes = whole_sectors(shape.dim * _GRADIENT_BYTES) / _STREAM_EFFICIENCY
    forward_bytes = shape.lookups * kernels.forward_row_passes * row_bytes
    floors_bytes = features * kernels.kernels_per_feature * device.kernel_floor_s * bandwidth
    forward_bytes += _FORWARD_SHARE * floors_bytes
    forward_bytes += shape.bags * kernels.output_row_passes * row_bytes
    index_bytes = kernels.joined_index_bytes if received else 0.0
    forward_bytes += shape.lookups * index_bytes / _STREAM_EFFICIENCY
    forward_bytes += routed_lookups * kernels.routed_index_bytes / _STREAM_EFFICIENCY
    # What was measured on a CPU orders its indices, too.
    measured = device.kind == "cpu" and _measures(device, kernels.implementation)
    backward_bytes = 0.0 if measured else index_order_bytes(device, shape, kernels)
    backward_bytes += (1.0 - _FORWARD_SHARE) * floors_bytes
    hot_draws = shape.lookups * indices.head_share(shape.rows, 1.0)
    backward_bytes += hot_draws * kernels.hot_row_s * bandwidth
    if kernels.fused:
        return replace(
            work,
            forward_memory_bytes=work.forward_memory_bytes + forward_bytes,
            backward_memory_bytes=work.backward_memory_bytes + backward_bytes,
        )
    backward_bytes += embedding_traffic(device, shape, indices).update_memory_bytes
    backward_bytes += shape.lookups * kernels.backward_row_passes * row_bytes
    return replace(
        work,
        forward_memory_bytes=work.forward_memory_bytes + forward_bytes,
        backward_memory_bytes=backward_bytes,
        backward_cache_bytes=0.0,
    )


def index_order_bytes(
    device: DeviceSpec, shape: EmbeddingShape, kernels: EmbeddingKernels
) -> float:
    """Returns the bytes at device-memory speed that ordering the indices takes besides."""
    instructions_s = kernels.index_unit_s / device.compute_units
    moved = kernels.index_bytes / _STREAM_EFFICIENCY
    return shape.lookups * (moved + instructions_s * device.memory_bandwidth_bytes_per_s)


def _measures(device: DeviceSpec, implementation: str) -> bool:
    """Returns whether a device has its own calibration of a library's updates."""
    found = device.calibration("embedding_backward", implementation=implementation)
    return bool(implementation) and found is not None


def _alone(device: DeviceSpec, work: EmbeddingWork, update_launches: float) -> EmbeddingWork:
    """Work of separate kernels, as bytes that take as long at device-memory speed."""
    bandwidth = device.memory_bandwidth_bytes_per_s
    forward_s = embedding_time_s(
        device, work.forward_memory_bytes, work.forward_cache_bytes, LOOKUP_LAUNCHES
    )
    backward_s = embedding_time_s(
        device, work.backward_memory_bytes, work.backward_cache_bytes, update_launches
    )
    return replace(
        work,
        forward_memory_bytes=float(forward_s) * bandwidth,
        forward_cache_bytes=0.0,
        backward_memory_bytes=float(backward_s) * bandwidth,
        backward_cache_bytes=0.0,
    )
