"""Bus bandwidth of a collective over message size, a line for each number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse._files import write_atomically
from dse.report.console import size as size_text

if TYPE_CHECKING:
    from pathlib import Path

    from dse.machine.collectives import CollectiveTable

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 64, 56

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

#: Width of a name in the legend, in pixels, and names of one line.
_NAME_PX = 92
_NAMES_A_LINE = 7


@dataclass(frozen=True, slots=True)
class _Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    colour: str
    path: str
    band: str
    legend_x: int
    legend_y: int


def write_collective_plot(table: CollectiveTable, path: Path) -> None:
    """Writes the picture of a table; the file appears whole or not at all.

    Raises:
        StudyError: The folder cannot be written.
    """
    write_atomically(path, collective_svg(table))


def collective_svg(table: CollectiveTable) -> str:
    """Returns the picture: bus bandwidth in GB/s over size, with 90 % intervals as bands.

    Args:
        table: At least one point.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    sizes = table.sizes_bytes
    first, last = math.log(sizes[0]), math.log(sizes[-1])
    highest = max(point.high_bus_bandwidth_bytes_per_s for point in table.points) / 1e9

    def x_px(size_bytes: float) -> float:
        across = (math.log(size_bytes) - first) / (last - first) if last > first else 0.5
        return round(across * width, 1)

    def y_px(gigabytes_per_s: float) -> float:
        return round(height * (1 - gigabytes_per_s / (1.05 * highest)), 1)

    def joined(points: list[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x_px(size)} {y_px(rate / 1e9)}" for size, rate in points)

    lines = []
    for place, ranks in enumerate(table.world_sizes):
        points = [table.at(size, ranks) for size in sizes]
        upper = [(one.size_bytes, one.high_bus_bandwidth_bytes_per_s) for one in points]
        lower = [(one.size_bytes, one.low_bus_bandwidth_bytes_per_s) for one in points]
        row, column = divmod(place, _NAMES_A_LINE)
        lines.append(
            _Line(
                name=f"{ranks} ranks",
                colour=_COLOURS[place % len(_COLOURS)],
                path=joined([(one.size_bytes, one.bus_bandwidth_bytes_per_s) for one in points]),
                band=f"{joined([*upper, *reversed(lower)])}Z",
                legend_x=_LEFT + _NAME_PX * column,
                legend_y=34 + 16 * row,
            )
        )
    step = _step(highest)
    environment = Environment(
        loader=PackageLoader("dse.report.picture", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("collectives.svg.j2").render(
        title=f"{table.op} on {table.platform}, {table.network} between nodes",
        lines=lines,
        outer=(_WIDTH, _HEIGHT),
        origin=(_LEFT, _TOP),
        inner=(width, height),
        x_ticks=[_Tick(x_px(size), size_text(size).replace(".0 ", " ")) for size in sizes[::2]],
        y_ticks=[
            _Tick(y_px(rate), f"{rate:g}")
            for rate in (step * count for count in range(math.floor(highest / step) + 1))
        ],
    )


def _step(highest: float) -> float:
    """Returns a round distance of some five ticks."""
    rough = highest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
