"""Streams of a GPU and their waits; torch is a stand-in that records its calls."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

from dse.trace.replay.plan._plan import Memory, PlannedCall, ReplayPlan, SlotInfo
from dse.trace.replay.read import TensorRef
from dse.trace.replay.run._streams import Streams, set_streams


def call(unit, takes, results):
    return PlannedCall(unit, "op", results=tuple(results), takes=tuple(takes))


def fork_and_join():
    """0 → 1 on the usual stream, 0 → 2 on another one, both → 3, and 4 on its own."""
    ref = TensorRef(1, 2, 0, 4, "cuda:0", "float32", (2,), (1,))
    calls = [call(0, [], [0]), call(1, [0], [1]), call(2, [0], [2]), call(3, [1, 2], [3])]
    return ReplayPlan(
        units=(),
        calls=[*calls, call(4, [], [4])],
        slots=[SlotInfo(ref, at, False) for at in range(5)],
        memories=[Memory(at, False, "cuda:0") for at in range(5)],
    )


def test_streams_wait_where_data_flow():
    plan = fork_and_join()
    set_streams(plan, [7, 7, 20, 7, -1])
    assert [one.stream for one in plan.calls] == [0, 0, 21, 0, 0]
    assert [one.after for one in plan.calls] == [(), (), (0,), (2,), ()]
    assert [one.marks for one in plan.calls] == [True, False, True, False, False]


def test_who_writes_waits_for_who_reads():
    plan = fork_and_join()
    # The last call writes to what was read on the other stream.
    plan.calls[4].takes = plan.calls[4].writes = (0,)
    set_streams(plan, [7, 7, 20, 7, 7])
    assert plan.calls[4].after == (2,)


def test_without_recorded_streams_all_run_on_one():
    plan = fork_and_join()
    set_streams(plan, [-1] * 5)
    assert {one.stream for one in plan.calls} == {0}
    assert not any(one.after or one.marks for one in plan.calls)


class Stream:
    def __init__(self, log, name):
        self._log, self.name = log, name

    def wait_event(self, event):
        self._log.append(f"{self.name} waits for {event.name}")

    def wait_stream(self, other):
        self._log.append(f"{self.name} waits for {other.name}")


class Event:
    def __init__(self, log, name):
        self._log, self.name = log, name

    def record(self, stream):
        self._log.append(f"{self.name} on {stream.name}")


def test_actions_run_on_their_stream_after_what_they_need():
    log = []
    usual = Stream(log, "usual")
    names = iter(("event 0", "event 2"))

    @contextmanager
    def on(stream):
        log.append(f"on {stream.name}")
        yield

    torch = SimpleNamespace(
        cuda=SimpleNamespace(
            current_stream=lambda: usual,
            Stream=lambda: Stream(log, "side"),
            Event=lambda: Event(log, next(names)),
            stream=on,
        )
    )
    plan = fork_and_join()
    set_streams(plan, [7, 7, 20, 7, -1])
    streams = Streams(torch, plan)
    assert streams.several
    tensor = SimpleNamespace(is_cuda=False)
    streams.begin()
    for at, one in enumerate(plan.calls[:4]):
        streams.wrapped(at, one, [lambda slots, at=at: log.append(f"step {at}")])([tensor] * 5)
    streams.end()
    assert log == [
        "side waits for usual",
        "on usual",
        "step 0",
        "event 0 on usual",
        "on usual",
        "step 1",
        "on side",
        "side waits for event 0",
        "step 2",
        "event 2 on side",
        "on usual",
        "usual waits for event 2",
        "step 3",
        "usual waits for side",
    ]
