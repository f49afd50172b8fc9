"""Collectives matched across ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dse.trace.cpu._gloo import gloo_events
from dse.trace.links._link import Links, link
from dse.trace.read._rank_trace import Category

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.trace.read._collectives import CollectiveInfo
    from dse.trace.read._rank_trace import Longs, RankTrace

#: Operations in which ranks may send different amounts.
_UNEVEN = frozenset({"all_to_all", "send_recv", "gather", "scatter", "unknown"})
_PAIRS = frozenset({"send", "recv"})


@dataclass(frozen=True, slots=True)
class MatchedCollective:
    """One collective, matched across its ranks.

    Attributes:
        operation: Canonical name; a send and its receive are one `send_recv`.
        group: Name of the process group; empty if unknown.
        step: Number of the profiler step that launched it; -1 outside of steps.
        sequence: The group's sequence number of the collective; -1 if unknown.
        ordinal: Index among those of the same group, step, operation, size and sequence.
        message_bytes: Largest size of any rank, in bytes; -1 if unknown.
        group_size: Number of ranks of the group; 0 if unknown.
        ranks: Ranks whose kernel was found, in order.
        events: Kernel of each of these ranks, or gloo annotation, as an index into its trace.
        missing_ranks: Ranks of the group that have a trace but no counterpart in it.
        untraced_ranks: Ranks of the group that have no trace.
    """

    operation: str
    group: str
    step: int
    sequence: int
    ordinal: int
    message_bytes: int
    group_size: int
    ranks: tuple[int, ...]
    events: tuple[int, ...]
    missing_ranks: tuple[int, ...] = ()
    untraced_ranks: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every rank of the group that has a trace takes part."""
        known = len(self.ranks) + len(self.untraced_ranks)
        return not self.missing_ranks and known >= self.group_size


@dataclass(frozen=True, slots=True)
class _Key:
    """What the kernels of one collective have in common, apart from their order."""

    operation: str
    group: str
    members: tuple[int, ...]
    step: int
    sequence: int
    size: int


def match_collectives(
    traces: Sequence[RankTrace], links: Sequence[Links] | None = None
) -> tuple[MatchedCollective, ...]:
    """Matches kernels of collectives across ranks by group, step, operation, size and order.

    On a CPU the annotations of gloo replace kernels. Sends and receives among more than two ranks
    do not name their peer there, and stay unmatched.

    If the traces hold the groups' sequence numbers, these replace the step. If the ranks of a
    group are unknown and it is smaller than the world, an absent rank is not listed in
    `missing_ranks`, but the collective is not `complete` either.

    Args:
        traces: One trace per rank.
        links: The links of each trace; computed if left out.

    Returns:
        All collectives in the order of their launch on the first rank that has them; those that
        lack a rank are not `complete`.
    """
    if links is None:
        links = [link(trace) for trace in traces]
    found: dict[tuple[_Key, int], dict[int, tuple[int, CollectiveInfo]]] = {}
    for trace, linked in zip(traces, links, strict=True):
        for key, ordinal, event, info in _of_rank(trace, linked):
            found.setdefault((key, ordinal), {})[trace.rank] = (event, info)
    traced = {trace.rank for trace in traces}
    world = max((trace.world_size for trace in traces), default=0)
    return tuple(
        _matched(key, ordinal, members, traced, world) for (key, ordinal), members in found.items()
    )


def _of_rank(trace: RankTrace, links: Links) -> Iterator[tuple[_Key, int, int, CollectiveInfo]]:
    kernels = np.flatnonzero(trace.where(Category.KERNEL) & (links.collective >= 0))
    if not trace.has_kernels:
        kernels = gloo_events(trace)
    launch = links.launch[kernels]
    launched_ns = np.where(launch >= 0, trace.start_ns[launch], trace.start_ns[kernels])
    order = np.lexsort((kernels, launched_ns))
    steps = _steps(trace, launched_ns[order])
    seen: Counter[_Key] = Counter()
    for event, step in zip(kernels[order].tolist(), steps.tolist(), strict=True):
        info = links.collectives[links.collective[event]]
        if info.operation in _PAIRS and info.source < 0 and not trace.has_kernels:
            continue
        key = _key(info, step)
        yield key, seen[key], event, info
        seen[key] += 1


def _key(info: CollectiveInfo, step: int) -> _Key:
    if info.operation in _PAIRS and min(info.source, info.destination) >= 0:
        ends = (info.source, info.destination)
        if info.ranks and max(ends) < len(info.ranks):
            ends = (info.ranks[ends[0]], info.ranks[ends[1]])
        return _Key("send_recv", info.group, ends, step, -1, info.message_bytes)
    size = -1 if info.operation in _UNEVEN else info.message_bytes
    step = -1 if info.sequence >= 0 else step
    return _Key(info.operation, info.group, info.ranks, step, info.sequence, size)


def _steps(trace: RankTrace, times_ns: Longs) -> Longs:
    if not trace.steps:
        return np.full(len(times_ns), -1, dtype=np.int64)
    start = np.array([step.start_ns for step in trace.steps])
    end = np.array([step.end_ns for step in trace.steps])
    number = np.array([step.number for step in trace.steps])
    at = np.searchsorted(start, times_ns, side="right") - 1
    return np.where((at >= 0) & (times_ns <= end[at]), number[at], -1)


def _matched(
    key: _Key,
    ordinal: int,
    members: dict[int, tuple[int, CollectiveInfo]],
    traced: set[int],
    world: int,
) -> MatchedCollective:
    infos = [info for _, info in members.values()]
    size = len(key.members) or max(info.group_size for info in infos)
    missing: tuple[int, ...] = ()
    untraced: tuple[int, ...] = ()
    if key.members:
        absent = set(key.members) - set(members)
        missing, untraced = tuple(sorted(absent & traced)), tuple(sorted(absent - traced))
    elif not 0 < size < world:
        missing = tuple(sorted(traced - set(members)))
        untraced = _untraced(max(world, size), frozenset(traced))
    present = sorted(members)
    return MatchedCollective(
        operation=key.operation,
        group=key.group,
        step=key.step,
        sequence=key.sequence,
        ordinal=ordinal,
        message_bytes=max(info.message_bytes for info in infos),
        group_size=size,
        ranks=tuple(present),
        events=tuple(members[rank][0] for rank in present),
        missing_ranks=missing,
        untraced_ranks=untraced,
    )


@lru_cache(maxsize=4)
def _untraced(world: int, traced: frozenset[int]) -> tuple[int, ...]:
    """Returns all other ranks; cached because the collectives of a large job share them."""
    return tuple(rank for rank in range(world) if rank not in traced)
