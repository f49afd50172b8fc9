"""Validation of a study."""

from __future__ import annotations

from datetime import UTC, datetime
import math
from typing import TYPE_CHECKING, Any

from dse.calibration.microbench import describe_machine
from dse.config import SCHEMA_VERSION
from dse.errors import ConfigError
from dse.search import (
    ValidatedCandidate,
    Validation,
    ValidationMode,
    ValidationSetting,
    stored_platform,
    stored_workload,
)
from dse.validation.study._agreement import (
    platform_factor,
    ranking_agreement,
    summary_sentence,
)
from dse.validation.study._choose import choose, configuration_of, feasible_trials
from dse.validation.study._notes import disturbance_notes, divergence_notes, setting_notes
from dse.validation.study._options import (
    ValidateOptions,
    chosen_device,
    chosen_mode,
    max_ranks,
    predicting_platform,
)
from dse.validation.study._session import RunMeasurement
from dse.validation.study.runs import planner_of
from dse.validation.trainer import find_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.machine.platforms import Platform
    from dse.search import CalibrationFactor, StudyResult, TrialRecord
    from dse.validation._protocol import Trainer
    from dse.validation._types import Measurement
    from dse.validation.study.runs import PlannedRun, RunPlanner


def validate_study(
    study: StudyResult,
    options: ValidateOptions | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> Validation:
    """Runs candidates of a study and compares the measurements with their predictions.

    Ctrl-C after the first round ends the measurement and keeps its results so far.

    Args:
        study: The study; an earlier validation provides the factor for `calibrated`.
        options: What is run, where, and for how long.
        on_progress: Called with what begins, and the fraction of the budget used.

    Raises:
        BudgetError: The budget does not allow a single round of all candidates.
        ConfigError: No trainer runs this kind of study, the named one does not, the study has no
            feasible candidate, or none that this machine can run in the mode; or there is no
            earlier factor to apply.
        OptionalDependencyError: torch is not installed.
        WorkerError: A rank failed.
    """
    options = options or ValidateOptions()
    kind = planner_of(study)
    trainer, instead = _trainer(kind, options)
    workload = stored_workload(study)
    records = feasible_trials(study)
    if not records:
        raise ConfigError(
            f"the study {study.name} has no feasible candidate to run; `dse report` says why"
        )
    machine = describe_machine(chosen_device(options.device))
    best = records[: max(1, options.top)]
    mode = chosen_mode(study, kind.weight_bytes(workload), best, options, machine)
    platform = predicting_platform(study, records[0], mode, options, machine)
    runner = kind(
        study,
        workload,
        trainer,
        mode,
        max_ranks(options, machine, platform),
        float(machine.memory_bytes),
        machine.device,
        platform,
    )
    kept, left_out = _of_one_platform(records, platform)
    chosen = choose(kept, options.top, options.random, options.seed, runner.key)
    left_out += chosen.left_out
    if not chosen.runs:
        reasons = "; ".join(f"{number}: {reason}" for number, reason in left_out[:3])
        raise ConfigError(
            f"no candidate of the study {study.name} can be run {mode.value} here ({reasons}); "
            "choose another --mode"
        )
    runs, scaling = runner.planned(chosen, options.budget_s)
    predictor = platform or stored_platform(study, configuration_of(records[0]).platform)
    applied = _applied(study, predictor.name, mode, trainer.name) if options.calibrated else 1.0
    measurement = RunMeasurement(trainer, machine, mode, options, predictor, on_progress)
    measured = measurement.measure(runs)
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
    agreement = ranking_agreement(candidates)
    factor = platform_factor(candidates, predictor.name, mode, trainer.name, applied)
    return Validation(
        schema_version=SCHEMA_VERSION,
        sentence=summary_sentence(candidates, agreement, mode, measurement.needed_s),
        agreement=agreement,
        candidates=candidates,
        factors=_factors(study, factor),
        setting=ValidationSetting(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            mode=mode,
            device=machine.device,
            device_name=machine.device_name,
            cores=machine.cores,
            memory_bytes=float(machine.memory_bytes),
            threads=measurement.threads(runs[0].candidate.world_size),
            versions=(*machine.libraries, *trainer.libraries()),
            platform=predictor.name,
            applied_factor=applied,
            seed=options.seed,
            budget_s=options.budget_s,
            interrupted=measurement.interrupted,
            words=(
                *instead,
                *setting_notes(runner, runs, machine, scaling),
                *disturbance_notes(candidates, mode, machine),
                *divergence_notes(measured),
            ),
            left_out=left_out,
            trainer=trainer.name,
        ),
    )


def _trainer(
    kind: type[RunPlanner], options: ValidateOptions
) -> tuple[Trainer[Any], tuple[str, ...]]:
    """Returns the trainer, and a sentence if another one serves in its place."""
    default = find_trainer(kind.default_trainer)
    if options.trainer is None:
        return default, ()
    wanted = find_trainer(options.trainer, kind.kind)
    if not (missing := wanted.missing()):
        return wanted, ()
    return default, (
        f"Trainer `{wanted.name}` needs {missing}, which is not installed here; {default.title} "
        "served in its place.",
    )


def _of_one_platform(
    records: Sequence[TrialRecord], platform: Platform | None
) -> tuple[list[TrialRecord], tuple[tuple[int, str], ...]]:
    """Keeps the trials on the platform of the best one, if candidates run unchanged."""
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


def _applied(study: StudyResult, platform: str, mode: ValidationMode, trainer: str) -> float:
    earlier = () if study.validation is None else study.validation.factors
    for factor in earlier:
        if (factor.platform, factor.mode, factor.trainer) == (platform, mode, trainer):
            return factor.factor
    raise ConfigError(
        f"--calibrated: the study {study.name} has no factor for `{platform}` in mode "
        f"{mode.value} by the trainer `{trainer}` yet; validate it once without --calibrated"
    )


def _factors(study: StudyResult, latest: CalibrationFactor) -> tuple[CalibrationFactor, ...]:
    earlier = () if study.validation is None else study.validation.factors

    def key(one: CalibrationFactor) -> tuple[str, ValidationMode, str]:
        return one.platform, one.mode, one.trainer

    return (latest, *(one for one in earlier if key(one) != key(latest)))


def _candidate(run: PlannedRun, measured: Measurement, applied: float) -> ValidatedCandidate:
    own, ran = configuration_of(run.record), run.candidate
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
        settled=measured.converged,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
