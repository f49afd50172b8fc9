"""Errors of published steps by group as a static SVG: one line a group, one panel a program."""

from __future__ import annotations

from dataclasses import dataclass
import math
from pathlib import Path
from typing import TYPE_CHECKING

from end_to_end_plot import Tick, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from step_groups import GroupErrors

_TEMPLATE = Path(__file__).with_name("step_plot.svg.j2")

#: Ways to group that are drawn.
_DRAWN = ("model", "machine", "precision", "ranks", "tensor", "pipeline", "replicas", "expert")

#: Ends and ticks of the axis, as predicted over measured.
_ENDS = (0.5, 2.0)
_TICKS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0)

_LABEL = 120
_WIDTH = 250
_GAP = 16
_LINE = 16
_TOP = 34
_BOTTOM = 34
_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Line:
    """One group, in pixels from the panel's upper left corner.

    Attributes:
        label: What the group is.
        title: What a pointer over it shows.
        y_px: Height of its line.
        low_px: 5 % quantile of its errors.
        middle_px: Their median.
        high_px: Their 95 % quantile.
    """

    label: str
    title: str
    y_px: float
    low_px: float
    middle_px: float
    high_px: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One program: its title, place and lines."""

    title: str
    x_px: float
    y_px: float
    height: float
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Everything that the template draws; lengths are in pixels.

    Attributes:
        width: Of the picture.
        height: Of the picture.
        panel_width: Of the part of a panel that has an axis.
        equal_px: Where prediction and measurement agree.
        ticks: Of every panel.
        panels: The programs.
    """

    width: float
    height: float
    panel_width: float
    equal_px: float
    ticks: tuple[Tick, ...]
    panels: tuple[Panel, ...]


def group_picture(groups: Sequence[GroupErrors]) -> str:
    """Returns the picture of the errors of left-out groups.

    Args:
        groups: At least one way to group the steps of one program.
    """
    panels = []
    # Every panel goes into the column that is the least filled.
    filled = [0.0] * _COLUMNS
    for family in dict.fromkeys(row.family for row in groups):
        lines = _lines([row for row in groups if row.family == family and row.by in _DRAWN])
        column = filled.index(min(filled))
        x_px = _LABEL + column * (_LABEL + _WIDTH + _GAP)
        height = _LINE * len(lines) + 4
        panels.append(Panel(family, x_px, filled[column] + _TOP, height, tuple(lines)))
        filled[column] += _TOP + height + _BOTTOM
    plot = Plot(
        width=_COLUMNS * (_LABEL + _WIDTH + _GAP),
        height=max(filled),
        panel_width=_WIDTH,
        equal_px=_across(0.0),
        ticks=tuple(Tick(_across(math.log(value)), f"{value:g}") for value in _TICKS),
        panels=tuple(panels),
    )
    return render(_TEMPLATE, plot)


def _lines(rows: Sequence[GroupErrors]) -> list[Line]:
    lines: list[Line] = []
    for row in rows:
        for group in row.groups:
            label = group.name if row.by in ("model", "machine") else f"{row.by} {group.name}"
            title = (
                f"{row.by} {group.name}: {group.rows} steps, median error "
                f"{100 * group.median:.1f} %, {100 * group.coverage:.0f} % inside the interval"
            )
            ends = (_across(value) for value in (group.low, group.bias, group.high))
            lines.append(Line(label, title, _LINE * (len(lines) + 0.5) + 2, *ends))
    return lines


def _across(log_ratio: float) -> float:
    """Returns where log(predicted / measured) lies; what is beyond an end is at the end."""
    low, high = (math.log(end) for end in _ENDS)
    share = (min(max(log_ratio, low), high) - low) / (high - low)
    return round(share * _WIDTH, 1)
