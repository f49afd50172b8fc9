"""Columns of Kineto events: one array per attribute, with names and inputs interned."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from dse._io.reading import MAX_RANKS
from dse.trace.read._collectives import (
    CollectiveInfo,
    dtype_name,
    message_bytes,
    operation_of,
    whole_numbers,
)
from dse.trace.read._json import NOTHING, Arguments
from dse.trace.read._rank_trace import ON_DEVICE, Category

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import Raw
    from numpy.typing import NDArray

    from dse.trace.read._json import Event
    from dse.trace.read._rank_trace import Longs

#: How PyTorch 1.8 to 2.13 spell the categories.
CATEGORIES = {
    "cpu_op": Category.CPU_OP,
    "Operator": Category.CPU_OP,
    "cuda_runtime": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "hip_driver": Category.DRIVER,
    "xpu_driver": Category.DRIVER,
    "privateuse1_driver": Category.DRIVER,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "cuda_sync": Category.SYNC,
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "python_function": Category.PYTHON,
    "overhead": Category.OTHER,
}

#: Arguments that become a column each, by the field of `Arguments`.
NUMBER_COLUMNS = (
    "device",
    "stream",
    "correlation",
    "external",
    "record_function",
    "sequence",
    "forward_thread",
    "order",
    "bytes",
    "wait_stream",
    "wait_correlation",
)

_CODES = {name: int(category) for name, category in CATEGORIES.items()}
_SPANS = "Trace"
_FLOW_PHASES = ("s", "f", "t")
_QUIET_PHASES = ("M", "i", "I", "C")
_ON_DEVICE = frozenset(int(category) for category in ON_DEVICE)
_NO_ARGUMENTS = Arguments()
_LARGEST = 2**63
_MAX_DURATION_US = 30 * 86400 * 1e6
#: What a trace writes for a missing number in 32 bits.
_NONE_32 = 2**32 - 1


class Interner(dict[Any, int]):
    """Numbers keys in the order of their first use."""

    def __missing__(self, key: Any) -> int:
        number = len(self)
        self[key] = number
        return number


@dataclass(slots=True)
class Faults:
    """Unusable events by kind of fault: how many, and the first.

    Attributes:
        counts: Number of events.
        first: Index of the first in `traceEvents`.
    """

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, index: int, count: int = 1) -> None:
        """Counts events, the first of which has this index."""
        self.counts[what] += count
        self.first[what] = min(index, self.first.get(what, index))

    def notes(self) -> list[str]:
        """Returns a line for each kind of fault."""
        return [
            f"{count} events {what}; left out, the first is event {self.first[what]}"
            for what, count in sorted(self.counts.items())
        ]


@dataclass(slots=True)
class Columns:
    """Growing columns, one chunk per block of events.

    Attributes:
        chunks: Chunks of each column.
        names: Names of events.
        threads: Process and thread.
        input_table: Shapes and types as JSON text.
        collectives: Collectives.
        arrow_kinds: Categories of flow events.
        arrow_places: Process and thread of flow events.
        arrow_ids: Ids of flow events that are not numbers.
        titles: Titles of threads.
        unknown: Unknown categories, with counts.
        phases: Phases that are not read, with counts.
        faults: Unusable events.
    """

    chunks: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    names: Interner = field(default_factory=Interner)
    threads: Interner = field(default_factory=Interner)
    input_table: Interner = field(default_factory=Interner)
    collectives: Interner = field(default_factory=Interner)
    arrow_kinds: Interner = field(default_factory=Interner)
    arrow_places: Interner = field(default_factory=Interner)
    arrow_ids: Interner = field(default_factory=Interner)
    titles: dict[tuple[int | str, int | str], str] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    faults: Faults = field(default_factory=Faults)

    def add(self, first: int, events: Sequence[Event | None]) -> None:
        """Appends a block of events; `first` is the index of its first event."""
        spans, indices, arrows = [], [], []
        for index, event in enumerate(events, first):
            if event is None:
                self.faults.add("are not objects with plain values", index)
                continue
            phase = event.ph
            if phase == "X":
                if event.cat != _SPANS:
                    spans.append(event)
                    indices.append(index)
            elif phase in _FLOW_PHASES:
                arrows.append(event)
            elif phase == "M" and event.name == "thread_name" and event.args is not None:
                self.titles[event.pid, event.tid] = event.args.label
            elif phase not in _QUIET_PHASES:
                self.phases[phase] += 1
        if spans:
            self._add_spans(spans, np.array(indices, dtype=np.int64))
        if arrows:
            self._add_arrows(arrows)

    def _add_arrows(self, events: list[Event]) -> None:
        kinds, places = self.arrow_kinds, self.arrow_places
        self._put("arrow_starts", np.array([event.ph == "s" for event in events]))
        self._put("arrow_kind", np.array([kinds[event.cat] for event in events], dtype=np.int32))
        self._put("arrow_us", np.array([event.ts for event in events]))
        self._put(
            "arrow_place",
            np.array([places[event.pid, event.tid] for event in events], dtype=np.int32),
        )
        ids = [event.id for event in events]
        numbers = [
            number if isinstance(number, int) else -1 - self.arrow_ids[number] for number in ids
        ]
        self._put("arrow_id", _clipped(numbers))

    def _add_spans(self, events: list[Event], indices: Longs) -> None:
        start_us = np.array([event.ts for event in events])
        duration_us = np.array([event.dur for event in events])
        usable = self._usable(start_us, duration_us, indices)
        if not usable.all():
            events = [event for event, good in zip(events, usable.tolist(), strict=True) if good]
            start_us, duration_us, indices = start_us[usable], duration_us[usable], indices[usable]
        arguments = [event.args or _NO_ARGUMENTS for event in events]
        category = self._category(events)
        put = self._put
        put("category", np.array(category, dtype=np.int8))
        put("name", np.array([self.names[event.name] for event in events], dtype=np.int32))
        put("start", nanoseconds(start_us))
        put("duration", nanoseconds(duration_us))
        put("index", indices)
        put("thread", np.array(self._threads(events, category), dtype=np.int32))
        for name in NUMBER_COLUMNS:
            values = list(map(attrgetter(name), arguments))
            if name == "external" and -1 in values:
                values = [
                    args.external_old if value == -1 else value
                    for value, args in zip(values, arguments, strict=True)
                ]
            put(name, _whole(values))
        self._places_of(events, category)
        put("inputs", np.array(list(map(self._inputs, arguments)), dtype=np.int32))
        collectives = [
            self.collectives[_collective(args)] if args.collective else -1 for args in arguments
        ]
        put("collective", np.array(collectives, dtype=np.int32))

    def _usable(
        self, start_us: NDArray[Any], duration_us: NDArray[Any], indices: Longs
    ) -> NDArray[np.bool_]:
        no_start = ~usable_times(start_us)
        no_duration = ~no_start & ~np.isfinite(duration_us)
        negative = ~no_start & ~no_duration & (duration_us < 0)
        endless = ~no_start & ~no_duration & (duration_us > _MAX_DURATION_US)
        for what, mask in (
            ("have no start (`ts`)", no_start),
            ("have no duration (`dur`)", no_duration),
            ("have a negative duration (`dur`)", negative),
            ("last more than 30 days (`dur`)", endless),
        ):
            if mask.any():
                self.faults.add(what, int(indices[mask][0]), int(mask.sum()))
        return np.asarray(~(no_start | no_duration | negative | endless))

    def _category(self, events: list[Event]) -> list[int]:
        known = {name: _CODES.get(name, -1) for name in {event.cat for event in events}}
        result = [known[event.cat] for event in events]
        if -1 in result:
            self.unknown.update(event.cat for event in events if known[event.cat] < 0)
            result = [code if code >= 0 else int(Category.OTHER) for code in result]
        return result

    def _threads(self, events: list[Event], category: list[int]) -> list[int]:
        threads = self.threads
        return [
            -1 if kind in _ON_DEVICE else threads[event.pid, event.tid]
            for event, kind in zip(events, category, strict=True)
        ]

    def _places_of(self, events: list[Event], category: list[int]) -> None:
        """Uses process and thread as device and stream where no argument names these."""
        on_device = np.isin(category, list(_ON_DEVICE))
        for name, key in (("device", "pid"), ("stream", "tid")):
            column = self.chunks[name][-1]
            column[~on_device] = -1
            for place in np.flatnonzero(on_device & (column == -1)).tolist():
                value = getattr(events[place], key)
                # Synchronising a whole device involves no stream.
                if isinstance(value, int) and (
                    name == "device" or category[place] != Category.SYNC
                ):
                    column[place] = value

    def _inputs(self, arguments: Arguments) -> int:
        if arguments.dims is NOTHING and arguments.types is NOTHING:
            return -1
        return self.input_table[bytes(arguments.dims), bytes(arguments.types)]

    def _put(self, name: str, values: NDArray[Any]) -> None:
        self.chunks.setdefault(name, []).append(values)

    def take(self, name: str) -> NDArray[Any]:
        """Returns a whole column, which may be empty, and frees its chunks."""
        chunks = self.chunks.pop(name, None)
        return np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int64)


def usable_times(microseconds: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns the mask of times in µs that fit into 64-bit nanoseconds."""
    return np.asarray(np.abs(microseconds) < _LARGEST / 2000)


