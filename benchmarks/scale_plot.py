"""A picture of what a trial costs the asking process, against the number of trials."""

from __future__ import annotations

from dataclasses import dataclass
import math
from pathlib import Path

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 44, 56
COLOURS = ("#2f6fb0", "#c4622d", "#4d8a57")


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
    from jinja2 import Environment, FileSystemLoader

    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    largest = max(x for curve in curves for x, _ in curve.points)
    highest = 1.1 * max(limit_ms, *(y for curve in curves for _, y in curve.points))

    def x_px(trials: float) -> float:
        return round(trials / largest * width, 1)

    def y_px(cost_ms: float) -> float:
        return round(height * (1 - cost_ms / highest), 1)

    def path(points: tuple[tuple[int, float], ...]) -> str:
        return "M" + "L".join(f"{x_px(x)} {y_px(y)}" for x, y in points)

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
    )
    return environment.get_template("scale_plot.svg.j2").render(
        plot={
            "outer_width": WIDTH,
            "outer_height": HEIGHT,
            "left": LEFT,
            "top": TOP,
            "width": width,
            "height": height,
            "limit_px": y_px(limit_ms),
            "limit": f"{limit_ms:g} ms",
            "x_ticks": [{"at": x_px(x), "label": f"{x:,}"} for x in ticks(largest)],
            "y_ticks": [{"at": y_px(y), "label": f"{y:g}"} for y in ticks(highest)],
            "curves": [
                {
                    "name": curve.name,
                    "path": path(curve.points),
                    "colour": COLOURS[index % len(COLOURS)],
                    "legend": LEFT + 220 * index,
                }
                for index, curve in enumerate(curves)
            ],
        }
    )


def ticks(highest: float) -> list[int]:
    """Returns round numbers from 0 to at most `highest`, about five of them."""
    rough = max(1.0, highest / 5)
    power = 10 ** math.floor(math.log10(rough))
    step = int(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough))
    return list(range(0, int(highest) + 1, step))
