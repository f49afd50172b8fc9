"""Compiled layouts: the graph of an iteration, filled with the durations of plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dse.simulate import CompiledGraph, SymmetricRanks, expanded
from dse.workload.dlrm.iteration._layout import build_layout
from dse.workload.dlrm.iteration._operators import bottom_on_first_rank
from dse.workload.dlrm.program._wire import WireFormats
from dse.workload.dlrm.scoring._slots import EQUAL_SLOTS, LayoutGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.simulate import FoldedRanks
    from dse.workload.dlrm._problem import DlrmProblem


#: Compiled layouts that are kept, a few kilobytes each; bounds memory.
_LAYOUTS_KEPT = 2048

#: Formats on the wire in problems whose layouts are compiled, of all that need no tasks of their
#: own: only exchanges, which the plan decides, depend on them.
_ANY_WIRE = WireFormats()


@dataclass(frozen=True, slots=True)
class FilledIteration:
    """One plan's iteration.

    Attributes:
        layout: Tasks of one rank, or of all ranks where these are not alike.
        ranks: The same as synchronised copies.
        duration_s: Seconds; shape `(tasks, copies)`.
        spread: Standard deviation of the logarithm of actual over expected duration; shape
            `(tasks,)`.
    """

    layout: LayoutGraph
    ranks: SymmetricRanks
    duration_s: NDArray[np.float64]
    spread: NDArray[np.float64]

    @property
    def _alike(self) -> bool:
        return len({stream.rank for stream in self.layout.graph.streams}) == 1

    def folded(self) -> FoldedRanks | None:
        """Returns the ranks without those that repeat others; None where these are not alike."""
        return self.ranks.folded(self.duration_s) if self._alike else None

    def expanded(self, folded: FoldedRanks | None = None) -> LayoutGraph:
        """Returns the graph of all ranks.

        Args:
            folded: Only of those that are kept.
        """
        layout, spread = self.layout, self.spread
        if not self._alike:
            graph = layout.graph.with_durations(self.duration_s[:, 0])
            return replace(layout, graph=graph, spread=spread)
        chosen = self.ranks.unfolded() if folded is None else folded
        kept = chosen.kept
        graph, scopes = expanded(chosen, self.duration_s[:, kept])
        slots = layout.slot_task[:, None] * len(kept) + np.arange(len(kept))
        return LayoutGraph(
            graph=graph,
            slot_task=slots.ravel(),
            slot_kind=np.repeat(layout.slot_kind, len(kept)),
            slot_rank=np.tile(kept, len(layout.slot_kind)),
            duration_class=np.repeat(layout.duration_class, len(kept)),
            spread=np.repeat(spread, len(kept)),
            scopes=scopes,
        )


def compile_layout(problem: DlrmProblem, layout: int) -> CompiledLayout:
    """Returns the compiled iteration of one layout, cached: studies ask for the same ones again.

    Args:
        problem: Everything but the plan.
        layout: Bit set of the exchange groups in use.
    """
    if problem.software.wire.mirrored:
        problem = replace(problem, software=replace(problem.software, wire=_ANY_WIRE))
    return _compile(problem, layout)


@lru_cache(maxsize=_LAYOUTS_KEPT)
def _compile(problem: DlrmProblem, layout: int) -> CompiledLayout:
    return CompiledLayout(problem, layout)


class CompiledLayout:
    """The compiled iteration of one layout.

    One rank stands for all. Where the bottom MLP runs on the first rank only, ranks differ and the
    graph holds all of them.

    Args:
        problem: Everything but the plan.
        layout: Bit set of the exchange groups in use.
    """

    def __init__(self, problem: DlrmProblem, layout: int) -> None:
        cluster = problem.cluster
        self._alike = not bottom_on_first_rank(problem)
        graph = build_layout(problem, layout, one_rank=self._alike)
        row_of = np.full(graph.graph.task_count, -1)
        if self._alike:
            self._ranks = SymmetricRanks(
                graph.graph, cluster.domain_count, cluster.domain_size, graph.scopes
            )
            row_of[graph.slot_task] = graph.slot_kind
            equal = [int(slot) for slot in EQUAL_SLOTS]
        else:
            self._ranks = SymmetricRanks.single(graph.graph)
            row_of[graph.slot_task] = np.arange(len(graph.slot_task))
            equal = []
        self._graph = graph
        self._simulator = CompiledGraph(self._ranks, row_of, equal)

    def makespan_s(self, slots_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns iteration times.

        Args:
            slots_s: Durations of plan-dependent tasks; shape `(slots, ranks, candidates)`.

        Returns:
            Seconds; shape `(candidates,)`.
        """
        if self._alike:
            return self._simulator.makespan_s(slots_s)
        graph = self._graph
        return self._simulator.makespan_s(slots_s[graph.slot_kind, graph.slot_rank][:, None])

    def filled(
        self, slots_s: NDArray[np.float64], spreads: NDArray[np.float64]
    ) -> FilledIteration:
        """Returns the iteration of one plan.

        Args:
            slots_s: Durations of plan-dependent tasks; shape `(slots, ranks, 1)`.
            spreads: Their spreads; shape `(slots,)`.
        """
        graph = self._graph
        durations_s = np.repeat(graph.graph.duration_s[:, None], self._ranks.copies, axis=1)
        if self._alike:
            durations_s[graph.slot_task] = slots_s[graph.slot_kind, :, 0]
        else:
            durations_s[graph.slot_task, 0] = slots_s[graph.slot_kind, graph.slot_rank, 0]
        spread = graph.spread.copy()
        spread[graph.slot_task] = spreads[graph.slot_kind]
        return FilledIteration(graph, self._ranks, durations_s, spread)
