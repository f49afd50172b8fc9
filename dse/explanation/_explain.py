"""Explanation of one graph: path, ranks, sensitivities, imbalance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.errors import SimulationError
from dse.explanation._path import critical_tasks, path_shares
from dse.explanation._ranks import activity, waits
from dse.explanation._resources import Resource
from dse.explanation._sentence import sentence
from dse.explanation._types import Explanation, Imbalance, RankExplanation, Sensitivity
from dse.graph import TaskKind
from dse.simulate import (
    SymmetricRanks,
    critical_path,
    late_launches,
    ranks_of_tasks,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.explanation._resources import TaskResources
    from dse.graph import ExecutionGraph
    from dse.simulate import Timeline

#: How much faster a resource becomes to see what the iteration gains.
FASTER = 1.1

#: Makespans of equal durations are equal to the last bit; what differs by less is rounding.
_ROUNDING = 1e-12

#: Durations that are held at once.
_MOST_DURATIONS = 20_000_000


def explain_graph(
    graph: ExecutionGraph,
    resources: TaskResources,
    groups: Sequence[str],
    movable: NDArray[np.bool_] | None = None,
) -> Explanation:
    """Explains how long a graph takes.

    Args:
        graph: The graph, with its durations.
        resources: What its tasks keep busy; parts add up to the durations.
        groups: Operator group of each task.
        movable: Tasks whose work could be on another rank; shape `(tasks,)`.

    Raises:
        SimulationError: Arguments are not of the graph's tasks, or tasks wait for each other.
    """
    count = graph.task_count
    chosen = np.zeros(count, dtype=bool) if movable is None else movable
    sizes = (len(groups), resources.sequential_s.shape[1], len(chosen))
    if set(sizes) != {count}:
        raise SimulationError(
            f"groups, resources and movable tasks for {', '.join(map(str, sizes))} tasks; the "
            f"graph has {count}"
        )
    if not count:
        return Explanation(sentence((), ()), 0.0, (), (), (), (), None)
    timeline = simulate(graph)
    path = critical_path(timeline)
    shares = path_shares(timeline, path, resources, groups)
    kinds = graph.kind.tolist()
    collectives = {
        group for group, kind in zip(groups, kinds, strict=True) if kind == TaskKind.COLLECTIVE
    }
    changed = _Changed(timeline, resources, chosen)
    return Explanation(
        sentence=sentence(shares, collectives),
        iteration_time_s=timeline.makespan_s,
        path=shares,
        tasks=critical_tasks(timeline, path, resources, groups),
        ranks=_ranks(timeline, changed),
        sensitivities=changed.sensitivities(),
        imbalance=changed.imbalance(),
    )


class _Changed:
    """The graph under all changes of an explanation, simulated in batches."""

    def __init__(
        self, timeline: Timeline, resources: TaskResources, movable: NDArray[np.bool_]
    ) -> None:
        graph = timeline.graph
        self._names = resources.names
        self._duration_s = graph.duration_s
        self._movable = movable
        self.rank_of = ranks_of_tasks(graph)
        self.ranks = sorted({stream.rank for stream in graph.streams})
        used = (resources.overlapped_s + resources.sequential_s).max(axis=1) > 0
        # What the model cannot name cannot become faster.
        self._resources = [
            resource
            for resource, any_use in zip(Resource, used.tolist(), strict=True)
            if any_use and resource is not Resource.OTHER
        ]
        columns = [self._duration_s, self._even()]
        columns += [
            resources.faster(self._duration_s, resource, FASTER) for resource in self._resources
        ]
        one = SymmetricRanks.single(graph)
        makespans_s = [one.last_end_s(np.stack(columns, axis=1)[:, None])]
        # As many ranks at once as memory allows: there may be thousands of them.
        together = max(1, _MOST_DURATIONS // graph.task_count)
        for first in range(0, len(self.ranks), together):
            without = [
                np.where(movable & (self.rank_of == rank), 0.0, self._duration_s)
                for rank in self.ranks[first : first + together]
            ]
            makespans_s.append(one.last_end_s(np.stack(without, axis=1)[:, None]))
        makespan_s = np.concatenate(makespans_s)
        gains = makespan_s[0] - makespan_s
        gains[np.abs(gains) <= _ROUNDING * makespan_s[0]] = 0.0
        self._length_s = timeline.makespan_s
        first_rank = 2 + len(self._resources)
        self._even_gain_s = float(gains[1])
        self._resource_gains_s: list[float] = gains[2:first_rank].tolist()
        self.rank_gains_s: list[float] = gains[first_rank:].tolist()

    def _even(self) -> NDArray[np.float64]:
        """Durations with movable work spread evenly, each name by itself."""
        even = self._duration_s.copy()
        movable = np.flatnonzero(self._movable)
        if not len(movable):
            return even
        # The n-th movable task of every rank is the same step of the program.
        position = np.zeros(len(movable), dtype=np.int64)
        for rank in self.ranks:
            own = self.rank_of[movable] == rank
            position[own] = np.arange(own.sum())
        total_s = np.bincount(position, weights=self._duration_s[movable])
        even[movable] = (total_s / len(self.ranks))[position]
        return even

    def movable_s(self) -> list[float]:
        """Returns each rank's movable work."""
        return [
            float(self._duration_s[self._movable & (self.rank_of == rank)].sum())
            for rank in self.ranks
        ]

    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """Returns what faster resources would bring, most first."""
        rows = list(Resource)
        found = [
            Sensitivity(
                resource=resource,
                resource_name=self._names[rows.index(resource)],
                factor=FASTER,
                iteration_time_s=self._length_s - gain_s,
                gain_s=gain_s,
                gain=gain_s / self._length_s if self._length_s else 0.0,
            )
            for resource, gain_s in zip(self._resources, self._resource_gains_s, strict=True)
        ]
        return tuple(sorted(found, key=lambda effect: -effect.gain_s))

    def imbalance(self) -> Imbalance | None:
        """Returns how evenly movable work is spread; None without such work."""
        work_s = np.array(self.movable_s())
        mean_s = float(work_s.mean())
        if mean_s == 0.0:
            return None
        most = int(np.argmax(work_s))
        return Imbalance(
            most_loaded_rank=self.ranks[most],
            most_s=float(work_s[most]),
            mean_s=mean_s,
            excess=float(work_s[most]) / mean_s - 1.0,
            gain_if_even_s=self._even_gain_s,
        )


def _ranks(timeline: Timeline, changed: _Changed) -> tuple[RankExplanation, ...]:
    waited = waits(timeline)
    late = late_launches(timeline.graph, timeline.end_s[:, None])[:, 0]
    result = []
    for rank, movable_s, gain_s in zip(
        changed.ranks, changed.movable_s(), changed.rank_gains_s, strict=True
    ):
        mine = changed.rank_of == rank
        did = activity(timeline, mine, late)
        result.append(
            RankExplanation(
                rank=rank,
                compute_s=did.compute_s,
                transfer_s=did.transfer_s,
                waiting_s=did.waiting_s,
                host_s=did.host_s,
                idle_s=did.idle_s,
                collective_s=did.collective_s,
                waited_for=waited.get(rank, ()),
                movable_s=movable_s,
                gain_without_movable_s=gain_s,
            )
        )
    return tuple(result)
