"""Where candidates of a study are run: device, mode, platform of the predictions, ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.launch import load_torch
from dse.machine.platforms import load_platform
from dse.search import ValidationMode, stored_platform
from dse.sharding import stored_bytes
from dse.workload.dlrm import Configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.calibration.microbench import MachineInfo
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel
    from dse.search import StudyResult, TrialRecord
    from dse.validation._options import ValidateOptions

#: Platform that predicts runs on CPUs of studies of other machines.
CPU_PLATFORM = "cpu"

#: Share of the memory that the tables of a model may take unscaled.
_WHOLE_SHARE = 0.4


def device_of(wanted: str | None) -> str:
    if wanted is None:
        return "cuda" if load_torch().cuda.is_available() else "cpu"
    if wanted not in ("cpu", "cuda"):
        raise ConfigError(f"--device {wanted}: expected cpu or cuda")
    return wanted


def configuration_of(record: TrialRecord) -> Configuration:
    assert isinstance(record.configuration, Configuration)
    return record.configuration


def _is_here(platform: Platform, device: str) -> bool:
    """Whether the kind of device is that of a platform."""
    return (platform.device.kind == "cpu") == (device == "cpu")


def mode_of(
    study: StudyResult,
    model: DlrmModel,
    best: Sequence[TrialRecord],
    options: ValidateOptions,
    machine: MachineInfo,
) -> ValidationMode:
    """Returns how candidates are run, by what there is."""
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
    table_bytes = sum(
        stored_bytes(table, model.sparse_optimizer, table.rows, table.dim)
        for table in model.tables
    )
    fits = table_bytes <= _WHOLE_SHARE * machine.memory_bytes
    for record in best:
        platform = stored_platform(study, configuration_of(record).platform)
        most = options.ranks or min(machine.cores, platform.devices_per_node)
        here = _is_here(platform, "cpu") and configuration_of(record).world_size <= most
        if not (fits and here):
            return ValidationMode.SCALED
    return ValidationMode.REAL


def platform_of(
    study: StudyResult,
    best: TrialRecord,
    mode: ValidationMode,
    options: ValidateOptions,
    machine: MachineInfo,
) -> Platform | None:
    """Returns the platform of all predictions; None for each candidate's own."""
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


def max_ranks(
    options: ValidateOptions, machine: MachineInfo, platform: Platform | None, mode: ValidationMode
) -> int:
    if options.ranks is not None:
        return options.ranks
    if machine.device == "cuda":
        return machine.device_count
    node = machine.cores if platform is None else platform.devices_per_node
    return max(1, min(machine.cores, node))
