"""Predicted against measured steps as a static SVG: the model beside the roofline."""

from __future__ import annotations

from dataclasses import dataclass
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from end_to_end_cases import EndToEndCase

_TEMPLATE = Path(__file__).with_name("end_to_end_plot.svg.j2")

#: Colours that stay apart for the colour-blind (Okabe and Ito, 2008); shapes differ as well.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")

_SIDE = 380
_LEFT = 70
_GAP = 60
_TOP = 62
_BOTTOM = 48
_RIGHT = 20

#: What the dashed lines mark on either side of equality.
_BAND = 0.2


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled value on both axes.

    Attributes:
        at_px: Distance from the origin.
        label: The value in short.
    """

    at_px: float
    label: str


@dataclass(frozen=True, slots=True)
class Point:
    """One case in one panel, in pixels from the panel's upper left corner.

    Attributes:
        title: What a pointer over it shows.
        colour: Of its family.
        shape: Number of its family's marker.
        x_px: By the measurement.
        y_px: By the prediction.
        low_px: By the lower end of the interval, or None where there is no interval.
        high_px: By its upper end.
    """

    title: str
    colour: str
    shape: int
    x_px: float
    y_px: float
    low_px: float | None
    high_px: float | None


@dataclass(frozen=True, slots=True)
class Panel:
    """One model: its title, place and points."""

    title: str
    x_px: float
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One family: its name, colour and place."""

    family: str
    colour: str
    x_px: float


@dataclass(frozen=True, slots=True)
class Plot:
    """Everything that the template draws; lengths are in pixels.

    Attributes:
        title: For readers that cannot see it.
        unit: Of both axes.
        width: Of the picture.
        height: Of the picture.
        side: Of one square panel.
        top: Upper edge of the panels.
        above_px: How far the upper dashed line lies above the diagonal.
        below_px: How far the lower one lies above it: less than 0.
        ticks: Of both axes of both panels.
        legend: The families.
        panels: The models.
    """

    title: str
    unit: str
    width: float
    height: float
    side: float
    top: float
    above_px: float
    below_px: float
    ticks: tuple[Tick, ...]
    legend: tuple[LegendEntry, ...]
    panels: tuple[Panel, ...]


def scatter(cases: Sequence[EndToEndCase]) -> str:
    """Returns the picture of some cases of one unit as SVG.

    Both panels share one logarithmic range, so that the diagonal is where prediction and
    measurement agree.

    Args:
        cases: At least one that the model could predict.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(plot=_plot(cases)) + "\n"


def _plot(cases: Sequence[EndToEndCase]) -> Plot:
    unit = cases[0].unit
    values = [value for case in cases for value in (case.measured, case.predicted, case.roofline)]
    known = [math.log10(value) for value in values if math.isfinite(value)]
    low, high = min(known) - 0.1, max(known) + 0.1
    scale = _SIDE / (high - low)
    families = list(dict.fromkeys(case.family for case in cases))
    panels = tuple(
        Panel(
            title,
            _LEFT + index * (_SIDE + _GAP),
            tuple(_points(cases, families, low, scale, ours=index == 0)),
        )
        for index, title in enumerate(("dse", "roofline"))
    )
    return Plot(
        title=f"Predicted against measured {unit}: " + ", ".join(families),
        unit=unit,
        width=_LEFT + 2 * _SIDE + _GAP + _RIGHT,
        height=_TOP + _SIDE + _BOTTOM,
        side=_SIDE,
        top=_TOP,
        above_px=round(math.log10(1 + _BAND) * scale, 1),
        below_px=round(math.log10(1 - _BAND) * scale, 1),
        ticks=_ticks(low, high, scale),
        legend=tuple(
            LegendEntry(family, _COLOURS[index % 4], _LEFT + 150 * index)
            for index, family in enumerate(families)
        ),
        panels=panels,
    )


def _points(
    cases: Sequence[EndToEndCase], families: list[str], low: float, scale: float, *, ours: bool
) -> list[Point]:
    def across(value: float) -> float:
        return round((math.log10(value) - low) * scale, 1)

    points = []
    for case in cases:
        predicted = case.predicted if ours else case.roofline
        if not math.isfinite(predicted):
            continue
        family = families.index(case.family)
        error = predicted / case.measured - 1
        bounded = ours and math.isfinite(case.low) and math.isfinite(case.high)
        points.append(
            Point(
                f"{case.case}: measured {case.measured:.4g}, predicted {predicted:.4g} "
                f"{case.unit} ({100 * error:+.1f} %)",
                _COLOURS[family % 4],
                family % 4,
                across(case.measured),
                round(_SIDE - across(predicted), 1),
                round(_SIDE - across(case.low), 1) if bounded else None,
                round(_SIDE - across(case.high), 1) if bounded else None,
            )
        )
    return points


def _ticks(low: float, high: float, scale: float) -> tuple[Tick, ...]:
    """Powers of ten, with their doubles and fives in between where few fit."""
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    values = [
        step * 10.0**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for step in steps
    ]
    return tuple(
        Tick(round((math.log10(value) - low) * scale, 1), _short(value))
        for value in values
        if low <= math.log10(value) <= high
    )


def _short(value: float) -> str:
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"
