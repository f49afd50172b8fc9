"""Features that one shard of a table adds to its rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

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


class ShardKey(NamedTuple):
    """Identifies a shard, wherever it is placed.

    Attributes:
        table: Number of its table.
        group: Exchange group that it is in.
        columns: Its columns.
        block: Its rows and what is looked up in them; None for all rows of the table.
        row_blocks: Blocks that the rows are cut into.
        cached_share: Of rows in host memory, the part in a cache on the device; None for a table
            on the device.
        hot_rows: The table's most popular rows, of which every rank keeps a copy. In the group of
            replicated tables the shard is one such copy, in others it is a shard of the other
            rows.
    """

    table: int
    group: ExchangeGroup
    columns: int
    block: RowBlock | None = None
    row_blocks: int = 1
    cached_share: float | None = None
    hot_rows: int = 0

    @property
    def is_replicated(self) -> bool:
        """Whether every rank has a copy."""
        return self.group is ExchangeGroup.REPLICATED

    @property
    def hot_copy(self) -> ShardKey:
        """The copy of its hot rows that every rank has besides."""
        replicated = ExchangeGroup.REPLICATED
        return ShardKey(self.table, replicated, self.columns, hot_rows=self.hot_rows)


@dataclass(frozen=True, slots=True, eq=False)
class ShardContext:
    """What shards of tables depend on besides the table and how it is cut.

    Equal only to itself, so that shards are found fast; :func:`shard_contexts` returns the same
    one for the same.

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
    sync: WeightSync | None
    prefetches_rows: bool
    lookup_factors: tuple[float, ...]


_kept_context = lru_cache(maxsize=_CONTEXTS_KEPT)(ShardContext)


