"""Predicted iterations of candidates on the front, stream by stream.

A study keeps no time lines: they are predicted again from the inputs and the plan that it keeps,
for a few candidates and a few of their ranks each, which bounds the size of the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import DseError
from dse.graph import TaskKind
from dse.search.revise import study_evaluator
from dse.workload import DurationClass, workload_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.graph import Stream
    from dse.search import StudyResult, TrialRecord
    from dse.search.evaluate import ConfigurationEvaluator

#: Candidates with a time line; of a larger front some that are evenly spaced.
_MAX_CANDIDATES = 12

#: Up to so many ranks are all shown; of more, the slowest, a median one and the fastest.
_ALL_RANKS = 4

#: Bars of the whole page and of one candidate.
_MAX_BARS = 18_000
_MAX_CANDIDATE_BARS = 4_000

#: Ticks of an iteration: times are whole numbers, so that bars never overlap by rounding.
TICKS = 1_000_000

#: Compute times of two ranks that are closer, relative to the iteration, are the same.
_SAME = 1e-6


class BarKind(IntEnum):
    """What the colour of a bar means."""

    COMPUTE = 0
    EMBEDDING = 1
    COMMUNICATION = 2
    MEMORY = 3
    HOST = 4


#: Names of the kinds of bars, in their order.
BAR_KINDS = ("Compute", "Embedding", "Communication", "Memory copy", "Host")


_OF_TASK = {
    TaskKind.COMPUTE: BarKind.COMPUTE,
    TaskKind.COLLECTIVE: BarKind.COMMUNICATION,
    TaskKind.COPY: BarKind.MEMORY,
    TaskKind.HOST: BarKind.HOST,
}


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream or thread of one rank.

    Attributes:
        title: Rank and stream.
        start: Starts of its bars in ticks, ascending.
        duration: Durations of its bars in ticks.
        name: Index of each bar's name in `TimelineView.names`.
        kind: `BarKind` of each.
    """

    title: str
    start: tuple[int, ...]
    duration: tuple[int, ...]
    name: tuple[int, ...]
    kind: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CandidateTimeline:
    """The iteration of one candidate.

    Attributes:
        number: Trial number.
        iteration_ms: Duration of the iteration, which has `TICKS` ticks.
        streams: Streams and threads, rank by rank.
        shown: Which ranks are shown.
        joined_ms: Neighbours of a kind that are closer than this are one bar; 0 where every task
            has a bar.
    """

    number: int
    iteration_ms: float
    streams: tuple[StreamView, ...]
    shown: str
    joined_ms: float


@dataclass(frozen=True, slots=True)
class TimelineView:
    """Time lines of the page.

    Attributes:
        ticks: Ticks of an iteration.
        kinds: Names of the kinds of bars.
        names: Names of tasks.
        candidates: Time lines, best candidate in the first objective first.
        note: Why candidates are missing; may be empty.
    """

    ticks: int
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    candidates: tuple[CandidateTimeline, ...]
    note: str


@dataclass(frozen=True, slots=True)
class _Schedule:
    """When the tasks of all ranks run.

    Attributes:
        streams: Streams of the graph.
        names: Names of its tasks.
        stream: Stream of each task.
        kind: `BarKind` of each task.
        alike: Whether the graph is that of one rank and each copy is a rank; else streams have
            ranks, and there is one copy.
        start_s: Shape `(tasks, copies)`.
        end_s: Same shape.
    """

    streams: tuple[Stream, ...]
    names: tuple[str, ...]
    stream: NDArray[np.int32]
    kind: NDArray[np.int64]
    alike: bool
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


