"""Replays of execution traces."""

from __future__ import annotations

from statistics import median_high
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
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from dse.trace.replay import RankResult, ReplayResult, SkippedOperators

_MAX_SKIPPED = 20

_COLLECTIVES = {
    "run": "run over local processes",
    "mock": "mocked by local copies",
    "skip": "left out",
    "none": "none in the traces",
}


def print_replay_result(result: ReplayResult, console: Console) -> None:
    """Prints replayed and recorded times, coverage, and what is missing."""
    line(
        console,
        f"replayed on {result.device_name} with torch {result.torch_version}; collectives: "
        f"{_COLLECTIVES[result.collectives]}",
    )
    titles = ("replayed", "original", "error", "profiled", "operators", "cpu time")
    table = Table("the recorded range, in ms", figures("rank"), names("steps"), figures(*titles))
    for rank in result.ranks:
        original = rank.original
        table.add(
            str(rank.rank),
            UNKNOWN if original.steps is None else str(original.steps),
            ms(rank.replayed_s),
            ms(original.reference_s),
            signed_percent(rank.error),
            ms(original.profiled_s),
            ms(original.operators_s),
            ms(median_high(rank.cpu_s)),
        )
    table.print(console)
    titles = ("rank", "operators", "share", "of host time", "of device time", "collectives")
    table = Table("coverage", figures(*titles, "memory"))
    for rank in result.ranks:
        covered = rank.coverage
        table.add(
            str(rank.rank),
            f"{covered.replayed:,} of {covered.operators:,}",
            percent(covered.operator_share, 2),
            percent(covered.time_share, 2),
            percent(covered.device_time_share, 2),
            str(rank.collectives),
            f"{rank.memory_bytes / 2**20:,.1f} MiB",
        )
    table.print(console)
    _print_skipped(result.ranks, console)
    notes(console, [(None, note) for note in result.notes])
    notes(console, ((rank.rank, note) for rank in result.ranks for note in _rank_notes(rank)))


def _rank_notes(rank: RankResult) -> Iterator[str]:
    if rank.batch is not None:
        yield f"the batch is {rank.batch[1]}; the recorded one was {rank.batch[0]}"
    if rank.original.unprofiled_s is not None:
        yield "original: recorded steps without the profiler; with it they are longer"
    elif rank.original.profiled_s is not None:
        yield f"original: {rank.original.source}, including the overhead of the profiler"
    yield from rank.notes


def _print_skipped(ranks: Sequence[RankResult], console: Console) -> None:
    """Lists operators that are not replayed, over all ranks."""
    found: dict[tuple[str, str], list[SkippedOperators]] = {}
    for rank in ranks:
        for skipped in rank.skipped:
            if not skipped.by_option:
                found.setdefault((skipped.name, skipped.reason), []).append(skipped)
    if not found:
        return
    columns = (names("operator"), figures("count", "host ms", "device ms"), texts("reason"))
    table = Table("not replayed, over all ranks", *columns)
    for (name, reason), group in list(found.items())[:_MAX_SKIPPED]:
        table.add(
            name,
            f"{sum(skipped.count for skipped in group):,}",
            ms(_sum([skipped.time_s for skipped in group])),
            ms(_sum([skipped.device_time_s for skipped in group])),
            reason,
        )
    table.print(console)
    if len(found) > _MAX_SKIPPED:
        line(console, f"and {len(found) - _MAX_SKIPPED} of less time; --json lists all")


def _sum(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if known else None
