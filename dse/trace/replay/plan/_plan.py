"""The plan of a replay: calls, tensor slots, the memory under them, and lifetimes.

A slot is one tensor of the replay; memory is what several of them may share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.trace.replay.plan._collectives import CollectiveCall
    from dse.trace.replay.plan._finder import Callee
    from dse.trace.replay.read import TensorRef, Unit


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """The place of a tensor in arguments."""

    number: int


@dataclass(slots=True)
class Memory:
    """Memory that tensors share.

    Attributes:
        number: Its number in the plan.
        outside: Whether it is made before the replay.
        device: Recorded device.
        size_bytes: End of the tensors that were seen in it.
        slots: Slots whose tensors lie in it.
    """

    number: int
    outside: bool
    device: str
    size_bytes: int = 0
    slots: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SlotInfo:
    """A slot's tensor and memory.

    Attributes:
        ref: Its tensor as recorded.
        memory: Number of its memory.
        outside: Whether it is made before the replay.
    """

    ref: TensorRef
    memory: int
    outside: bool


@dataclass(slots=True)
class PlannedCall:
    """One call of the replay: an operator, a collective, or a view on memory.

    Attributes:
        unit: Place in `ReplayPlan.units` of the unit that it belongs to.
        name: Name of the operator without the overload; empty for a view.
        callee: The operator; None for others.
        collective: The collective; None for others.
        positional: Arguments with `TensorSlot` for tensors. Of a view, the slot whose memory it is
            on and the tensor.
        keywords: Arguments by name.
        results: Where the results go: for each result in order a slot, -1 for what is not kept, or
            a list of these.
        takes: Slots that are read or written.
        writes: Those of them that may be written.
        frees: Slots that are freed afterwards.
        waits: Calls of collectives that must have ended before.
        stream: Stream of a GPU; 0 is the default one.
        after: Calls on other streams that must have ended before.
        marks: Whether calls on other streams wait for this one.
    """

    unit: int
    name: str = ""
    callee: Callee | None = None
    collective: CollectiveCall | None = None
    positional: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()
    results: tuple[Any, ...] = ()
    takes: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    stream: int = 0
    after: tuple[int, ...] = ()
    marks: bool = False


@dataclass(slots=True)
class ReplayPlan:
    """A replay that has not begun.

    Attributes:
        units: The chosen units of the trace.
        calls: Calls in order.
        slots: Tensors.
        memories: Their memory.
        reasons: Why a unit is not replayed, by its place.
        by_option: Places of units that the options leave out.
    """

    units: tuple[Unit, ...]
    calls: list[PlannedCall] = field(default_factory=list)
    slots: list[SlotInfo] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    by_option: set[int] = field(default_factory=set)

    def outside_slots(self) -> list[int]:
        """Returns the slots that are made before the replay."""
        return [number for number, slot in enumerate(self.slots) if slot.outside]


def slots_in(values: Sequence[Any]) -> Iterator[int]:
    """Yields the slots among arguments."""
    for value in values:
        if isinstance(value, TensorSlot):
            yield value.number
        elif isinstance(value, list | tuple):
            yield from slots_in(value)


def result_slots(results: Sequence[Any]) -> Iterator[int]:
    """Yields the slots that a call fills."""
    for value in results:
        if isinstance(value, list):
            yield from result_slots(value)
        elif value >= 0:
            yield value


def set_lifetimes(plan: ReplayPlan) -> None:
    """Sets what is freed after each call, and which collectives it waits for."""
    last: dict[int, int] = {}
    running: dict[int, int] = {}
    for at, call in enumerate(plan.calls):
        touched = [*call.takes, *result_slots(call.results)]
        last.update(dict.fromkeys(touched, at))
        memories = {plan.slots[slot].memory for slot in touched}
        call.waits = tuple(sorted({running[number] for number in memories if number in running}))
        for number in [number for number, begun in running.items() if begun in call.waits]:
            del running[number]
        if call.collective is not None:
            running.update(dict.fromkeys(memories, at))
    for slot, at in last.items():
        if not plan.slots[slot].outside:
            plan.calls[at].frees += (slot,)
