"""Pictures as files of their own."""

from __future__ import annotations

from dse.report.picture._collectives import collective_svg, write_collective_plot

__all__ = ["collective_svg", "write_collective_plot"]
