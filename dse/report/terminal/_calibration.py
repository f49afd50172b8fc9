"""Fitted models with their errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report.console import Table, figures, line, names, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.machine.fits import (
        CollectiveCalibration,
        KernelCalibration,
        NetworkCalibration,
    )
    from dse.machine.platforms import CalibrationFile


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """One fitted model.

    Attributes:
        model: What it models.
        fitted_points: Points of the fit.
        held_out_points: Points on which its error was measured.
        gmae: Geometric mean of the absolute relative errors.
        mape: Their mean.
        p90: Their 90th percentile.
        spread: Standard deviation of log(measured / predicted).
        rule: How the held-out points were chosen.
    """

    model: str
    fitted_points: int
    held_out_points: int
    gmae: float
    mape: float
    p90: float
    spread: float
    rule: str


def calibration_rows(calibrations: CalibrationFile) -> list[CalibrationRow]:
    """Returns one row for each fitted model of a file."""
    named: list[tuple[str, KernelCalibration | CollectiveCalibration | NetworkCalibration]] = [
        *((" ".join([kernel.op, *kernel.precisions]), kernel) for kernel in calibrations.kernels),
        *(
            (
                f"{collective.op} on {collective.ranks} ranks"
                + (f", NCCL {collective.nccl}" if collective.nccl else ""),
                collective,
            )
            for collective in calibrations.collectives
        ),
        *(
            (f"{', '.join(network.ops)} between nodes", network)
            for network in calibrations.networks
        ),
    ]
    return [
        CalibrationRow(
            model=name,
            fitted_points=model.provenance.points,
            held_out_points=model.held_out.points,
            gmae=model.held_out.gmae,
            mape=model.held_out.mape,
            p90=model.held_out.p90,
            spread=model.spread,
            rule=model.held_out.rule,
        )
        for name, model in named
    ]


def print_calibrations(rows: Sequence[CalibrationRow], console: Console) -> None:
    """Prints fitted models with their errors on points that the fits did not see."""
    titles = ("points", "held out", "GMAE", "MAPE", "90th percentile")
    table = Table("errors on held-out points", names("model"), figures(*titles))
    for row in rows:
        counts = (f"{row.fitted_points:,}", f"{row.held_out_points:,}")
        table.add(row.model, *counts, *map(percent, (row.gmae, row.mape, row.p90)))
    table.print(console)
    for rule in sorted({row.rule for row in rows}):
        line(console, f"held out: {rule}")