def timeline_view(study: StudyResult) -> TimelineView:
    """Predicts the iterations of candidates on the front again, from what the study keeps."""
    names: dict[str, int] = {}
    found: list[CandidateTimeline] = []
    note = ""
    if not study.front:
        note = "No configuration is feasible, so there is no iteration to show."
    elif study.trace is not None:
        note = (
            "A study of a captured trace does not keep the trace; "
            "“dse trace whatif TRACE --timeline FILE” writes the time line of a changed step."
        )
    else:
        try:
            evaluator = study_evaluator(study)
            shown = _spread_out(study.front)
            limit = min(_MAX_CANDIDATE_BARS, _MAX_BARS // len(shown))
            place = workload_kind(study.kind).rank_word
            for record in shown:
                schedule = _schedule_of(evaluator, record)
                found.append(_drawn(schedule, record.number, names, place, limit))
        except DseError as error:
            note = f"The iteration cannot be predicted again: {error}"
    if found and not note and len(study.front) > len(found):
        note = (
            f"The page keeps time lines of {len(found)} of the {len(study.front)} configurations "
            "on the front, evenly spaced."
        )
    return TimelineView(TICKS, BAR_KINDS, tuple(names), tuple(found), note)


def _spread_out(front: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Returns a bounded number of candidates, evenly spaced, with both ends."""
    count = min(len(front), _MAX_CANDIDATES)
    places = np.linspace(0, len(front) - 1, count).round().astype(int)
    return [front[place] for place in sorted(set(places.tolist()))]


def _schedule_of(evaluator: ConfigurationEvaluator, record: TrialRecord) -> _Schedule:
    assert record.configuration is not None
    iteration = evaluator.job(record.configuration).iteration()
    graph = iteration.ranks.graph
    start_s, end_s = iteration.ranks.times_s(iteration.duration_s[..., None])
    kinds = np.array([_OF_TASK[TaskKind(kind)] for kind in graph.kind.tolist()], dtype=np.int64)
    kinds[iteration.share_of(DurationClass.EMBEDDING) > 0] = BarKind.EMBEDDING
    for task, name in enumerate(graph.names):
        if kinds[task] == BarKind.COMPUTE and name.startswith("embedding"):
            kinds[task] = BarKind.EMBEDDING
    return _Schedule(
        streams=graph.streams,
        names=graph.names,
        stream=graph.stream,
        kind=kinds,
        alike=iteration.ranks.copies > 1 or len({stream.rank for stream in graph.streams}) == 1,
        start_s=start_s[..., 0],
        end_s=end_s[..., 0],
    )


def _drawn(
    schedule: _Schedule, number: int, names: dict[str, int], place: str, limit: int
) -> CandidateTimeline:
    iteration_s = float(schedule.end_s.max(initial=0.0))
    chosen, shown = _chosen_ranks(schedule, iteration_s, place)
    streams: list[tuple[str, list[_Bar]]] = []
    for rank, role in chosen:
        title = f"{place} {rank}" + (f" ({role})" if role else "")
        streams += [
            (f"{title}: {name}", bars) for name, bars in _streams(schedule, rank, iteration_s)
        ]
    gap = 0
    while sum(len(bars) for _, bars in streams) > limit:
        gap = max(1, 2 * gap)
        streams = [(title, _joined(bars, gap)) for title, bars in streams]
    views = []
    for title, bars in streams:
        index = [names.setdefault(bar.name, len(names)) for bar in bars]
        views.append(
            StreamView(
                title,
                tuple(bar.start for bar in bars),
                tuple(bar.end - bar.start for bar in bars),
                tuple(index),
                tuple(int(bar.kind) for bar in bars),
            )
        )
    return CandidateTimeline(
        number,
        1e3 * iteration_s,
        tuple(views),
        shown,
        float(f"{1e3 * iteration_s * gap / TICKS:.3g}"),
    )


def _chosen_ranks(
    schedule: _Schedule, iteration_s: float, place: str
) -> tuple[list[tuple[int, str]], str]:
    """Returns ranks that stand for all with the role of each, and a sentence on them.

    The slowest is the one that computes longest among those that end last, so that the end of the
    iteration is always shown.
    """
    end_s, busy_s = _ends_and_compute_s(schedule)
    count = len(end_s)
    order = np.lexsort((np.arange(count), -busy_s))
    last = [rank for rank in order.tolist() if end_s[rank] >= iteration_s * (1 - _SAME)]
    slowest = last[0]
    if count <= _ALL_RANKS:
        return [(rank, "") for rank in range(count)], f"All {place}s." if count > 1 else ""
    if busy_s.max() - busy_s.min() <= _SAME * iteration_s:
        return [(slowest, "")], f"All {count} {place}s compute equally long; one of them is shown."
    others = [rank for rank in order.tolist() if rank != slowest]
    median, fastest = others[(len(others) - 1) // 2], others[-1]
    return (
        [(slowest, "slowest"), (median, "median"), (fastest, "fastest")],
        f"Three of {count} {place}s: the one that computes longest, a median one, and the one "
        "that computes shortest.",
    )


def _ends_and_compute_s(
    schedule: _Schedule,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns when each rank ends and how long it computes; both of shape `(ranks,)`."""
    computes = np.isin(schedule.kind, (BarKind.COMPUTE, BarKind.EMBEDDING))[:, None]
    busy_s = np.where(computes, schedule.end_s - schedule.start_s, 0.0)
    if schedule.alike:
        return schedule.end_s.max(axis=0), busy_s.sum(axis=0)
    rank_of = np.array([stream.rank for stream in schedule.streams])[schedule.stream]
    count = int(rank_of.max()) + 1
    end_s, total_s = np.zeros(count), np.zeros(count)
    np.maximum.at(end_s, rank_of, schedule.end_s[:, 0])
    np.add.at(total_s, rank_of, busy_s[:, 0])
    return end_s, total_s


@dataclass(frozen=True, slots=True)
class _Bar:
    start: int
    end: int
    kind: BarKind
    tasks: tuple[str, ...]

    @property
    def name(self) -> str:
        return ", ".join(self.tasks[:3]) + (" and others" if len(self.tasks) > 3 else "")


def _streams(schedule: _Schedule, rank: int, iteration_s: float) -> list[tuple[str, list[_Bar]]]:
    """Returns streams and threads of a rank with their bars, without tasks of no duration."""
    column = rank if schedule.alike else 0
    scale = TICKS / iteration_s if iteration_s else 0.0
    start, end = (
        np.rint(times[:, column] * scale).astype(np.int64).tolist()
        for times in (schedule.start_s, schedule.end_s)
    )
    streams = []
    for index, stream in enumerate(schedule.streams):
        if not schedule.alike and stream.rank != rank:
            continue
        tasks = [
            task
            for task in np.flatnonzero(schedule.stream == index).tolist()
            if end[task] > start[task]
        ]
        bars = [
            _Bar(start[task], end[task], BarKind(schedule.kind[task]), (schedule.names[task],))
            for task in tasks
        ]
        if bars:
            streams.append((stream.name, sorted(bars, key=lambda bar: bar.start)))
    return streams


def _joined(bars: Sequence[_Bar], gap: int) -> list[_Bar]:
    """Joins neighbours of one kind that are at most `gap` ticks apart."""
    result: list[_Bar] = []
    for bar in bars:
        before = result[-1] if result else None
        if before is not None and bar.kind is before.kind and bar.start - before.end <= gap:
            tasks = tuple(dict.fromkeys((*before.tasks, *bar.tasks)))
            result[-1] = _Bar(before.start, bar.end, bar.kind, tasks)
        else:
            result.append(bar)
    return result
