"""Captured traces on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from dse.trace import (
        CollectiveSummary,
        LaneSummary,
        NamedTotal,
        PathSummary,
        RankReplay,
        RankSummary,
        SizeSummary,
        Straggler,
        TraceSummary,
    )

#: What remains of a name at least.
_SHORTEST_NAME = 8
#: Blanks beside a column.
_PADDING = 2
#: Sizes that are listed.
_SIZES = 20


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
        if rank.last_step is not None and not rank.device_events:
            _line(
                console,
                f"rank {rank.rank}: no work of a GPU was recorded, so the CPU is the device: its "
                "operators compute",
            )
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
            ("kernels of rank {}", first.top_kernels),
            ("operators of rank {}, by the device time that they launched", first.top_operators),
            ("operators of rank {}, by their own time on the host", first.top_host_operators),
        )
        for title, totals in tables:
            if totals:
                _print(console, _totals(title.format(first.rank), totals))
    if summary.collectives:
        _print(console, _collectives(summary.collectives))
    if summary.stragglers:
        _print(console, _stragglers(summary.stragglers))
    if path is not None:
        _print(console, _path_parts(path))
        _line(console, _path_line(path))
        _print(console, _path_names(path))
    print_notes(console, [(rank.rank, note) for rank in summary.ranks for note in rank.notes])
    print_notes(console, [(None, note) for note in notes])


def render_replay(
    ranks: Sequence[RankReplay], console: Console, notes: Sequence[str] = ()
) -> None:
    """Prints measured beside simulated steps, and notes on the graph."""
    times = ("compute", "exposed", "idle", "of it waiting")
    names = ("measured", "simulated", "error", *times, "without cause")
    table = _table("one step, in ms", ("rank",), names)
    for rank in ranks:
        seconds = (rank.compute_s, rank.exposed_communication_s, rank.idle_s, rank.wait_s)
        table.add_row(
            str(rank.rank),
            f"{1e3 * rank.measured_s:.3f}",
            f"{1e3 * rank.simulated_s:.3f}",
            f"{100 * rank.error:+.2f} %",
            *(f"{1e3 * value:.3f}" for value in seconds),
            f"{100 * rank.unexplained_share:.1f} %",
        )
    _print_table(console, table)
    print_notes(console, [(None, note) for note in notes])


def render_lanes(lanes: Sequence[LaneSummary], console: Console) -> None:
    """Prints streams and threads of a step, with the names by which changes select them."""
    table = _table("lanes of the last step", ("rank", "lane"), ("tasks", "busy ms"))
    for one in lanes:
        table.add_row(str(one.rank), Text(one.lane), f"{one.tasks:,}", _ms(one.busy_s))
    _print(console, table)


def render_sizes(sizes: Sequence[SizeSummary], console: Console) -> None:
    """Prints the sizes of dimensions with most time, and who works on them."""
    if not sizes:
        _line(console, "no shapes of operators were recorded (record_shapes=True)")
        return
    title = "sizes of dimensions in the last step, over all ranks"
    table = _table(title, ("size", "operators"), ("tasks", "ms"))
    for one in sizes[:_SIZES]:
        operators = Text(", ".join(one.operators))
        table.add_row(str(one.size), operators, f"{one.tasks:,}", _ms(one.seconds))
    _print(console, table)
    if len(sizes) > _SIZES:
        _line(console, f"and {len(sizes) - _SIZES} sizes of less time; --json lists all")


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
    _print_table(console, table)
    console.print()


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, box=None, header_style="bold dim")
    for name in left:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for name in right:
        table.add_column(name, justify="right")
    return table


def _print_table(console: Console, table: Table) -> None:
    """Cuts names where a table is wider than the terminal, so that figures keep all digits."""
    names: dict[int, int] = {}
    figures: dict[int, int] = {}
    natural = 0
    for place, column in enumerate(table.columns):
        header, cells = str(column.header), [cell_len(str(cell)) for cell in column.cells]
        whole = max([cell_len(header), *cells])
        natural += whole + _PADDING
        if column.no_wrap:
            names[place] = whole
        else:
            # Headers of figures may take several lines.
            figures[place] = max([*map(cell_len, header.split()), *cells])
    if natural > console.width:
        room = console.width - sum(figures.values()) - _PADDING * len(table.columns)
        while sum(names.values()) > room and max(names.values()) > _SHORTEST_NAME:
            names[max(names, key=lambda place: names[place])] -= 1
        for place, size in (*names.items(), *figures.items()):
            table.columns[place].width = size
        needed = sum((*names.values(), *figures.values())) + _PADDING * len(table.columns)
        if needed > console.width:
            # A terminal that is too narrow even then wraps lines itself.
            table.width = needed
    # As part of a narrow table a title would be broken.
    console.print(Text(str(table.title), style="bold"), soft_wrap=True)
    table.title = None
    console.print(table, crop=False)


def _ms(seconds: float, digits: int = 3) -> str:
    return f"{1e3 * seconds:.{digits}f}"


def _ranks(ranks: Sequence[RankSummary]) -> Table:
    table = _table(
        "ranks",
        ("rank", "device"),
        ("events", "device events", "busy ms", "calls", "in calls ms", "span ms"),
    )
    for rank in ranks:
        on_cpu = rank.last_step is not None and not rank.device_events
        name = ", ".join(sorted(set(rank.devices)))
        table.add_row(
            str(rank.rank),
            Text("CPU" if on_cpu else name or "–"),
            f"{rank.events:,}",
            "–" if on_cpu else f"{rank.device_events:,}",
            "–" if on_cpu else _ms(rank.device_busy_s, 2),
            f"{rank.calls:,}",
            _ms(rank.calls_s, 2),
            _ms(rank.span_s, 2),
        )
    return table


def _steps(ranks: Sequence[RankSummary]) -> Table:
    """Returns all steps with their lengths, and of the last one what the devices did."""
    parts = ("compute", "communication", "exposed", "idle", "of it waiting")
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
                last.wait_s,
            )
            step_name = str(rank.steps[-1].number) if rank.steps else last.cut_by
            table.add_row(str(rank.rank), step_name, *map(_ms, seconds))
        elif not rank.steps:
            table.add_row(str(rank.rank), "none")
    return table


def _totals(title: str, totals: Sequence[NamedTotal]) -> Table:
    table = _table(title, ("name",), ("count", "ms"))
    for total in totals:
        table.add_row(Text(total.name), f"{total.count:,}", _ms(total.total_s))
    return table


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


def _path_names(path: PathSummary) -> Table:
    table = _table("most of the critical path", ("name", "part"), ("tasks", "ms", "share"))
    for one in path.contributors:
        table.add_row(
            Text(one.name),
            one.part,
            f"{one.count:,}",
            _ms(one.seconds),
            f"{100 * one.share:.1f} %",
        )
    return table
