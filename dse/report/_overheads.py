"""Host overheads on a terminal."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.trace.overheads import Figure, HostCheck, HostProfile, OperatorFigures

_MEANING = {
    "between_operators": "T1 between operators",
    "before_launch": "T2 before the first launch",
    "after_launch": "T3 after the last launch",
    "launch": "T4 launch of a kernel",
    "between_launches": "T5 between launches",
    "graph_launch": "launch of a graph",
    "without_launches": "operator without launches",
}
_OPERATORS_SHOWN = 20


def render_overheads(profile: HostProfile, checks: Sequence[HostCheck], console: Console) -> None:
    """Prints a profile, and how well it reproduces the host's time of each trace."""
    table = Table(title=f"host overheads of {profile.name}", title_justify="left")
    table.add_column("overhead")
    for name in ("mean", "spread", "count"):
        table.add_column(name, justify="right")
    for field in fields(profile.shared):
        _add(table, _MEANING[field.name], getattr(profile.shared, field.name))
    for launch in profile.launches:
        _add(table, launch.function, launch.duration)
    console.print(table)
    busiest = sorted(profile.operators, key=_total_s, reverse=True)[:_OPERATORS_SHOWN]
    table = Table(title="operators that take the host longest, in µs", title_justify="left")
    table.add_column("operator", no_wrap=True, overflow="ellipsis")
    for name in ("calls", "launches", "T2", "T3", "T5", "no launch"):
        table.add_column(name, justify="right")
    for operator in busiest:
        table.add_row(
            operator.name,
            f"{_calls(operator):,}",
            f"{operator.launches:.1f}" if operator.calls else "–",
            *(
                f"{1e6 * figure.mean_s:.1f}" if figure else "–"
                for figure in (
                    operator.before_launch,
                    operator.after_launch,
                    operator.between_launches,
                    operator.without_launches,
                )
            ),
        )
    console.print(table)
    table = Table(title="busy time of the host against this profile, in ms", title_justify="left")
    table.add_column("trace", overflow="ellipsis", no_wrap=True)
    for name in ("rank", "measured", "far out", "predicted", "error", "without far out"):
        table.add_column(name, justify="right")
    for check in checks:
        table.add_row(
            check.file.replace("\\", "/").rsplit("/", 1)[-1],
            str(check.rank),
            f"{1e3 * check.measured_s:.3f}",
            f"{1e3 * check.far_out_s:.3f}",
            f"{1e3 * check.predicted_s:.3f}",
            f"{100 * check.error:+.1f} %",
            f"{100 * check.usual_error:+.1f} %",
        )
    console.print(table)


def _add(table: Table, name: str, figure: Figure | None) -> None:
    if figure is not None:
        mean = f"{1e6 * figure.mean_s:.2f} µs"
        table.add_row(name, mean, f"{figure.spread:.2f}", f"{figure.count:,}")


def _calls(operator: OperatorFigures) -> int:
    return operator.calls + (
        operator.without_launches.count if operator.without_launches is not None else 0
    )


def _total_s(operator: OperatorFigures) -> float:
    figures = (
        operator.before_launch,
        operator.after_launch,
        operator.between_launches,
        operator.without_launches,
    )
    return sum(figure.count * figure.mean_s for figure in figures if figure is not None)
