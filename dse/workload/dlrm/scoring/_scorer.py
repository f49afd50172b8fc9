"""Scores sharding plans under the full model of an iteration, thousands at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dse._process.memory import keep_freed_memory
from dse.simulate import simulate
from dse.workload.dlrm._memory import MemoryModel
from dse.workload.dlrm.iteration._durations import slot_durations_s, slot_spreads
from dse.workload.dlrm.iteration._layout import build_layout
from dse.workload.dlrm.iteration._operators import bottom_on_first_rank
from dse.workload.dlrm.scoring._compiled import CompiledLayout, FilledIteration, compile_layout
from dse.workload.dlrm.scoring._features import (
    FEATURE_COUNT,
    ExchangeGroup,
    GroupFeature,
    group_column,
)
from dse.workload.dlrm.scoring._placements import Placements
from dse.workload.dlrm.scoring._rank_loads import (
    CHANGE,
    TERM_LOADS,
    RankLoad,
    changed_features,
    lookup_and_update_s,
    rank_loads,
    rank_loads_and_terms,
)
from dse.workload.dlrm.scoring._slots import Slot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.sharding import ShardingPlan
    from dse.workload.dlrm._problem import DlrmProblem

#: Feature values that are expanded at once; bounds memory and stays near the cache.
_CHUNK_ELEMENTS = 2_000_000

#: Shards of all candidates that are expanded at once, should every table be cut over all ranks.
_CHUNK_SHARDS = 8_000_000

#: Power of the mean over ranks by which plans of the same iteration time are ranked.
_LOAD_POWER = 4


@dataclass(frozen=True, slots=True)
class PlanScores:
    """Scores of a batch of plans.

    Attributes:
        iteration_time_s: Expected iteration time; shape `(candidates,)`.
        peak_memory_bytes: Bytes of the fullest rank; shape `(candidates,)`.
        fits: Whether the fullest rank fits its usable memory, and tables in host memory their
            node; shape `(candidates,)`.
    """

    iteration_time_s: NDArray[np.float64]
    peak_memory_bytes: NDArray[np.float64]
    fits: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FeatureScores:
    """Scores of a batch of plans that are given as placement features.

    Attributes:
        scores: As of plans.
        load_s: Mean over the ranks of their time in lookups and updates, to the fourth power and
            back; ranks plans whose busiest ranks take the same time; shape `(candidates,)`.
    """

    scores: PlanScores
    load_s: NDArray[np.float64]


class PlanScorer:
    """The performance model of one problem, open for any number of plans.

    Args:
        problem: Everything but the plan.

    Attributes:
        problem: As given.
        placements: Turns plans into option vectors and back.
        memory: Memory of a rank.
    """

    def __init__(self, problem: DlrmProblem) -> None:
        keep_freed_memory()
        self.problem = problem
        self.placements = Placements(problem)
        self.memory = MemoryModel.of(problem)
        self._compiled: dict[int, CompiledLayout] = {}

    def score(self, plans: Sequence[ShardingPlan]) -> PlanScores:
        """Scores plans that have been checked against the model and the cluster."""
        return self.score_options(
            np.array([self.placements.options_of(plan) for plan in plans], dtype=np.int64)
        )

    def score_options(self, options: NDArray[np.int64]) -> PlanScores:
        """Scores plans given as option ids; shape `(candidates, tables)`."""
        count, tables = options.shape
        times = np.empty(count)
        peaks = np.empty(count)
        fits = np.empty(count, dtype=bool)
        layouts = self.placements.layouts(options)
        ranks = self.problem.cluster.world_size
        chunk = max(16, min(_CHUNK_ELEMENTS // (64 * ranks), _CHUNK_SHARDS // (tables * ranks)))
        for layout in np.unique(layouts):
            members = np.flatnonzero(layouts == layout)
            for start in range(0, len(members), chunk):
                index = members[start : start + chunk]
                features = self.placements.features(options[index])
                slots = self._slots_s(int(layout), features)
                times[index] = self._makespan_s(int(layout), slots)
                peaks[index], fits[index] = self.memory.peak_and_fit(
                    features, self.problem.cluster
                )
        return PlanScores(times, peaks, fits)

    def score_features(self, layout: int, features: NDArray[np.float64]) -> FeatureScores:
        """Scores plans of one layout that are given as placement features.

        Args:
            layout: Bit set of the exchange groups in use, the same for all plans.
            features: Shape `(features, ranks, candidates)`.
        """
        slots = self._slots_s(layout, features)
        peaks, fits = self.memory.peak_and_fit(features, self.problem.cluster)
        scores = PlanScores(self._makespan_s(layout, slots), peaks, fits)
        lookup_s, update_s = lookup_and_update_s(slots)
        power = ((lookup_s + update_s) ** _LOAD_POWER).mean(axis=0)
        return FeatureScores(scores, power ** (1.0 / _LOAD_POWER))

    def forward_time_s(self, plan: ShardingPlan, *, overlapped: bool = False) -> float:
        """Returns the time of a forward pass of the same batch, as in an evaluation.

        Args:
            plan: A plan that has been checked against model and cluster.
            overlapped: Of one of many in a row that overlap, where the busiest stream decides.
        """
        layout, features = self.layout_and_features(plan)
        forward = build_layout(self.problem, layout, forward_only=True)
        slots = self._slots_s(layout, features)
        durations = forward.graph.duration_s.copy()
        durations[forward.slot_task] = slots[forward.slot_kind, forward.slot_rank, 0]
        if overlapped:
            return float(np.bincount(forward.graph.stream, weights=durations).max())
        return simulate(forward.graph.with_durations(durations)).makespan_s

    def rank_loads(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns additive loads of shards.

        Args:
            features: Placement features of the shards; shape `(features, shards)`.

        Returns:
            One row for each `RankLoad`; shape `(loads, shards)`.
        """
        return rank_loads(self.problem, features)

    @property
    def term_loads(self) -> tuple[int, ...]:
        """The load of which each term is an alternative, ascending."""
        return tuple(int(load) for load in TERM_LOADS)

    def rank_loads_and_terms(
        self, features: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns additive loads of shards, and additive parts of them.

        A load of several shards is the largest of the sums of its parts, called terms.

        Args:
            features: Placement features of shards of one exchange group; shape
                `(features, shards)`.

        Returns:
            Loads; shape `(loads, shards)`. Terms; shape `(terms, shards)`; see `term_loads`.
        """
        return rank_loads_and_terms(self.problem, features)

    @cached_property
    def memory_bytes_without_tables(self) -> float:
        """Memory of a rank that holds no part of any table."""
        return float(self.memory.total_bytes(np.zeros((FEATURE_COUNT, 1, 1)))[0, 0])

    def memory_bytes(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the memory that shards add to their rank.

        Args:
            features: Placement features of the shards; shape `(features, shards)`.

        Returns:
            Shape `(shards,)`.
        """
        held = self.memory.total_bytes(features[:, None, :])[0]
        return np.asarray(held - self.memory_bytes_without_tables)

    def marginal_costs(self, layout: int, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns what one more unit of each load on its most loaded rank costs the iteration.

        Args:
            layout: Bit set of the exchange groups in use.
            features: Placement features of one plan; shape `(features, ranks)`.

        Returns:
            Seconds a unit of each `RankLoad`, around this plan; shape `(loads,)`. Zero where the
            load is hidden behind other work.
        """
        slots = self._slots_s(layout, changed_features(features))
        times = self._makespan_s(layout, slots)
        most = self.rank_loads(features).max(axis=1)
        gains = np.maximum(0.0, times[1:] - times[0])
        costs = np.zeros(len(RankLoad))
        np.divide(gains, CHANGE * most, out=costs, where=most > 0)
        return costs

    def features(self, plan: ShardingPlan) -> NDArray[np.float64]:
        """Returns one plan's placement features; shape `(features, ranks, 1)`."""
        return self.layout_and_features(plan)[1]

    def layout_and_features(self, plan: ShardingPlan) -> tuple[int, NDArray[np.float64]]:
        """Returns the exchange groups in use by one plan as a bit set, and :meth:`features`."""
        options = self.placements.options_of(plan)[None, :]
        return int(self.placements.layouts(options)[0]), self.placements.features(options)

    def work_and_exchange_s(self, plan: ShardingPlan) -> tuple[float, float]:
        """Returns what one plan takes the devices, whether or not it is hidden.

        Returns:
            Seconds of kernels of the tables, and of their collectives, on the busiest rank each.
        """
        slots = self._slots_s(*self.layout_and_features(plan))[..., 0]
        work_s = slots[: Slot.INPUT_EXCHANGE].sum(axis=0) + slots[Slot.REPLICATED_UPDATE]
        exchange_s = slots[Slot.INPUT_EXCHANGE :].sum(axis=0) - slots[Slot.REPLICATED_UPDATE]
        return float(work_s.max()), float(exchange_s.max())

    def filled(self, plan: ShardingPlan) -> FilledIteration:
        """Returns the plan's iteration with one rank for all where ranks do the same."""
        layout, features = self.layout_and_features(plan)
        lookup_spreads = self.placements.lookup_spreads(self.placements.options_of(plan))
        spreads = slot_spreads(self.problem, features, lookup_spreads)
        return self._compiled_layout(layout).filled(self._slots_s(layout, features), spreads)

    def _slots_s(self, layout: int, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Durations of plan-dependent tasks, with what the first rank does for all.

        The bottom MLP's output leaves the first rank like the vector of one more table.
        """
        if bottom_on_first_rank(self.problem):
            layout |= 1 << ExchangeGroup.POOLED
            features = features.copy()
            column = group_column(ExchangeGroup.POOLED, GroupFeature.EXCHANGED)
            features[column, 0] += self.problem.model.bottom_mlp[-1]
        return slot_durations_s(self.problem, layout, features)

    def _makespan_s(self, layout: int, slots: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._compiled_layout(layout).makespan_s(slots)

    def _compiled_layout(self, layout: int) -> CompiledLayout:
        found = self._compiled.get(layout)
        if found is None:
            found = self._compiled[layout] = compile_layout(self.problem, layout)
        return found
