"""Runs on this machine that represent configurations of a study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.machine import Precision
from dse.search import ValidationMode, stored_platform, stored_space
from dse.sharding import format_size
from dse.validation._types import Candidate
from dse.validation.study._choose import configuration_of
from dse.validation.study._scale import fold_plan, scale_model, scaling_text
from dse.workload import find_program, predict_job
from dse.workload.dlrm import DLRM_PROGRAMS, TrainPipeline, WireFormat, WireFormats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.search import StudyResult, TrialRecord
    from dse.validation.study._choose import Chosen
    from dse.workload import Prediction
    from dse.workload.dlrm import DlrmProblem, DlrmRuntime, DlrmWorkload

#: Iterations per candidate that must fit into the budget: two short runs to estimate the duration
#: of an iteration, six rounds of two, and warm-ups.
_LEAST_ITERATIONS = 32

#: Most bytes of the tables of a scaled candidate, and of the rows that an iteration looks up.
_SCALED_TABLES_BYTES = 0.2e9
_SCALED_LOOKUP_BYTES = 32e6
_LEAST_LOOKUP_BYTES = 0.5e6

#: Share of the memory that unscaled candidates may use.
_USABLE_SHARE = 0.8

#: Share of the memory that all scaled candidates may use together.
_SCALED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A trial of the study and its run.

    Attributes:
        record: The trial.
        same: Other trials with the same run.
        chosen: ``best`` or ``random``.
        candidate: What is run.
        other_program: Whether the study chose a program other than the trainer's.
        prediction: Prediction of the run on the platform where it is run.
    """

    record: TrialRecord
    same: tuple[int, ...]
    chosen: str
    candidate: Candidate
    other_program: bool
    prediction: Prediction


