"""Job of a recommendation model: one sharding plan of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dse.workload._iteration import DurationClass, ErrorSource, Iteration
from dse.workload._job import Job
from dse.workload._predict import compare_jobs, predict_job
from dse.workload.dlrm._explain import attributed_plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.sharding import ShardingPlan
    from dse.workload._explain import AttributedGraph
    from dse.workload._predict import PairedComparison
    from dse.workload._prediction import MemoryAccount, Prediction
    from dse.workload.dlrm._scorer import PlanScorer


@dataclass(frozen=True, slots=True, eq=False)
class DlrmJob(Job):
    """A sharding plan with the performance model of its problem.

    Attributes:
        scorer: The performance model of everything but the plan.
        plan: A plan that has been checked against model and cluster.
    """

    scorer: PlanScorer
    plan: ShardingPlan

    @property
    def cluster(self) -> Cluster:
        """Where the job runs."""
        return self.scorer.problem.cluster

    @property
    def samples_per_iteration(self) -> float:
        """Global batch size."""
        return float(self.scorer.problem.global_batch_size)

    def check(self) -> None:
        """Does nothing: problem and plan were checked when they were made."""

    def iteration(self) -> Iteration:
        """Returns the iteration of one rank, or of all ranks where these differ.

        Tasks of the same name are wrong in the same way on all ranks.
        """
        filled = self.scorer.filled(self.plan)
        group = _groups(filled.layout.graph.names)
        errors = tuple(
            ErrorSource(
                duration_class,
                (filled.layout.duration_class == duration_class).astype(np.float64),
                filled.spread,
                group,
            )
            for duration_class in DurationClass
        )
        software = self.scorer.problem.software
        return Iteration(filled.ranks, filled.duration_s, errors, software.spread)

    def memory(self) -> tuple[MemoryAccount, ...]:
        """Returns the account of every rank."""
        features, memory = self.scorer.features(self.plan), self.scorer.memory
        return tuple(memory.by_purpose(features, rank) for rank in range(self.cluster.world_size))

    def attributed(self) -> AttributedGraph:
        """Returns the iteration of all ranks; lookups and updates could be on other ranks."""
        return attributed_plan(self.scorer, self.plan)


@lru_cache(maxsize=256)
def _groups(names: tuple[str, ...]) -> NDArray[np.int64]:
    """Numbers names; equal names have equal numbers."""
    return np.unique(names, return_inverse=True)[1]


def predict_plan(
    scorer: PlanScorer, plan: ShardingPlan, price_usd_per_hour: float | None
) -> Prediction:
    """Predicts one plan; see :func:`dse.workload.predict_job`."""
    return predict_job(DlrmJob(scorer, plan), price_usd_per_hour)


def compare_plans(
    first: tuple[PlanScorer, ShardingPlan], second: tuple[PlanScorer, ShardingPlan]
) -> PairedComparison:
    """Compares the throughput of two plans; see :func:`dse.workload.compare_jobs`."""
    return compare_jobs(DlrmJob(*first), DlrmJob(*second))


def sample_iteration_times_s(scorer: PlanScorer, plan: ShardingPlan) -> NDArray[np.float64]:
    """Draws iteration times of a plan; see :meth:`dse.workload.Iteration.sample_times_s`."""
    return DlrmJob(scorer, plan).iteration().sample_times_s()
