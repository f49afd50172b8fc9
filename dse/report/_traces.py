"""Captured traces on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from dse.traces import (
        CollectiveSummary,
        NamedTotal,
        PathSummary,
        RankReplay,
        RankSummary,
        Straggler,
        TraceSummary,
    )

#: Width of the numbers beside a name, and of the parts of a critical path.
_NUMBERS = 28
_PARTS = 16
_SHORTEST_NAME = 24


def render_trace_summary(
    summary: TraceSummary,
    console: Console,
    path: PathSummary | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Prints what traces hold.

    Ranks and their steps, the first rank's top names, collectives, who was waited for, the
    critical path, and notes.

    Args:
        summary: The figures.
        console: Where to print.
        path: Critical path of the last step, if there is one.
        notes: Notes on the whole, printed after those of the ranks.
    """
    _print(console, _ranks(summary.ranks))
    _print(console, _steps(summary.ranks))
    for rank in summary.ranks:
        if rank.last_step is None:
            _line(
                console,
                f"rank {rank.rank}: neither operators nor work of a device were recorded",
            )
    if summary.compute_imbalance is not None:
        share = 100 * summary.compute_imbalance
        _line(console, f"the rank that computes longest takes {share:.1f} % more than the mean")
    if summary.ranks:
        first = summary.ranks[0]
        tables = (
            ("kernels", "device time", first.top_kernels),
            ("operators", "device time", first.top_operators),
            ("operators", "own host time", first.top_host_operators),
        )
        for what, of, totals in tables:
            if totals:
                title = f"{what} of rank {first.rank}"
                _print(console, _totals(title, of, totals, console.width))
    if summary.collectives:
        _print(console, _collectives(summary.collectives))
    if summary.stragglers:
        _print(console, _stragglers(summary.stragglers))
    if path is not None:
        _print(console, _path_parts(path))
        _line(console, _path_line(path))
        _print(console, _path_names(path, console.width))
    print_notes(console, [(rank.rank, note) for rank in summary.ranks for note in rank.notes])
    print_notes(console, [(None, note) for note in notes])


def render_replay(
    ranks: Sequence[RankReplay], console: Console, notes: Sequence[str] = ()
) -> None:
    """Prints measured beside simulated steps, and notes on the graph."""
    names = ("measured", "simulated", "error", "compute", "exposed", "idle", "unexplained")
    table = _table("one step, in ms", ("rank",), names)
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
    print_notes(console, [(None, note) for note in notes])


def print_notes(console: Console, notes: Iterable[tuple[int | None, str]]) -> None:
    """Prints notes, one that several ranks share once.

    Args:
        console: Where to print.
        notes: Pairs of a rank and its note; None for a note that is of no single rank.
    """
    ranks_of: dict[str, list[str]] = {}
    for rank, note in notes:
        ranks = ranks_of.setdefault(note, [])
        if rank is not None:
            ranks.append(str(rank))
    for note, ranks in ranks_of.items():
        whose = f"rank {', '.join(ranks)}: " if ranks else ""
        _line(console, f"note: {whose}{note}")


def _print(console: Console, table: Table) -> None:
    console.print(table)
    console.print()


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, header_style="bold dim"
    )
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _ms(seconds: float, digits: int = 3) -> str:
    return f"{1e3 * seconds:.{digits}f}"


def _ranks(ranks: Sequence[RankSummary]) -> Table:
    table = _table(
        "ranks",
        ("rank", "device"),
        ("events", "device events", "busy ms", "calls", "in calls ms", "span ms"),
    )
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            ", ".join(sorted(set(rank.devices))) or "–",
            f"{rank.events:,}",
            f"{rank.device_events:,}",
            _ms(rank.device_busy_s, 2),
            f"{rank.calls:,}",
            _ms(rank.calls_s, 2),
            _ms(rank.span_s, 2),
        )
    return table


