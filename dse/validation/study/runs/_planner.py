"""Runs on this machine that represent configurations of a study, for any kind of workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dse.errors import ConfigError
from dse.search import ValidationMode, stored_platform, stored_space
from dse.sharding import format_size
from dse.validation.study._choose import configuration_of
from dse.workload import predict_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.platforms import Platform
    from dse.search import StudyResult, TrialRecord
    from dse.validation._protocol import RunCandidate, Trainer
    from dse.validation.study._choose import Chosen
    from dse.workload import Job, Prediction, Workload

#: Iterations per candidate that must fit into the budget: two short runs to estimate the duration
#: of an iteration, six rounds of two, and warm-ups.
_LEAST_ITERATIONS = 32

#: Share of the budget that they may take.
_LEAST_SHARE = 0.7

#: Share of the memory that unscaled candidates may use.
_USABLE_SHARE = 0.8


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
    candidate: RunCandidate
    other_program: bool
    prediction: Prediction


@dataclass(frozen=True)
class RunPlanner(ABC):
    """Plans the runs of trials; each kind of workload has a subclass.

    Attributes:
        kind: Kind of workload.
        default_trainer: Name of the trainer that is used if none is named.
        scaled_words: What scaling changes besides the sizes, as a sentence; "" if nothing.
        study: The study.
        workload: Its model.
        trainer: What trains candidates.
        mode: How candidates are run.
        max_ranks: Most ranks on this machine.
        memory_bytes: Memory of this machine, or of one GPU.
        device: ``cpu``, whose ranks share the memory, or ``cuda``.
        platform: Platform of all predictions; None for the one of each candidate.
    """

    kind: ClassVar[str]
    default_trainer: ClassVar[str]
    scaled_words: ClassVar[str] = ""

    study: StudyResult
    workload: Workload
    trainer: Trainer[Any]
    mode: ValidationMode
    max_ranks: int
    memory_bytes: float
    device: str
    platform: Platform | None

    @staticmethod
    @abstractmethod
    def weight_bytes(workload: Workload) -> float:
        """Returns the bytes of an unscaled model on all ranks, for the larger part."""

    @abstractmethod
    def candidate(self, record: TrialRecord) -> RunCandidate:
        """Returns what is run for a trial, checked by the trainer, before its model is scaled.

        Raises:
            ConfigError: The trainer or this machine cannot run it.
            PlanError: The plan does not match the model.
        """

    @abstractmethod
    def smaller(
        self, candidates: Sequence[RunCandidate]
    ) -> Iterator[tuple[Sequence[RunCandidate], str]]:
        """Yields the candidates with a scaled model and what was done, from the largest down.

        All are scaled by one rule, so that their order is that of the unscaled ones.

        Raises:
            ConfigError: The model is too large for this machine even when scaled.
        """

    @abstractmethod
    def changes_program(self, record: TrialRecord, candidate: RunCandidate) -> bool:
        """Returns whether a trial's program is another one than its candidate's."""

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

    def job_of(self, record: TrialRecord) -> Job:
        """Returns the job of a trial as the study has it, without a plan.

        Interconnects are the platform's defaults if another platform makes all predictions.
        """
        configuration = configuration_of(record)
        parameters = dict(configuration.parameters)
        # The plan keeps what the search space demanded of its tables.
        parameters.pop("table_constraints", None)
        platform = self._platforms[configuration.platform]
        if self.platform is not None:
            defaults = {"link": "", "network": ""}
            return self.workload.job(platform, parameters | defaults)
        links, networks = self._interconnects
        return self.workload.job(platform, parameters, links=links, networks=networks)

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

    def check_memory(self, record: TrialRecord) -> None:
        """Checks that an unscaled run fits into memory.

        Raises:
            ConfigError: It does not.
        """
        assert record.prediction is not None
        by_rank = record.prediction.memory_bytes_per_rank
        together = self.mode is ValidationMode.REAL and self.device == "cpu"
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
        candidate: Any = self.candidate(record)
        return replace(candidate, name="")

    def planned(self, chosen: Chosen, budget_s: float) -> tuple[tuple[PlannedRun, ...], str]:
        """Returns the runs with their predictions, and a description of the scaling.

        Args:
            chosen: Chosen trials.
            budget_s: Time for all runs; scaled models shrink until six rounds are predicted to
                fit.

        Raises:
            ConfigError: The model is too large for this machine even when scaled.
        """
        candidates = [self.candidate(record) for record, _, _ in chosen.runs]
        if self.mode is not ValidationMode.SCALED:
            return self._runs(chosen, candidates), ""
        runs: tuple[PlannedRun, ...] = ()
        text = ""
        for scaled, what in self.smaller(candidates):
            runs, text = self._runs(chosen, scaled), what
            needed_s = _LEAST_ITERATIONS * sum(run.prediction.iteration_time_s for run in runs)
            if needed_s <= _LEAST_SHARE * budget_s:
                break
        return runs, text

    def _runs(self, chosen: Chosen, candidates: Sequence[RunCandidate]) -> tuple[PlannedRun, ...]:
        return tuple(
            PlannedRun(
                record,
                same,
                reason,
                candidate,
                self.changes_program(record, candidate),
                predict_job(candidate.job()),
            )
            for (record, same, reason), candidate in zip(chosen.runs, candidates, strict=True)
        )
