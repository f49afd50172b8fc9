"""Placements of tables as rows of a number matrix, so that thousands of plans score at once.

A plan is a vector of *option* ids, one per table. An option is a concrete placement (type, ranks,
kernel). It expands into entries `(rank, piece class)`; a piece class has a row of additive
features (bytes to look up, to store, to exchange). The features of every rank of every candidate
are then one sparse product: incidence `(candidates × ranks, classes)` times `(classes, features)`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from dse.kernels import EmbeddingShape, embedding_work
from dse.sharding import ShardingType, pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.prediction._problem import Problem
    from dse.sharding import ShardingPlan, TablePlan
    from dse.workloads import EmbeddingTable

#: Bytes of one index and of one bag length on the wire and in memory.
INDEX_BYTES = 8
LENGTH_BYTES = 4


class ExchangeGroup(IntEnum):
    """Tables that share a lookup kernel and an exchange pattern.

    POOLED: whole rows on one rank, pooled vectors by all-to-all (table-, column-wise).
    ROW: rows over all ranks, partial sums by reduce-scatter (row-wise).
    NODE: rows over a node, reduce-scatter inside and all-to-all between (table-row-wise, grid).
    REPLICATED: a copy on every rank, gradients by all-reduce (data-parallel).
    """

    POOLED = 0
    ROW = 1
    NODE = 2
    REPLICATED = 3


_GROUP_OF_TYPE = {
    ShardingType.TABLE_WISE: ExchangeGroup.POOLED,
    ShardingType.COLUMN_WISE: ExchangeGroup.POOLED,
    ShardingType.TABLE_COLUMN_WISE: ExchangeGroup.POOLED,
    ShardingType.ROW_WISE: ExchangeGroup.ROW,
    ShardingType.TABLE_ROW_WISE: ExchangeGroup.NODE,
    ShardingType.GRID_SHARD: ExchangeGroup.NODE,
    ShardingType.DATA_PARALLEL: ExchangeGroup.REPLICATED,
}


class GroupFeature(IntEnum):
    """Additive quantities of a rank within one exchange group.

    FORWARD_MEMORY … BACKWARD_CACHE: see `dse.kernels.EmbeddingWork`.
    EXCHANGED: pooled values a sample, or parameters of replicated tables.
    """

    FORWARD_MEMORY = 0
    FORWARD_CACHE = 1
    BACKWARD_MEMORY = 2
    BACKWARD_CACHE = 3
    EXCHANGED = 4


#: Where the work of a lookup and of its update stands: memory and cache bytes.
_WORK_FEATURES = (
    (GroupFeature.FORWARD_MEMORY, GroupFeature.FORWARD_CACHE),
    (GroupFeature.BACKWARD_MEMORY, GroupFeature.BACKWARD_CACHE),
)


class RankFeature(IntEnum):
    """Additive quantities of a rank over all groups, stored behind the groups' blocks.

    WEIGHTS, STATE: stored bytes. INPUT: bytes of indices and lengths of the global batch.
    POOLED_OUTPUT: pooled values the rank holds before they are exchanged, over the global batch.
    """

    WEIGHTS = 0
    STATE = 1
    INPUT = 2
    POOLED_OUTPUT = 3


GROUP_BLOCK = len(GroupFeature)
RANK_BLOCK_START = GROUP_BLOCK * len(ExchangeGroup)
FEATURE_COUNT = RANK_BLOCK_START + len(RankFeature)


def group_column(group: ExchangeGroup, feature: GroupFeature) -> int:
    """Returns the feature column of a group's quantity."""
    return int(group) * GROUP_BLOCK + int(feature)


def rank_column(feature: RankFeature) -> int:
    """Returns the feature column of a rank's quantity."""
    return RANK_BLOCK_START + int(feature)


