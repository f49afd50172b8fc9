"""Results for people: tables on a terminal, the study page, and time lines.

`dse.report.terminal` has what prints a result, `dse.report.console` its lines, tables and numbers.
Names are imported when they are first used: a prediction prints without the page of a study.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.report._metrics import front_table
    from dse.report._perfetto import write_timeline
    from dse.report.page import build_view, render_report, write_report

__all__ = [
    "build_view",
    "front_table",
    "render_report",
    "write_report",
    "write_timeline",
]

_HOMES = {"front_table": "_metrics", "write_timeline": "_perfetto"}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'page')}"), name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted(__all__)
