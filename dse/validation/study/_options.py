"""Options of a validation, and the choices that depend on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dse._torch import load_torch
from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.search import ValidationMode, stored_platform
from dse.validation.measurement import MeasureLimits
from dse.validation.study._choose import configuration_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.calibration.microbench import MachineInfo
    from dse.machine.platforms import Platform
    from dse.search import StudyResult, TrialRecord

#: Platform that predicts CPU runs if the study is of another machine.
CPU_PLATFORM = "cpu"

#: Share of the memory that the weights of an unscaled model may use.
_WHOLE_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """Options of :func:`validate_study`.

    Attributes:
        top: Number of best candidates to run.
        random: Number of other feasible candidates to run, drawn at random.
        trainer: Name of the trainer; by default the first of the study's kind of workload. If it
            is not installed, that one serves in its place.
        device: ``cpu`` or ``cuda``; by default a GPU if there is one.
        mode: How candidates are run; by default the most realistic mode of this machine.
        ranks: Most ranks of a run; by default the GPUs, or the cores up to a node of the platform.
        platform: Name or file of the platform that predicts; by default the study's, or ``cpu``
            if the study is of another machine.
        budget_s: Time for measuring, in seconds.
        seed: Seed of the random candidates, the weights and the batches.
        calibrated: Multiply predictions by the factor of the study's previous validation.
        limits: Stopping rule; `budget_s` replaces its budget.
    """

    top: int = 5
    random: int = 0
    trainer: str | None = None
    device: str | None = None
    mode: ValidationMode | None = None
    ranks: int | None = None
    platform: str | None = None
    budget_s: float = 120.0
    seed: int = 0
    calibrated: bool = False
    limits: MeasureLimits = field(default_factory=MeasureLimits)


def chosen_device(wanted: str | None) -> str:
    """Returns the device of the runs; by default a GPU if there is one."""
    if wanted is None:
        return "cuda" if load_torch().cuda.is_available() else "cpu"
    if wanted not in ("cpu", "cuda"):
        raise ConfigError(f"--device {wanted}: expected cpu or cuda")
    return wanted


def _is_here(platform: Platform, device: str) -> bool:
    """Returns whether a platform has the given kind of device."""
    return (platform.device.kind == "cpu") == (device == "cpu")


def chosen_mode(
    study: StudyResult,
    weight_bytes: float,
    best: Sequence[TrialRecord],
    options: ValidateOptions,
    machine: MachineInfo,
) -> ValidationMode:
    """Returns how candidates are run on this machine.

    Args:
        study: The study.
        weight_bytes: Bytes of the unscaled model on all ranks.
        best: Its best trials.
        options: A mode and ranks, if they are given.
        machine: This machine.
    """
    if machine.device == "cuda":
        if options.mode is ValidationMode.SCALED:
            raise ConfigError("--mode scaled runs on processes of the CPU; use --device cpu")
        if options.mode is not None:
            return options.mode
        most = max(configuration_of(record).world_size for record in best)
        enough = most <= (options.ranks or machine.device_count)
        return ValidationMode.REAL if enough else ValidationMode.RANK_SERIAL
    if options.mode is not None:
        return options.mode
    fits = weight_bytes <= _WHOLE_SHARE * machine.memory_bytes
    for record in best:
        platform = stored_platform(study, configuration_of(record).platform)
        most = options.ranks or min(machine.cores, platform.devices_per_node)
        here = _is_here(platform, "cpu") and configuration_of(record).world_size <= most
        if not (fits and here):
            return ValidationMode.SCALED
    return ValidationMode.REAL


def predicting_platform(
    study: StudyResult,
    best: TrialRecord,
    mode: ValidationMode,
    options: ValidateOptions,
    machine: MachineInfo,
) -> Platform | None:
    """Returns the platform of all predictions; None for the one of each candidate."""
    if options.platform is not None:
        given = load_platform(options.platform)
        if not _is_here(given, machine.device):
            raise ConfigError(
                f"--platform {given.name} is a {given.device.kind}, the runs are on "
                f"{machine.device}; give a platform of this machine, or --device"
            )
        return given
    own = stored_platform(study, configuration_of(best).platform)
    if mode is not ValidationMode.SCALED and _is_here(own, machine.device):
        return None
    if machine.device == "cpu":
        return own if _is_here(own, "cpu") else load_platform(CPU_PLATFORM)
    raise ConfigError(
        f"the study {study.name} is of {own.name}, the runs are on cuda; name the platform of "
        "these GPUs by --platform, or use --device cpu"
    )


def max_ranks(options: ValidateOptions, machine: MachineInfo, platform: Platform | None) -> int:
    """Returns the most ranks of a run."""
    if options.ranks is not None:
        return options.ranks
    if machine.device == "cuda":
        return machine.device_count
    node = machine.cores if platform is None else platform.devices_per_node
    return max(1, min(machine.cores, node))
