"""Explanation of one graph: path, ranks, sensitivities, imbalance."""

from __future__ import annotations

from dataclasses import replace
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
    simulate,
    tasks_by_rank,
    timeline_of_copies,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.explanation._resources import TaskResources
    from dse.graph import ExecutionGraph
    from dse.simulate import CriticalPath, FoldedRanks, Timeline

#: How much faster a resource becomes to see what the iteration gains.
FASTER = 1.1

#: Makespans of equal durations are equal to the last bit; what differs by less is rounding.
_ROUNDING = 1e-12


def explain_graph(
    graph: ExecutionGraph,
    resources: TaskResources,
    groups: Sequence[str],
    movable: NDArray[np.bool_] | None = None,
    folded: FoldedRanks | None = None,
) -> Explanation:
    """Explains how long a graph takes.

    Args:
        graph: The graph, with its durations.
        resources: What its tasks keep busy; parts add up to the durations.
        groups: Operator group of each task.
        movable: Tasks whose work could be on another rank; shape `(tasks,)`.
        folded: Where the graph is that of ranks some of which stand for others
            (:func:`dse.simulate.expanded`), these ranks. All are explained then, and tasks are
            numbered as in the graph of all.

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
    if folded is None:
        timeline, alike = simulate(graph), SymmetricRanks.single(graph)
    else:
        alike = folded.ranks
        durations_s = graph.duration_s.reshape(-1, alike.copies)
        timeline = timeline_of_copies(alike, graph, durations_s)
    path = critical_path(timeline)
    shares = path_shares(timeline, path, resources, groups)
    kinds = graph.kind.tolist()
    collectives = {
        group for group, kind in zip(groups, kinds, strict=True) if kind == TaskKind.COLLECTIVE
    }
    own = tasks_by_rank(graph)
    stands_for = np.ones(len(own)) if folded is None else folded.stands_for
    changed = _Changed(timeline, alike, path, resources, chosen, own, stands_for)
    tasks = critical_tasks(timeline, path, resources, groups)
    if folded is not None:
        tasks = tuple(replace(one, task=folded.task_of_all(one.task)) for one in tasks)
    return Explanation(
        sentence=sentence(shares, collectives),
        iteration_time_s=timeline.makespan_s,
        path=shares,
        tasks=tasks,
        ranks=_ranks(timeline, changed, own, folded),
        sensitivities=changed.sensitivities(),
        imbalance=changed.imbalance(),
    )


class _Changed:
    """The graph under all changes of an explanation, simulated in one batch.

    A rank's movable work is taken out only where it is on the critical path, and where no other
    rank has the same work: otherwise there is a path of the same length without it.

    Args:
        timeline: What was simulated.
        alike: Its graph, as copies of one rank's where ranks do the same.
        path: Its critical path.
        resources: What its tasks keep busy.
        movable: Tasks whose work could be on another rank; shape `(tasks,)`.
        own: The tasks of each rank.
        stands_for: How many ranks each of them stands for; shape `(ranks,)`.
    """

    def __init__(
        self,
        timeline: Timeline,
        alike: SymmetricRanks,
        path: CriticalPath,
        resources: TaskResources,
        movable: NDArray[np.bool_],
        own: dict[int, NDArray[np.int64]],
        stands_for: NDArray[np.float64] | NDArray[np.int64],
    ) -> None:
        graph = timeline.graph
        self._names = resources.names
        self._duration_s = graph.duration_s
        self._movable = [tasks[movable[tasks]] for tasks in own.values()]
        self._ranks = list(own)
        self._stands_for = stands_for
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
        first_rank = len(columns)
        critical = [
            number
            for number, tasks in enumerate(self._movable)
            if stands_for[number] == 1 and np.isin(path.tasks, tasks).any()
        ]
        for number in critical:
            without = self._duration_s.copy()
            without[self._movable[number]] = 0.0
            columns.append(without)
        batch = np.stack(columns, axis=1).reshape(-1, alike.copies, len(columns))
        makespan_s = alike.last_end_s(batch)
        gains = makespan_s[0] - makespan_s
        gains[np.abs(gains) <= _ROUNDING * makespan_s[0]] = 0.0
        self._length_s = timeline.makespan_s
        self._even_gain_s = float(gains[1])
        self._resource_gains_s: list[float] = gains[2:first_rank].tolist()
        self.rank_gains_s = [0.0] * len(own)
        for number, gain_s in zip(critical, gains[first_rank:].tolist(), strict=True):
            self.rank_gains_s[number] = gain_s

    def _even(self) -> NDArray[np.float64]:
        """Durations with movable work spread evenly, each name by itself."""
        even = self._duration_s.copy()
        most = max(map(len, self._movable))
        # The n-th movable task of every rank is the same step of the program.
        total_s = np.zeros(most)
        for tasks, count in zip(self._movable, self._stands_for.tolist(), strict=True):
            total_s[: len(tasks)] += count * self._duration_s[tasks]
        for tasks in self._movable:
            even[tasks] = total_s[: len(tasks)] / self._stands_for.sum()
        return even

    def movable_s(self) -> list[float]:
        """Returns each rank's movable work."""
        return [float(self._duration_s[tasks].sum()) for tasks in self._movable]

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
                gain=gain_s / self._length_s,
            )
            for resource, gain_s in zip(self._resources, self._resource_gains_s, strict=True)
        ]
        return tuple(sorted(found, key=lambda effect: -effect.gain_s))

    def imbalance(self) -> Imbalance | None:
        """Returns how evenly movable work is spread; None without such work."""
        work_s = np.array(self.movable_s())
        mean_s = float(np.average(work_s, weights=self._stands_for))
        if mean_s == 0.0:
            return None
        most = int(np.argmax(work_s))
        return Imbalance(
            most_loaded_rank=self._ranks[most],
            most_s=float(work_s[most]),
            mean_s=mean_s,
            excess=float(work_s[most]) / mean_s - 1.0,
            gain_if_even_s=self._even_gain_s,
        )


def _ranks(
    timeline: Timeline,
    changed: _Changed,
    own: dict[int, NDArray[np.int64]],
    folded: FoldedRanks | None,
) -> tuple[RankExplanation, ...]:
    waited = waits(timeline, folded)
    late = late_launches(timeline.graph, timeline.end_s[:, None])[:, 0]
    did = [activity(timeline, mine, late) for mine in own.values()]
    movable_s = changed.movable_s()
    ranks = list(enumerate(own))
    if folded is not None:
        ranks = [(place, rank) for rank, place in enumerate(folded.of_copy.tolist())]
    return tuple(
        RankExplanation(
            rank=rank,
            compute_s=did[place].compute_s,
            transfer_s=did[place].transfer_s,
            waiting_s=did[place].waiting_s,
            host_s=did[place].host_s,
            idle_s=did[place].idle_s,
            collective_s=did[place].collective_s,
            waited_for=waited.get(rank, ()),
            movable_s=movable_s[place],
            gain_without_movable_s=changed.rank_gains_s[place],
        )
        for place, rank in ranks
    )
