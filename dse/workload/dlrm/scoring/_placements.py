"""Placements of tables as rows of a number matrix, so that thousands of plans score at once.

A plan is a vector of *option* ids, one per table. An option is a concrete placement (type, ranks,
kernel). It expands into entries `(rank, shard class)`; a shard class has a row of additive
features (bytes to look up, to store, to exchange). The features of every rank of every candidate
are then one sparse product: incidence `(candidates × ranks, classes)` times `(classes, features)`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from dse.machine.kernels import HOST_ROWS_SPREAD
from dse.sharding import shard_columns
from dse.workload.dlrm.scoring._cut_shards import CutShards, cut_shards
from dse.workload.dlrm.scoring._features import (
    FEATURE_COUNT,
    SYNCED_FEATURE_COUNT,
    WIDE_FEATURE_COUNT,
    ExchangeGroup,
    GroupFeature,
    exchange_group,
    group_column,
    link_column,
)
from dse.workload.dlrm.scoring._row_cuts import blocks_of_plan, blocks_of_type, row_cut
from dse.workload.dlrm.scoring._shard_features import ShardKey, shard_contexts, shard_features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.sharding import ShardingPlan, ShardingType, TablePlan
    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.scoring._row_cuts import RowCut

#: Where the work of a lookup and of its update stands: memory and cache bytes.
_WORK_FEATURES = (
    (GroupFeature.FORWARD_MEMORY, GroupFeature.FORWARD_CACHE),
    (GroupFeature.BACKWARD_MEMORY, GroupFeature.BACKWARD_CACHE),
)


class Placements:
    """Registry of options and shard classes of one problem.

    Options may be added at any time; arrays are rebuilt when they are next needed.

    Args:
        problem: Everything but the plan.
    """

    def __init__(self, problem: DlrmProblem) -> None:
        self._problem = problem
        self._contexts = shard_contexts(problem)
        self._row_cuts: dict[tuple[int, int, int], RowCut] = {}
        self._class_ids: dict[ShardKey, int] = {}
        self._class_features: list[tuple[float, ...]] = []
        self._class_spreads: list[tuple[float, float]] = []
        self._class_groups: list[ExchangeGroup] = []
        self._option_ids: dict[
            tuple[int, ShardingType, tuple[int, ...], float | None, int], int
        ] = {}
        self._plans: list[TablePlan] = []
        self._groups: list[int] = []
        # Ranks and classes of the shards of each option.
        self._entries: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        # The shard class of which every rank has one besides, or -1.
        self._hot: list[int] = []
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
        hot_rows = plan.hot_rows
        key = (table_index, plan.sharding_type, plan.ranks, cached_share, hot_rows)
        found = self._option_ids.get(key)
        if found is not None:
            return found
        problem = self._problem
        table = problem.model.tables[table_index]
        on_all = len(plan.ranks) == problem.cluster.world_size
        group = exchange_group(plan.sharding_type, pooled=table.pooled, on_all=on_all)
        cut = self._row_cut(table_index, blocks_of_plan(plan, problem.cluster), hot_rows)
        columns = shard_columns(plan, table.dim, problem.cluster.devices_per_domain)
        whole = ShardKey(
            table_index, group, table.dim, None, len(cut.blocks), cached_share, hot_rows
        )
        classes = self._shard_classes(whole, columns, cut)
        groups, hot = 1 << group, -1
        if hot_rows:
            groups |= 1 << ExchangeGroup.REPLICATED
            hot = self._shard_class(whole.hot_copy)
        self._host_columns |= cached_share is not None
        option = len(self._plans)
        self._option_ids[key] = option
        self._plans.append(plan)
        self._groups.append(groups)
        self._entries.append((np.array(plan.ranks, dtype=np.int64), classes))
        self._hot.append(hot)
        self._arrays = None
        return option

    def parts(
        self,
        table_index: int,
        kind: ShardingType,
        parts: int,
        cached_share: float | None,
        hot_rows: int = 0,
    ) -> CutShards:
        """Returns what the parts of a cut are, wherever they are placed; do not change it.

        Args:
            table_index: Number of the table.
            kind: How it is cut.
            parts: Parts that are placed on their own: shards of columns, or 1.
            cached_share: Of rows in host memory, the part in a cache on the device; None for a
                table on the device.
            hot_rows: Rows that every rank has a copy of.

        Returns:
            The shards, with as many features as :meth:`features` has.
        """
        self._host_columns |= cached_share is not None
        table = self._problem.model.tables[table_index]
        blocks = blocks_of_type(kind, self._problem.cluster)
        group = exchange_group(kind, pooled=table.pooled)
        whole = ShardKey(table_index, group, table.dim, None, blocks, cached_share, hot_rows)
        shards = cut_shards(self._contexts, whole, parts)
        return shards._replace(rows=shards.rows[:, : self._width])

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
        """Sums shard features per rank.

        Args:
            options: Option ids; shape `(candidates, tables)`.

        Returns:
            Features; shape `(features, ranks, candidates)`, candidates contiguous. There are
            `WIDE_FEATURE_COUNT` of them once an option is in host memory, else
            `SYNCED_FEATURE_COUNT` where there are replicas, else `FEATURE_COUNT`.
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
        result = np.ascontiguousarray(summed.T).reshape(width, ranks, candidates)
        if arrays.hot_columns is not None:
            self._add_hot_rows(options, arrays, arrays.hot_columns, result)
        return result

    def features_by_node(
        self, option: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Returns what different nodes hold of one table, each of them once.

        Args:
            option: An option id; its shards are on different ranks.

        Returns:
            Features of the ranks of these nodes, as in :meth:`features`; shape
            `(features, ranks, 1)`. Numbers of these ranks, ascending; shape `(ranks,)`. How many
            nodes are like each node; shape `(nodes,)`.
        """
        arrays, cluster = self._current(), self._problem.cluster
        ranks, classes = self._entries[option]
        held = np.full(cluster.world_size, -1)
        held[ranks] = classes
        by_node = held.reshape(-1, cluster.domain_size)
        _, first, counts = np.unique(by_node, axis=0, return_index=True, return_counts=True)
        order = np.argsort(first)
        nodes = first[order]
        chosen = by_node[nodes].ravel()
        features = np.where(chosen >= 0, arrays.class_features[chosen].T, 0.0)[:, :, None]
        if self._hot[option] >= 0:
            features += arrays.class_features[self._hot[option]][:, None, None]
        members = nodes[:, None] * cluster.domain_size + np.arange(cluster.domain_size)
        return features, members.ravel(), counts[order].astype(np.float64)

    @staticmethod
    def _add_hot_rows(
        options: NDArray[np.int64],
        arrays: _Arrays,
        columns: NDArray[np.int64],
        features: NDArray[np.float64],
    ) -> None:
        """Adds copies of hot rows, of which all ranks have the same, to the features of plans."""
        from scipy.sparse import csr_array

        hot = arrays.hot_class[options]
        has = hot >= 0
        ends = np.cumsum(has.sum(axis=1))
        incidence = csr_array(
            (np.ones(ends[-1]), hot[has], np.append(0, ends)),
            shape=(len(options), len(arrays.class_features)),
        )
        held = incidence @ arrays.class_features[:, columns]
        for row, column in enumerate(columns.tolist()):
            features[column] += held[:, row]

    def lookup_spreads(self, options: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns how far off the lookups of one plan may be, shards weighted by their work.

        Errors of shards in one kernel go together: they come from the same model.

        Args:
            options: Option ids of the plan; shape `(tables,)`.

        Returns:
            Standard deviation of the logarithm of actual over expected time, forward and
            backward; shape `(groups, 2)`, zero for groups without shards.
        """
        weighted, weights = np.zeros((2, len(ExchangeGroup), 2))
        cluster = self._problem.cluster
        # Bytes over the host link as the device-memory bytes that take as long.
        link_weight = (
            cluster.device.memory_bandwidth_bytes_per_s / cluster.host_link.bandwidth_bytes_per_s
        )
        for option in options.tolist():
            # Of very many shards few differ.
            held = list(Counter(self._entries[option][1].tolist()).items())
            if self._hot[option] >= 0:
                held.append((self._hot[option], cluster.world_size))
            for shard, count in held:
                features, group = self._class_features[shard], self._class_groups[shard]
                for direction, (memory, cache) in enumerate(_WORK_FEATURES):
                    work = count * (
                        features[group_column(group, memory)]
                        + features[group_column(group, cache)]
                    )
                    weighted[group, direction] += work * self._class_spreads[shard][direction]
                    weights[group, direction] += work
                    if group is ExchangeGroup.REPLICATED:
                        continue
                    crossing = count * features[link_column(group, direction)] * link_weight
                    weighted[group, direction] += crossing * HOST_ROWS_SPREAD
                    weights[group, direction] += crossing
        return np.divide(weighted, weights, out=np.zeros_like(weighted), where=weights > 0)

    def _row_cut(self, table_index: int, count: int, hot_rows: int) -> RowCut:
        """Returns the blocks of rows that a table is cut into."""
        key = (table_index, count, hot_rows)
        found = self._row_cuts.get(key)
        if found is None:
            table = self._problem.model.tables[table_index]
            found = self._row_cuts[key] = row_cut(table, count, hot_rows)
        return found

    @property
    def _width(self) -> int:
        """Number of features: columns that are zero for every shard would only cost time."""
        if self._host_columns:
            return WIDE_FEATURE_COUNT
        return FEATURE_COUNT if self._problem.sync is None else SYNCED_FEATURE_COUNT

    def _current(self) -> _Arrays:
        if self._arrays is None:
            self._arrays = _Arrays(
                self._entries,
                self._groups,
                self._hot,
                self._class_features,
                self._width,
            )
        return self._arrays

    def _shard_classes(
        self, whole: ShardKey, columns: Sequence[int], cut: RowCut
    ) -> NDArray[np.int64]:
        """Returns the class of each shard of a table; blocks of rows are taken in turns.

        Args:
            whole: The table as one shard.
            columns: Of each shard.
            cut: The blocks that its rows are cut into.
        """
        blocks = cut.blocks

        def class_of(width: int, block: int) -> int:
            return self._shard_class(whole._replace(columns=width, block=blocks[block]))

        if len(blocks) in (1, len(columns)) and len(set(columns)) == 1:
            # Of shards of equal columns, blocks alike are alike.
            of_kinds = [class_of(columns[0], block) for block in cut.first.tolist()]
            return np.array(of_kinds, dtype=np.int64)[np.resize(cut.kind_of, len(columns))]
        found = [class_of(width, shard % len(blocks)) for shard, width in enumerate(columns)]
        return np.array(found, dtype=np.int64)

    def _shard_class(self, shard: ShardKey) -> int:
        found = self._class_ids.get(shard)
        if found is None:
            found = len(self._class_features)
            self._class_ids[shard] = found
            features, spreads = shard_features(self._contexts[shard.is_replicated], shard)
            self._class_groups.append(shard.group)
            self._class_features.append(features)
            self._arrays = None
            self._class_spreads.append(spreads)
        return found


class _Arrays:
    """The registry in array form."""

    def __init__(
        self,
        entries: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
        groups: list[int],
        hot: list[int],
        class_features: list[tuple[float, ...]],
        width: int,
    ) -> None:
        self.entry_counts = np.array([len(ranks) for ranks, _ in entries], dtype=np.int64)
        self.entry_starts = np.concatenate(([0], np.cumsum(self.entry_counts)))[:-1]
        self.entry_rank = np.concatenate([ranks for ranks, _ in entries])
        self.entry_class = np.concatenate([classes for _, classes in entries])
        self.group_bits = np.array(groups, dtype=np.int64)
        wide = np.array(class_features, dtype=np.float64)
        self.class_features = np.ascontiguousarray(wide[:, :width])
        self.hot_class = np.array(hot, dtype=np.int64)
        copies = np.unique(self.hot_class[self.hot_class >= 0])
        # What copies of hot rows add to, if there are any.
        self.hot_columns = (
            np.flatnonzero(self.class_features[copies].any(axis=0)) if len(copies) else None
        )
