"""Streams of a GPU: operators overlap as recorded, and wait for each other where data flow.

Execution traces do not name streams; the Kineto trace of the same run does. Operators whose work
was not on the usual stream are replayed on separate streams, ordered by the memory that they share
with others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from dse.trace.replay.plan import result_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.trace.replay.plan import PlannedCall, ReplayPlan
    from dse.trace.replay.run._arguments import Action


def set_streams(plan: ReplayPlan, streams: Sequence[int]) -> None:
    """Sets the stream of each call, and the calls on other streams that it waits for.

    Collectives begin on the usual stream: their backend moves them to its own.

    Args:
        plan: The plan.
        streams: Recorded stream of each unit, or -1; shape `(units,)`.
    """
    counts = Counter(stream for stream in streams if stream >= 0)
    usual = max(counts, key=lambda stream: counts[stream]) if counts else -1
    written: dict[int, int] = {}
    read: dict[int, dict[int, int]] = {}
    for at, call in enumerate(plan.calls):
        stream = usual if call.collective is not None else streams[call.unit]
        call.stream = 0 if stream in (-1, usual) else stream + 1
        takes, gives, writes = (
            {plan.slots[slot].memory for slot in slots}
            for slots in (call.takes, result_slots(call.results), call.writes)
        )
        writes |= gives - takes
        before: set[int] = set()
        for memory in takes | writes:
            if memory in written:
                before.add(written[memory])
            if memory in writes:
                before.update(read.pop(memory, {}).values())
                written[memory] = at
            else:
                read.setdefault(memory, {})[call.stream] = at
        after = {other for other in before if plan.calls[other].stream != call.stream}
        call.after = tuple(sorted(after))
        for other in after:
            plan.calls[other].marks = True


class Streams:
    """Runs actions on streams.

    Args:
        torch: The torch module.
        plan: A plan with streams.
    """

    def __init__(self, torch: Any, plan: ReplayPlan) -> None:
        self._torch = torch
        self._usual = torch.cuda.current_stream()
        numbers = sorted({call.stream for call in plan.calls} - {0})
        self._streams = {0: self._usual, **{number: torch.cuda.Stream() for number in numbers}}
        self._events = {at: torch.cuda.Event() for at, call in enumerate(plan.calls) if call.marks}

    @property
    def several(self) -> bool:
        """Whether more than the usual stream is in use."""
        return len(self._streams) > 1

    def begin(self) -> None:
        """Begins an iteration: all streams wait for the usual one."""
        for stream in self._streams.values():
            if stream is not self._usual:
                stream.wait_stream(self._usual)

    def end(self) -> None:
        """Ends an iteration: the usual stream waits for all others."""
        for stream in self._streams.values():
            if stream is not self._usual:
                self._usual.wait_stream(stream)

    def wrapped(
        self, number: int, call: PlannedCall, actions: Sequence[Action]
    ) -> Callable[..., None]:
        """Returns an action that runs others on the stream of their call."""
        torch, stream, events = self._torch, self._streams[call.stream], self._events
        takes = call.takes if call.after else ()

        def act(slots: list[Any]) -> None:
            with torch.cuda.stream(stream):
                for other in call.after:
                    stream.wait_event(events[other])
                for slot in takes:
                    # Its memory must not serve another tensor while this stream reads it.
                    if slots[slot].is_cuda:
                        slots[slot].record_stream(stream)
                for action in actions:
                    action(slots)
                if call.marks:
                    events[number].record(stream)

        return act
