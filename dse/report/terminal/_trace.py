"""Captured traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.report.console import (
    UNKNOWN,
    Table,
    figures,
    line,
    ms,
    names,
    notes,
    percent,
    signed_percent,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.trace import (
        CollectiveSummary,
        NamedTotal,
        PathPart,
        PathSummary,
        RankResimulation,
        RankSummary,
        SizeSummary,
        Straggler,
        StreamSummary,
        TraceSummary,
    )

_MAX_SIZES = 20
#: Share of the critical path from which a kind of task is named.
_SMALL = 0.01
#: Parts of a step, in the order of their columns.
_PARTS = ("compute", "exposed", "idle", "waiting")


def print_trace_summary(
    summary: TraceSummary,
    console: Console,
    path: PathSummary | None = None,
    remarks: Sequence[str] = (),
) -> None:
    """Prints what traces contain.

    What the last step is bound by, ranks and their steps, the longest kernels and operators of the
    first rank, collectives, stragglers, the critical path, and notes.

    Args:
        summary: The figures.
        console: Where to print.
        path: Critical path of the last step, if known.
        remarks: Notes on the whole, printed after those of the ranks.
    """
    if path is not None and (parts := parts_text(path.parts)):
        line(console, f"the last step, {ms(path.length_s)} ms, is bound by: {parts}", "bold")
    _print_ranks(summary.ranks, console)
    _print_steps(summary.ranks, console)
    for rank in summary.ranks:
        if rank.last_step is None:
            line(console, f"rank {rank.rank}: contains neither operators nor device work")
        elif not rank.device_events:
            line(
                console,
                f"rank {rank.rank}: contains no GPU work, so the CPU is the device: its operators "
                "compute",
            )
    if summary.compute_imbalance is not None:
        share = percent(summary.compute_imbalance)
        line(console, f"the rank that computes longest takes {share} more than the mean")
    if summary.ranks:
        first = summary.ranks[0]
        for title, totals in (
            ("kernels of rank {}", first.top_kernels),
            ("operators of rank {}, by the device time that they launched", first.top_operators),
            ("operators of rank {}, by their own time on the host", first.top_host_operators),
        ):
            if totals:
                _print_totals(title.format(first.rank), totals, console)
    if summary.collectives:
        _print_collectives(summary.collectives, console)
    if summary.stragglers:
        _print_stragglers(summary.stragglers, console)
    if path is not None:
        _print_path(path, console)
    notes(console, [(rank.rank, note) for rank in summary.ranks for note in rank.notes])
    notes(console, [(None, remark) for remark in remarks])


def print_resimulation(
    ranks: Sequence[RankResimulation], console: Console, remarks: Sequence[str] = ()
) -> None:
    """Prints measured and simulated steps, and notes on the graph."""
    titles = ("rank", "measured", "simulated", "error", *_PARTS, "not explained")
    table = Table("one step, in ms", figures(*titles))
    for rank in ranks:
        table.add(
            str(rank.rank),
            ms(rank.measured_s),
            ms(rank.simulated_s),
            signed_percent(rank.error, 2),
            *map(ms, (rank.compute_s, rank.exposed_communication_s, rank.idle_s, rank.wait_s)),
            percent(rank.unexplained_share),
        )
    table.print(console)
    notes(console, [(None, remark) for remark in remarks])


def print_streams(streams: Sequence[StreamSummary], console: Console) -> None:
    """Prints streams and threads of a step, with the names by which changes select them."""
    title = "streams and threads of the last step"
    table = Table(title, figures("rank"), names("stream or thread"), figures("tasks", "busy ms"))
    for stream in streams:
        table.add(str(stream.rank), stream.stream, f"{stream.tasks:,}", ms(stream.busy_s))
    table.print(console)


def print_sizes(sizes: Sequence[SizeSummary], console: Console) -> None:
    """Prints the sizes of dimensions with most time, and the operators that work on them."""
    if not sizes:
        line(console, "no shapes of operators were recorded (record_shapes=True)")
        return
    title = "sizes of dimensions in the last step, over all ranks"
    table = Table(title, figures("size"), names("operators"), figures("tasks", "ms"))
    for found in sizes[:_MAX_SIZES]:
        operators = ", ".join(found.operators)
        table.add(str(found.size), operators, f"{found.tasks:,}", ms(found.seconds))
    table.print(console)
    if len(sizes) > _MAX_SIZES:
        line(console, f"and {len(sizes) - _MAX_SIZES} sizes of less time; --json lists all")


def parts_text(parts: Sequence[PathPart]) -> str:
    """Names the parts of a critical path with their shares, but for small ones."""
    large = [part for part in parts if part.share >= _SMALL]
    return ", ".join(f"{part.part} {percent(part.share, 0)}" for part in large)


def _print_ranks(ranks: Sequence[RankSummary], console: Console) -> None:
    titles = ("events", "device events", "busy ms", "calls", "in calls ms", "span ms")
    table = Table("ranks", figures("rank"), names("device"), figures(*titles))
    for rank in ranks:
        on_cpu = rank.last_step is not None and not rank.device_events
        name = ", ".join(sorted(set(rank.devices)))
        table.add(
            str(rank.rank),
            "CPU" if on_cpu else name or UNKNOWN,
            f"{rank.events:,}",
            UNKNOWN if on_cpu else f"{rank.device_events:,}",
            UNKNOWN if on_cpu else ms(rank.device_busy_s, 2),
            f"{rank.calls:,}",
            ms(rank.calls_s, 2),
            ms(rank.span_s, 2),
        )
    table.print(console)


def _print_steps(ranks: Sequence[RankSummary], console: Console) -> None:
    """Prints all steps with their durations, and the parts of the last one."""
    titles = ("measured", "compute", "communication", "exposed", "idle", "waiting")
    table = Table("steps, in ms", figures("rank"), names("step"), figures(*titles))
    for rank in ranks:
        last = rank.last_step
        for step in rank.steps[: None if last is None else -1]:
            table.add(str(rank.rank), str(step.number), ms(step.measured_s))
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
            table.add(str(rank.rank), step_name, *map(ms, seconds))
        elif not rank.steps:
            table.add(str(rank.rank), "none")
    table.print(console)


def _print_totals(title: str, totals: Sequence[NamedTotal], console: Console) -> None:
    table = Table(title, names("name"), figures("count", "ms"))
    for total in totals:
        table.add(total.name, f"{total.count:,}", ms(total.total_s))
    table.print(console)


def _print_collectives(collectives: Sequence[CollectiveSummary], console: Console) -> None:
    titles = ("size", "ranks", "longest wait", "last rank", "transfer", "algorithm", "bus")
    title = "collectives, times in ms, bandwidths in GB/s"
    table = Table(title, names("operation"), figures(*titles))
    for found in collectives:
        count, several = str(len(found.ranks)), len(found.ranks) > 1
        whole = max(found.group_size, len(found.ranks)) or "?"
        table.add(
            found.operation,
            UNKNOWN if found.message_bytes < 0 else size(found.message_bytes),
            count if found.whole else f"{count} of {whole}",
            ms(found.longest_wait_s) if several else UNKNOWN,
            str(found.last_rank) if several else UNKNOWN,
            ms(found.transfer_s) if found.whole else f"≤ {ms(found.transfer_s)}",
            _rate(found.algorithm_bandwidth_bytes_per_s),
            _rate(found.bus_bandwidth_bytes_per_s),
        )
    table.print(console)


def _rate(bytes_per_s: float | None) -> str:
    return UNKNOWN if bytes_per_s is None else f"{bytes_per_s / 1e9:.2f}"


def _print_stragglers(stragglers: Sequence[Straggler], console: Console) -> None:
    titles = (
        "rank",
        "times last",
        "others waited (sum)",
        "later than all others",
        "waited itself",
    )
    table = Table("stragglers in collectives, in ms", figures(*titles))
    for found in stragglers:
        seconds = (found.others_waited_s, found.alone_late_s, found.waited_s)
        table.add(str(found.rank), str(found.times_last), *map(ms, seconds))
    table.print(console)


def _print_path(path: PathSummary, console: Console) -> None:
    """Prints the parts of the critical path, its ranks, and its longest tasks."""
    columns = figures("tasks", "ms", "share")
    table = Table("parts of the critical path", names("part"), columns)
    for part in path.parts:
        table.add(part.part, f"{part.count:,}", ms(part.seconds), percent(part.share))
    table.print(console)
    ranks = ", ".join(f"{found.rank} ({percent(found.share, 0)})" for found in path.ranks)
    text = f"critical path of the last step: {ms(path.length_s)} ms on rank {ranks}"
    if len(path.ranks) > 1:
        times = "once" if path.rank_changes == 1 else f"{path.rank_changes} times"
        text += f"; it changes ranks {times}"
    line(console, text)
    table = Table("longest on the critical path", names("name", "part"), columns)
    for task in path.contributors:
        cells = (f"{task.count:,}", ms(task.seconds), percent(task.share))
        table.add(task.name, task.part, *cells)
    table.print(console)
