"""Ranks of trace files, and whether files belong to one run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
import re
from typing import TYPE_CHECKING

from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.trace.read._rank_trace import RankTrace

_RANK = re.compile(r"(?:rank|worker|gpu|device)[-_.]?(\d{1,7})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"[-_.](\d{1,7})\.(?:pt\.trace\.)?json")
#: Clocks of two hosts may differ by this much, in ns.
_CLOCK_SLACK_NS = 10**9


def rank_from_name(file: str) -> int | None:
    """Returns the rank in a file name (`rank3`, `worker0_…`, `…_7.json`), or None."""
    name = PurePosixPath(file.rpartition(":")[2]).name
    found = _RANK.search(name) or _LAST_NUMBER.search(name)
    return None if found is None else int(found.group(1))


def assign_ranks(files: Sequence[str], ranks: Sequence[int | None]) -> list[int]:
    """Returns the rank of each file.

    Raises:
        ConfigError: A rank is unknown, or two files have the same one.
    """
    if len(files) == 1:
        return [ranks[0] or 0]
    seen: dict[int, str] = {}
    for file, rank in zip(files, ranks, strict=True):
        if rank is None:
            raise ConfigError(
                f"{file}: neither `distributedInfo` nor the file name gives the rank; put `rank` "
                "and a number into the name"
            )
        if rank in seen:
            raise ConfigError(f"{seen[rank]} and {file} both belong to rank {rank}; keep one")
        seen[rank] = file
    return [rank for rank in ranks if rank is not None]


def check_ranks(read: Sequence[tuple[RankTrace, int | None]]) -> tuple[RankTrace, ...]:
    """Returns traces with their ranks, sorted, after checking that they belong to one run.

    Raises:
        ConfigError: Two files belong to the same rank, or to different runs.
    """
    traces = [trace for trace, _ in read]
    ranks = assign_ranks([trace.file for trace in traces], [rank for _, rank in read])
    numbered = [replace(trace, rank=rank) for trace, rank in zip(traces, ranks, strict=True)]
    numbered.sort(key=lambda trace: trace.rank)
    for trace in numbered[1:]:
        _check_pair(numbered[0], trace)
    if not (note := missing_ranks(numbered)):
        return tuple(numbered)
    return tuple(replace(trace, notes=(*trace.notes, note)) for trace in numbered)


def missing_ranks(traces: Sequence[RankTrace]) -> str:
    """Returns which ranks of a job have no trace, in words; empty if all have one."""
    world = max((trace.world_size for trace in traces), default=0)
    missing = sorted(set(range(world)) - {trace.rank for trace in traces})
    return f"{len(missing)} of {world} ranks have no trace: {_listed(missing)}" if missing else ""


def _check_pair(first: RankTrace, other: RankTrace) -> None:
    both = f"{first.file} and {other.file} belong to different runs"
    if first.world_size and other.world_size and first.world_size != other.world_size:
        raise ConfigError(f"{both}: {first.world_size} and {other.world_size} ranks")
    steps = [{step.number for step in trace.steps} for trace in (first, other)]
    if all(steps) and not steps[0] & steps[1]:
        raise ConfigError(
            f"{both}: one has profiler steps {_listed(sorted(steps[0]))}, the other "
            f"{_listed(sorted(steps[1]))}"
        )
    gap = max(first.base_time_ns, other.base_time_ns) - min(_last(first), _last(other))
    if gap > _CLOCK_SLACK_NS:
        raise ConfigError(
            f"{both}: {gap / 1e9:.1f} s lie between the end of one and the start of the other"
        )


def _last(trace: RankTrace) -> int:
    return trace.base_time_ns + int(trace.end_ns.max(initial=0))


def _listed(numbers: Sequence[int], most: int = 10) -> str:
    dots = ", …" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + dots
