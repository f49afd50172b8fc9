"""Features that one shard of a table adds to its rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.machine.kernels import (
    EmbeddingShape,
    HostRowsWork,
    cached_row_count,
    host_rows_work,
    unfused_embedding_work,
)
from dse.sharding import cold_bag_share, cold_part, hot_part, shard_storage
from dse.workload.dlrm.scoring._features import (
    HOST_STORED_COLUMN,
    INDEX_BYTES,
    LENGTH_BYTES,
    WIDE_FEATURE_COUNT,
    ExchangeGroup,
    GroupFeature,
    RankFeature,
    group_column,
    link_column,
    rank_column,
)

if TYPE_CHECKING:
    from dse.machine import DeviceSpec
    from dse.machine.kernels import EmbeddingKernels
    from dse.model import EmbeddingTable, Optimizer
    from dse.workload.dlrm._problem import DlrmProblem

#: Reads and writes of a pooled value of a bag with hot and other rows: what was received is read
#: and added to the sum; backward, gradients of such bags are brought together to be sent.
_MERGE_PASSES = 3.0
_SPLIT_PASSES = 2.0

#: Bytes of a pooled value on the device.
_POOLED_BYTES = 4.0

#: Share of the peak bandwidth at which values and indices are streamed.
_STREAM_EFFICIENCY = 0.8

#: Shards whose features are kept; bounds memory.
_SHARDS_KEPT = 20_000

#: What they depend on that is kept.
_CONTEXTS_KEPT = 128


@dataclass(frozen=True, slots=True, eq=False)
class ShardContext:
    """What shards of tables depend on besides the table and how it is cut.

    Equal only to itself, so that shards are found fast; :func:`shard_context` returns the same one
    for the same.

    Attributes:
        device: Where they are.
        optimizer: Their update rule.
        kernels: What happens around lookups and updates.
        samples: Samples that are looked up.
        tables: The model's tables.
    """

    device: DeviceSpec
    optimizer: Optimizer
    kernels: EmbeddingKernels
    samples: int
    tables: tuple[EmbeddingTable, ...]


@lru_cache(maxsize=_CONTEXTS_KEPT)
def shard_context(
    device: DeviceSpec,
    optimizer: Optimizer,
    kernels: EmbeddingKernels,
    samples: int,
    tables: tuple[EmbeddingTable, ...],
) -> ShardContext:
    """Returns what shards depend on; for the arguments see :class:`ShardContext`."""
    return ShardContext(device, optimizer, kernels, samples, tables)


def shard_contexts(problem: DlrmProblem) -> tuple[ShardContext, ShardContext]:
    """Returns the contexts of shards for the global batch, and of replicated ones for a rank's."""
    model = problem.model
    on_all, on_one = (
        shard_context(
            problem.cluster.device,
            model.sparse_optimizer,
            problem.software.embedding,
            samples,
            model.tables,
        )
        for samples in (problem.global_batch_size, problem.local_batch_size)
    )
    return on_all, on_one


