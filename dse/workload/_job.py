"""Jobs: a workload on a machine under one choice of parameters, run by a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.workload._explain import AttributedGraph
    from dse.workload._iteration import Iteration
    from dse.workload._prediction import MemoryAccount


class Job(ABC):
    """What is predicted; each kind of workload has one implementation.

    :func:`dse.workload.predict_job` turns a job into a prediction, for every kind alike.

    Attributes:
        cluster: Where the job runs.
        rank_word: What one entry of the breakdown and of the memory stands for.
    """

    __slots__ = ()

    rank_word: ClassVar[str] = "rank"

    if TYPE_CHECKING:

        @property
        def cluster(self) -> Cluster:
            """Where the job runs."""

    @property
    @abstractmethod
    def samples_per_iteration(self) -> float:
        """Samples of one iteration over all ranks."""

    @abstractmethod
    def check(self) -> None:
        """Checks that the job is possible.

        Raises:
            ConfigError: It is not; the message gives value, limit and what to change.
        """

    @abstractmethod
    def iteration(self) -> Iteration:
        """Returns the graph of one training step with its durations and their errors."""

    @abstractmethod
    def memory(self) -> tuple[MemoryAccount, ...]:
        """Returns what each rank's memory holds."""

    @abstractmethod
    def attributed(self) -> AttributedGraph:
        """Returns the graph of the step with what each task is for and what takes its time."""

    def metrics(self, iteration_time_s: float) -> tuple[tuple[str, float], ...]:
        """Returns further figures by name, which only this kind of workload has.

        Args:
            iteration_time_s: Predicted time of one iteration.
        """
        del iteration_time_s
        return ()

    def memory_advice(self, fullest: MemoryAccount) -> str:
        """Returns what to try if a rank does not fit; empty if nothing general can be said.

        Args:
            fullest: Account of the fullest rank.
        """
        del fullest
        return ""