def shard_contexts(problem: DlrmProblem) -> tuple[ShardContext, ShardContext]:
    """Returns the contexts of shards for the global batch, and of replicated ones for a rank's."""
    # Bytes do not depend on how often they are averaged.
    sync = None if problem.sync is None else replace(problem.sync, interval=1)
    model = problem.model
    factors = lookup_factors(model.tables, problem.global_batch_size, problem.cluster.world_size)
    on_all, on_one = (
        _kept_context(
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


class _LookedUp(NamedTuple):
    """What is looked up in a shard, and what leaves it.

    Attributes:
        table: The table without the rows that other parts have.
        indices: How rows of the shard are drawn.
        shape: Its lookups.
        lengths: Lengths of bags that come with the indices.
        bags: Bags of all samples, or lookups where each is a bag of its own.
        sent: Values a sample that it sends.
        cold: Share of the bags with other rows than hot ones; the others are not exchanged.
    """

    table: EmbeddingTable
    indices: IndexDistribution
    shape: EmbeddingShape
    lengths: float
    bags: float
    sent: float
    cold: float

    @staticmethod
    def of(context: ShardContext, shard: ShardKey) -> _LookedUp:
        """Returns what is looked up in a shard."""
        whole, columns = context.tables[shard.table], shard.columns
        replicated = shard.is_replicated
        of_hot_rows = replicated and shard.hot_rows > 0
        table = (hot_part if of_hot_rows else cold_part)(whole, shard.hot_rows)
        rows, lookup_share, indices = table.rows, 1.0, table.indices
        if shard.block is not None:
            block = shard.block
            rows, lookup_share, indices = block.rows, block.lookup_share, block.indices
        lengths = float(context.samples * table.bag_count)
        lookups = context.samples * table.lookups_per_sample * lookup_share
        lookups *= context.lookup_factors[shard.table]
        # Without pooling every lookup is a bag of its own, and what the shard looks up it sends.
        bags, vectors, worked, cold = lookups, lookups / context.samples, 1.0, 1.0
        if table.pooled:
            shares = bag_shares(whole, shard.hot_rows)
            bags, vectors, cold = lengths, table.bag_count, shares.cold
            worked = shares.hot if of_hot_rows else shares.cold
        state_bytes_per_row = 4.0 * context.optimizer.state_values_per_row(columns)
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
        sent = columns * vectors * cold
        return _LookedUp(table, indices, shape, lengths, bags, sent, cold)


@lru_cache(maxsize=_SHARDS_KEPT)
def shard_features(
    context: ShardContext, shard: ShardKey
) -> tuple[tuple[float, ...], tuple[float, float]]:
    """Returns the features of one shard, and the spreads of its lookup and update.

    Many problems have the same shards.

    Args:
        context: What it depends on besides.
        shard: The shard.

    Returns:
        `WIDE_FEATURE_COUNT` features, and standard deviations of the logarithm of actual over
        expected time, forward and backward.
    """
    looked_up, replicated = _LookedUp.of(context, shard), shard.is_replicated
    features = [0.0] * WIDE_FEATURE_COUNT
    spreads = _add_kernels(features, context, shard, looked_up)
    if replicated and shard.hot_rows:
        _add_parting(features, context, shard, looked_up)
    _add_storage(features, context, shard, looked_up)
    exchanged = looked_up.shape.rows * shard.columns if replicated else looked_up.sent
    features[group_column(shard.group, GroupFeature.EXCHANGED)] = float(exchanged)
    if not replicated:
        table, bags = looked_up.table, looked_up.bags
        indices_bytes = table.lookup_bytes * looked_up.shape.lookups
        input_bytes = indices_bytes + LENGTH_BYTES * looked_up.lengths
        features[rank_column(RankFeature.INPUT)] = input_bytes
        features[rank_column(RankFeature.POOLED_OUTPUT)] = bags * shard.columns * looked_up.cold
    return tuple(features), spreads


def _add_kernels(
    features: list[float], context: ShardContext, shard: ShardKey, looked_up: _LookedUp
) -> tuple[float, float]:
    """Adds what lookup and update move, and returns their spreads."""
    table, shape, indices = looked_up.table, looked_up.shape, looked_up.indices
    group, cached_share = shard.group, shard.cached_share
    gathered_link_bytes = 0.0
    slowdown = _WEIGHTED_SLOWDOWN if table.weighted else 1.0
    if cached_share is None:
        routed = 0.0
        if shard.row_blocks > 1:
            # Every rank sorts the indices of its own samples by the rank that holds the row.
            routed = context.samples * table.lookups_per_sample / shard.row_blocks
        work = unfused_embedding_work(
            context.device,
            shape,
            indices,
            context.kernels,
            table.feature_count,
            received=not shard.is_replicated,
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
    for feature, moved_bytes in (
        (GroupFeature.FORWARD_MEMORY, work.forward_memory_bytes),
        (GroupFeature.FORWARD_CACHE, work.forward_cache_bytes),
        (GroupFeature.BACKWARD_MEMORY, work.backward_memory_bytes),
        (GroupFeature.BACKWARD_CACHE, work.backward_cache_bytes),
    ):
        features[group_column(group, feature)] = slowdown * moved_bytes
    if table.weighted and context.kernels.weight_gradients and shape.lookups > 0:
        # A gradient row is read for each bag, as the lookup wrote one, and one value is written a
        # lookup. Rows that no cache took in come from the host once more.
        if cached_share is None or cached_share > 0:
            backward = group_column(group, GroupFeature.BACKWARD_MEMORY)
            features[backward] += _gathered_bytes(context, indices, shape)
        features[link_column(group, 1)] += gathered_link_bytes
    return work.forward_spread, work.backward_spread


def _add_parting(
    features: list[float], context: ShardContext, shard: ShardKey, looked_up: _LookedUp
) -> None:
    """Adds what it takes to part hot rows from others, and to bring their sums together."""
    whole, table, bags = context.tables[shard.table], looked_up.table, looked_up.bags
    if table.pooled:
        shares = bag_shares(whole, shard.hot_rows)
        received, added = bags * shares.cold, bags * shares.both
    else:
        all_lookups = context.samples * whole.lookups_per_sample
        received, added = max(0.0, all_lookups - looked_up.shape.lookups), 0.0
    bag_bytes = table.output_data_type.value_bytes * shard.columns / _STREAM_EFFICIENCY
    # Indices are read once, and written to the list of the one part or the other.
    split_bytes = 2.0 * table.lookup_bytes * context.samples * whole.lookups_per_sample
    split_bytes /= _STREAM_EFFICIENCY
    merged_bytes = bag_bytes * (_MERGE_PASSES * received + _ADD_PASSES * added)
    forward, backward = (
        group_column(shard.group, feature)
        for feature in (GroupFeature.FORWARD_MEMORY, GroupFeature.BACKWARD_MEMORY)
    )
    features[forward] += merged_bytes + split_bytes
    features[backward] += _SPLIT_PASSES * bag_bytes * received


def _add_storage(
    features: list[float], context: ShardContext, shard: ShardKey, looked_up: _LookedUp
) -> None:
    """Adds what is stored, and what replicas average of it."""
    table, rows, columns = looked_up.table, looked_up.shape.rows, shard.columns
    storage = shard_storage(table, context.optimizer, rows, columns, shard.cached_share)
    # A replicated table keeps a dense gradient as large as itself, next to its optimizer state.
    gradient_bytes = 4.0 * rows * columns if shard.is_replicated else 0.0
    features[rank_column(RankFeature.WEIGHTS)] = storage.device_weights_bytes
    features[rank_column(RankFeature.STATE)] = (
        storage.device_state_bytes + storage.cache_state_bytes + gradient_bytes
    )
    features[HOST_STORED_COLUMN] = storage.host_bytes
    if context.sync is not None and not shard.is_replicated:
        # What is averaged is the table itself, not the copies of its rows in a cache.
        own = shard_storage(table, context.optimizer, rows, columns)
        state_bytes = own.device_state_bytes if context.sync.optimizer_state else 0.0
        features[SYNCED_COLUMN] = own.device_weights_bytes + state_bytes


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