class Placements:
    """Registry of options and piece classes of one problem.

    Options may be added at any time; arrays are rebuilt when they are next needed.

    Args:
        problem: Everything but the plan.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._class_ids: dict[tuple[int, ExchangeGroup, int, int], int] = {}
        self._class_features: list[list[float]] = []
        self._class_spreads: list[tuple[float, float]] = []
        self._option_ids: dict[tuple[int, ShardingType, tuple[int, ...]], int] = {}
        self._plans: list[TablePlan] = []
        self._groups: list[int] = []
        self._entries: list[list[tuple[int, int]]] = []
        self._arrays: _Arrays | None = None

    def option(self, table_index: int, plan: TablePlan) -> int:
        """Returns the id of a placement of table number `table_index`, adding it when new."""
        key = (table_index, plan.sharding_type, plan.ranks)
        found = self._option_ids.get(key)
        if found is not None:
            return found
        problem = self._problem
        table = problem.model.tables[table_index]
        group = _GROUP_OF_TYPE[plan.sharding_type]
        divisor = _row_divisor(plan.sharding_type, problem)
        entries = [
            (piece.rank, self._piece_class(table_index, group, piece.columns, divisor))
            for piece in pieces_of(plan, table, problem.cluster.devices_per_node)
        ]
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
            Features; shape `(features, ranks, candidates)`, candidates contiguous.
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
        return np.ascontiguousarray(summed.T).reshape(FEATURE_COUNT, ranks, candidates)

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
        return np.divide(weighted, weights, out=np.zeros_like(weighted), where=weights > 0)

    def _current(self) -> _Arrays:
        if self._arrays is None:
            self._arrays = _Arrays(self._entries, self._groups, self._class_features)
        return self._arrays

    def _piece_class(
        self, table_index: int, group: ExchangeGroup, columns: int, row_divisor: int
    ) -> int:
        key = (table_index, group, columns, row_divisor)
        found = self._class_ids.get(key)
        if found is None:
            table = self._problem.model.tables[table_index]
            found = len(self._class_features)
            self._class_ids[key] = found
            features, spreads = _piece_features(self._problem, table, group, columns, row_divisor)
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
    ) -> None:
        self.entry_counts = np.array([len(option) for option in entries], dtype=np.int64)
        self.entry_starts = np.concatenate(([0], np.cumsum(self.entry_counts)))[:-1]
        flat = np.array([pair for option in entries for pair in option], dtype=np.int64)
        self.entry_rank = np.ascontiguousarray(flat[:, 0])
        self.entry_class = np.ascontiguousarray(flat[:, 1])
        self.group_bits = np.array(groups, dtype=np.int64)
        self.class_features = np.array(class_features, dtype=np.float64)


def _row_divisor(kind: ShardingType, problem: Problem) -> int:
    """Parts that the rows (and with them the lookups) are spread over."""
    if kind is ShardingType.ROW_WISE:
        return problem.cluster.world_size
    if kind in (ShardingType.TABLE_ROW_WISE, ShardingType.GRID_SHARD):
        return problem.cluster.local_size
    return 1


def _piece_features(
    problem: Problem, table: EmbeddingTable, group: ExchangeGroup, columns: int, row_divisor: int
) -> tuple[list[float], tuple[float, float]]:
    """Features of one piece, and the spreads of its lookup and update.

    Lookups are taken to spread evenly over row blocks (hashed ids).
    """
    replicated = group is ExchangeGroup.REPLICATED
    samples = problem.local_batch_size if replicated else problem.global_batch_size
    rows = -(-table.rows // row_divisor)
    bags = float(samples * table.feature_count)
    lookups = samples * table.lookups_per_sample / row_divisor
    value_bytes = table.data_type.value_bytes
    state_bytes_per_row = 4.0 * problem.model.sparse_optimizer.state_values_per_row(columns)
    work = embedding_work(
        problem.cluster.device,
        EmbeddingShape(
            rows=rows,
            dim=columns,
            value_bytes=value_bytes,
            bags=bags,
            lookups=lookups,
            output_value_bytes=4,
            state_bytes_per_row=0.0 if replicated else state_bytes_per_row,
        ),
        table.indices,
    )
    features = [0.0] * FEATURE_COUNT
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
    weights_bytes = float(rows * columns * value_bytes)
    # A replicated table keeps a dense gradient as large as itself beside its optimizer state.
    gradient_bytes = 4.0 * rows * columns if replicated else 0.0
    features[rank_column(RankFeature.WEIGHTS)] = weights_bytes
    features[rank_column(RankFeature.STATE)] = rows * state_bytes_per_row + gradient_bytes
    if not replicated:
        features[rank_column(RankFeature.INPUT)] = INDEX_BYTES * lookups + LENGTH_BYTES * bags
        features[rank_column(RankFeature.POOLED_OUTPUT)] = bags * columns
    return features, (work.forward_spread, work.backward_spread)
