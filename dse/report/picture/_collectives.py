"""Bus bandwidth of a collective over message size, a line for each number of ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse._io.writing import write_atomically
from dse.report.console import size as size_text
from dse.report.picture._lines import Frame, Line, lines_svg, round_step

if TYPE_CHECKING:
    from pathlib import Path

    from dse.machine.collectives import CollectiveTable


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
    sizes = table.sizes_bytes
    highest = max(point.high_bus_bandwidth_bytes_per_s for point in table.points) / 1e9
    lines = []
    for ranks in table.world_sizes:
        points = [table.at(size, ranks) for size in sizes]
        upper = [(one.size_bytes, one.high_bus_bandwidth_bytes_per_s / 1e9) for one in points]
        lower = [(one.size_bytes, one.low_bus_bandwidth_bytes_per_s / 1e9) for one in points]
        middle = [(one.size_bytes, one.bus_bandwidth_bytes_per_s / 1e9) for one in points]
        lines.append(Line(f"{ranks} ranks", middle, band=[*upper, *reversed(lower)]))
    step = round_step(highest / 5)
    frame = Frame(
        title=f"{table.op} on {table.platform}, {table.network} between nodes",
        x_title="message",
        y_title="bus bandwidth, GB/s (band: 90 % interval)",
        x_range=(sizes[0], sizes[-1]),
        y_top=1.05 * highest,
        x_ticks=[(size, size_text(size).replace(".0 ", " ")) for size in sizes[::2]],
        y_ticks=[
            (rate, f"{rate:g}")
            for rate in (step * count for count in range(math.floor(highest / step) + 1))
        ],
    )
    return lines_svg(frame, lines)