def _steps(ranks: Sequence[RankSummary]) -> Table:
    """Returns all steps with their lengths, and of the last one what the devices did."""
    parts = ("compute", "communication", "exposed", "idle")
    table = _table("steps, in ms", ("rank", "step"), ("measured", *parts))
    for rank in ranks:
        last = rank.last_step
        for step in rank.steps[: None if last is None else -1]:
            table.add_row(str(rank.rank), str(step.number), _ms(step.measured_s))
        if last is not None:
            seconds = (
                last.measured_s,
                last.compute_s,
                last.communication_s,
                last.exposed_communication_s,
                last.idle_s,
            )
            step_name = str(rank.steps[-1].number) if rank.steps else last.cut_by
            table.add_row(str(rank.rank), step_name, *map(_ms, seconds))
        elif not rank.steps:
            table.add_row(str(rank.rank), "none")
    return table


def _totals(title: str, of: str, totals: Sequence[NamedTotal], width: int) -> Table:
    table = _table(title, ("name",), ("count", f"{of} ms"))
    for total in totals:
        table.add_row(
            _fitting(total.name, width - _NUMBERS), f"{total.count:,}", _ms(total.total_s)
        )
    return table


def _fitting(name: str, room: int) -> str:
    """Cuts a name so that the numbers beside it keep their room."""
    room = max(_SHORTEST_NAME, room)
    return escape(name if len(name) <= room else name[: room - 1] + "…")


def _size(size_bytes: int) -> str:
    if size_bytes < 0:
        return "–"
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 2**power:
            return f"{size_bytes / 2**power:.1f} {unit}"
    return f"{size_bytes} B"


def _rate(bytes_per_s: float | None) -> str:
    return "–" if bytes_per_s is None else f"{bytes_per_s / 1e9:.2f}"


def _collectives(collectives: Sequence[CollectiveSummary]) -> Table:
    table = _table(
        "collectives, times in ms, bandwidths in GB/s",
        ("operation",),
        ("size", "ranks", "longest wait", "last rank", "transfer", "algorithm", "bus"),
    )
    for one in collectives:
        found = str(len(one.ranks))
        table.add_row(
            one.operation,
            _size(one.message_bytes),
            found if one.whole else f"{found} of {max(one.group_size, len(one.ranks)) or '?'}",
            _ms(one.longest_wait_s) if len(one.ranks) > 1 else "–",
            str(one.last_rank) if len(one.ranks) > 1 else "–",
            _ms(one.transfer_s) if one.whole else f"≤ {_ms(one.transfer_s)}",
            _rate(one.algorithm_bandwidth_bytes_per_s),
            _rate(one.bus_bandwidth_bytes_per_s),
        )
    return table


def _stragglers(stragglers: Sequence[Straggler]) -> Table:
    table = _table(
        "who was waited for in collectives, in ms",
        ("rank",),
        ("times last", "others waited (sum)", "later than all others", "waited itself"),
    )
    for one in stragglers:
        seconds = (one.others_waited_s, one.alone_late_s, one.waited_s)
        table.add_row(str(one.rank), str(one.times_last), *map(_ms, seconds))
    return table


def _path_line(path: PathSummary) -> str:
    ranks = ", ".join(f"{one.rank} ({100 * one.share:.0f} %)" for one in path.ranks)
    text = f"critical path of the last step: {_ms(path.length_s)} ms on rank {ranks}"
    if len(path.ranks) > 1:
        times = "once" if path.rank_changes == 1 else f"{path.rank_changes} times"
        text += f"; it changes ranks {times}"
    return text


def _path_parts(path: PathSummary) -> Table:
    table = _table("what the critical path consists of", ("part",), ("tasks", "ms", "share"))
    for part in path.parts:
        table.add_row(part.part, f"{part.count:,}", _ms(part.seconds), f"{100 * part.share:.1f} %")
    return table


def _path_names(path: PathSummary, width: int) -> Table:
    table = _table("most of the critical path", ("name", "part"), ("tasks", "ms", "share"))
    for one in path.contributors:
        table.add_row(
            _fitting(one.name, width - _NUMBERS - _PARTS),
            one.part,
            f"{one.count:,}",
            _ms(one.seconds),
            f"{100 * one.share:.1f} %",
        )
    return table
