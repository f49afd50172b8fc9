"""Replays of traces of a few events, with answers worked out by hand; times are in µs."""

from __future__ import annotations

import numpy as np
import pytest

from dse.errors import ConfigError, SimulationError
from dse.simulate import simulate
from dse.trace import TaskRole, link, match_collectives, read_kineto, trace_graph
from tests.trace.helpers import call, kernel, operator, resimulated, span, write


def made_of(tmp_path, *ranks, world_size=0, step=None):
    for rank, events in enumerate(ranks):
        write(
            tmp_path / f"rank{rank}.json", events, rank=rank, world_size=world_size or len(ranks)
        )
    traces = read_kineto(tmp_path)
    links = [link(trace) for trace in traces]
    return trace_graph(traces, links, match_collectives(traces, links), step)


def run(made, **changes):
    """Simulates with other durations and returns the spans of all tasks but gaps, by name.

    The last task of a name counts. In names of changes `_` may stand for a blank.
    """
    duration = made.graph.duration_s.copy()
    for name, microseconds in changes.items():
        chosen = [
            task
            for task, known in enumerate(made.graph.names)
            if known in (name, name.replace("_", " ")) and made.role[task] != TaskRole.AFTER_WAIT
        ]
        assert len(chosen) == 1, name
        duration[chosen[0]] = microseconds / 1e6
    times = simulate(made.graph, duration)
    return {
        (name, int(made.rank[task])) if len(made.steps) > 1 else name: (
            round(float(times.start_s[task]) * 1e6, 3),
            round(float(times.end_s[task]) * 1e6, 3),
        )
        for task, name in enumerate(made.graph.names)
        if name != "gap"
    }


def test_thread_order_keeps_gaps(tmp_path):
    made = made_of(tmp_path, [operator("a", 0, 10), operator("b", 25, 5)])
    assert run(made) == {"a": (0, 10), "b": (25, 30)}
    # The gap of 15 stays.
    assert run(made, a=4) == {"a": (0, 4), "b": (19, 24)}


def test_calls_are_cut_out_of_their_top_level_operator(tmp_path):
    made = made_of(
        tmp_path,
        [
            operator("top", 0, 40),
            operator("inner", 5, 20),
            call(10, 4, 1, name="runtime"),
            span("cuda_driver", "nested", 11, 2, pid=10, tid=11, args={"correlation": 2}),
            kernel("k", 20, 5, 9),
        ],
    )
    work = [
        (name, TaskRole(int(role)), round(duration * 1e6), int(event))
        for name, role, duration, event in zip(
            made.graph.names, made.role, made.graph.duration_s, made.event, strict=True
        )
    ]
    assert work[:3] == [
        ("top", TaskRole.HOST_WORK, 10, 0),
        ("runtime", TaskRole.CALL, 4, 2),
        ("top", TaskRole.HOST_WORK, 26, 0),
    ]
    assert made.graph.streams[0].name == "thread 11"


def test_launch(tmp_path):
    made = made_of(
        tmp_path, [operator("a", 0, 20), call(5, 5, 1, name="launch"), kernel("k", 12, 18, 1)]
    )
    assert run(made)["k"] == (12, 30)
    # The kernel comes 2 after the end of its launch, which now is at 20.
    assert run(made, launch=15)["k"] == (22, 40)


def test_kernel_that_starts_within_its_launch(tmp_path):
    made = made_of(tmp_path, [call(0, 20, 1, name="launch"), kernel("k", 8, 4, 1)])
    assert made.graph.names == ("launch", "launch", "k")
    assert np.allclose(made.graph.duration_s * 1e6, [8, 12, 4])
    assert run(made)["k"] == (8, 12)


def test_stream_order(tmp_path):
    made = made_of(
        tmp_path,
        [
            call(5, 5, 1, name="launch 1"),
            call(20, 4, 2, name="launch 2"),
            kernel("k1", 12, 40, 1),
            kernel("k2", 54, 6, 2),
        ],
    )
    # Times count from the first event, at 5.
    assert run(made)["k2"] == (49, 55)
    # The gap of 2 between the kernels stays.
    assert run(made, k1=30)["k2"] == (39, 45)
    # Now the second launch decides: its end at 19, and the usual delay of 2.
    assert run(made, k1=4)["k2"] == (21, 27)


