"""Predicted against measured steps as static SVG: beside a roofline, or family by family."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from drawing import (
    FAINT,
    GRID,
    INK,
    below,
    element,
    frame,
    left,
    panel,
    path,
    picture,
    text,
    titled,
    upwards,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from end_to_end_cases import EndToEndCase

#: Colours that stay apart for the colour-blind (Okabe and Ito, 2008); shapes differ as well.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_SHAPES = (
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
    "M-3.2 -3.2h6.4v6.4h-6.4z",
    "M0 -4.4l4.2 7.4h-8.4z",
    "M0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z",
)

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
class Point:
    """One case in one panel.

    Attributes:
        title: What a pointer over it shows.
        family: Number of its family, by which it has its colour and shape.
        measured: As published.
        predicted: By the panel's model.
        interval: Ends of the prediction's interval, or None where there is none.
    """

    title: str
    family: int
    measured: float
    predicted: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Scale:
    """Both axes of a square panel.

    Attributes:
        low: Power of ten at the origin.
        high: Power of ten at the other ends.
        side: Length of the axes in pixels.
    """

    low: float
    high: float
    side: float

    @property
    def decade_px(self) -> float:
        """Pixels of a power of ten."""
        return self.side / (self.high - self.low)

    def across(self, value: float) -> float:
        """Returns how far a value is from the left."""
        return round((math.log10(value) - self.low) * self.decade_px, 1)

    def down(self, value: float) -> float:
        """Returns how far a value is from the top."""
        return round(self.side - self.across(value), 1)

    def ticks(self) -> list[float]:
        """Returns powers of ten, with their doubles and fives in between where few fit."""
        steps = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        values = [
            step * 10.0**power
            for power in range(math.floor(self.low), math.ceil(self.high) + 1)
            for step in steps
        ]
        return [value for value in values if self.low <= math.log10(value) <= self.high]


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
        points = list(_points(cases, families, ours=index == 0))
        panels.append(_panel(title, points, Scale(low, high, _SIDE), (x_px, _TOP), cases[0].unit))
    legend = []
    for index, family in enumerate(families):
        x_px = _LEFT + 150 * index
        legend.append(_marker(index, x_px, 18, fill=_COLOURS[index % 4]))
        legend.append(text(family, x=x_px + 10, y=22))
    width = _LEFT + 2 * _SIDE + _GAP + _RIGHT
    return _drawn(cases, (width, _TOP + _SIDE + _BOTTOM), _SIDE, [*legend, *panels])


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
        points = list(_points(mine, [family], ours=True))
        panels.append(_panel(title, points, Scale(low, high, _SMALL), (x_px, y_px), cases[0].unit))
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // _COLUMNS)
    width = _LEFT + columns * (_SMALL + _GAP) - _GAP + _RIGHT
    return _drawn(cases, (width, rows * (_SMALL + _TOP + _BOTTOM)), _SMALL, panels)


def _drawn(
    cases: Sequence[EndToEndCase], size: tuple[float, float], side: float, parts: Sequence[str]
) -> str:
    families = ", ".join(dict.fromkeys(case.family for case in cases))
    title = f"Predicted against measured {cases[0].unit}: {families}"
    square = element("rect", width=side, height=side)
    shapes = (element("path", id=f"mark{n}", d=steps) for n, steps in enumerate(_SHAPES))
    clip = element("clipPath", square, id="inside")
    definitions = element("defs", "\n", *(f"{part}\n" for part in (clip, *shapes)))
    words = "line: equal; dashes: ±20 %; bars: 90 % interval"
    key = text(words, x=size[0] - 12, y=22, text_anchor="end", fill=FAINT)
    return picture(title, size, [definitions, *parts, key]) + "\n"


def _range(cases: Sequence[EndToEndCase], *, roofline: bool) -> tuple[float, float]:
    """Returns the powers of ten that the axes reach from and to."""
    values = [value for case in cases for value in (case.measured, case.predicted)]
    values += [case.roofline for case in cases if roofline]
    known = [math.log10(value) for value in values if math.isfinite(value)]
    return min(known) - 0.1, max(known) + 0.1


def _panel(
    title: str, points: Sequence[Point], scale: Scale, at_px: tuple[float, float], unit: str
) -> str:
    """Returns one square; at the left edge of the picture its axis upwards has its name."""
    side, middle = scale.side, scale.side / 2
    parts = [text(title, x=middle, y=-8, text_anchor="middle", font_weight=600)]
    for value in scale.ticks():
        x_px, y_px = scale.across(value), side - scale.across(value)
        parts.append(path(f"M{x_px} 0V{side}M0 {y_px}H{side}", stroke=GRID, stroke_width=1))
        parts.append(below(_short(value), x_px, side + 16))
        parts.append(left(_short(value), -6, y_px))
    inside = "".join(f"{part}\n" for part in _inside(points, scale))
    parts.append(element("g", "\n", inside, clip_path="url(#inside)"))
    parts.append(frame(side, side))
    parts.append(text(f"measured, {unit}", x=middle, y=side + 36, text_anchor="middle"))
    if at_px[0] == _LEFT:
        parts.append(upwards(f"predicted, {unit}", -46, middle))
    return panel(*at_px, parts)


def _inside(points: Sequence[Point], scale: Scale) -> Iterator[str]:
    """Yields the lines of equality and the points; pixels count from the upper left corner."""
    side = scale.side
    yield path(f"M0 {side}L{side} 0", stroke=INK, stroke_width=1.2)
    above, under = (
        round(math.log10(ratio) * scale.decade_px, 1) for ratio in (1 + _BAND, 1 - _BAND)
    )
    band = "".join(f"M0 {side - px}L{side} {0 - px}" for px in (above, under))
    yield path(band, stroke=FAINT, stroke_width=1, stroke_dasharray="5 4")
    if len(points) <= _MOST_POINTS:
        yield from (_drawn_point(point, scale) for point in points)
        return
    dots = "".join(
        f"M{scale.across(point.measured):g} {scale.down(point.predicted):g}h0" for point in points
    )
    pen = {"stroke_opacity": 0.45, "stroke_width": 4, "stroke_linecap": "round"}
    yield path(dots, fill="none", stroke=_COLOURS[0], **pen)


def _drawn_point(point: Point, scale: Scale) -> str:
    x_px, colour = scale.across(point.measured), _COLOURS[point.family % 4]
    parts = []
    if point.interval is not None:
        low_px, high_px = (scale.down(end) for end in point.interval)
        bar = f"M{x_px} {low_px}V{high_px}"
        parts.append(path(bar, stroke_opacity=0.45, stroke_width=1.4))
    look = {"fill_opacity": 0.6, "stroke_width": 0.6}
    parts.append(_marker(point.family, x_px, scale.down(point.predicted), **look))
    return titled(point.title, parts, fill=colour, stroke=colour)


def _marker(family: int, x_px: float, y_px: float, **look: object) -> str:
    return element("use", href=f"#mark{family % 4}", x=x_px, y=y_px, **look)


def _points(cases: Sequence[EndToEndCase], families: list[str], *, ours: bool) -> Iterator[Point]:
    for case in cases:
        predicted = case.predicted if ours else case.roofline
        if not math.isfinite(predicted):
            continue
        error = predicted / case.measured - 1
        bounded = ours and math.isfinite(case.low) and math.isfinite(case.high)
        yield Point(
            f"{case.case}: measured {case.measured:.4g}, predicted {predicted:.4g} "
            f"{case.unit} ({100 * error:+.1f} %)",
            families.index(case.family),
            case.measured,
            predicted,
            (case.low, case.high) if bounded else None,
        )


def _short(value: float) -> str:
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"
