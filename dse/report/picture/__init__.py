"""Pictures as files of their own."""

from __future__ import annotations

from dse.report.picture._collectives import collective_svg, write_collective_plot
from dse.report.picture._front import front_svg
from dse.report.picture._lookups import write_lookups_plot

__all__ = [
    "collective_svg",
    "front_svg",
    "write_collective_plot",
    "write_lookups_plot",
]
