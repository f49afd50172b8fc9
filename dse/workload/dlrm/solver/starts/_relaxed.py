"""Cuts of all tables from the linear programs that bound plans.

A search that changes one table after another rarely opens an exchange group that pays only once
several tables are in it. The linear program of a layout decides all tables at once. It leaves few
of them undecided; these take the choice with the largest share.

On several nodes the relaxation also leaves tables whole that no plan can place evenly, because it
averages over ranks. Three extra demands make up for that:

* no shard alone loads a rank with more than the average, and cuts whose shards turn out to be too
  large for their ranks may be excluded afterwards;
* what a rank exchanges on average is a little less than a multiple of the most common shard width:
  the most loaded rank holds a whole number of such shards;
* the widest shard of whole nodes decides their exchange, so the nodes are filled up to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import SAME_SHARDS
from dse.workload.dlrm import ExchangeGroup, Slot
from dse.workload.dlrm.solver._options import CutKey
from dse.workload.dlrm.solver.bound import relaxed_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver.bound import (
        Choices,
        LayoutRelaxation,
        Node,
        Relaxed,
        RelaxedProblem,
    )

#: Layouts whose solutions are rounded, and those that are solved again with extra demands.
_ROUNDED_LAYOUTS = 4
_DEMANDING_LAYOUTS = 3

#: Largest shard in lookups and updates as a share of the average rank. The other shards cannot be
#: placed evenly around a larger one.
_COARSE_SHARE = 1.0

#: The same in the input exchange, and of a shard that fills a node in the exchange between nodes.
_COARSE_INPUT = 0.8
_COARSE_NODE = 1.7

#: Relative change of a bound below which two layouts are the same under another name.
_SAME_BOUND = 1e-9

#: How full nodes are compared with their widest shard, so that shards still fit.
_FILLED = 0.87

#: How far the average is below a multiple of the usual width, as a share of that width.
_SLACK = 0.15

#: Least share of a choice that counts as taken.
_USED = 1e-6


def relaxed_cuts(
    scorer: PlanScorer,
    request: PlanningRequest,
    incumbent_s: float,
    stop: Callable[[], bool] = lambda: False,
) -> list[tuple[CutKey, ...]]:
    """Returns the rounded solutions of the layouts with the smallest bounds, smallest first.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        incumbent_s: Iteration time of a known plan; layouts that cannot be faster are skipped.
        stop: Returns whether time is over; remaining layouts are then skipped.

    Returns:
        Cuts of all tables, by table, for each layout.
    """
    if stop():
        return []
    problem = relaxed_problem(scorer.problem, request)
    choices = problem.choices
    cuts: dict[tuple[CutKey, ...], None] = {}
    last_s, layouts = 0.0, 0
    for node in _solved_layouts(problem, incumbent_s, stop):
        relaxed = node.relaxed
        if layouts == _ROUNDED_LAYOUTS or stop():
            break
        if relaxed.value_s > last_s * (1.0 + _SAME_BOUND):
            cuts[rounded(choices, relaxed.shares)] = None
            layouts += 1
            coarse = _coarse(choices, relaxed)
            if (coarse & (relaxed.shares > 0)).any():
                finer = node.relaxation.without(coarse).solve(enough_s=incumbent_s)
                if finer is not None:
                    cuts[rounded(choices, finer.shares)] = None
        last_s = relaxed.value_s
    return list(cuts)


def rounded(choices: Choices, shares: NDArray[np.float64]) -> tuple[CutKey, ...]:
    """Returns a cut for each table: as many tables of a class take a choice as its share says.

    Args:
        choices: Choices of all classes of tables.
        shares: Tables of its class that take each choice; shape `(choices,)`.
    """
    keys: dict[int, CutKey] = {}
    for number in range(len(choices.counts)):
        offered = np.flatnonzero(choices.table_class == number)
        members = np.flatnonzero(choices.class_of == number).tolist()
        taken = np.zeros(len(offered))
        for table in members:
            # The choice that is furthest behind its share; of equal ones the first.
            chosen = int(np.argmax(np.round(shares[offered] - taken, 9)))
            taken[chosen] += 1.0
            keys[table] = CutKey(table, *choices.cuts[int(offered[chosen])])
    return tuple(keys[table] for table in range(len(keys)))


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to demand more of a solution.

    Attributes:
        layout: Number of the layout; the one with the smallest bound is 0.
        filled: Whether nodes are filled up to their widest shard.
    """

    layout: int
    filled: bool


