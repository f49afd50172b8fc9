"""Commands that measure a machine, read what was measured, or check it."""

from __future__ import annotations

from dse.cli.machine._calibrate import calibrate_command
from dse.cli.machine._collective import collective_command
from dse.cli.machine._doctor import doctor_command
from dse.cli.machine._fit import fit_command
from dse.cli.machine._replay import replay_command

__all__ = [
    "calibrate_command",
    "collective_command",
    "doctor_command",
    "fit_command",
    "replay_command",
]
