"""Re-simulation check: how well the graph of a traced step reproduces the measured time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.graph import union_length
from dse.trace._step_graph import COMPUTING, TaskRole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.simulate import Timeline
    from dse.trace._step_graph import TraceGraph


@dataclass(frozen=True, slots=True)
class RankResimulation:
    """One rank's step as measured and as simulated.

    Each instant of the simulated step counts as the first of these that applies: a kernel or fill
    runs → compute; a collective transfers → exposed communication; a copy runs → compute; else
    idle. Waiting for other ranks in a collective is idle time.

    Attributes:
        rank: Global rank.
        measured_s: Length of the step as measured, in seconds.
        simulated_s: Length of the step as simulated, in seconds.
        compute_s: Time with a kernel or fill running, or with nothing but a copy, in seconds.
        exposed_communication_s: Time with a collective running that no kernel or fill hides, in
            seconds; for a rank that is simulated alone including its waiting for other ranks.
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


def compare_with_measured(made: TraceGraph, times: Timeline) -> tuple[RankResimulation, ...]:
    """Compares simulated times of a graph with the measured length of each rank's step."""
    result = []
    for part, ends, unexplained in zip(made.steps, made.end_tasks, made.unexplained, strict=True):
        begin = part.offset_s
        end = float(times.end_s[list(ends)].max())
        mine = made.rank == part.rank
        busy = mine & np.isin(made.role, COMPUTING)
        kernels = busy & (made.role != TaskRole.COPY)
        transfer = mine & (made.role == TaskRole.COLLECTIVE)
        exposed = _covered_s(times, kernels | transfer, begin, end)
        exposed -= _covered_s(times, kernels, begin, end)
        both = _covered_s(times, busy | transfer, begin, end)
        waiting = _covered_s(times, busy | transfer, begin, end, waiting=transfer)
        result.append(
            RankResimulation(
                rank=part.rank,
                measured_s=part.measured_s,
                simulated_s=end - begin,
                compute_s=both - exposed,
                exposed_communication_s=exposed,
                idle_s=end - begin - both,
                wait_s=waiting - both,
                unexplained_share=unexplained.share,
            )
        )
    return tuple(result)


def _covered_s(
    times: Timeline,
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