class NodeCuts:
    """Rounded solutions for several nodes, of the layouts with the smallest bounds.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        incumbent_s: Iteration time of a known plan; layouts that cannot be faster are skipped.
        stop: Returns whether time is over; remaining layouts are then skipped.
    """

    def __init__(
        self,
        scorer: PlanScorer,
        request: PlanningRequest,
        incumbent_s: float,
        stop: Callable[[], bool],
    ) -> None:
        problem = relaxed_problem(scorer.problem, request)
        self._choices = problem.choices
        self._cluster = scorer.problem.cluster
        self._nodes: list[Node] = []
        if not stop():
            self._feature_of = {curve.slot: curve.feature for curve in problem.model.curves}
            self._nodes = _solved_layouts(problem, incumbent_s, stop)[:_DEMANDING_LAYOUTS]

    @property
    def variants(self) -> list[Variant]:
        """The variants that exist for each layout."""
        return [
            Variant(layout, filled)
            for layout, node in enumerate(self._nodes)
            for filled in (False, True)
            if not filled or ExchangeGroup.NODE in node.relaxation.partial_groups
        ]

    def cuts(self, variant: Variant, excluded: Collection[CutKey]) -> tuple[CutKey, ...] | None:
        """Returns the cuts of all tables, by table; None where no plan fits.

        Args:
            variant: What is demanded.
            excluded: Cuts that are not taken where a table has others, nor by equal tables.
        """
        node = self._nodes[variant.layout]
        coarse = self._coarse(node.relaxed)
        for key in excluded:
            same = self._choices.table_class == self._choices.class_of[key.table]
            for choice in np.flatnonzero(same).tolist():
                # With other hot rows the shards are about as large.
                cut = self._choices.cuts[choice][:3]
                coarse[choice] |= cut == (
                    SAME_SHARDS.get(key.kind, key.kind),
                    key.shards,
                    key.kernel,
                )
        kept = node.relaxation.without(coarse)
        found = kept.solve()
        if found is None:
            return None
        narrow = self._filled if variant.filled else self._below_multiple
        narrowed = narrow(kept, found)
        if narrowed is not None:
            found = narrowed.solve() or found
        elif variant.filled:
            return None
        return rounded(self._choices, found.shares)

    def _coarse(self, relaxed: Relaxed) -> NDArray[np.bool_]:
        """Returns which choices have a shard that is too large."""
        alone_s, lasts_s = self._choices.alone_s, relaxed.durations_s
        coarse = _coarse(self._choices, relaxed)
        for slot, share in (
            (Slot.INPUT_EXCHANGE, _COARSE_INPUT),
            (Slot.NODE_EXCHANGE_BETWEEN, _COARSE_NODE),
        ):
            coarse |= alone_s[slot] > share * float(lasts_s[slot])
        return np.asarray(coarse)

    def _used(self, found: Relaxed, group: ExchangeGroup) -> NDArray[np.int64]:
        return np.flatnonzero(self._choices.inside(group) & (found.shares > _USED))

    def _filled(self, kept: LayoutRelaxation, found: Relaxed) -> LayoutRelaxation | None:
        """Returns the relaxation with nodes filled up to the widest shard of a solution."""
        slot = int(Slot.NODE_EXCHANGE_BETWEEN)
        used = self._used(found, ExchangeGroup.NODE)
        if slot not in self._feature_of or not len(used):
            return None
        feature = self._feature_of[slot]
        largest_s = float(self._choices.alone_s[slot, used].max())
        widest = self._widths(feature, used).max() / self._cluster.domain_size
        filled = kept.filled(slot, largest_s, feature, _FILLED * float(widest))
        return filled if filled.possible else None

    def _below_multiple(self, kept: LayoutRelaxation, found: Relaxed) -> LayoutRelaxation | None:
        """Returns the relaxation whose ranks exchange less than a multiple of a usual width."""
        slot = int(Slot.POOLED_EXCHANGE)
        used = self._used(found, ExchangeGroup.POOLED)
        if slot not in self._feature_of or not len(used):
            return None
        feature = self._feature_of[slot]
        average = float(found.features[feature])
        width = self._usual_width(feature, used, found)
        most = (np.floor(average / width + _SLACK) - _SLACK) * width
        return kept.split(feature, float(most))[0] if 0.0 < most < average else None

    def _widths(self, feature: int, used: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the columns of one shard of each choice, over all ranks that hold it."""
        shards = np.array([self._choices.cuts[choice][1] for choice in used.tolist()])
        return np.asarray(self._choices.total[feature, used] / shards)

    def _usual_width(self, feature: int, used: NDArray[np.int64], found: Relaxed) -> float:
        """Returns the smallest width up to which shards can fill half of it on every rank."""
        widths = self._widths(feature, used)
        held = self._choices.total[feature, used] * found.shares[used] / self._cluster.world_size
        order = np.argsort(widths, kind="stable")
        enough = np.cumsum(held[order]) >= 0.5 * widths[order]
        return float(widths[order][int(np.argmax(enough))] if enough.any() else widths.max())


def _solved_layouts(
    problem: RelaxedProblem, incumbent_s: float, stop: Callable[[], bool]
) -> list[Node]:
    """Returns the layouts that may hold a faster plan, by their bound, smallest first."""
    if not np.isfinite(problem.choices.free_memory_bytes):
        return []
    solved = problem.every_node(incumbent_s, stop)
    solved.sort(key=lambda node: node.relaxed.value_s)
    return [node for node in solved if node.relaxed.value_s < incumbent_s]


def _coarse(choices: Choices, relaxed: Relaxed) -> NDArray[np.bool_]:
    """Returns which choices keep a rank busy for longer than the solution's average."""
    kernels = slice(Slot.POOLED_LOOKUP, Slot.INPUT_EXCHANGE)
    alone_s = choices.alone_s[kernels].sum(axis=0)
    average_s = float(relaxed.durations_s[kernels].sum())
    return np.asarray(alone_s > _COARSE_SHARE * average_s)
