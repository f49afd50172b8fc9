"""Errors of published steps by group as a static SVG: one line a group, one panel a program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from drawing import GRID, INK, below, element, frame, panel, path, picture, text, titled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from step_groups import GroupErrors, LeftOut

_TITLE = (
    "Predicted over measured time of published steps, by groups that were left out of the fits"
)

#: Ways to group that are drawn.
_DRAWN = ("model", "machine", "precision", "ranks", "tensor", "pipeline", "replicas", "expert")

#: Ends and ticks of the axis, as predicted over measured.
_ENDS = (0.5, 2.0)
_TICKS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0)

_COLOUR = "#0072b2"

_LABEL = 120
_WIDTH = 250
_GAP = 16
_LINE = 16
_TOP = 34
_BOTTOM = 34
_COLUMNS = 3


def group_picture(groups: Sequence[GroupErrors]) -> str:
    """Returns the picture of the errors of left-out groups.

    Args:
        groups: At least one way to group the steps of one program.
    """
    panels = []
    # Every panel goes into the column that is the least filled.
    filled = [0.0] * _COLUMNS
    for family in dict.fromkeys(row.family for row in groups):
        rows = [row for row in groups if row.family == family and row.by in _DRAWN]
        lines = [(row.by, group) for row in rows for group in row.groups]
        column = filled.index(min(filled))
        x_px = _LABEL + column * (_LABEL + _WIDTH + _GAP)
        height = _LINE * len(lines) + 4
        panels.append(panel(x_px, filled[column] + _TOP, _parts(family, lines, height)))
        filled[column] += _TOP + height + _BOTTOM
    width = _COLUMNS * (_LABEL + _WIDTH + _GAP)
    return picture(_TITLE, (width, max(filled)), panels, font_px=11) + "\n"


def _parts(family: str, lines: Sequence[tuple[str, LeftOut]], height: float) -> Iterator[str]:
    """Yields what is on the panel of a program, in pixels from its upper left corner."""
    yield text(family, x=0, y=-10, font_weight=600, font_size=12)
    for value in _TICKS:
        at_px = _across(math.log(value))
        yield path(f"M{at_px} 0V{height}", stroke=GRID)
        yield below(f"{value:g}", at_px, height + 14)
    yield path(f"M{_across(0.0)} 0V{height}", stroke=INK, stroke_width=1.2)
    for index, (by, group) in enumerate(lines):
        yield _line(by, group, _LINE * (index + 0.5) + 2)
    yield frame(_WIDTH, height)


def _line(by: str, group: LeftOut, y_px: float) -> str:
    """Returns the 5 % to the 95 % quantile of a group's errors, and their median as a dot."""
    low_px, middle_px, high_px = (_across(one) for one in (group.low, group.bias, group.high))
    title = (
        f"{by} {group.name}: {group.rows} steps, median error "
        f"{100 * group.median:.1f} %, {100 * group.coverage:.0f} % inside the interval"
    )
    label = group.name if by in ("model", "machine") else f"{by} {group.name}"
    bar = {"stroke_opacity": 0.45, "stroke_width": 5, "stroke_linecap": "round"}
    parts = (
        text(label, x=-6, y=y_px + 4, text_anchor="end"),
        path(f"M{low_px} {y_px}H{high_px}", stroke=_COLOUR, **bar),
        element("circle", cx=middle_px, cy=y_px, r=3.2, fill=_COLOUR),
    )
    return titled(title, parts)


def _across(log_ratio: float) -> float:
    """Returns where log(predicted / measured) lies; what is beyond an end is at the end."""
    low, high = (math.log(end) for end in _ENDS)
    share = (min(max(log_ratio, low), high) - low) / (high - low)
    return round(share * _WIDTH, 1)