def nanoseconds(microseconds: NDArray[Any]) -> Longs:
    """Returns whole nanoseconds, exact up to 2^53 µs."""
    whole = np.floor(microseconds)
    part = np.rint((microseconds - whole) * 1000)
    return np.asarray(whole.astype(np.int64) * 1000 + part.astype(np.int64))


def _clipped(values: list[int]) -> Longs:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(
            [value if -_LARGEST <= value < _LARGEST else -1 for value in values], dtype=np.int64
        )


def _whole(values: list[int]) -> Longs:
    column = _clipped(values)
    column[(column < 0) | (column == _NONE_32)] = -1
    return column


def _collective(arguments: Arguments) -> CollectiveInfo:
    operation, dtype = operation_of(arguments.collective), dtype_name(arguments.dtype)
    inputs, outputs = arguments.input_elements, arguments.output_elements
    size = arguments.group_size if 0 < arguments.group_size <= MAX_RANKS else 0
    return CollectiveInfo(
        operation=operation,
        message_bytes=message_bytes(operation, inputs, outputs, size, dtype),
        dtype=dtype,
        group_size=size,
        group=arguments.group,
        ranks=_numbers(arguments.ranks),
        input_elements=inputs,
        output_elements=outputs,
        input_splits=_numbers(arguments.input_splits),
        output_splits=_numbers(arguments.output_splits),
        sequence=arguments.collective_sequence,
        source=arguments.source,
        destination=arguments.destination,
    )


def _numbers(raw: Raw) -> tuple[int, ...]:
    return whole_numbers(bytes(raw).decode("utf-8", "replace"))
