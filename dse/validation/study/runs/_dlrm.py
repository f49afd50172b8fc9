"""Runs of recommendation models."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING, ClassVar

from dse.errors import ConfigError
from dse.machine import Precision
from dse.search import ValidationMode
from dse.sharding import stored_bytes
from dse.validation.dlrm import Candidate
from dse.validation.study._choose import configuration_of
from dse.validation.study.runs._planner import RunPlanner
from dse.validation.study.runs._scale import fold_plan, scale_model, scaling_text
from dse.workload.dlrm import DlrmJob, DlrmWorkload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.model import DlrmModel
    from dse.search import TrialRecord
    from dse.validation._protocol import RunCandidate
    from dse.workload import Workload
    from dse.workload.dlrm import DlrmProblem

#: Most bytes of the tables of a scaled candidate, and of the rows that an iteration looks up.
_SCALED_TABLES_BYTES = 0.2e9
_SCALED_LOOKUP_BYTES = 32e6
_LEAST_LOOKUP_BYTES = 0.5e6

#: Share of the memory that all scaled candidates may use together.
_SCALED_SHARE = 0.2


class DlrmRuns(RunPlanner):
    """Plans the runs of recommendation models."""

    kind: ClassVar[str] = DlrmWorkload.kind
    default_trainer: ClassVar[str] = "reference"
    scaled_words: ClassVar[str] = "The dense part ran in fp32."

    @staticmethod
    def weight_bytes(workload: Workload) -> float:
        """Returns the bytes of all tables with the state of their optimizer."""
        assert isinstance(workload, DlrmWorkload)
        model = workload.model
        return sum(
            stored_bytes(table, model.sparse_optimizer, table.rows, table.dim)
            for table in model.tables
        )

    def candidate(self, record: TrialRecord) -> Candidate:
        """Returns what is run for a trial, before its model is scaled."""
        problem, plan = self._problem(record), configuration_of(record).plan
        assert plan is not None
        if problem.sync is not None:
            raise ConfigError(
                f"{problem.cluster.replicas} replicas: {self.trainer.title} does not average "
                "copies of tables; validate a configuration with one replica"
            )
        cluster = problem.cluster
        ranks, node = self.ranks(cluster.world_size), cluster.domain_size
        if self.mode is ValidationMode.SCALED:
            plan, node = fold_plan(plan, ranks, node), ranks
            problem = replace(problem, precision=Precision.FP32)
        else:
            self.check_memory(record)
        if self.platform is not None:
            cluster = replace(self.platform, devices_per_node=node).cluster(ranks)
            problem = replace(problem, cluster=cluster)
        adopted = self.trainer.adopt(Candidate(str(record.number), problem, plan))
        checked = self.trainer.checked(adopted, self.device)
        assert isinstance(checked, Candidate)
        return checked

    def _problem(self, record: TrialRecord) -> DlrmProblem:
        job = self.job_of(record)
        assert isinstance(job, DlrmJob)
        return job.problem

    def changes_program(self, record: TrialRecord, candidate: RunCandidate) -> bool:
        """Returns whether the program differs in anything that time depends on."""
        assert isinstance(candidate, Candidate)
        return candidate.problem.software != self._problem(record).software

    def smaller(
        self, candidates: Sequence[RunCandidate]
    ) -> Iterator[tuple[Sequence[Candidate], str]]:
        """Yields models with fewer rows, and a batch that is halved every time."""
        own = [one for one in candidates if isinstance(one, Candidate)]
        assert isinstance(self.workload, DlrmWorkload)
        largest = max(one.global_batch_size for one in own)
        before = replace(self.workload.model, global_batch_size=largest)
        lookup_bytes, first = _SCALED_LOOKUP_BYTES, True
        while first or lookup_bytes >= _LEAST_LOOKUP_BYTES:
            try:
                model = self._scaled(before, own, lookup_bytes)
            except ConfigError:
                if first:
                    raise
                return
            factor = model.global_batch_size / before.global_batch_size
            yield [_smaller(each, model, factor) for each in own], scaling_text(before, model)
            lookup_bytes, first = lookup_bytes / 2, False

    def _scaled(
        self, before: DlrmModel, candidates: Sequence[Candidate], lookup_bytes: float
    ) -> DlrmModel:
        share_bytes = _SCALED_SHARE * self.memory_bytes / len(candidates)
        return scale_model(
            before,
            memory_bytes=min(_SCALED_TABLES_BYTES, share_bytes),
            lookup_bytes=lookup_bytes,
            world_size=math.lcm(*(candidate.world_size for candidate in candidates)),
        )


def _smaller(candidate: Candidate, model: DlrmModel, factor: float) -> Candidate:
    """Returns a candidate of a scaled model, its batch scaled by a factor."""
    ranks = candidate.world_size
    batch = max(1, math.floor(factor * candidate.problem.local_batch_size + 1e-9)) * ranks
    return replace(
        candidate, problem=replace(candidate.problem, model=model, global_batch_size=batch)
    )
