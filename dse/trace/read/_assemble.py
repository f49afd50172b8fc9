"""Assembly of a `RankTrace`: columns in file order → sorted events and tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from dse.errors import ConfigError
from dse.trace.read._columns import NUMBER_COLUMNS, Columns
from dse.trace.read._flows import Ends, resolve_flows
from dse.trace.read._json import compact
from dse.trace.read._rank_trace import (
    Category,
    OperatorInputs,
    ProcessGroup,
    ProfilerStep,
    RankTrace,
    ThreadInfo,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.trace.read._collectives import CollectiveInfo
    from dse.trace.read._kineto import Header
    from dse.trace.read._rank_trace import Longs

_STEP = re.compile(r"^ProfilerStep#(\d+)$")
#: More faults than this share of the events, and the trace is refused.
_MAX_FAULTS = 0.03
#: An event jumped if it lies this far from the median, in ns and in interquartile ranges.
_JUMP_NS = 3600 * 10**9
_JUMP_SPREADS = 100
_TOTAL_ORDER = 2**62
#: Arguments that `RankTrace` names differently.
_RENAMED = {"external": "external_id"}


def refuse_faults(file: str, columns: Columns) -> None:
    """Refuses columns with too many faults or no event at all.

    Raises:
        ConfigError: With the counts and the first event of each kind of fault.
    """
    faults = columns.faults
    good = sum(map(len, columns.chunks.get("start", ())))
    bad = sum(faults.counts.values())
    if not good and not bad:
        raise ConfigError(f"{file}: not a Kineto trace: no event has a duration (`ph` = `X`)")
    if bad > _MAX_FAULTS * (good + bad):
        raise ConfigError(
            f"{file}: {bad} of {good + bad} events cannot be used, more than "
            f"{_MAX_FAULTS:.0%}: " + "; ".join(faults.notes())
        )


@dataclass(slots=True)
class Assembler:
    """Sorts the columns and tables of one trace.

    Attributes:
        file: File as given by the user.
        columns: Columns in file order; consumed.
        header: The top of the file.
        notes: Notes so far.
    """

    file: str
    columns: Columns
    header: Header
    notes: list[str]

    def assemble(self) -> RankTrace:
        """Returns the trace; rank 0 if the file does not name one."""
        columns = self.columns
        start = columns.take("start")
        keep = self._without_jumps(start)
        start = start[keep]
        earliest = int(start.min())
        start -= earliest
        arrays: dict[str, Any] = {}
        for name in ("category", "name", "thread", "inputs", "collective", *NUMBER_COLUMNS):
            arrays[_RENAMED.get(name, name)] = columns.take(name)[keep]
        duration = columns.take("duration")[keep]
        self._note_rounding(start, duration, earliest)
        ends = Ends.take(columns)
        tables = self._tables(arrays)
        order = _order(start, duration, arrays)
        for name in arrays:  # one after the other: together they are most of the memory
            arrays[name] = arrays[name][order]
        arrays["device"] = arrays["device"].astype(np.int32)
        trace = RankTrace(
            file=self.file,
            rank=self.header.rank or 0,
            world_size=self.header.world_size,
            device_names=self.header.devices,
            base_time_ns=self.header.base_time_ns + earliest,
            start_ns=start[order],
            duration_ns=duration[order],
            process_groups=self.header.groups,
            **arrays,
            **tables,
        )
        flows, notes = resolve_flows(trace, ends, earliest)
        self.notes += notes
        return replace(
            trace,
            flows=flows,
            steps=_steps(trace),
            notes=self._all_notes(),
            left_out=tuple(columns.faults.notes()),
        )

    def _without_jumps(self, start: Longs) -> NDArray[np.bool_]:
        index = self.columns.take("index")
        low, middle, high = np.percentile(start, [25, 50, 75])
        limit = max(_JUMP_NS, _JUMP_SPREADS * (high - low))
        jumped = np.abs(start - middle) > limit
        if jumped.any():
            what = "start hours away from the others (`ts`; the clock jumped)"
            self.columns.faults.add(what, int(index[jumped].min()), int(jumped.sum()))
            self.columns.chunks["start"] = [start[~jumped]]
            refuse_faults(self.file, self.columns)
            self.columns.chunks.pop("start")
        return np.asarray(~jumped)

    def _note_rounding(self, start: Longs, duration: Longs, earliest: int) -> None:
        step = float(np.spacing(earliest / 1000)) * 1000
        if not np.any((start + earliest) % 1000) and not np.any(duration % 1000):
            self.notes.append("times are whole µs")
        elif step > 1:
            self.notes.append(
                f"the start of the trace is so late that times are {step:.0f} ns apart"
            )

    def _tables(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        columns = self.columns
        names, renumbered = _sorted(list(columns.names))
        arrays["name"] = renumbered[arrays["name"]]
        keys = [(str(process), str(thread)) for process, thread in columns.threads]
        threads, renumbered = _sorted(keys, key=_as_numbers)
        arrays["thread"] = renumbered[arrays["thread"]]
        texts = [tuple(map(compact, key)) for key in columns.input_table]
        inputs, renumbered = _sorted(texts)
        arrays["inputs"] = renumbered[arrays["inputs"]]
        by_name = {group.name: group for group in self.header.groups}
        full = [_with_group(info, by_name) for info in columns.collectives]
        collectives, renumbered = _sorted(full, key=repr)
        arrays["collective"] = renumbered[arrays["collective"]]
        titles = {
            (str(process), str(thread)): title
            for (process, thread), title in columns.titles.items()
        }
        return {
            "names": tuple(names),
            "threads": tuple(ThreadInfo(key[0], key[1], titles.get(key, "")) for key in threads),
            "input_table": tuple(OperatorInputs(*item) for item in inputs),
            "collectives": tuple(collectives),
        }

    def _all_notes(self) -> tuple[str, ...]:
        columns = self.columns
        unknown = [
            f"{count} events of unknown category `{name}` are kept as OTHER"
            for name, count in sorted(columns.unknown.items())
        ]
        phases = [
            f"{count} events of phase `{name}` are left out"
            for name, count in sorted(columns.phases.items())
        ]
        return (*self.notes, *unknown, *phases, *columns.faults.notes())


def _with_group(info: CollectiveInfo, groups: dict[str, ProcessGroup]) -> CollectiveInfo:
    group = groups.get(info.group)
    if group is None or info.ranks:
        return info
    return replace(info, ranks=group.ranks, group_size=info.group_size or group.size)


def _sorted(items: list[Any], key: Any = None) -> tuple[list[Any], NDArray[np.int32]]:
    """Returns the distinct items in order and the new index of each; -1 stays -1."""
    unique = sorted(set(items), key=key)
    place = {item: number for number, item in enumerate(unique)}
    return unique, np.array([*(place[item] for item in items), -1], dtype=np.int32)


def _as_numbers(key: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in key)


def _order(start: Longs, duration: Longs, arrays: dict[str, NDArray[Any]]) -> NDArray[np.intp]:
    """Returns the order of events: by start, recording, longer first, then all other columns."""
    recorded = np.where(arrays["order"] < 0, _TOTAL_ORDER, arrays["order"])
    first = np.lexsort((-duration, recorded, start))
    # Few events tie in all three; the other columns decide.
    keys = np.stack((start[first], recorded[first], duration[first]))
    same = np.zeros(len(first), dtype=np.bool_)
    same[1:] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    if not same.any():
        return first
    tied = same.copy()
    tied[:-1] |= same[1:]
    places = np.flatnonzero(tied)
    chosen = first[places]
    others = [arrays[name][chosen] for name in sorted(arrays) if name != "order"]
    within = np.lexsort((*others, arrays["category"][chosen], np.cumsum(~same)[places]))
    first[places] = chosen[within]
    return first


def _steps(trace: RankTrace) -> tuple[ProfilerStep, ...]:
    numbers = {
        index: int(found.group(1))
        for index, name in enumerate(trace.names)
        if (found := _STEP.match(name))
    }
    if not numbers:
        return ()
    chosen = trace.where(Category.CPU_OP, Category.ANNOTATION) & np.isin(trace.name, list(numbers))
    return tuple(
        ProfilerStep(
            numbers[int(trace.name[event])],
            int(trace.start_ns[event]),
            int(trace.start_ns[event] + trace.duration_ns[event]),
            event,
        )
        for event in np.flatnonzero(chosen).tolist()
    )
