"""Re-simulation check: how well the graph of a traced step reproduces the measured time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dse.graph import union_length
from dse.trace._step_graph import COMPUTING, TaskRole
from dse.trace.graph._trace_graph import trace_graph
from dse.trace.links._link import link
from dse.trace.links._matched_collectives import match_collectives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph
    from dse.trace._step_graph import TraceGraph
    from dse.trace.read._rank_trace import RankTrace


class Times(Protocol):
    """When tasks were ready, started and ended, in seconds; a `dse.simulate.Timeline` is one."""

    @property
    def ready_s(self) -> NDArray[np.float64]:
        """When all dependencies of a task had ended; shape `(tasks,)`."""

    @property
    def start_s(self) -> NDArray[np.float64]:
        """Starts; shape `(tasks,)`."""

    @property
    def end_s(self) -> NDArray[np.float64]:
        """Ends; shape `(tasks,)`."""


@dataclass(frozen=True, slots=True)
class RankResimulation:
    """One rank's step as measured and as simulated.

    Each instant of the simulated step counts as the first of these that applies: a kernel, copy or
    fill runs → compute; a collective transfers → exposed communication; else idle. Waiting for
    other ranks in a collective is idle time.

    Attributes:
        rank: Global rank.
        measured_s: Length of the step as measured, in seconds.
        simulated_s: Length of the step as simulated, in seconds.
        compute_s: Time with a kernel, copy or fill running, in seconds.
        exposed_communication_s: Time with only a collective running, in seconds; for a rank that
            is simulated alone including its waiting for other ranks.
        idle_s: The rest, in seconds.
        wait_s: Part of it in which a collective waited for other ranks and nothing else ran.
        unexplained_share: Measured waits without a cause as a fraction of the step.
    """

    rank: int
    measured_s: float
    simulated_s: float
    compute_s: float
    exposed_communication_s: float
    idle_s: float
    wait_s: float
    unexplained_share: float

    @property
    def error(self) -> float:
        """Simulated over measured length, less one."""
        return self.simulated_s / self.measured_s - 1 if self.measured_s else 0.0


def resimulate(
    traces: Sequence[RankTrace],
    simulate: Callable[[ExecutionGraph], Times],
    *,
    together: bool = True,
    step: int | str | None = None,
) -> tuple[RankResimulation, ...]:
    """Builds graphs of traces, simulates them and compares with the measurement.

    Args:
        traces: One trace per rank.
        simulate: `dse.simulate.simulate` or an equivalent.
        together: Whether ranks wait for each other in their collectives; otherwise each rank is
            simulated alone, with its collectives as long as measured.
        step: As for :func:`trace_graph`.

    Returns:
        One entry per rank, in the order of the traces.
    """
    links = [link(trace) for trace in traces]
    if together:
        made = trace_graph(traces, links, match_collectives(traces, links), step)
        return compare_with_measured(made, simulate(made.graph))
    result: list[RankResimulation] = []
    for trace, linked in zip(traces, links, strict=True):
        made = trace_graph([trace], [linked], (), step)
        result += compare_with_measured(made, simulate(made.graph))
    return tuple(result)


def compare_with_measured(made: TraceGraph, times: Times) -> tuple[RankResimulation, ...]:
    """Compares simulated times of a graph with the measured length of each rank's step."""
    result = []
    for part, ends, unexplained in zip(made.steps, made.end_tasks, made.unexplained, strict=True):
        begin = part.offset_s
        end = float(times.end_s[list(ends)].max())
        mine = made.rank == part.rank
        busy = mine & np.isin(made.role, COMPUTING)
        compute = _covered_s(times, busy, begin, end)
        transfer = mine & (made.role == TaskRole.COLLECTIVE)
        both = _covered_s(times, busy | transfer, begin, end)
        waiting = _covered_s(times, busy | transfer, begin, end, waiting=transfer)
        result.append(
            RankResimulation(
                rank=part.rank,
                measured_s=part.measured_s,
                simulated_s=end - begin,
                compute_s=compute,
                exposed_communication_s=both - compute,
                idle_s=end - begin - both,
                wait_s=waiting - both,
                unexplained_share=unexplained.share,
            )
        )
    return tuple(result)


def _covered_s(
    times: Times,
    tasks: NDArray[np.bool_],
    begin: float,
    end: float,
    waiting: NDArray[np.bool_] | None = None,
) -> float:
    """Returns how long at least one of the tasks runs between two moments, in seconds.

    With `waiting` the time in which these tasks are ready but have not started counts as well.
    """
    since = times.start_s if waiting is None else np.where(waiting, times.ready_s, times.start_s)
    start, stop = since[tasks].clip(begin, end), times.end_s[tasks].clip(begin, end)
    return float(union_length(start, stop))