@pytest.mark.parametrize("name", ["cudaStreamSynchronize", "cudaDeviceSynchronize"])
def test_blocking_call_lasts_as_long_as_its_wait(tmp_path, name):
    made = made_of(
        tmp_path,
        [
            operator("a", 0, 80),
            call(5, 5, 1),
            kernel("k", 12, 48, 1),
            call(30, 35, 2, name=name),
        ],
    )
    assert run(made)[name] == (60, 65)
    # Of its 35 it takes 5 itself.
    assert run(made, k=28)[name] == (40, 45)
    assert run(made, k=28)["a"] == (45, 60)
    # It is called at 30, when the kernel has ended already.
    assert run(made, k=8)[name] == (30, 35)


def test_call_that_names_its_stream_waits_for_no_other(tmp_path):
    sync = "cudaStreamSynchronize"
    made = made_of(
        tmp_path,
        [
            call(0, 5, 1),
            call(5, 5, 2),
            kernel("short", 7, 30, 1, stream=7),
            kernel("long", 12, 25, 2, stream=20),
            call(20, 20, 3, name=sync),
            kernel("Stream Sync", 20, 18, 3, cat="cuda_sync", stream=7),
        ],
    )
    assert run(made)[sync] == (37, 40)
    assert run(made, long=300)[sync] == (37, 40)
    assert run(made, short=40)[sync] == (47, 50)


def test_event_synchronisation_waits_for_what_was_recorded(tmp_path):
    sync = "cudaEventSynchronize"
    made = made_of(
        tmp_path,
        [
            call(0, 2, 1),
            call(2, 2, 2, name="cudaEventRecord"),
            call(4, 2, 3),
            kernel("before", 5, 20, 1),
            kernel("after", 25, 20, 3),
            call(10, 18, 4, name=sync),
            kernel(
                "Event Sync",
                10,
                15,
                4,
                cat="cuda_sync",
                stream=-1,
                wait_on_stream=7,
                wait_on_cuda_event_record_corr_id=2,
            ),
        ],
    )
    assert run(made)[sync] == (25, 28)
    assert run(made, before=10)[sync] == (15, 18)
    assert run(made, after=100)[sync] == (25, 28)


def test_blocking_copy(tmp_path):
    made = made_of(
        tmp_path,
        [
            operator("a", 0, 75),
            call(5, 5, 1, name="launch"),
            kernel("k", 12, 48, 1),
            call(20, 50, 2, name="copy call"),
            kernel("copy", 61, 4, 2, cat="gpu_memcpy"),
        ],
    )
    assert run(made)["copy"] == (61, 65)
    assert run(made)["copy call"] == (65, 70)
    # The copy is issued as fast as the other launch, at 25, and arrives after the usual 2.
    changed = run(made, k=8)
    assert changed["copy"] == (27, 31)
    assert changed["copy call"] == (31, 36)
    assert changed["a"] == (36, 41)


def test_copy_that_does_not_block(tmp_path):
    made = made_of(
        tmp_path,
        [
            call(0, 5, 1, name="copy call"),
            kernel("copy", 7, 4, 1, cat="gpu_memcpy"),
            call(20, 1, 2),
        ],
    )
    assert run(made, copy=400)["copy call"] == (0, 5)
    assert TaskRole.AFTER_WAIT not in made.role


def test_wait_between_streams_that_the_trace_names(tmp_path):
    made = made_of(
        tmp_path,
        [
            call(0, 2, 1),
            call(2, 2, 2, name="cudaEventRecord"),
            call(4, 2, 3, name="cudaStreamWaitEvent"),
            call(6, 2, 4),
            kernel("first", 5, 2, 1, stream=7),
            kernel(
                "Stream Wait Event",
                5,
                0,
                3,
                cat="cuda_sync",
                stream=20,
                wait_on_stream=7,
                wait_on_cuda_event_record_corr_id=2,
            ),
            kernel("second", 11, 5, 4, stream=20),
        ],
    )
    # It did not hold anything back, but would if the first kernel took longer.
    assert run(made)["second"] == (11, 16)
    assert run(made, first=20)["second"] == (25, 30)


