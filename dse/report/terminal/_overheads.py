"""Host overheads."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from dse.report.console import UNKNOWN, Table, figures, ms, names, signed_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.machine.host import Figure, HostProfile, OperatorFigures
    from dse.trace.overheads import HostCheck

_MEANING = {
    "between_operators": "T1 between operators",
    "before_launch": "T2 before the first launch",
    "after_launch": "T3 after the last launch",
    "launch": "T4 launch of a kernel",
    "between_launches": "T5 between launches",
    "graph_launch": "launch of a graph",
    "without_launches": "operator without launches",
}
_MAX_OPERATORS = 20


def print_overheads(profile: HostProfile, checks: Sequence[HostCheck], console: Console) -> None:
    """Prints a profile, and how well it reproduces the host time of each trace."""
    title = f"host overheads of {profile.name}"
    table = Table(title, names("overhead"), figures("mean", "spread", "count"))
    for field in fields(profile.shared):
        _add(table, _MEANING[field.name], getattr(profile.shared, field.name))
    for launch in profile.launches:
        _add(table, launch.function, launch.duration)
    table.print(console)
    titles = ("calls", "launches", "T2", "T3", "T5", "no launch")
    table = Table("operators with most host time, in µs", names("operator"), figures(*titles))
    for operator in sorted(profile.operators, key=_total_s, reverse=True)[:_MAX_OPERATORS]:
        idle = operator.without_launches
        table.add(
            operator.name,
            f"{operator.calls + (idle.count if idle else 0):,}",
            f"{operator.launches:.1f}" if operator.calls else UNKNOWN,
            *(f"{1e6 * found.mean_s:.1f}" if found else UNKNOWN for found in _figures(operator)),
        )
    table.print(console)
    titles = ("rank", "measured", "outliers", "predicted", "error", "without outliers")
    table = Table(
        "busy time of the host against the profile, in ms", names("trace"), figures(*titles)
    )
    for check in checks:
        table.add(
            check.file.replace("\\", "/").rsplit("/", 1)[-1],
            str(check.rank),
            *map(ms, (check.measured_s, check.far_out_s, check.predicted_s)),
            signed_percent(check.error),
            signed_percent(check.usual_error),
        )
    table.print(console)


def _add(table: Table, name: str, figure: Figure | None) -> None:
    if figure is not None:
        mean = f"{1e6 * figure.mean_s:.2f} µs"
        table.add(name, mean, f"{figure.spread:.2f}", f"{figure.count:,}")


def _figures(operator: OperatorFigures) -> tuple[Figure | None, ...]:
    return (
        operator.before_launch,
        operator.after_launch,
        operator.between_launches,
        operator.without_launches,
    )


def _total_s(operator: OperatorFigures) -> float:
    return sum(figure.count * figure.mean_s for figure in _figures(operator) if figure is not None)
