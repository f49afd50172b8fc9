"""Validating a study: its best candidates run for real, beside what was predicted of them."""

from __future__ import annotations

from datetime import UTC, datetime
import math
from typing import TYPE_CHECKING

from dse.calibration.microbench import describe_machine
from dse.config import SCHEMA_VERSION
from dse.errors import ConfigError
from dse.search import (
    ValidatedCandidate,
    Validation,
    ValidationMode,
    ValidationSetting,
    stored_model,
    stored_platform,
)
from dse.search.space import WorkloadKind
from dse.validation._agreement import agreement_of, factor_of, sentence_of
from dse.validation._choose import choose, feasible_by_value
from dse.validation._options import ValidateOptions
from dse.validation._plan_runs import Runner
from dse.validation._session import Session
from dse.validation._setting import disturbance_words, words_of
from dse.validation._where import configuration_of, device_of, max_ranks, mode_of, platform_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.search import CalibrationFactor, StudyResult, TrialRecord
    from dse.validation._plan_runs import PlannedRun
    from dse.validation._types import Measurement


def validate_study(
    study: StudyResult,
    options: ValidateOptions | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> Validation:
    """Runs candidates of a study for real and compares them with their predictions.

    An interrupt (Ctrl-C) after the first round ends the measuring, and what was measured counts.

    Args:
        study: The study; its earlier validation gives the factor of `calibrated`, and keeps
            its other factors.
        options: What is run, where, for how long; the defaults if omitted.
        on_progress: Called after each round with a word for it and the share of time used.

    Raises:
        ConfigError: The study is of a trace or a transformer, has no feasible candidate, or none
            that this machine can run in the mode; there is no earlier factor to apply.
        OptionalDependencyError: torch is not installed.
        WorkerError: A rank failed.
    """
    options = options or ValidateOptions()
    model = _model(study)
    records = feasible_by_value(study)
    if not records:
        raise ConfigError(
            f"the study {study.name} has no feasible candidate to run; `dse report` says why"
        )
    machine = describe_machine(device_of(options.device))
    mode = mode_of(study, model, records[: max(1, options.top)], options, machine)
    platform = platform_of(study, records[0], mode, options, machine)
    runner = Runner(
        study,
        model,
        mode,
        max_ranks(options, machine, platform, mode),
        float(machine.memory_bytes),
        machine.device == "cpu",
        platform,
    )
    kept, left_out = _of_one_platform(records, mode, platform)
    chosen = choose(kept, options.top, options.random, options.seed, runner.key)
    left_out += chosen.left_out
    if not chosen.runs:
        reasons = "; ".join(f"{number}: {reason}" for number, reason in left_out[:3])
        raise ConfigError(
            f"no candidate of the study {study.name} can be run {mode.value} here ({reasons}); "
            "choose another --mode"
        )
    runs, scale_words = runner.planned(chosen, options.budget_s)
    predictor = platform or stored_platform(study, configuration_of(records[0]).platform)
    applied = _applied(study, predictor.name, mode) if options.calibrated else 1.0
    session = Session(machine, mode, options, predictor, on_progress)
    measured = session.measure(runs)
    left_out += tuple(
        (run.record.number, "not measured: interrupted")
        for run in runs
        if run.record.number not in measured
    )
    candidates = tuple(
        sorted(
            (
                _candidate(run, measured[run.record.number], applied)
                for run in runs
                if run.record.number in measured
            ),
            key=lambda one: (one.predicted_sample_s, one.number),
        )
    )
    agreement = agreement_of(candidates)
    return Validation(
        schema_version=SCHEMA_VERSION,
        sentence=sentence_of(candidates, agreement, mode),
        agreement=agreement,
        candidates=candidates,
        factors=_factors(study, factor_of(candidates, predictor.name, mode, applied)),
        setting=ValidationSetting(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            mode=mode,
            device=machine.device,
            device_name=machine.device_name,
            cores=machine.cores,
            memory_bytes=float(machine.memory_bytes),
            threads=session.threads(runs[0].candidate.configuration.world_size),
            versions=machine.libraries,
            platform=predictor.name,
            applied_factor=applied,
            seed=options.seed,
            budget_s=options.budget_s,
            interrupted=session.interrupted,
            words=(
                *words_of(study, mode, runs, machine, scale_words),
                *disturbance_words(candidates, mode, machine),
            ),
            left_out=left_out,
        ),
    )


def _model(study: StudyResult) -> DlrmModel:
    if study.kind is not WorkloadKind.DLRM:
        what = {WorkloadKind.TRACE: "a captured trace", WorkloadKind.TRANSFORMER: "a transformer"}
        raise ConfigError(
            f"the study {study.name} is of {what[study.kind]}; only studies of recommendation "
            "models (`kind: dlrm`) can be validated by real runs"
        )
    return stored_model(study)


def _of_one_platform(
    records: Sequence[TrialRecord], mode: ValidationMode, platform: Platform | None
) -> tuple[list[TrialRecord], tuple[tuple[int, str], ...]]:
    """Keeps those on the best one's platform, where candidates are run as they are."""
    if platform is not None:
        return list(records), ()
    best = configuration_of(records[0]).platform
    kept = [one for one in records if configuration_of(one).platform == best]
    others = tuple(
        (one.number, f"is on another platform than the best, {best}")
        for one in records
        if configuration_of(one).platform != best
    )
    return kept, others


def _applied(study: StudyResult, platform: str, mode: ValidationMode) -> float:
    earlier = () if study.validation is None else study.validation.factors
    for factor in earlier:
        if (factor.platform, factor.mode) == (platform, mode):
            return factor.factor
    raise ConfigError(
        f"--calibrated: the study {study.name} has no factor for `{platform}` in mode "
        f"{mode.value} yet; validate it once without --calibrated"
    )


def _factors(study: StudyResult, latest: CalibrationFactor) -> tuple[CalibrationFactor, ...]:
    earlier = () if study.validation is None else study.validation.factors
    key = (latest.platform, latest.mode)
    return (latest, *(one for one in earlier if (one.platform, one.mode) != key))


def _candidate(run: PlannedRun, measured: Measurement, applied: float) -> ValidatedCandidate:
    own, ran = configuration_of(run.record), run.candidate.configuration
    assert run.record.prediction is not None
    return ValidatedCandidate(
        number=run.record.number,
        same=run.same,
        chosen=run.chosen,
        world_size=own.world_size,
        global_batch_size=own.global_batch_size,
        study_time_s=run.record.prediction.iteration_time_s,
        run_world_size=ran.world_size,
        run_batch_size=ran.global_batch_size,
        predicted_s=applied * run.prediction.iteration_time_s,
        predicted_low_s=applied * run.prediction.iteration_time_p5_s,
        predicted_high_s=applied * run.prediction.iteration_time_p95_s,
        measured_s=measured.iteration_time_s,
        measured_low_s=_finite(measured.low_s),
        measured_high_s=_finite(measured.high_s),
        samples_s=measured.samples,
        iterations_per_sample=measured.iterations_per_sample,
        processor_s=max(measured.rank_processor_times_s),
        settled=measured.settled,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
