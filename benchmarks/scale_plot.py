"""A picture of what a trial costs the asking process, against the number of trials."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from drawing import FAINT, GRID, below, frame, left, panel, path, picture, text, upwards

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 44, 56
COLOURS = ("#2f6fb0", "#c4622d", "#4d8a57")

_TITLE = "Processor time of the asking process for one trial, against the number of trials"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line.

    Attributes:
        name: For the legend.
        points: Trials and milliseconds a trial.
    """

    name: str
    points: tuple[tuple[int, float], ...]


def cost_svg(curves: list[Curve], limit_ms: float) -> str:
    """Returns the picture.

    Args:
        curves: What was measured.
        limit_ms: The mark, drawn as a dashed line.
    """
    parts = []
    for index, curve in enumerate(curves):
        x_px = LEFT + 220 * index
        parts.append(path(f"M{x_px} 20h22", stroke=_colour(index), stroke_width=2.4))
        parts.append(text(curve.name, x=x_px + 28, y=24))
    parts.append(panel(LEFT, TOP, _parts(curves, limit_ms)))
    return picture(_TITLE, (WIDTH, HEIGHT), parts)


def _parts(curves: list[Curve], limit_ms: float) -> Iterator[str]:
    """Yields what is inside the axes, and the axes."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    largest = max(x for curve in curves for x, _ in curve.points)
    highest = 1.1 * max(limit_ms, *(y for curve in curves for _, y in curve.points))

    def x_px(trials: float) -> float:
        return round(trials / largest * width, 1)

    def y_px(cost_ms: float) -> float:
        return round(height * (1 - cost_ms / highest), 1)

    for value in ticks(highest):
        yield path(f"M0 {y_px(value)}H{width}", stroke=GRID)
        yield left(f"{value:g}", -8, y_px(value))
    for value in ticks(largest):
        yield path(f"M{x_px(value)} 0V{height}", stroke=GRID)
        yield below(f"{value:,}", x_px(value), height + 18)
    limit_px = y_px(limit_ms)
    dashes = {"stroke": FAINT, "stroke_width": 1.2, "stroke_dasharray": "6 4"}
    yield path(f"M0 {limit_px}H{width}", **dashes)
    yield text(f"mark for the mean: {limit_ms:g} ms", x=6, y=limit_px - 5, fill=FAINT)
    for index, curve in enumerate(curves):
        steps = "M" + "L".join(f"{x_px(x)} {y_px(y)}" for x, y in curve.points)
        pen = {"stroke": _colour(index), "stroke_width": 1.8, "stroke_linejoin": "round"}
        yield path(steps, fill="none", **pen)
    yield frame(width, height)
    yield text("evaluated trials", x=width / 2, y=height + 42, text_anchor="middle")
    yield upwards("ms a trial", -42, height / 2)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def ticks(highest: float) -> list[int]:
    """Returns round numbers from 0 to at most `highest`, about five of them."""
    rough = max(1.0, highest / 5)
    power = 10 ** math.floor(math.log10(rough))
    step = int(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough))
    return list(range(0, int(highest) + 1, step))