def test_wait_between_streams_that_is_inferred(tmp_path):
    made = made_of(
        tmp_path,
        [
            call(5, 5, 1),
            call(15, 3, 2),
            kernel("producer", 12, 48, 1, stream=7),
            kernel("consumer", 62, 5, 2, stream=20),
        ],
    )
    # Times count from the first event, at 5.
    assert run(made)["consumer"] == (57, 62)
    assert run(made, producer=20)["consumer"] == (29, 34)
    assert made.unexplained[0].count == 0


def test_waits_around_collectives_that_the_trace_does_not_name(tmp_path):
    wait = "cudaStreamWaitEvent"
    made = made_of(
        tmp_path,
        [
            call(0, 2, 1),
            call(2, 1, 2, name=wait),
            call(3, 2, 3),
            call(30, 1, 4, name=wait),
            call(31, 2, 5),
            kernel("producer", 5, 5, 1, stream=7),
            kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 14, 10, 3, stream=20),
            kernel("consumer", 36, 4, 5, stream=7),
        ],
        world_size=1,
    )
    nccl = "ncclKernel_AllReduce_RING_LL_Sum_float"
    assert run(made)[nccl] == (14, 24)
    # It was waiting for its producer: the gap of 4 after it stays.
    longer = run(made, producer=15)
    assert longer[nccl] == (24, 34)
    # The consumer starts at 36 as before, but not before the collective's end.
    assert longer["consumer"] == (36, 40)
    assert run(made, producer=35)["consumer"][0] >= 54


def test_waits_without_a_cause_are_kept_and_counted(tmp_path):
    made = made_of(
        tmp_path,
        [call(0, 5, 1), kernel("k", 7, 3, 1), call(15, 5, 2), kernel("late", 75, 25, 2)],
    )
    assert run(made)["late"] == (75, 100)
    # It comes 55 after its launch, of which the usual 2 are explained.
    assert made.unexplained[0].count == 1
    assert made.unexplained[0].share == pytest.approx(0.53)


def test_work_launched_before_the_trace_keeps_its_start(tmp_path):
    made = made_of(tmp_path, [operator("a", 0, 100), kernel("k", 30, 5, 9)])
    assert run(made, a=1)["k"] == (30, 35)
    assert "1 device events were not launched" in made.notes[0]
    assert made.unexplained[0].seconds == pytest.approx(30e-6)
    assert made.unexplained[0].share == pytest.approx(0.3)


BACKWARD = {"Sequence number": 5, "Fwd thread id": 1}


def test_backward_thread_is_woken_and_waited_for(tmp_path):
    made = made_of(
        tmp_path,
        [
            operator("forward", 0, 10, **{"Sequence number": 5, "Fwd thread id": 0}),
            operator("backward", 30, 50, tid=12, **BACKWARD),
            operator("update", 100, 10),
        ],
    )
    assert run(made)["update"] == (100, 110)
    # It starts 20 after the forward pass, and the caller needs 20 after its end.
    changed = run(made, forward=4, backward=25)
    assert changed["backward"] == (24, 49)
    assert changed["update"] == (69, 79)
    assert made.unexplained[0].count == 0


def test_backward_work_of_the_calling_thread_meanwhile(tmp_path):
    made = made_of(
        tmp_path,
        [
            operator("forward", 0, 10, **{"Sequence number": 5, "Fwd thread id": 0}),
            operator("backward 1", 30, 30, tid=12, **BACKWARD),
            operator("backward 2", 60, 60, tid=12, **BACKWARD),
            operator("on the host", 65, 5),
            operator("update", 150, 10),
        ],
    )
    assert run(made)["update"] == (150, 160)
    changed = run(made, backward_1=10)
    assert changed["on the host"] == (45, 50)
    assert changed["backward 2"] == (40, 100)
    assert changed["update"] == (130, 140)


def test_ranks_that_begin_with_backward_start_at_their_own_time(tmp_path):
    events = [
        operator("quiet", 0, 100, **{"Sequence number": 5, "Fwd thread id": 0}),
        operator("backward", 0, 50, tid=12, **BACKWARD),
        kernel("k", 10, 5, 9),
    ]
    late = [{**event, "ts": event["ts"] + 40} for event in events]
    times = run(made_of(tmp_path, events, late))
    assert times["backward", 0] == (0, 50)
    assert times["backward", 1] == (40, 90)
    assert times["quiet", 1] == (90, 140)


