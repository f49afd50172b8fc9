"""Placements of tables as rows of a number matrix, so that thousands of plans score at once.

A plan is a vector of *option* ids, one per table. An option is a concrete placement (type, ranks,
kernel). It expands into entries `(rank, piece class)`; a piece class has a row of additive
features (bytes to look up, to store, to exchange). The features of every rank of every candidate
are then one sparse product: incidence `(candidates × ranks, classes)` times `(classes, features)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.kernels import (
    HOST_ROWS_SPREAD,
    EmbeddingShape,
    HostRowsWork,
    cached_row_count,
    host_rows_work,
    unfused_embedding_work,
)
from dse.prediction._features import (
    FEATURE_COUNT,
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
from dse.sharding import ShardingType, piece_storage, pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.prediction._problem import Problem
    from dse.sharding import ShardingPlan, TablePlan
    from dse.workloads import EmbeddingTable

_GROUP_OF_TYPE = {
    ShardingType.TABLE_WISE: ExchangeGroup.POOLED,
    ShardingType.COLUMN_WISE: ExchangeGroup.POOLED,
    ShardingType.TABLE_COLUMN_WISE: ExchangeGroup.POOLED,
    ShardingType.ROW_WISE: ExchangeGroup.ROW,
    ShardingType.TABLE_ROW_WISE: ExchangeGroup.NODE,
    ShardingType.GRID_SHARD: ExchangeGroup.NODE,
    ShardingType.DATA_PARALLEL: ExchangeGroup.REPLICATED,
}


#: Where the work of a lookup and of its update stands: memory and cache bytes.
_WORK_FEATURES = (
    (GroupFeature.FORWARD_MEMORY, GroupFeature.FORWARD_CACHE),
    (GroupFeature.BACKWARD_MEMORY, GroupFeature.BACKWARD_CACHE),
)


class Placements:
    """Registry of options and piece classes of one problem.

    Options may be added at any time; arrays are rebuilt when they are next needed.

    Args:
        problem: Everything but the plan.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._class_ids: dict[tuple[int, ExchangeGroup, int, int, float | None], int] = {}
        self._class_features: list[list[float]] = []
        self._class_spreads: list[tuple[float, float]] = []
        self._option_ids: dict[tuple[int, ShardingType, tuple[int, ...], float | None], int] = {}
        self._plans: list[TablePlan] = []
        self._groups: list[int] = []
        self._entries: list[list[tuple[int, int]]] = []
        self._arrays: _Arrays | None = None
        self._host_columns = False

    def include_host_columns(self) -> None:
        """Makes :meth:`features` hold the columns of tables in host memory from now on.

        They appear by themselves with the first such option; a caller who keeps features of
        different options wants them all of one width.
        """
        self._host_columns, self._arrays = True, None

    def option(self, table_index: int, plan: TablePlan) -> int:
        """Returns the id of a placement of table number `table_index`, adding it when new."""
        cached_share = plan.cached_share
        key = (table_index, plan.sharding_type, plan.ranks, cached_share)
        found = self._option_ids.get(key)
        if found is not None:
            return found
        problem = self._problem
        table = problem.model.tables[table_index]
        group = _GROUP_OF_TYPE[plan.sharding_type]
        divisor = _row_divisor(plan.sharding_type, problem)
        entries = [
            (
                piece.rank,
                self._piece_class(table_index, group, piece.columns, divisor, cached_share),
            )
            for piece in pieces_of(plan, table, problem.cluster.devices_per_node)
        ]
        self._host_columns |= cached_share is not None
        option = len(self._plans)
        self._option_ids[key] = option
        self._plans.append(plan)
        self._groups.append(1 << group)
        self._entries.append(entries)
        self._arrays = None
        return option

    def options_of(self, plan: ShardingPlan) -> NDArray[np.int64]:
        """Returns the plan as option ids; shape `(tables,)`. The plan must have been checked."""
        return np.array([self.option(index, table) for index, table in enumerate(plan.tables)])

    def plan_of(self, options: Sequence[int] | NDArray[np.int64]) -> ShardingPlan:
        """Returns the plan that a vector of option ids stands for."""
        from dse.sharding import ShardingPlan

        tables = tuple(self._plans[int(option)] for option in options)
        return ShardingPlan(self._problem.cluster.world_size, tables)

    def layouts(self, options: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the exchange groups in use as bit sets.

        Args:
            options: Option ids; shape `(candidates, tables)`.

        Returns:
            Shape `(candidates,)`.
        """
        return np.asarray(np.bitwise_or.reduce(self._current().group_bits[options], axis=1))

    def features(self, options: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sums piece features per rank.

        Args:
            options: Option ids; shape `(candidates, tables)`.

        Returns:
            Features; shape `(features, ranks, candidates)`, candidates contiguous. There are
            `WIDE_FEATURE_COUNT` of them once an option is in host memory, else `FEATURE_COUNT`.
        """
        from scipy.sparse import csr_array

        arrays = self._current()
        candidates = options.shape[0]
        ranks = self._problem.cluster.world_size
        flat = options.ravel()
        counts = arrays.entry_counts[flat]
        total = int(counts.sum())
        ends = np.cumsum(counts)
        # Entry k of the batch is entry (k - start of its option's run) of that option.
        entry = np.arange(total) + np.repeat(arrays.entry_starts[flat] - (ends - counts), counts)
        candidate_of = np.repeat(
            np.arange(candidates * options.shape[1]) // options.shape[1], counts
        )
        rows = arrays.entry_rank[entry] * candidates + candidate_of
        incidence = csr_array(
            (np.ones(total), (rows, arrays.entry_class[entry])),
            shape=(ranks * candidates, len(arrays.class_features)),
        )
        summed = incidence @ arrays.class_features
        width = arrays.class_features.shape[1]
        return np.ascontiguousarray(summed.T).reshape(width, ranks, candidates)

    def lookup_spreads(self, options: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns how far off the lookups of one plan may be, pieces weighted by their work.

        Errors of pieces in one kernel go together: they come from the same model.

        Args:
            options: Option ids of the plan; shape `(tables,)`.

        Returns:
            Standard deviation of the logarithm of actual over expected time, forward and
            backward; shape `(groups, 2)`, zero for groups without pieces.
        """
        weighted, weights = np.zeros((2, len(ExchangeGroup), 2))
        cluster = self._problem.cluster
        # Bytes over the host link as the device-memory bytes that take as long.
        link_weight = (
            cluster.device.memory_bandwidth_bytes_per_s / cluster.host_link.bandwidth_bytes_per_s
        )
        for option in options.tolist():
            group = self._groups[option].bit_length() - 1
            for _, piece in self._entries[option]:
                features = self._class_features[piece]
                for direction, (memory, cache) in enumerate(_WORK_FEATURES):
                    work = (
                        features[group_column(ExchangeGroup(group), memory)]
                        + features[group_column(ExchangeGroup(group), cache)]
                    )
                    weighted[group, direction] += work * self._class_spreads[piece][direction]
                    weights[group, direction] += work
                    if group == ExchangeGroup.REPLICATED:
                        continue
                    crossing = features[link_column(ExchangeGroup(group), direction)] * link_weight
                    weighted[group, direction] += crossing * HOST_ROWS_SPREAD
                    weights[group, direction] += crossing
        return np.divide(weighted, weights, out=np.zeros_like(weighted), where=weights > 0)

    def _current(self) -> _Arrays:
        if self._arrays is None:
            self._arrays = _Arrays(
                self._entries, self._groups, self._class_features, self._host_columns
            )
        return self._arrays

    def _piece_class(
        self,
        table_index: int,
        group: ExchangeGroup,
        columns: int,
        row_divisor: int,
        cached_share: float | None,
    ) -> int:
        key = (table_index, group, columns, row_divisor, cached_share)
        found = self._class_ids.get(key)
        if found is None:
            table = self._problem.model.tables[table_index]
            found = len(self._class_features)
            self._class_ids[key] = found
            features, spreads = _piece_features(
                self._problem, table, group, columns, row_divisor, cached_share
            )
            self._class_features.append(features)
            self._class_spreads.append(spreads)
        return found


class _Arrays:
    """The registry in array form."""

    def __init__(
        self,
        entries: list[list[tuple[int, int]]],
        groups: list[int],
        class_features: list[list[float]],
        host_columns: bool,
    ) -> None:
        self.entry_counts = np.array([len(option) for option in entries], dtype=np.int64)
        self.entry_starts = np.concatenate(([0], np.cumsum(self.entry_counts)))[:-1]
        flat = np.array([pair for option in entries for pair in option], dtype=np.int64)
        self.entry_rank = np.ascontiguousarray(flat[:, 0])
        self.entry_class = np.ascontiguousarray(flat[:, 1])
        self.group_bits = np.array(groups, dtype=np.int64)
        wide = np.array(class_features, dtype=np.float64)
        # Without tables in host memory their columns would only cost time.
        width = WIDE_FEATURE_COUNT if host_columns else FEATURE_COUNT
        self.class_features = np.ascontiguousarray(wide[:, :width])


def _row_divisor(kind: ShardingType, problem: Problem) -> int:
    """Parts that the rows (and with them the lookups) are spread over."""
    if kind is ShardingType.ROW_WISE:
        return problem.cluster.world_size
    if kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
        return problem.cluster.local_size
    return 1


def _piece_features(
    problem: Problem,
    table: EmbeddingTable,
    group: ExchangeGroup,
    columns: int,
    row_divisor: int,
    cached_share: float | None,
) -> tuple[list[float], tuple[float, float]]:
    """Features of one piece, and the spreads of its lookup and update.

    Lookups are taken to spread evenly over row blocks (hashed ids).
    """
    replicated = group is ExchangeGroup.REPLICATED
    samples = problem.local_batch_size if replicated else problem.global_batch_size
    rows = -(-table.rows // row_divisor)
    bags = float(samples * table.feature_count)
    lookups = samples * table.lookups_per_sample / row_divisor
    optimizer = problem.model.sparse_optimizer
    state_bytes_per_row = 4.0 * optimizer.state_values_per_row(columns)
    shape = EmbeddingShape(
        rows=rows,
        dim=columns,
        value_bytes=table.data_type.value_bytes,
        bags=bags,
        lookups=lookups,
        output_value_bytes=4,
        state_bytes_per_row=0.0 if replicated else state_bytes_per_row,
    )
    features = [0.0] * WIDE_FEATURE_COUNT
    if cached_share is None:
        work = unfused_embedding_work(
            problem.cluster.device,
            shape,
            table.indices,
            problem.software.embedding,
            table.feature_count,
            received=not replicated,
            cut_rows=row_divisor > 1,
        )
    else:
        host_work = _host_rows(problem, table, shape, cached_share)
        work = host_work.device
        features[link_column(group, 0)] = host_work.forward_link_bytes
        features[link_column(group, 1)] = host_work.backward_link_bytes
    per_group = {
        GroupFeature.FORWARD_MEMORY: work.forward_memory_bytes,
        GroupFeature.FORWARD_CACHE: work.forward_cache_bytes,
        GroupFeature.BACKWARD_MEMORY: work.backward_memory_bytes,
        GroupFeature.BACKWARD_CACHE: work.backward_cache_bytes,
        GroupFeature.EXCHANGED: float(
            rows * columns if replicated else columns * table.feature_count
        ),
    }
    for feature, value in per_group.items():
        features[group_column(group, feature)] = value
    storage = piece_storage(table, optimizer, rows, columns, cached_share)
    # A replicated table keeps a dense gradient as large as itself beside its optimizer state.
    gradient_bytes = 4.0 * rows * columns if replicated else 0.0
    features[rank_column(RankFeature.WEIGHTS)] = storage.device_weights_bytes
    features[rank_column(RankFeature.STATE)] = storage.device_state_bytes + gradient_bytes
    features[HOST_STORED_COLUMN] = storage.host_bytes
    if not replicated:
        features[rank_column(RankFeature.INPUT)] = INDEX_BYTES * lookups + LENGTH_BYTES * bags
        features[rank_column(RankFeature.POOLED_OUTPUT)] = bags * columns
    return features, (work.forward_spread, work.backward_spread)


def _host_rows(
    problem: Problem, table: EmbeddingTable, shape: EmbeddingShape, cached_share: float
) -> HostRowsWork:
    """Work of a piece in host memory."""
    return host_rows_work(
        problem.cluster.device,
        shape,
        table.indices,
        cached_rows=cached_row_count(shape.rows, cached_share),
        state_on_host=shape.state_bytes_per_row > 0
        and not problem.model.sparse_optimizer.keeps_state_by_row,
    )
