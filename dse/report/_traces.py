"""Captured traces on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.traces import NamedTotal, RankReplay, TraceSummary


def render_trace_summary(summary: TraceSummary, console: Console) -> None:
    """Prints what traces hold: ranks, the first rank's top names, collectives."""
    table = Table(title="ranks", title_justify="left")
    for name in ("rank", "device", "events", "steps", "device events", "busy", "span"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for rank in summary.ranks:
        table.add_row(
            str(rank.rank),
            ", ".join(sorted(set(rank.devices))) or "–",
            f"{rank.events:,}",
            ", ".join(map(str, rank.steps)) or "–",
            f"{rank.device_events:,}",
            f"{1e3 * rank.device_busy_s:.2f} ms",
            f"{1e3 * rank.span_s:.2f} ms",
        )
    console.print(table)
    if summary.ranks:
        first = summary.ranks[0]
        console.print(_totals(f"kernels of rank {first.rank}", first.top_kernels))
        console.print(_totals(f"operators of rank {first.rank}", first.top_operators))
    if summary.collectives:
        table = Table(title="collectives", title_justify="left")
        for name in ("operation", "size", "ranks", "transfer", "longest wait", "last rank"):
            table.add_column(name, justify="left" if name == "operation" else "right")
        for collective in summary.collectives:
            size = collective.message_bytes
            table.add_row(
                collective.operation,
                f"{size / 2**20:.2f} MiB" if size >= 0 else "–",
                str(len(collective.ranks)),
                f"{1e3 * collective.transfer_s:.3f} ms",
                f"{1e3 * collective.longest_wait_s:.3f} ms",
                str(collective.last_rank),
            )
        console.print(table)
    for rank in summary.ranks:
        for note in rank.notes:
            console.print(f"note: rank {rank.rank}: {note}", markup=False)


def render_replay(ranks: Sequence[RankReplay], console: Console) -> None:
    """Prints measured beside simulated steps."""
    table = Table(title="one step, in ms", title_justify="left")
    names = ("rank", "measured", "simulated", "error", "compute", "exposed", "idle", "unexplained")
    for name in names:
        table.add_column(name, justify="right")
    for rank in ranks:
        seconds = (rank.compute_s, rank.exposed_communication_s, rank.idle_s)
        table.add_row(
            str(rank.rank),
            f"{1e3 * rank.measured_s:.3f}",
            f"{1e3 * rank.simulated_s:.3f}",
            f"{100 * rank.error:+.2f} %",
            *(f"{1e3 * value:.3f}" for value in seconds),
            f"{100 * rank.unexplained_share:.1f} %",
        )
    console.print(table)


def _totals(title: str, totals: Sequence[NamedTotal]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("name", no_wrap=True, overflow="ellipsis")
    table.add_column("count", justify="right")
    table.add_column("device time", justify="right")
    for total in totals:
        table.add_row(total.name, f"{total.count:,}", f"{1e3 * total.total_s:.3f} ms")
    return table
