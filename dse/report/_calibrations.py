"""Fitted models with their errors, on a terminal and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.machine.fits import CollectiveCalibration, KernelCalibration
    from dse.machine.platforms import CalibrationFile


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """One fitted model.

    Attributes:
        model: What it models.
        fitted_points: Points of the fit.
        held_out_points: Points that its error was taken on.
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

    def as_json(self) -> dict[str, str | int | float]:
        """Returns the row as plain values."""
        return asdict(self)


def calibration_rows(calibrations: CalibrationFile) -> list[CalibrationRow]:
    """Returns one row for each fitted model of a file."""
    named: list[tuple[str, KernelCalibration | CollectiveCalibration]] = [
        *((" ".join([kernel.op, *kernel.precisions]), kernel) for kernel in calibrations.kernels),
        *(
            (f"{collective.op} on {collective.ranks} ranks", collective)
            for collective in calibrations.collectives
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


def render_calibrations(rows: Sequence[CalibrationRow], console: Console) -> None:
    """Prints fitted models with their errors on points that the fits did not see."""
    table = Table(title="errors on held-out points", title_justify="left")
    table.add_column("model")
    for name in ("points", "held out", "GMAE", "MAPE", "90th percentile"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.model,
            f"{row.fitted_points:,}",
            f"{row.held_out_points:,}",
            *(f"{100 * value:.1f} %" for value in (row.gmae, row.mape, row.p90)),
        )
    console.print(table)
    for rule in sorted({row.rule for row in rows}):
        console.print(f"held out: {rule}", markup=False)