@dataclass(frozen=True)
class RunPlanner:
    """Plans the runs of trials.

    Attributes:
        study: The study.
        workload: Its model.
        mode: How candidates are run.
        max_ranks: Most ranks on this machine.
        memory_bytes: Memory of this machine, or of one GPU.
        shared_memory: Whether all ranks share the memory.
        platform: Platform of all predictions; None for the one of each candidate.
    """

    study: StudyResult
    workload: DlrmWorkload
    mode: ValidationMode
    max_ranks: int
    memory_bytes: float
    shared_memory: bool
    platform: Platform | None

    def ranks(self, world_size: int) -> int:
        """Returns the number of ranks that a configuration is run on.

        Args:
            world_size: Ranks of the configuration.

        Raises:
            ConfigError: These are more than this machine has.
        """
        if self.mode is ValidationMode.RANK_SERIAL or world_size <= self.max_ranks:
            return world_size
        if self.mode is ValidationMode.REAL:
            raise ConfigError(
                f"{world_size} ranks are more than the {self.max_ranks} of this run; give more by "
                "--ranks, or choose --mode scaled or rank-serial"
            )
        return max(ranks for ranks in range(1, self.max_ranks + 1) if world_size % ranks == 0)

    def candidate(self, record: TrialRecord) -> Candidate:
        """Returns what is run for a trial, before its model is scaled.

        Raises:
            ConfigError: The trainer or this machine cannot run it.
            PlanError: The plan does not match the model.
        """
        own, plan = self._problem(record), configuration_of(record).plan
        assert plan is not None
        if own.sync is not None:
            raise ConfigError(
                f"{own.cluster.replicas} replicas: the trainer does not average copies of tables; "
                "validate a configuration with one replica"
            )
        ranks, node = self.ranks(own.cluster.world_size), own.cluster.domain_size
        problem = replace(own, software=trained_software(own.software))
        if self.mode is ValidationMode.SCALED:
            plan, node = fold_plan(plan, ranks, node), ranks
            problem = replace(problem, precision=Precision.FP32)
        else:
            self._check_memory(record)
        if self.platform is not None:
            cluster = replace(self.platform, devices_per_node=node).cluster(ranks)
            problem = replace(problem, cluster=cluster)
        return Candidate(str(record.number), problem, plan).checked()

    def _problem(self, record: TrialRecord) -> DlrmProblem:
        """Returns the problem of a trial as the study has it.

        Interconnects are the platform's defaults if another platform makes all predictions.
        """
        configuration = configuration_of(record)
        parameters = dict(configuration.parameters)
        # The plan keeps what the search space demanded of its tables.
        parameters.pop("table_constraints", None)
        platform = self._platforms[configuration.platform]
        if self.platform is not None:
            defaults = {"link": "", "network": ""}
            return self.workload.job(platform, parameters | defaults).problem
        links, networks = self._interconnects
        return self.workload.job(platform, parameters, links=links, networks=networks).problem

    @cached_property
    def _platforms(self) -> dict[str, Platform]:
        names = [file.name for file in self.study.inputs if file.role == "platform"]
        return {name: stored_platform(self.study, name) for name in names}

    @cached_property
    def _interconnects(self) -> tuple[tuple[LinkSpec, ...], tuple[NetworkSpec, ...]]:
        """Links and networks of the search space; none if it was made in Python."""
        if not any(file.role == "space" and file.path for file in self.study.inputs):
            return (), ()
        space = stored_space(self.study)
        return space.links, space.networks

    def _check_memory(self, record: TrialRecord) -> None:
        """Raises an error if an unscaled run does not fit into memory."""
        assert record.prediction is not None
        by_rank = record.prediction.memory_bytes_per_rank
        together = self.mode is ValidationMode.REAL and self.shared_memory
        needed_bytes = sum(by_rank) if together else max(by_rank)
        limit_bytes = _USABLE_SHARE * self.memory_bytes
        if needed_bytes > limit_bytes:
            raise ConfigError(
                f"{'its ranks need' if together else 'its largest rank needs'} "
                f"{format_size(needed_bytes)}, and {format_size(limit_bytes)} are available here; "
                "choose --mode scaled"
            )

    def key(self, record: TrialRecord) -> object:
        """Returns a key that is equal for trials with the same run."""
        return replace(self.candidate(record), name="")

    def planned(self, chosen: Chosen, budget_s: float) -> tuple[tuple[PlannedRun, ...], str]:
        """Returns the runs with their predictions, and a description of the scaling.

        Args:
            chosen: Chosen trials.
            budget_s: Time for all runs; scaled batches shrink until six rounds are predicted to
                fit.

        Raises:
            ConfigError: The model is too large for this machine even when scaled.
        """
        candidates = [self.candidate(record) for record, _, _ in chosen.runs]
        if self.mode is not ValidationMode.SCALED:
            return self._runs(chosen, candidates), ""
        lookup_bytes, text = _SCALED_LOOKUP_BYTES, ""
        runs: tuple[PlannedRun, ...] = ()
        largest = max(candidate.problem.global_batch_size for candidate in candidates)
        before = replace(self.workload.model, global_batch_size=largest)
        while True:
            try:
                model = self._scaled(before, candidates, lookup_bytes)
            except ConfigError:
                if runs:
                    return runs, text
                raise
            text = scaling_text(before, model)
            factor = model.global_batch_size / before.global_batch_size
            runs = self._runs(chosen, [_smaller(each, model, factor) for each in candidates])
            needed_s = _LEAST_ITERATIONS * sum(run.prediction.iteration_time_s for run in runs)
            if needed_s <= 0.7 * budget_s or lookup_bytes < 2 * _LEAST_LOOKUP_BYTES:
                return runs, text
            lookup_bytes /= 2

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

    def _runs(self, chosen: Chosen, candidates: Sequence[Candidate]) -> tuple[PlannedRun, ...]:
        return tuple(
            PlannedRun(
                record,
                same,
                reason,
                candidate,
                candidate.problem.software != self._problem(record).software,
                predict_job(candidate.job()),
            )
            for (record, same, reason), candidate in zip(chosen.runs, candidates, strict=True)
        )


def _smaller(candidate: Candidate, model: DlrmModel, factor: float) -> Candidate:
    """Returns a candidate of a scaled model, its batch scaled by a factor."""
    ranks = candidate.world_size
    batch = max(1, math.floor(factor * candidate.problem.local_batch_size + 1e-9)) * ranks
    return replace(
        candidate, problem=replace(candidate.problem, model=model, global_batch_size=batch)
    )


def _trained_wire(wire: WireFormats) -> WireFormats:
    """Returns the formats on the wire that the trainer has closest to others: FP32 or FP16."""
    narrow = wire.forward.value_bytes < 4
    return WireFormats.of(WireFormat.FP16 if narrow else WireFormat.FP32)


def trained_software(software: DlrmRuntime) -> DlrmRuntime:
    """Returns the reference trainer's program with the options that it shares with another one.

    Of pipelines it has those that prefetch the input and those that do not.
    """
    ahead = software.pipeline.distributes_ahead
    return replace(
        find_program(DLRM_PROGRAMS, "dse_trainer").software,
        overlap_dense_all_reduce=software.overlap_dense_all_reduce,
        pipeline=TrainPipeline.SPARSE_DIST if ahead else TrainPipeline.BASE,
        wire=_trained_wire(software.wire),
        dense_bucket_bytes=software.dense_bucket_bytes,
    )
