"""Kernels, copies, host overheads: the points of `dse calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse._process.system import available_cores
from dse.calibration.microbench import (
    default_threads,
    make_plan,
    run_session,
)

if TYPE_CHECKING:
    from pathlib import Path

FILE = "kernels.points.jsonl"


def run(out: Path, device: str, budget_s: float) -> None:
    """Measures points that the log does not have; the log grows with every call."""
    plan = make_plan(
        device,
        collectives=False,
        local_ranks=1,
        threads=default_threads(available_cores(), 1),
        busy_devices=1,
    )
    run_session(plan, out / FILE, budget_s)