def test_threads_that_nobody_wakes_keep_their_gaps(tmp_path):
    made = made_of(tmp_path, [operator("a", 0, 10), operator("loader", 300, 50, tid=12)])
    assert run(made, a=100)["loader"] == (300, 350)
    assert made.unexplained[0].seconds == pytest.approx(300e-6)


def rank(start, ready, end, *, number=1, name="allreduce", last=100):
    """A rank that launches one collective."""
    described = {
        "Collective name": name,
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
    }
    return [
        operator(f"before {number}", start, ready - 5 - start),
        call(ready - 5, 5, number, name=f"launch {number}"),
        kernel(f"{name} {number}", ready, end - ready, number, **described),
        operator(f"after {number}", ready, last - ready),
    ]


def test_collective_starts_with_its_last_member(tmp_path):
    made = made_of(tmp_path, rank(0, 20, 70), rank(10, 60, 69))
    assert [part.offset_s for part in made.steps] == [0, pytest.approx(10e-6)]
    times = run(made)
    assert times["allreduce 1", 0] == (60, 70)
    assert times["allreduce 1", 1] == (60, 69)
    duration = made.graph.duration_s.copy()
    duration[[made.graph.names.index("before 1")]] = 95e-6
    late = simulate(made.graph, duration)
    members = np.flatnonzero(made.role == TaskRole.COLLECTIVE)
    # The first rank is 80 later than it was, at 100, and the transfers stay.
    assert np.allclose(late.start_s[members] * 1e6, [100, 100])
    assert np.allclose(late.end_s[members] * 1e6, [110, 109])


def test_ranks_alone_keep_their_waiting(tmp_path):
    made_of(tmp_path, rank(0, 20, 70), rank(10, 60, 69))
    traces = read_kineto(tmp_path)
    alone = resimulated(traces, together=False)
    together = resimulated(traces)
    assert [round(one.exposed_communication_s * 1e6) for one in alone] == [50, 9]
    assert [round(one.exposed_communication_s * 1e6) for one in together] == [10, 9]
    assert [round(one.idle_s * 1e6) for one in together] == [90, 81]
    assert [round(one.wait_s * 1e6) for one in together] == [40, 0]
    assert [one.wait_s for one in alone] == [0, 0]
    for one in (*alone, *together):
        assert one.error == pytest.approx(0, abs=1e-9)
        assert one.compute_s == 0


def test_clocks_that_differ_are_told(tmp_path):
    made = made_of(tmp_path, rank(0, 20, 30), rank(500, 520, 530, last=600))
    assert any("1 members of collectives end before" in note for note in made.notes)


def test_collective_whose_other_ranks_are_missing(tmp_path):
    made = made_of(tmp_path, rank(0, 20, 70), world_size=2)
    assert run(made)["allreduce 1"] == (20, 70)
    assert any("1 collectives lack members" in note for note in made.notes)


def test_ranks_that_meet_in_different_order_are_refused(tmp_path):
    first = [*rank(0, 10, 20), *rank(20, 30, 40, number=2, name="broadcast")]
    second = [*rank(0, 10, 20, name="broadcast"), *rank(20, 30, 40, number=2)]
    with pytest.raises(SimulationError, match=r"wait for each other: .*allreduce.*broadcast"):
        made_of(tmp_path, first, second)


def steps():
    return [
        *(
            span("user_annotation", f"ProfilerStep#{n}", 100 * n, 90, pid=10, tid=11)
            for n in (1, 2)
        ),
        span("user_annotation", "## forward ##", 210, 30, pid=10, tid=11),
        operator("a", 110, 10),
        operator("b", 215, 10),
        call(230, 2, 1),
        kernel("k", 240, 400, 1),
    ]


