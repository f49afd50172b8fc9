"""Skew of lookups: which share of them the most popular rows of a table have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse._io.writing import write_atomically
from dse.errors import ConfigError
from dse.report.picture._lines import Frame, Line, lines_svg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from dse.model.torchrec import TableLookups

#: Tables that are drawn, those with most lookups.
_SHOWN = 6


def write_lookups_plot(lookups: Sequence[TableLookups], path: Path) -> None:
    """Writes the picture of some tables; the file appears whole or not at all.

    Raises:
        ConfigError: There is no table.
        StudyError: The folder cannot be written.
    """
    write_atomically(path, lookups_svg(lookups))


def lookups_svg(lookups: Sequence[TableLookups]) -> str:
    """Returns the picture: share of the lookups over the number of most popular rows.

    Lines are counts, dashes the distribution that describes them. What rows have in a sample is
    at least their share in the long run, so counts may lie above where rows are rare.

    Args:
        lookups: Lookups of tables; those with most are drawn.

    Raises:
        ConfigError: There is no table.
    """
    if not lookups:
        raise ConfigError("no lookups to draw: no batches were given")
    shown = sorted(lookups, key=lambda one: -one.counts.lookups)[:_SHOWN]
    most = max(one.rows for one in shown)
    lines = []
    for one in shown:
        rows = np.cumsum(one.counts.rows)
        share = np.cumsum(one.counts.rows * one.counts.counts) / one.counts.lookups
        law = one.indices.buckets(one.rows)
        places = np.unique(np.geomspace(1, one.rows, 120).round())
        lines.append(Line(one.table, _points(places[places <= rows[-1]], rows, share)))
        expected = np.cumsum(law.rows * law.probability)
        lines.append(Line("", _points(places, np.cumsum(law.rows), expected), dashed=True))
    decades = range(len(str(most)))
    frame = Frame(
        title="Share of lookups that the most popular rows have: counted, and described (dashed)",
        x_title="rows, the most popular first",
        y_title="share of lookups, %",
        x_range=(1.0, float(max(most, 2))),
        y_top=105.0,
        x_ticks=[(10.0**power, f"{10**power:,}") for power in decades if 10**power <= most],
        y_ticks=[(float(share), str(share)) for share in range(0, 101, 20)],
    )
    return lines_svg(frame, lines)


def _points(
    places: NDArray[np.float64], rows: NDArray[np.float64], share: NDArray[np.float64]
) -> list[tuple[float, float]]:
    found = np.interp(places, rows, share)
    return [(float(x), 100.0 * float(y)) for x, y in zip(places, found, strict=True)]
