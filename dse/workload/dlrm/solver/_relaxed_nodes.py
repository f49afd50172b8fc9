"""Cuts of all tables on several nodes, from linear programs that know what deals out evenly.

The relaxation takes averages over ranks, so it leaves tables whole that no plan can place evenly.
Three demands make up for that:

* no part alone loads a rank with more than the average, and cuts whose parts turn out to be too
  large for the ranks that they are on may be left out afterwards;
* what a rank exchanges on average is a little less than a multiple of the width that parts mostly
  have: the most loaded rank holds a whole number of such widths;
* the widest part of whole nodes decides their exchange, so the nodes are filled up to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.workload.dlrm import ExchangeGroup, Slot
from dse.workload.dlrm.solver._bound_branch import layout_nodes
from dse.workload.dlrm.solver._bound_options import SAME_PIECES, choices_of
from dse.workload.dlrm.solver._bound_slots import slot_model
from dse.workload.dlrm.solver._relaxed import rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from dse.sharding import PlanningRequest
    from dse.workload.dlrm import PlanScorer
    from dse.workload.dlrm.solver._bound_branch import Node
    from dse.workload.dlrm.solver._bound_layout import LayoutRelaxation
    from dse.workload.dlrm.solver._bound_types import Relaxed
    from dse.workload.dlrm.solver._catalogue import CutKey

#: Most layouts whose solutions are cut.
_LAYOUTS = 3

#: Largest part in lookups and updates as a share of the average rank.
_COARSE_SHARE = 1.0

#: The same in the input exchange, and of a part that fills a node in the exchange between nodes.
_COARSE_INPUT = 0.8
_COARSE_NODE = 1.7

#: How full nodes are beside their widest part, so that parts still fit.
_FILLED = 0.87

#: Part of a usual width that the average is below a multiple of it.
_SLACK = 0.15

#: Least share of a choice that counts as taken.
_USED = 1e-6


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to demand more of a solution.

    Attributes:
        layout: Number of the layout, the one with the least bound first.
        filled: Whether nodes are filled up to their widest part.
    """

    layout: int
    filled: bool


class NodeCuts:
    """Rounded solutions of the layouts with the least bounds.

    Args:
        scorer: The performance model.
        request: What may be placed where.
        incumbent_s: Iteration time of a known plan; layouts that cannot be faster are left out.
        stop: Says when time is over: layouts that are left then are not looked at.
    """

    def __init__(
        self,
        scorer: PlanScorer,
        request: PlanningRequest,
        incumbent_s: float,
        stop: Callable[[], bool],
    ) -> None:
        self._choices = choices_of(scorer, request)
        self._cluster = scorer.problem.cluster
        found: list[Node] = []
        if np.isfinite(self._choices.free_memory_bytes) and not stop():
            model = slot_model(scorer.problem, self._choices)
            self._feature_of = {curve.slot: curve.feature for curve in model.curves}
            for node in layout_nodes(
                scorer.problem, self._choices, model, incumbent_s, every=True
            ):
                if stop():
                    break
                if node.relaxed.value_s < incumbent_s:
                    found.append(node)
        found.sort(key=lambda node: node.relaxed.value_s)
        self._nodes = found[:_LAYOUTS]

    @property
    def kinds(self) -> list[Kind]:
        """The ways that there are for each layout."""
        return [
            Kind(layout, filled)
            for layout, node in enumerate(self._nodes)
            for filled in (False, True)
            if not filled or ExchangeGroup.NODE in node.relaxation.partial_groups
        ]

    def cuts(self, kind: Kind, left_out: Collection[CutKey]) -> tuple[CutKey, ...] | None:
        """Returns the cuts of all tables, by table; None where no plan fits.

        Args:
            kind: What is demanded.
            left_out: Cuts that are not taken where a table has others, nor by equal tables.
        """
        node = self._nodes[kind.layout]
        coarse = self._coarse(node.relaxed)
        for key in left_out:
            same = self._choices.table_class == self._choices.class_of[key.table]
            for choice in np.flatnonzero(same).tolist():
                cut = self._choices.cuts[choice]
                coarse[choice] |= cut == (SAME_PIECES.get(key.kind, key.kind), *key[2:])
        kept = node.relaxation.without(coarse)
        found = kept.solve()
        if found is None:
            return None
        narrow = self._filled if kind.filled else self._below_multiple
        narrowed = narrow(kept, found)
        if narrowed is not None:
            found = narrowed.solve() or found
        elif kind.filled:
            return None
        return rounded(self._choices, found.shares)

    def _coarse(self, relaxed: Relaxed) -> NDArray[np.bool_]:
        """Says which choices have too large a part."""
        alone_s, lasts_s = self._choices.alone_s, relaxed.durations_s
        kernels = slice(Slot.POOLED_LOOKUP, Slot.INPUT_EXCHANGE)
        coarse = alone_s[kernels].sum(axis=0) > _COARSE_SHARE * float(lasts_s[kernels].sum())
        for slot, part in (
            (Slot.INPUT_EXCHANGE, _COARSE_INPUT),
            (Slot.NODE_EXCHANGE_BETWEEN, _COARSE_NODE),
        ):
            coarse |= alone_s[slot] > part * float(lasts_s[slot])
        return np.asarray(coarse)

    def _used(self, found: Relaxed, group: ExchangeGroup) -> NDArray[np.int64]:
        return np.flatnonzero((self._choices.group == group) & (found.shares > _USED))

    def _filled(self, kept: LayoutRelaxation, found: Relaxed) -> LayoutRelaxation | None:
        """Returns the relaxation in which nodes are filled up to the widest part of a solution."""
        slot = int(Slot.NODE_EXCHANGE_BETWEEN)
        used = self._used(found, ExchangeGroup.NODE)
        if slot not in self._feature_of or not len(used):
            return None
        feature = self._feature_of[slot]
        largest_s = float(self._choices.alone_s[slot, used].max())
        widest = self._widths(feature, used).max() / self._cluster.local_size
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
        """Columns of one part of each choice, over all ranks that it sits on."""
        parts = np.array([self._choices.cuts[choice][1] for choice in used.tolist()])
        return np.asarray(self._choices.total[feature, used] / parts)

    def _usual_width(self, feature: int, used: NDArray[np.int64], found: Relaxed) -> float:
        """Returns the least width up to which parts can fill half of it on every rank."""
        widths = self._widths(feature, used)
        held = self._choices.total[feature, used] * found.shares[used] / self._cluster.world_size
        order = np.argsort(widths, kind="stable")
        enough = np.cumsum(held[order]) >= 0.5 * widths[order]
        return float(widths[order][int(np.argmax(enough))] if enough.any() else widths.max())
