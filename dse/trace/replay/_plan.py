"""The program of a replay: slots for tensors, what fills them, and when they are let go.

A slot is one tensor of the replay; memory is what several of them may share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.trace.replay._collective_calls import CollectiveCall
    from dse.trace.replay._lookup import Callee
    from dse.trace.replay._recorded import TensorRef
    from dse.trace.replay._select import Unit


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor in arguments."""

    number: int


@dataclass(slots=True)
class Memory:
    """Memory that tensors share.

    Attributes:
        number: Its number in the plan.
        outside: Whether it is made beforehand.
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
    """What is known of a slot.

    Attributes:
        ref: Its tensor as recorded.
        memory: Number of its memory.
        outside: Whether it is made beforehand.
        giver: Step that gives it, or -1.
    """

    ref: TensorRef
    memory: int
    outside: bool
    giver: int = -1


@dataclass(slots=True)
class Step:
    """Something that is done in the replay.

    Attributes:
        unit: Place of the unit that it belongs to in `Plan.units`.
        name: Name of the operator without the overload; empty for a view.
        call: What is called; None for a view.
        collective: What is exchanged, if it is a collective.
        positional: Arguments with `Slot` for tensors. Of a view, the slot whose memory it is on.
        keywords: Arguments by name.
        given: Where the results go: for each result in order a slot, -1 for what is not kept, or
            a list of these.
        takes: Slots that are read or written.
        writes: Those of them that may be written.
        frees: Slots that are let go afterwards.
        waits: Steps of collectives that must have ended before.
        stream: Stream of a GPU; 0 is the usual one.
        after: Steps of other streams that must have ended before.
        marks: Whether steps of other streams wait for this one.
    """

    unit: int
    name: str
    call: Callee | None
    collective: CollectiveCall | None
    positional: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    given: tuple[Any, ...]
    takes: tuple[int, ...]
    writes: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    stream: int = 0
    after: tuple[int, ...] = ()
    marks: bool = False


@dataclass(slots=True)
class Plan:
    """A replay that has not begun.

    Attributes:
        units: What was chosen.
        steps: What is done, in order.
        slots: Tensors.
        memories: Their memory.
        reasons: Why a unit is not replayed, by its place.
        by_option: Places of units that the options leave out.
    """

    units: tuple[Unit, ...]
    steps: list[Step] = field(default_factory=list)
    slots: list[SlotInfo] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    by_option: set[int] = field(default_factory=set)

    def outside_slots(self) -> list[int]:
        """Returns the slots that are made beforehand."""
        return [number for number, slot in enumerate(self.slots) if slot.outside]


def taken_slots(values: Sequence[Any]) -> Iterator[int]:
    """Yields the slots among arguments."""
    for value in values:
        if isinstance(value, Slot):
            yield value.number
        elif isinstance(value, list | tuple):
            yield from taken_slots(value)


def given_slots(given: Sequence[Any]) -> Iterator[int]:
    """Yields the slots that a step fills."""
    for value in given:
        if isinstance(value, list):
            yield from given_slots(value)
        elif value >= 0:
            yield value


def set_lifetimes(plan: Plan) -> None:
    """Sets what is let go after each step, and which collectives it waits for."""
    last: dict[int, int] = {}
    running: dict[int, int] = {}
    for at, step in enumerate(plan.steps):
        touched = [*step.takes, *given_slots(step.given)]
        for slot in touched:
            last[slot] = at
        memories = {plan.slots[slot].memory for slot in touched}
        step.waits = tuple(sorted({running[number] for number in memories if number in running}))
        for number in [number for number, begun in running.items() if begun in step.waits]:
            del running[number]
        if step.collective is not None:
            running.update(dict.fromkeys(memories, at))
    frees: dict[int, list[int]] = {}
    for slot, at in last.items():
        if not plan.slots[slot].outside:
            frees.setdefault(at, []).append(slot)
    for at, slots in frees.items():
        plan.steps[at].frees = tuple(slots)
