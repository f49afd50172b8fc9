"""Trace of one rank as columns: events, their tables, and flows between events."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.trace.read._collectives import CollectiveInfo

Longs: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.int8]


class Category(IntEnum):
    """Kind of an event."""

    CPU_OP = 0
    RUNTIME = 1
    DRIVER = 2
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6
    ANNOTATION = 7
    GPU_ANNOTATION = 8
    PYTHON = 9
    OTHER = 10


#: Device work.
DEVICE_WORK = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)

#: Events with a device and a stream rather than a thread.
ON_DEVICE = (*DEVICE_WORK, Category.SYNC, Category.GPU_ANNOTATION)

#: Calls that may launch work.
CALLS = (Category.RUNTIME, Category.DRIVER)


class FlowKind(IntEnum):
    """Kind of a flow."""

    LAUNCH = 0
    FORWARD_BACKWARD = 1
    OTHER = 2


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread of the host.

    Attributes:
        process: Process as the trace names it.
        thread: Thread as the trace names it.
        name: Its title, such as `thread 59976 (pt_autograd_0)`; empty if none.
    """

    process: str
    thread: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class OperatorInputs:
    """Shapes and types of the inputs of an operator, as JSON text without spaces.

    Attributes:
        shapes: For example `[[32,64],[]]`; empty if not recorded.
        types: For example `["float","Scalar"]`; empty if not recorded.
    """

    shapes: str
    types: str


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group described in the trace.

    Attributes:
        name: Its name.
        description: Its description; empty if none.
        ranks: Global ranks; empty if not listed.
        size: Number of ranks; 0 if unknown.
    """

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class ProfilerStep:
    """One step marked by the profiler.

    Attributes:
        number: N of `ProfilerStep#N`.
        start_ns: Start relative to the trace's base, in ns.
        end_ns: End relative to the trace's base, in ns.
        event: Index of the annotation.
    """

    number: int
    start_ns: int
    end_ns: int
    event: int


@dataclass(frozen=True, slots=True, eq=False)
class Flows:
    """Flows (arrows) between events; every array has shape `(flows,)`.

    Attributes:
        source: Event at the start.
        target: Event at the end.
        kind: A `FlowKind`.
    """

    source: Longs
    target: Longs
    kind: Bytes

    def __len__(self) -> int:
        return len(self.source)


def no_flows() -> Flows:
    """Returns an empty set of flows."""
    empty = np.zeros(0, dtype=np.int64)
    return Flows(empty, empty.copy(), np.zeros(0, dtype=np.int8))


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """The events of one rank in order of their starts; every array has shape `(events,)`.

    -1 marks missing values. Events that start together are sorted as they were recorded (`order`),
    then the longer first, so the result does not depend on the order in the file.

    Attributes:
        file: File as given by the user; a member of an archive follows a colon.
        rank: Global rank.
        world_size: Number of ranks of the job; 0 if unknown.
        device_names: Names of the host's devices by number.
        base_time_ns: Time of the first event on this host's clock, in ns since 1970.
        category: A `Category`.
        name: Index into `names`.
        start_ns: Start after `base_time_ns`, in ns.
        duration_ns: Duration in ns.
        thread: Index into `threads`, for events of the host.
        device: Device, for events of a device.
        stream: Stream, for events of a device.
        correlation: Number that a call shares with what it launched.
        external_id: Number that an operator shares with its calls and their work. Up to PyTorch
            2.0 calls and work repeat `correlation` here.
        record_function: Number that an operator shares with its node in an execution trace.
        sequence: Number that a forward operator shares with its backward operators.
        forward_thread: Thread number of the forward operator; above 0 only in backward operators.
        order: Number of recording (`Ev Idx`).
        inputs: Index into `input_table`.
        bytes: Size of a copy or fill, in bytes.
        collective: Index into `collectives`.
        wait_stream: Stream that a synchronisation waits for.
        wait_correlation: Correlation of the call that recorded the awaited event.
        names: Names.
        threads: Threads.
        input_table: Distinct shapes and types of inputs.
        collectives: Distinct collectives, as far as the file itself describes them.
        process_groups: Process groups described in the file.
        flows: Flows of the file.
        steps: Steps marked by the profiler, in order.
        notes: What was left out, is unknown but kept, or is broken, with counts.
        left_out: The notes that report missing events.
    """

    file: str
    rank: int
    world_size: int
    device_names: tuple[str, ...]
    base_time_ns: int
    category: Bytes
    name: Ints
    start_ns: Longs
    duration_ns: Longs
    thread: Ints
    device: Ints
    stream: Longs
    correlation: Longs
    external_id: Longs
    record_function: Longs
    sequence: Longs
    forward_thread: Longs
    order: Longs
    inputs: Ints
    bytes: Longs
    collective: Ints
    wait_stream: Longs
    wait_correlation: Longs
    names: tuple[str, ...]
    threads: tuple[ThreadInfo, ...]
    input_table: tuple[OperatorInputs, ...] = ()
    collectives: tuple[CollectiveInfo, ...] = ()
    process_groups: tuple[ProcessGroup, ...] = ()
    flows: Flows = field(default_factory=no_flows)
    steps: tuple[ProfilerStep, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Longs:
        """Ends of the events after `base_time_ns`, in ns."""
        return self.start_ns + self.duration_ns

    @property
    def has_kernels(self) -> bool:
        """Whether the trace holds any device work."""
        return bool(np.any(self.where(*DEVICE_WORK)))

    def where(self, *categories: Category) -> NDArray[np.bool_]:
        """Returns the mask of events in any of these categories."""
        chosen = np.zeros(len(Category), dtype=np.bool_)
        chosen[list(categories)] = True
        return chosen[self.category]

    def named(self, matches: Callable[[str], object]) -> NDArray[np.bool_]:
        """Returns the mask of events whose name satisfies a predicate."""
        return np.array([bool(matches(name)) for name in self.names], dtype=np.bool_)[self.name]

    def name_of(self, event: int) -> str:
        """Returns the name of an event."""
        return self.names[int(self.name[event])]
