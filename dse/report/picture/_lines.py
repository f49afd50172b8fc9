"""Lines over a logarithmic axis: the frame that pictures share."""

from __future__ import annotations

from dataclasses import dataclass, field
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 44, 64, 56

#: Colours of lines that people with colour blindness can tell apart.
_COLOURS = (
    "#2f6fb0",
    "#c4622d",
    "#4d8a57",
    "#8f5fa8",
    "#a3822b",
    "#3b9aa6",
    "#b5476b",
    "#5b6470",
)

#: Width of a letter of a name, what stands before it and after it, in pixels.
_LETTER_PX, _BESIDE_PX = 6.6, 40


@dataclass(frozen=True, slots=True)
class Line:
    """One line.

    Attributes:
        name: Name in the legend; empty for a line that belongs to the one before it and has its
            colour.
        points: Places on both axes.
        band: Outline of an area in its colour; empty without one.
        dashed: Whether it is dashed.
        dots: Whether its points are drawn in place of a line.
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """Axes and titles.

    Attributes:
        title: Title of the picture.
        x_title: Title of the logarithmic axis.
        y_title: Title of the other, which begins at 0.
        x_range: Its ends.
        y_top: Upper end of the other.
        x_ticks: Places and labels.
        y_ticks: Places and labels of the other.
    """

    title: str
    x_title: str
    y_title: str
    x_range: tuple[float, float]
    y_top: float
    x_ticks: Sequence[tuple[float, str]] = field(default_factory=tuple)
    y_ticks: Sequence[tuple[float, str]] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class _Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class _Drawn:
    name: str
    colour: str
    path: str
    band: str
    dash: str
    dots: Sequence[tuple[float, float]]
    legend_x: float
    legend_y: int


def lines_svg(frame: Frame, lines: Sequence[Line]) -> str:
    """Returns the picture.

    Args:
        frame: Axes and titles.
        lines: The lines, in the order of the legend.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    first, last = (math.log(end) for end in frame.x_range)

    def x_px(value: float) -> float:
        across = (math.log(value) - first) / (last - first) if last > first else 0.5
        return round(across * width, 1)

    def y_px(value: float) -> float:
        return round(height * (1 - value / frame.y_top), 1)

    def joined(points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x_px(x)} {y_px(y)}" for x, y in points)

    drawn: list[_Drawn] = []
    colour, legend_x, legend_y = -1, float(_LEFT), 34
    for line in lines:
        needed = _LETTER_PX * len(line.name) + _BESIDE_PX
        if line.name:
            colour += 1
            if legend_x + needed > _WIDTH and legend_x > _LEFT:
                legend_x, legend_y = float(_LEFT), legend_y + 16
        drawn.append(
            _Drawn(
                name=line.name,
                colour=_COLOURS[max(colour, 0) % len(_COLOURS)],
                path="" if line.dots else joined(line.points),
                band=f"{joined(line.band)}Z" if line.band else "",
                dash="5 4" if line.dashed else "",
                dots=[(x_px(x), y_px(y)) for x, y in line.points] if line.dots else (),
                legend_x=legend_x,
                legend_y=legend_y,
            )
        )
        if line.name:
            legend_x += needed
    environment = Environment(
        loader=PackageLoader("dse.report.picture", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("lines.svg.j2").render(
        frame=frame,
        lines=drawn,
        outer=(_WIDTH, _HEIGHT),
        origin=(_LEFT, _TOP),
        inner=(width, height),
        x_ticks=[_Tick(x_px(value), label) for value, label in frame.x_ticks],
        y_ticks=[_Tick(y_px(value), label) for value, label in frame.y_ticks],
    )


def round_step(rough: float) -> float:
    """Returns 1, 2 or 5 times a power of ten that is at least a given number above 0."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
