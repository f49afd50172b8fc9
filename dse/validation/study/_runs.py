"""Runs on this machine that represent configurations of a study."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.search import ValidationMode, stored_platform
from dse.search.space import SpaceDocument
from dse.sharding import check_plan, format_size
from dse.validation._types import Candidate
from dse.validation.study._scale import fold_plan, scale_model, scaling_text
from dse.workload.dlrm import (
    Configuration,
    DlrmRuntime,
    PlanScorer,
    Prediction,
    predict_plan,
    problem_of,
    software_profile,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine import LinkSpec, NetworkSpec
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.search import StudyResult, TrialRecord
    from dse.validation.study._choose import Chosen

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
        prediction: Prediction of the run on the platform where it is run.
    """

    record: TrialRecord
    same: tuple[int, ...]
    chosen: str
    candidate: Candidate
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class RunPlanner:
    """Plans the runs of trials.

    Attributes:
        study: The study.
        model: Its model.
        mode: How candidates are run.
        max_ranks: Most ranks on this machine.
        memory_bytes: Memory of this machine, or of one GPU.
        shared_memory: Whether all ranks share the memory.
        platform: Platform of all predictions; None for the one of each candidate.
    """

    study: StudyResult
    model: DlrmModel
    mode: ValidationMode
    max_ranks: int
    memory_bytes: float
    shared_memory: bool
    platform: Platform | None

    def ranks(self, configuration: Configuration) -> int:
        """Returns the number of ranks that a configuration is run on.

        Raises:
            ConfigError: The configuration needs more ranks than this machine has.
        """
        world_size = configuration.world_size
        if self.mode is ValidationMode.RANK_SERIAL or world_size <= self.max_ranks:
            return world_size
        if self.mode is ValidationMode.REAL:
            raise ConfigError(
                f"{world_size} ranks are more than the {self.max_ranks} of this run; give more by "
                "--ranks, or choose --mode scaled or rank-serial"
            )
        return max(ranks for ranks in range(1, self.max_ranks + 1) if world_size % ranks == 0)

    def configuration(self, record: TrialRecord) -> Configuration:
        """Returns the configuration that is run for a trial, before scaling the batch.

        Raises:
            ConfigError: The trainer or this machine cannot run it.
            PlanError: The plan does not match the model.
        """
        own = record.configuration
        assert isinstance(own, Configuration)
        ranks, node = self.ranks(own), self._node_size(own)
        plan, link, network, precision = own.plan, own.link, own.network, own.precision
        if self.mode is ValidationMode.SCALED:
            plan = fold_plan(plan, ranks, node)
            precision, node = Precision.FP32, ranks
        else:
            self._check_memory(record)
        name = own.platform
        if self.platform is not None:
            name, link, network = self.platform.name, "", ""
        run = replace(
            own,
            platform=name,
            world_size=ranks,
            plan=plan,
            precision=precision,
            link=link,
            network=network,
            software=trained_software(own.software),
        )
        # The batch may be scaled later, so round it here to one that divides.
        batch = max(run.global_batch_size // ranks, 1) * ranks
        trial = replace(run, global_batch_size=batch)
        Candidate(str(record.number), self.model, trial, node).checked()
        return run

    def _check_memory(self, record: TrialRecord) -> None:
        """Raises an error if an unscaled run does not fit into memory."""
        assert isinstance(record.prediction, Prediction)
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
        return self.configuration(record)

    def _node_size(self, configuration: Configuration) -> int:
        platform = stored_platform(self.study, configuration.platform)
        return min(platform.devices_per_node, configuration.world_size)

    def planned(self, chosen: Chosen, budget_s: float) -> tuple[tuple[PlannedRun, ...], str]:
        """Returns the runs with their predictions, and a description of the scaling.

        Args:
            chosen: Chosen trials.
            budget_s: Time for all runs; scaled batches shrink until six rounds are predicted to
                fit.

        Raises:
            ConfigError: The model is too large for this machine even when scaled.
        """
        configurations = [self.configuration(record) for record, _, _ in chosen.runs]
        if self.mode is not ValidationMode.SCALED:
            return self._with(chosen, configurations, [self.model] * len(configurations)), ""
        lookup_bytes, words = _SCALED_LOOKUP_BYTES, ""
        runs: tuple[PlannedRun, ...] = ()
        while True:
            try:
                model, factor = self._scaled(configurations, lookup_bytes, len(chosen.runs))
            except ConfigError:
                if runs:
                    return runs, words
                raise
            words = scaling_text(self._largest(configurations), model)
            scaled = [_smaller(one, factor) for one in configurations]
            runs = self._with(chosen, scaled, [model] * len(scaled))
            needed_s = _LEAST_ITERATIONS * sum(one.prediction.iteration_time_s for one in runs)
            if needed_s <= 0.7 * budget_s or lookup_bytes < 2 * _LEAST_LOOKUP_BYTES:
                return runs, words
            lookup_bytes /= 2

    def _largest(self, configurations: Sequence[Configuration]) -> DlrmModel:
        largest = max(one.global_batch_size for one in configurations)
        return replace(self.model, global_batch_size=largest)

    def _scaled(
        self, configurations: Sequence[Configuration], lookup_bytes: float, count: int
    ) -> tuple[DlrmModel, float]:
        before = self._largest(configurations)
        model = scale_model(
            before,
            memory_bytes=min(_SCALED_TABLES_BYTES, _SCALED_SHARE * self.memory_bytes / count),
            lookup_bytes=lookup_bytes,
            world_size=math.lcm(*(one.world_size for one in configurations)),
        )
        return model, model.global_batch_size / before.global_batch_size

    def _with(
        self,
        chosen: Chosen,
        configurations: Sequence[Configuration],
        models: Sequence[DlrmModel],
    ) -> tuple[PlannedRun, ...]:
        runs = []
        for (record, same, word), configuration, model in zip(
            chosen.runs, configurations, models, strict=True
        ):
            node = configuration.world_size
            if self.mode is not ValidationMode.SCALED:
                assert isinstance(record.configuration, Configuration)
                node = self._node_size(record.configuration)
            model = replace(model, global_batch_size=configuration.global_batch_size)
            candidate = Candidate(str(record.number), model, configuration, node)
            prediction = self._predict(record, candidate.checked())
            runs.append(PlannedRun(record, same, word, candidate, prediction))
        return tuple(runs)

    def _predict(self, record: TrialRecord, candidate: Candidate) -> Prediction:
        configuration = candidate.configuration
        if configuration == record.configuration and self.platform is None:
            assert isinstance(record.prediction, Prediction)
            return record.prediction
        platform = self.platform or stored_platform(self.study, configuration.platform)
        ranks = configuration.world_size
        if self.platform is not None:
            platform = replace(platform, devices_per_node=candidate.node_size)
        links, networks = ((), ()) if self.platform is not None else self._extra()
        problem = problem_of(
            candidate.model,
            platform,
            configuration,
            extra_links=links,
            extra_networks=networks,
        )
        plan = check_plan(
            configuration.plan,
            candidate.model.tables,
            ranks,
            problem.cluster.devices_per_node,
        )
        return predict_plan(PlanScorer(problem), plan, None)

    def _extra(self) -> tuple[tuple[LinkSpec, ...], tuple[NetworkSpec, ...]]:
        """Returns the interconnects that the search space adds to those of platforms."""
        for file in self.study.inputs:
            if file.role == "space":
                space = parse_document(file.text, SpaceDocument, file=file.path).to_space()
                return space.links, space.networks
        return (), ()


def _smaller(configuration: Configuration, factor: float) -> Configuration:
    ranks = configuration.world_size
    batch = max(1, math.floor(factor * configuration.global_batch_size / ranks + 1e-9)) * ranks
    return replace(configuration, global_batch_size=batch)


def trained_software(software: DlrmRuntime) -> DlrmRuntime:
    """Returns the reference trainer's program with the options that it shares with another one."""
    return replace(
        software_profile("dse_trainer").software,
        overlap_dense_all_reduce=software.overlap_dense_all_reduce,
        prefetch_input=software.prefetch_input,
        communication_precision_bytes=software.communication_precision_bytes,
        dense_bucket_bytes=software.dense_bucket_bytes,
    )
