"""Results of a simulation: time line and breakdown by rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dse.graph import ExecutionGraph


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each task was ready, started and ended.

    Attributes:
        graph: The graph that was simulated.
        ready_s: When its dependencies and its predecessor on the stream had ended; shape
            `(tasks,)`.
        start_s: When the task started; later than ready only for members of a collective.
        end_s: When the task ended; shape `(tasks,)`.
    """

    graph: ExecutionGraph
    ready_s: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    @property
    def makespan_s(self) -> float:
        """End of the last task; 0 for an empty graph."""
        return float(self.end_s.max()) if len(self.end_s) else 0.0


@dataclass(frozen=True, slots=True)
class RankBreakdown:
    """Where one rank's iteration time goes; the four parts add up to the iteration time.

    At each instant the first of these that holds takes the time: the rank waits for its host →
    host; a kernel runs → compute; a collective transfers → exposed communication; a copy runs →
    compute; else idle (waiting in a collective for other ranks is idle time). A copy, such as that
    of the next batch, does not hide a transfer. A rank waits for its host
    where a task of the host is on the chain that leads back from the rank's last task, each time
    to what was waited for last: what runs on the device meanwhile hides behind late launches, and
    would not end the step any later if it took a little longer.

    Attributes:
        compute_s: Time with a kernel, or with nothing but a copy, that the host does not hide.
        exposed_communication_s: Time with a transfer that neither host nor kernels hide.
        host_s: Time in which the rank waits for its host.
        idle_s: The rest.
    """

    compute_s: float
    exposed_communication_s: float
    host_s: float
    idle_s: float