@pytest.mark.parametrize(
    ("step", "cut_by", "measured_us", "names"),
    [
        (None, "profiler step 2", 90, {"b", "k", "cudaLaunchKernel"}),
        (1, "profiler step 1", 90, {"a"}),
        ("## forward ##", "annotation ## forward ##", 30, {"b", "k", "cudaLaunchKernel"}),
    ],
)
def test_step(tmp_path, step, cut_by, measured_us, names):
    made = made_of(tmp_path, steps(), step=step)
    (part,) = made.steps
    assert (part.cut_by, part.measured_s) == (cut_by, pytest.approx(measured_us / 1e6))
    assert set(made.graph.names) - {"gap", "launch delay"} == names
    (one,) = resimulated(read_kineto(tmp_path), step=step)
    # A kernel that outlives the step does not count.
    assert one.simulated_s == pytest.approx(measured_us / 1e6)


def test_whole_trace_and_unknown_steps(tmp_path):
    made = made_of(tmp_path, [operator("a", 5, 10), call(16, 4, 1), kernel("k", 21, 40, 1)])
    assert made.steps[0].cut_by == "whole trace"
    assert made.steps[0].measured_s == pytest.approx(56e-6)
    with pytest.raises(ConfigError, match="no profiler step 3; steps in this trace: none"):
        made_of(tmp_path, [operator("a", 5, 10)], step=3)
    with pytest.raises(ConfigError, match="no annotation `forwards`"):
        made_of(tmp_path, steps(), step="forwards")
    with pytest.raises(ConfigError, match="at least one"):
        trace_graph([], [])


def test_overlap_on_a_stream_gets_another_stream(tmp_path):
    made = made_of(
        tmp_path,
        [
            call(0, 1, 1),
            call(1, 1, 2),
            kernel("k1", 5, 20, 1),
            kernel("k2", 10, 20, 2),
            call(5, 1, 3),
            kernel("k3", 24, 10, 3),
        ],
    )
    assert "device 0 stream 7 (2)" in {stream.name for stream in made.graph.streams}
    # An overlap of 1 is rounding: the first kernel is cut by it.
    assert run(made) == {
        **run(made),
        "k1": (5, 24),
        "k2": (10, 30),
        "k3": (24, 34),
    }


def random_events(rng):
    """Events of two threads and three streams in whole µs that could have happened."""
    events, launches, number = [], [], 0
    for tid in (11, 12):
        now = int(rng.integers(300))
        for _ in range(rng.integers(1, 20)):
            length = int(rng.integers(1, 400))
            if rng.random() < 0.8:
                backward = BACKWARD if tid == 12 and rng.random() < 0.7 else {}
                events.append(operator("operator", now, length, tid=tid, **backward))
            at = now
            while at < now + length - 12 and rng.random() < 0.8:
                at, number = at + int(rng.integers(8)), number + 1
                name = str(rng.choice(["cudaLaunchKernel"] * 4 + OTHER_CALLS))
                longest = now + length - at if "Synchronize" in name else 10
                took = int(rng.integers(max(1, longest)))
                events.append(call(at, took, number, name=name, tid=tid))
                if name in ("cudaLaunchKernel", "cudaMemcpyAsync"):
                    launches.append((at, number, name))
                at += took
            now = max(now + length, at) + int(rng.integers(60))
    free = {7: 0, 20: 0, 84: 0}
    for at, number, name in sorted(launches):
        stream = int(rng.choice([7, 7, 7, 20, 84]))
        begin = max(free[stream] + int(rng.choice([0, 1, 2, 30])), at + int(rng.integers(20)))
        took = int(rng.choice([0, 1, 5, 20, 200]))
        free[stream] = begin + took
        category = "gpu_memcpy" if name == "cudaMemcpyAsync" else "kernel"
        kernel_name = "ncclKernel_AllReduce_RING" if stream == 84 else "k"
        events.append(kernel(kernel_name, begin, took, number, stream=stream, cat=category))
    return events


OTHER_CALLS = [
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaStreamWaitEvent",
    "cudaMemcpyAsync",
]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happened_is_replayed_up_to_rounding(tmp_path, seed):
    made = made_of(tmp_path, random_events(np.random.default_rng(seed)))
    times = simulate(made.graph)
    deviation_us = np.abs(times.start_s * 1e6 - made.measured_start_ns / 1e3)
    assert deviation_us[made.role != TaskRole.STREAM_GAP].max() <= 3
