"""Predicted against measured steps as static SVG: beside a roofline, or family by family."""

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

#: Of pictures with a panel for each family.
_SMALL = 230
_COLUMNS = 4

#: Points of a panel with an interval and a title each; more would only hide each other.
_MOST_POINTS = 120

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
    """One square: its title, place, scale and points.

    Attributes:
        title: Above it.
        x_px: Left edge.
        y_px: Upper edge.
        side: Of the square.
        above_px: How far the upper dashed line lies above the diagonal.
        below_px: How far the lower one lies above it: less than 0.
        ticks: Of both axes.
        points: Cases, each with its interval and what a pointer shows.
        dots: Cases of a panel that has too many for that, as one path.
    """

    title: str
    x_px: float
    y_px: float
    side: float
    above_px: float
    below_px: float
    ticks: tuple[Tick, ...]
    points: tuple[Point, ...] = ()
    dots: str = ""


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
        legend: The families; none where every panel is one.
        panels: The squares.
    """

    title: str
    unit: str
    width: float
    height: float
    legend: tuple[LegendEntry, ...]
    panels: tuple[Panel, ...]


def scatter(cases: Sequence[EndToEndCase]) -> str:
    """Returns the picture of some cases of one unit as SVG: the model beside the roofline.

    Both panels share one logarithmic range, so that the diagonal is where prediction and
    measurement agree.

    Args:
        cases: At least one that the model could predict.
    """
    low, high = _range(cases, roofline=True)
    families = list(dict.fromkeys(case.family for case in cases))
    panels = []
    for index, title in enumerate(("dse", "roofline")):
        x_px = _LEFT + index * (_SIDE + _GAP)
        panels.append(_panel(title, cases, families, low, high, (x_px, _TOP), _SIDE, index == 0))
    legend = tuple(
        LegendEntry(family, _COLOURS[index % 4], _LEFT + 150 * index)
        for index, family in enumerate(families)
    )
    width = _LEFT + 2 * _SIDE + _GAP + _RIGHT
    return _drawn(cases, width, _TOP + _SIDE + _BOTTOM, legend, panels)


def scatter_by_family(cases: Sequence[EndToEndCase]) -> str:
    """Returns the picture of some cases of one unit as SVG: one panel a family.

    Args:
        cases: At least one that the model could predict; others are left out.
    """
    cases = [case for case in cases if math.isfinite(case.predicted)]
    panels = []
    for index, family in enumerate(dict.fromkeys(case.family for case in cases)):
        mine = [case for case in cases if case.family == family]
        low, high = _range(mine, roofline=False)
        x_px = _LEFT + index % _COLUMNS * (_SMALL + _GAP)
        y_px = _TOP + index // _COLUMNS * (_SMALL + _TOP + _BOTTOM)
        title = f"{family}, {len(mine)} steps"
        panels.append(_panel(title, mine, [family], low, high, (x_px, y_px), _SMALL, True))
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // _COLUMNS)
    width = _LEFT + columns * (_SMALL + _GAP) - _GAP + _RIGHT
    return _drawn(cases, width, rows * (_SMALL + _TOP + _BOTTOM), (), panels)


def _drawn(
    cases: Sequence[EndToEndCase],
    width: float,
    height: float,
    legend: tuple[LegendEntry, ...],
    panels: Sequence[Panel],
) -> str:
    unit = cases[0].unit
    families = ", ".join(dict.fromkeys(case.family for case in cases))
    title = f"Predicted against measured {unit}: {families}"
    return render(_TEMPLATE, Plot(title, unit, width, height, legend, tuple(panels)))


def render(template: Path, plot: object) -> str:
    """Returns a picture from its template, which is given what it draws as `plot`."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = template.read_text(encoding="utf-8")
    return environment.from_string(text).render(plot=plot) + "\n"


def _range(cases: Sequence[EndToEndCase], *, roofline: bool) -> tuple[float, float]:
    """Returns the powers of ten that the axes reach from and to."""
    values = [value for case in cases for value in (case.measured, case.predicted)]
    values += [case.roofline for case in cases if roofline]
    known = [math.log10(value) for value in values if math.isfinite(value)]
    return min(known) - 0.1, max(known) + 0.1


def _panel(
    title: str,
    cases: Sequence[EndToEndCase],
    families: list[str],
    low: float,
    high: float,
    at_px: tuple[float, float],
    side: float,
    ours: bool,
) -> Panel:
    scale = side / (high - low)
    points = _points(cases, families, low, scale, side, ours=ours)
    many = len(points) > _MOST_POINTS
    return Panel(
        title,
        *at_px,
        side,
        above_px=round(math.log10(1 + _BAND) * scale, 1),
        below_px=round(math.log10(1 - _BAND) * scale, 1),
        ticks=_ticks(low, high, scale),
        points=() if many else tuple(points),
        dots="".join(f"M{point.x_px:g} {point.y_px:g}h0" for point in points) if many else "",
    )


def _points(
    cases: Sequence[EndToEndCase],
    families: list[str],
    low: float,
    scale: float,
    side: float,
    *,
    ours: bool,
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
                round(side - across(predicted), 1),
                round(side - across(case.low), 1) if bounded else None,
                round(side - across(case.high), 1) if bounded else None,
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