@lru_cache(maxsize=_SHARDS_KEPT)
def shard_features(
    context: ShardContext,
    table_index: int,
    group: ExchangeGroup,
    columns: int,
    row_divisor: int,
    cached_share: float | None,
    hot_rows: int = 0,
) -> tuple[tuple[float, ...], tuple[float, float]]:
    """Returns the features of one shard, and the spreads of its lookup and update.

    Many problems have the same shards. Lookups are taken to spread evenly over row blocks (hashed
    ids).

    Args:
        context: What it depends on besides.
        table_index: Number of its table.
        group: Exchange group that it is in.
        columns: Its columns.
        row_divisor: Parts that the rows, and with them the lookups, are spread over.
        cached_share: Of rows in host memory, the part in a cache on the device; None for a table
            on the device.
        hot_rows: The table's most popular rows, of which every rank keeps a copy. In the group of
            replicated tables the shard is one such copy, in others it is a shard of the other
            rows.

    Returns:
        `WIDE_FEATURE_COUNT` features, and standard deviations of the logarithm of actual over
        expected time, forward and backward.
    """
    device, optimizer, samples = context.device, context.optimizer, context.samples
    whole = context.tables[table_index]
    replicated = group is ExchangeGroup.REPLICATED
    table = hot_part(whole, hot_rows) if replicated and hot_rows else cold_part(whole, hot_rows)
    # Bags whose lookups are all hot are not exchanged.
    cold_bags = cold_bag_share(whole, hot_rows)
    rows = -(-table.rows // row_divisor)
    bags = float(samples * table.feature_count)
    lookups = samples * table.lookups_per_sample / row_divisor
    state_bytes_per_row = 4.0 * optimizer.state_values_per_row(columns)
    shape = EmbeddingShape(
        rows=rows,
        dim=columns,
        value_bytes=table.data_type.row_bytes(columns) / columns,
        bags=bags,
        lookups=lookups,
        output_value_bytes=4,
        state_bytes_per_row=0.0 if replicated else state_bytes_per_row,
    )
    features = [0.0] * WIDE_FEATURE_COUNT
    if cached_share is None:
        work = unfused_embedding_work(
            device,
            shape,
            table.indices,
            context.kernels,
            table.feature_count,
            received=not replicated,
            cut_rows=row_divisor > 1,
        )
    else:
        host_work = _host_rows(device, optimizer, table, shape, cached_share)
        work = host_work.device
        features[link_column(group, 0)] = host_work.forward_link_bytes
        features[link_column(group, 1)] = host_work.backward_link_bytes
    per_group = {
        GroupFeature.FORWARD_MEMORY: work.forward_memory_bytes,
        GroupFeature.FORWARD_CACHE: work.forward_cache_bytes,
        GroupFeature.BACKWARD_MEMORY: work.backward_memory_bytes,
        GroupFeature.BACKWARD_CACHE: work.backward_cache_bytes,
        GroupFeature.EXCHANGED: float(
            rows * columns if replicated else columns * table.feature_count * cold_bags
        ),
    }
    if replicated and hot_rows:
        merged_bytes = _POOLED_BYTES * bags * cold_bags * columns / _STREAM_EFFICIENCY
        # Indices are read once, and written to the list of the one part or the other.
        split_bytes = 2.0 * INDEX_BYTES * samples * whole.lookups_per_sample / _STREAM_EFFICIENCY
        per_group[GroupFeature.FORWARD_MEMORY] += _MERGE_PASSES * merged_bytes + split_bytes
        per_group[GroupFeature.BACKWARD_MEMORY] += _SPLIT_PASSES * merged_bytes
    for feature, value in per_group.items():
        features[group_column(group, feature)] = value
    storage = shard_storage(table, optimizer, rows, columns, cached_share)
    # A replicated table keeps a dense gradient as large as itself, next to its optimizer state.
    gradient_bytes = 4.0 * rows * columns if replicated else 0.0
    features[rank_column(RankFeature.WEIGHTS)] = storage.device_weights_bytes
    features[rank_column(RankFeature.STATE)] = storage.device_state_bytes + gradient_bytes
    features[HOST_STORED_COLUMN] = storage.host_bytes
    if not replicated:
        features[rank_column(RankFeature.INPUT)] = INDEX_BYTES * lookups + LENGTH_BYTES * bags
        features[rank_column(RankFeature.POOLED_OUTPUT)] = bags * columns * cold_bags
    return tuple(features), (work.forward_spread, work.backward_spread)


def _host_rows(
    device: DeviceSpec,
    optimizer: Optimizer,
    table: EmbeddingTable,
    shape: EmbeddingShape,
    cached_share: float,
) -> HostRowsWork:
    """Work of a shard in host memory."""
    return host_rows_work(
        device,
        shape,
        table.indices,
        cached_rows=cached_row_count(shape.rows, cached_share),
        state_on_host=shape.state_bytes_per_row > 0 and not optimizer.keeps_state_by_row,
    )
