"""Replays of execution traces on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.trace.replay import RankResult, ReplayResult, SkippedOperators

_SKIPPED_SHOWN = 20


def render_replay_result(result: ReplayResult, console: Console) -> None:
    """Prints times of the replay beside those of the recording, coverage, and what is missing."""
    _line(
        console,
        f"replayed on {result.device_name} with torch {result.torch_version}; collectives: "
        f"{_COLLECTIVES[result.collectives]}",
    )
    table = Table(title="the recorded range, in ms", title_justify="left", box=None)
    for name in ("rank", "steps"):
        table.add_column(name)
    for name in ("replayed", "original", "error", "profiled", "operators", "cpu time"):
        table.add_column(name, justify="right")
    for rank in result.ranks:
        original = rank.original
        table.add_row(
            str(rank.rank),
            str(original.steps),
            f"{1e3 * rank.replayed_s:.3f}",
            _ms(original.reference_s),
            "–" if rank.error is None else f"{100 * rank.error:+.1f} %",
            _ms(original.profiled_s),
            _ms(original.operators_s),
            f"{1e3 * _median(rank.cpu_s):.3f}",
        )
    console.print(table)
    table = Table(title="what is replayed", title_justify="left", box=None)
    table.add_column("rank")
    table.add_column("operators", justify="right", no_wrap=True)
    for name in ("share", "of host time", "of device time", "collectives"):
        table.add_column(name, justify="right")
    table.add_column("memory", justify="right", no_wrap=True)
    for rank in result.ranks:
        covered = rank.coverage
        table.add_row(
            str(rank.rank),
            f"{covered.replayed:,} of {covered.operators:,}",
            f"{100 * covered.operator_share:.2f} %",
            _percent(covered.time_share),
            _percent(covered.device_time_share),
            str(rank.collectives),
            f"{rank.memory_bytes / 2**20:,.1f} MiB",
        )
    console.print(table)
    _skipped(result.ranks, console)
    notes: dict[str, list[str]] = {note: [] for note in result.notes}
    for rank in result.ranks:
        if rank.batch is not None:
            before, after = rank.batch
            notes.setdefault(f"the batch is {after}, recorded were {before}", []).append(
                str(rank.rank)
            )
        if rank.original.unprofiled_s is not None:
            words = "original: recorded steps without the profiler; with it they are longer"
            notes.setdefault(words, []).append(str(rank.rank))
        elif rank.original.profiled_s is not None:
            words = f"original: {rank.original.source}, with what the profiler costs"
            notes.setdefault(words, []).append(str(rank.rank))
        for note in rank.notes:
            notes.setdefault(note, []).append(str(rank.rank))
    for note, ranks in notes.items():
        whose = f"rank {', '.join(ranks)}: " if ranks else ""
        _line(console, f"note: {whose}{note}")


_COLLECTIVES = {
    "run": "run over local processes",
    "mock": "mocked by local copies",
    "skip": "left out",
    "none": "none in the traces",
}


def _skipped(ranks: Sequence[RankResult], console: Console) -> None:
    """Lists what is not replayed, over all ranks."""
    found: dict[tuple[str, str], list[SkippedOperators]] = {}
    for rank in ranks:
        for one in rank.skipped:
            if not one.by_option:
                found.setdefault((one.name, one.reason), []).append(one)
    if not found:
        return
    table = Table(title="not replayed, over all ranks", title_justify="left", box=None)
    table.add_column("operator", overflow="fold")
    for name in ("count", "host ms", "device ms"):
        table.add_column(name, justify="right")
    table.add_column("reason", overflow="fold")
    for (name, reason), group in list(found.items())[:_SKIPPED_SHOWN]:
        table.add_row(
            Text(name),
            f"{sum(one.count for one in group):,}",
            _ms(_sum([one.time_s for one in group])),
            _ms(_sum([one.device_time_s for one in group])),
            Text(reason),
        )
    console.print(table)
    if len(found) > _SKIPPED_SHOWN:
        _line(console, f"and {len(found) - _SKIPPED_SHOWN} of less time; --json lists all")


def _sum(seconds: Sequence[float | None]) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) if known else None


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.3f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
