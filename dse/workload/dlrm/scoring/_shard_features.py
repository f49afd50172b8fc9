"""Features that one shard of a table adds to its rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.machine.kernels import (
    EmbeddingShape,
    HostRowsWork,
    cached_row_count,
    embedding_time_s,
    embedding_work,
    host_rows_work,
    unfused_embedding_work,
)
from dse.sharding import bag_shares, cold_part, hot_part, shard_storage
from dse.workload.dlrm.program._pipelines import TrainPipeline
from dse.workload.dlrm.scoring._bag_lengths import lookup_factors
from dse.workload.dlrm.scoring._features import (
    HOST_PREFETCHED_COLUMN,
    HOST_STORED_COLUMN,
    LENGTH_BYTES,
    SYNCED_COLUMN,
    WIDE_FEATURE_COUNT,
    ExchangeGroup,
    GroupFeature,
    RankFeature,
    group_column,
    link_column,
    rank_column,
    waiting_column,
)

if TYPE_CHECKING:
    from dse.indices import IndexDistribution, RowBlock
    from dse.machine import DeviceSpec, HostLinkSpec
    from dse.machine.kernels import EmbeddingKernels
    from dse.model import EmbeddingTable, Optimizer
    from dse.workload.dlrm._problem import DlrmProblem, WeightSync

#: Reads and writes of a pooled value of a bag with rows that are not hot: what was received is
#: read and written, and where the bag has a hot row too, added to its sum; gradients of such bags
#: are brought together to be sent.
_MERGE_PASSES = 2.0
_ADD_PASSES = 1.0
_SPLIT_PASSES = 2.0

#: Factor on kernels that multiply each row by a weight, as TorchRec's planner has it
#: (`WEIGHTED_KERNEL_MULTIPLIER`).
_WEIGHTED_SLOWDOWN = 1.1

#: Bytes of the gradient of a lookup's weight.
_WEIGHT_GRADIENT_BYTES = 4.0

#: Share of the peak bandwidth at which values and indices are streamed.
_STREAM_EFFICIENCY = 0.8

#: Shards whose features are kept, of about a kilobyte each; bounds memory.
_SHARDS_KEPT = 50_000

#: What they depend on that is kept.
_CONTEXTS_KEPT = 128


@dataclass(frozen=True, slots=True, eq=False)
class ShardContext:
    """What shards of tables depend on besides the table and how it is cut.

    Equal only to itself, so that shards are found fast; :func:`shard_context` returns the same one
    for the same.

    Attributes:
        device: Where they are.
        host_link: Its path to rows in host memory.
        optimizer: Their update rule.
        kernels: What happens around lookups and updates.
        samples: Samples that are looked up.
        tables: The model's tables.
        sync: How replicas are kept alike; None without them.
        prefetches_rows: Whether rows are fetched into caches ahead of their lookups.
        lookup_factors: Lookups of each table on the slowest rank, relative to the mean.
    """

    device: DeviceSpec
    host_link: HostLinkSpec
    optimizer: Optimizer
    kernels: EmbeddingKernels
    samples: int
    tables: tuple[EmbeddingTable, ...]
    sync: WeightSync | None = None
    prefetches_rows: bool = False
    lookup_factors: tuple[float, ...] = ()


@lru_cache(maxsize=_CONTEXTS_KEPT)
def shard_context(
    device: DeviceSpec,
    host_link: HostLinkSpec,
    optimizer: Optimizer,
    kernels: EmbeddingKernels,
    samples: int,
    tables: tuple[EmbeddingTable, ...],
    sync: WeightSync | None = None,
    prefetches_rows: bool = False,
    lookup_factors: tuple[float, ...] = (),
) -> ShardContext:
    """Returns what shards depend on; for the arguments see :class:`ShardContext`."""
    return ShardContext(
        device,
        host_link,
        optimizer,
        kernels,
        samples,
        tables,
        sync,
        prefetches_rows,
        lookup_factors,
    )


def shard_contexts(problem: DlrmProblem) -> tuple[ShardContext, ShardContext]:
    """Returns the contexts of shards for the global batch, and of replicated ones for a rank's."""
    # Bytes do not depend on how often they are averaged.
    sync = None if problem.sync is None else replace(problem.sync, interval=1)
    model = problem.model
    factors = lookup_factors(model.tables, problem.global_batch_size, problem.cluster.world_size)
    on_all, on_one = (
        shard_context(
            problem.cluster.device,
            problem.cluster.host_link,
            model.sparse_optimizer,
            problem.software.embedding,
            samples,
            model.tables,
            sync,
            problem.software.pipeline is TrainPipeline.PREFETCH,
            factors,
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
    block: RowBlock | None,
    row_divisor: int,
    cached_share: float | None,
    hot_rows: int = 0,
) -> tuple[tuple[float, ...], tuple[float, float]]:
    """Returns the features of one shard, and the spreads of its lookup and update.

    Many problems have the same shards.

    Args:
        context: What it depends on besides.
        table_index: Number of its table.
        group: Exchange group that it is in.
        columns: Its columns.
        block: Its rows and what is looked up in them; None for all rows of the table.
        row_divisor: Blocks that the rows are cut into.
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
    shares = bag_shares(whole, hot_rows)
    rows, lookup_share, indices = table.rows, 1.0, table.indices
    if block is not None:
        rows, lookup_share, indices = block.rows, block.lookup_share, block.indices
    lengths = float(samples * table.bag_count)
    lookups = samples * table.lookups_per_sample * lookup_share
    if context.lookup_factors:
        lookups *= context.lookup_factors[table_index]
    # Without pooling every lookup is a bag of its own, and what the shard looks up it sends.
    bags = lengths if table.pooled else lookups
    vectors = table.bag_count if table.pooled else lookups / samples
    # Bags with a row of this part, and those with other rows than hot ones.
    worked, cold = 1.0, 1.0
    if table.pooled:
        worked, cold = shares.hot if replicated and hot_rows else shares.cold, shares.cold
    state_bytes_per_row = 4.0 * optimizer.state_values_per_row(columns)
    shape = EmbeddingShape(
        rows=rows,
        dim=columns,
        value_bytes=table.data_type.row_bytes(columns) / columns,
        bags=bags * worked,
        lookups=lookups,
        output_value_bytes=table.output_data_type.value_bytes,
        state_bytes_per_row=0.0 if replicated else state_bytes_per_row,
        index_bytes=table.index_type.value_bytes,
    )
    # Every rank sorts the indices of its own samples by the rank that holds the row.
    routed = samples * table.lookups_per_sample / row_divisor if row_divisor > 1 else 0.0
    features = [0.0] * WIDE_FEATURE_COUNT
    gathered_link_bytes = 0.0
    slowdown = _WEIGHTED_SLOWDOWN if table.weighted else 1.0
    if cached_share is None:
        work = unfused_embedding_work(
            device,
            shape,
            indices,
            context.kernels,
            table.feature_count,
            received=not replicated,
            routed_lookups=routed,
        )
    else:
        host_work = _host_rows(context, indices, shape, cached_share, slowdown)
        # Before the link hides a part of it.
        work, slowdown = host_work.device, 1.0
        prefetched_bytes = host_work.fetched_link_bytes if context.prefetches_rows else 0.0
        features[link_column(group, 0)] = host_work.forward_link_bytes - prefetched_bytes
        features[HOST_PREFETCHED_COLUMN] = prefetched_bytes
        features[link_column(group, 1)] = host_work.backward_link_bytes
        gathered_link_bytes = host_work.forward_link_bytes - host_work.fetched_link_bytes
        features[waiting_column(group, 0)] = host_work.forward_waiting_bytes
        features[waiting_column(group, 1)] = host_work.backward_waiting_bytes
    per_group = {
        GroupFeature.FORWARD_MEMORY: slowdown * work.forward_memory_bytes,
        GroupFeature.FORWARD_CACHE: slowdown * work.forward_cache_bytes,
        GroupFeature.BACKWARD_MEMORY: slowdown * work.backward_memory_bytes,
        GroupFeature.BACKWARD_CACHE: slowdown * work.backward_cache_bytes,
        GroupFeature.EXCHANGED: float(rows * columns if replicated else columns * vectors * cold),
    }
    if table.weighted and context.kernels.weight_gradients and lookups > 0:
        # A gradient row is read for each bag, as the lookup wrote one, and one value is written a
        # lookup. Rows that no cache took in come from the host once more.
        if cached_share is None or cached_share > 0:
            per_group[GroupFeature.BACKWARD_MEMORY] += _gathered_bytes(context, indices, shape)
        features[link_column(group, 1)] += gathered_link_bytes
    if replicated and hot_rows:
        bag_bytes = table.output_data_type.value_bytes * columns / _STREAM_EFFICIENCY
        received, added = bags * shares.cold, bags * shares.both
        if not table.pooled:
            received, added = max(0.0, samples * whole.lookups_per_sample - lookups), 0.0
        # Indices are read once, and written to the list of the one part or the other.
        split_bytes = 2.0 * table.lookup_bytes * samples * whole.lookups_per_sample
        split_bytes /= _STREAM_EFFICIENCY
        merged_bytes = bag_bytes * (_MERGE_PASSES * received + _ADD_PASSES * added)
        per_group[GroupFeature.FORWARD_MEMORY] += merged_bytes + split_bytes
        per_group[GroupFeature.BACKWARD_MEMORY] += _SPLIT_PASSES * bag_bytes * received
    for feature, value in per_group.items():
        features[group_column(group, feature)] = value
    storage = shard_storage(table, optimizer, rows, columns, cached_share)
    # A replicated table keeps a dense gradient as large as itself, next to its optimizer state.
    gradient_bytes = 4.0 * rows * columns if replicated else 0.0
    features[rank_column(RankFeature.WEIGHTS)] = storage.device_weights_bytes
    features[rank_column(RankFeature.STATE)] = (
        storage.device_state_bytes + storage.cache_state_bytes + gradient_bytes
    )
    features[HOST_STORED_COLUMN] = storage.host_bytes
    if not replicated:
        if context.sync is not None:
            # What is averaged is the table itself, not the copies of its rows in a cache.
            own = shard_storage(table, optimizer, rows, columns)
            state_bytes = own.device_state_bytes if context.sync.optimizer_state else 0.0
            features[SYNCED_COLUMN] = own.device_weights_bytes + state_bytes
        input_bytes = table.lookup_bytes * lookups + LENGTH_BYTES * lengths
        features[rank_column(RankFeature.INPUT)] = input_bytes
        features[rank_column(RankFeature.POOLED_OUTPUT)] = bags * columns * cold
    return tuple(features), (work.forward_spread, work.backward_spread)


def _gathered_bytes(
    context: ShardContext, indices: IndexDistribution, shape: EmbeddingShape
) -> float:
    """Bytes that take as long as a kernel of its own for the gradients of a shard's weights."""
    device, library = context.device, context.kernels.implementation
    lookup = embedding_work(device, shape, indices, implementation=library)
    written_bytes = _WEIGHT_GRADIENT_BYTES * shape.lookups / _STREAM_EFFICIENCY
    gathered_s = embedding_time_s(
        device, lookup.forward_memory_bytes + written_bytes, lookup.forward_cache_bytes, 0
    )
    return float(gathered_s) * device.memory_bandwidth_bytes_per_s


def _host_rows(
    context: ShardContext,
    indices: IndexDistribution,
    shape: EmbeddingShape,
    cached_share: float,
    slowdown: float,
) -> HostRowsWork:
    """Work of a shard in host memory."""
    return host_rows_work(
        context.device,
        context.host_link,
        shape,
        indices,
        cached_rows=cached_row_count(shape.rows, cached_share),
        host_state_bytes_per_row=4.0 * shape.dim * context.optimizer.state_values_by_column,
        # One call fills the caches of all tables; that each has an equal part is an assumption.
        call_share=1.0 / len(context.tables),
        slowdown=slowdown,
    )
