"""Replays of CPU traces of a few events, with answers worked out by hand; times are in µs."""

from __future__ import annotations

import numpy as np
import pytest

from dse.graph import TaskKind, collective_members
from dse.simulate import simulate
from dse.trace import (
    TaskRole,
    compare_with_measured,
    link,
    match_collectives,
    read_kineto,
)
from tests.trace.graph.test_trace_graphs import made_of, run
from tests.trace.helpers import operator, resimulated, span, write

GLOO = 30
FLOATS = {"Input Dims": [[[1000]], [], []], "Input type": ["TensorList", "", "Scalar"]}


def gloo(name, ts, dur, *, tid=GLOO, elements=1000):
    args = {"Input Dims": [[elements]], "Input type": ["float"]}
    return span("user_annotation", f"gloo:{name}", ts, dur, pid=10, tid=tid, args=args)


def mark(name, ts, dur):
    return span("user_annotation", name, ts, dur, pid=10, tid=11)


def parts(made, rank=0):
    """Name, role and length of each task of a rank's first thread."""
    stream = next(at for at, stream in enumerate(made.graph.streams) if stream.rank == rank)
    return [
        (
            made.graph.names[task],
            TaskRole(int(made.role[task])),
            round(made.graph.duration_s[task] * 1e6),
        )
        for task in np.flatnonzero(made.graph.stream == stream).tolist()
    ]


def awaited_by(made, name):
    """Roles and names of what depends on the tasks of a name."""
    graph = made.graph
    found = []
    for task, known in enumerate(graph.names):
        waits = graph.dependency_tasks[
            graph.dependency_offsets[task] : graph.dependency_offsets[task + 1]
        ]
        if any(graph.names[other] == name for other in waits.tolist()):
            found.append((TaskRole(int(made.role[task])), known))
    return found


LINEAR = [
    operator("aten::linear", 0, 100),
    operator("aten::t", 2, 4),
    operator("aten::addmm", 10, 85),
    operator("aten::copy_", 12, 8),
    operator("aten::relu", 110, 10),
]


def test_threads_are_cut_by_their_innermost_operators(tmp_path):
    made = made_of(tmp_path, LINEAR)
    assert parts(made) == [
        ("aten::linear", TaskRole.HOST_WORK, 2),
        ("aten::t", TaskRole.KERNEL, 4),
        ("aten::linear", TaskRole.HOST_WORK, 4),
        ("aten::addmm", TaskRole.KERNEL, 2),
        ("aten::copy_", TaskRole.KERNEL, 8),
        ("aten::addmm", TaskRole.KERNEL, 75),
        ("aten::linear", TaskRole.HOST_WORK, 5),
        ("gap", TaskRole.HOST_GAP, 10),
        ("aten::relu", TaskRole.KERNEL, 10),
    ]
    assert made.event.tolist() == [0, 1, 0, 2, 3, 2, 0, -1, 4]
    kinds = made.graph.kind[made.role == TaskRole.KERNEL]
    assert set(kinds.tolist()) == {int(TaskKind.COMPUTE)}
    (result,) = compare_with_measured(made, simulate(made.graph))
    assert result.simulated_s == pytest.approx(120e-6)
    assert result.compute_s == pytest.approx(99e-6)
    assert result.exposed_communication_s == 0
    assert result.idle_s == pytest.approx(21e-6)


def test_faster_multiplication_shortens_its_step_by_as_much(tmp_path):
    made = made_of(tmp_path, LINEAR)
    duration_s = made.graph.duration_s.copy()
    duration_s[np.array(made.graph.names) == "aten::addmm"] /= 2
    # 77 of its 85 are its own.
    assert simulate(made.graph, duration_s).end_s.max() == pytest.approx(120e-6 - 38.5e-6)


def test_operators_that_compute_are_told_by_what_they_call(tmp_path):
    made = made_of(
        tmp_path,
        [
            # The outer one calls, the inner one computes; both have one name.
            operator("aten::mul", 0, 50),
            operator("aten::mul", 5, 40),
            operator("aten::to", 10, 2),
            # Alike, so the last one counts as the others do, though its copy was disturbed.
            operator("aten::addmm", 100, 20),
            operator("aten::copy_", 110, 4),
            operator("aten::addmm", 120, 20),
            operator("aten::copy_", 130, 4),
            operator("aten::addmm", 140, 500),
            operator("aten::copy_", 141, 490),
        ],
    )
    assert parts(made) == [
        ("aten::mul", TaskRole.HOST_WORK, 5),
        ("aten::mul", TaskRole.KERNEL, 5),
        ("aten::to", TaskRole.KERNEL, 2),
        ("aten::mul", TaskRole.KERNEL, 33),
        ("aten::mul", TaskRole.HOST_WORK, 5),
        ("gap", TaskRole.HOST_GAP, 50),
        ("aten::addmm", TaskRole.KERNEL, 10),
        ("aten::copy_", TaskRole.KERNEL, 4),
        ("aten::addmm", TaskRole.KERNEL, 6),
        ("aten::addmm", TaskRole.KERNEL, 10),
        ("aten::copy_", TaskRole.KERNEL, 4),
        ("aten::addmm", TaskRole.KERNEL, 6),
        ("aten::addmm", TaskRole.KERNEL, 1),
        ("aten::copy_", TaskRole.KERNEL, 490),
        ("aten::addmm", TaskRole.KERNEL, 9),
    ]


def test_step_of_the_profiler_with_its_gaps(tmp_path):
    events = [
        mark("ProfilerStep#1", 0, 100),
        operator("a", 10, 50),
        mark("ProfilerStep#2", 100, 80),
        operator("b", 110, 20),
    ]
    made = made_of(tmp_path, events, step=1)
    assert parts(made) == [
        ("gap", TaskRole.HOST_GAP, 10),
        ("a", TaskRole.KERNEL, 50),
        ("gap", TaskRole.HOST_GAP, 40),
    ]
    (last,) = resimulated(read_kineto(tmp_path))
    assert last.simulated_s == pytest.approx(80e-6)
    assert last.idle_s == pytest.approx(60e-6)


def test_a_thread_that_computes_does_not_wait_for_the_backward_pass(tmp_path):
    made = made_of(
        tmp_path,
        [
            operator("forward", 0, 10, **{"Sequence number": 5, "Fwd thread id": 0}),
            operator("own", 35, 40),
            operator("backward", 30, 50, tid=12, **{"Sequence number": 5, "Fwd thread id": 1}),
            operator("update", 100, 10),
        ],
    )
    assert run(made)["update"] == (100, 110)
    changed = run(made, backward=10)
    assert changed["backward"] == (30, 40)
    # 20 after the last of both, and `own` ends at 75.
    assert changed["update"] == (95, 105)
    assert made.unexplained[0].count == 0


def synchronous(ready, *, shift=0, rank=0, op="c10d::allreduce_", name="all_reduce"):
    """A rank that computes until it is ready, asks, and waits until 60."""
    events = [
        operator(f"before {rank}", 0, ready),
        operator(op, ready, 4, **FLOATS),
        gloo(name, ready + 10, 50 - ready),
        operator("aten::view", ready + 12, 3, tid=GLOO),
        operator(f"after {rank}", 66, 10),
    ]
    return [{**event, "ts": event["ts"] + shift} for event in events]


def test_collective_of_one_rank(tmp_path):
    made = made_of(tmp_path, synchronous(10), world_size=2)
    assert parts(made) == [
        ("before 0", TaskRole.KERNEL, 10),
        ("c10d::allreduce_", TaskRole.CALL, 4),
        ("gap", TaskRole.AFTER_WAIT, 6),
        ("after 0", TaskRole.KERNEL, 10),
    ]
    assert {stream.name for stream in made.graph.streams} == {
        "thread 11",
        "gloo of thread 30",
        "launches of gloo of thread 30, 1",
    }
    assert run(made)["gloo:all_reduce"] == (20, 60)
    changed = run(made, **{"gloo:all_reduce": 100})
    assert changed["after 0"] == (126, 136)
    assert any("lack members" in note for note in made.notes)


def test_collective_is_known_and_met(tmp_path):
    made = made_of(tmp_path, synchronous(10), synchronous(30, rank=1))
    traces = read_kineto(tmp_path)
    links = [link(trace) for trace in traces]
    (collective,) = match_collectives(traces, links)
    assert collective.operation == "all_reduce"
    assert (collective.message_bytes, collective.group_size) == (4000, 2)
    assert collective.ranks == (0, 1)
    assert collective.complete
    for trace, linked, event in zip(traces, links, collective.events, strict=True):
        assert trace.name_of(event) == "gloo:all_reduce"
        assert trace.name_of(int(linked.launch[event])) == "c10d::allreduce_"
        assert linked.collectives[linked.collective[event]].dtype == "fp32"

    (members,) = collective_members(made.graph).values()
    # Rank 0 was there at 20, rank 1 at 40, and both were done at 60.
    assert np.allclose(made.graph.duration_s[members] * 1e6, 20)
    assert run(made)["gloo:all_reduce", 0] == (40, 60)
    assert run(made)["after 0", 0] == (66, 76)
    early = run(made, before_1=20)
    assert early["gloo:all_reduce", 0] == (30, 50)
    assert early["after 0", 0] == (56, 66)
    first, second = compare_with_measured(made, simulate(made.graph))
    assert first.compute_s == pytest.approx(20e-6)
    assert first.exposed_communication_s == pytest.approx(20e-6)
    assert first.idle_s == pytest.approx(36e-6)
    assert second.error == pytest.approx(0)


def test_asynchronous_collective_is_waited_for_in_a_later_gap(tmp_path):
    made = made_of(
        tmp_path,
        [
            operator("c10d::allreduce_", 0, 5, **FLOATS),
            operator("aten::mm", 5, 95),
            gloo("all_reduce", 10, 190),
            operator("after", 230, 10),
        ],
        world_size=1,
    )
    assert awaited_by(made, "gloo:all_reduce") == [(TaskRole.AFTER_WAIT, "gap")]
    assert run(made, **{"gloo:all_reduce": 40})["after"] == (130, 140)
    assert run(made, **{"aten::mm": 295})["after"] == (330, 340)


@pytest.mark.parametrize(
    "later",
    [
        [operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", 150, 30)],
        [mark("Optimizer.step#SGD.step", 145, 35), operator("aten::add_", 150, 30)],
    ],
)
def test_overlapped_collective_holds_up_what_needs_it(tmp_path, later):
    name = later[-1]["name"]
    made = made_of(
        tmp_path,
        [
            operator("evaluate", 0, 15),
            operator("c10d::allreduce_", 0, 5, **FLOATS),
            operator("aten::mm", 15, 125),
            gloo("all_reduce", 10, 40),
            *later,
        ],
        world_size=1,
    )
    assert awaited_by(made, "gloo:all_reduce") == [(TaskRole.KERNEL, name)]
    assert run(made)[name] == (150, 180)
    assert run(made, **{"gloo:all_reduce": 190})[name] == (200, 230)


def test_step_is_not_over_before_its_collectives(tmp_path):
    made = made_of(
        tmp_path,
        [
            mark("ProfilerStep#1", 0, 200),
            operator("c10d::allreduce_", 0, 5, **FLOATS),
            operator("aten::mm", 5, 195),
            gloo("all_reduce", 10, 40),
        ],
        world_size=1,
    )
    (result,) = compare_with_measured(made, simulate(made.graph))
    assert result.simulated_s == pytest.approx(200e-6)
    assert result.compute_s == pytest.approx(195e-6)
    duration_s = made.graph.duration_s.copy()
    duration_s[made.role == TaskRole.COLLECTIVE] = 400e-6
    (slower,) = compare_with_measured(made, simulate(made.graph, duration_s))
    assert slower.simulated_s == pytest.approx(410e-6)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_c10d_functional::wait_tensor", (TaskRole.AFTER_WAIT, "_c10d_functional::wait_tensor")),
        ("PooledWaitBackward", (TaskRole.AFTER_WAIT, "PooledWaitBackward")),
        # Neither a multiplication nor a node of PyTorch's own is ever a wait.
        ("aten::mm", None),
        ("AddmmBackward0", None),
    ],
)
def test_operators_that_wait(tmp_path, name, expected):
    made = made_of(
        tmp_path,
        [
            operator("c10d::allreduce_", 0, 5, **FLOATS),
            gloo("all_reduce", 10, 60),
            operator("aten::relu", 5, 15),
            operator(name, 20, 58),
        ],
        world_size=1,
    )
    assert awaited_by(made, "gloo:all_reduce") == ([expected] if expected else [])
    assert run(made)[name][1] == 78


def test_sizes_that_are_no_list_are_unknown(tmp_path):
    event = gloo("all_reduce", 10, 40)
    event["args"]["Input Dims"] = "[1000"
    write(tmp_path / "t.json", [*LINEAR, event], rank=0)
    (trace,) = read_kineto(tmp_path)
    (found,) = link(trace).collectives
    assert (found.operation, found.input_elements, found.message_bytes) == ("all_reduce", -1, -1)


def test_reduce_scatter_is_the_all_reduce_that_gloo_makes_of_it(tmp_path):
    dims = {"Input Dims": [[500], [1000]], "Input type": ["float", "float"]}
    write(
        tmp_path / "t.json",
        [
            operator("c10d::_reduce_scatter_base_", 0, 30, **dims),
            operator("aten::clone", 5, 10),
            gloo("all_reduce", 28, 40),
        ],
        rank=0,
        world_size=2,
    )
    (trace,) = read_kineto(tmp_path / "t.json")
    linked = link(trace)
    (info,) = linked.collectives
    assert (info.operation, info.message_bytes) == ("all_reduce", 4000)


def test_clone_within_the_asking_operator_is_computation(tmp_path):
    dims = {"Input Dims": [[500], [1000]], "Input type": ["float", "float"]}
    made = made_of(
        tmp_path,
        [
            operator("c10d::_reduce_scatter_base_", 0, 30, **dims),
            operator("aten::clone", 5, 10),
            gloo("all_reduce", 28, 40),
        ],
        world_size=1,
    )
    # It hands over at 28, after the clone.
    assert parts(made) == [
        ("c10d::_reduce_scatter_base_", TaskRole.HOST_WORK, 5),
        ("aten::clone", TaskRole.KERNEL, 10),
        ("c10d::_reduce_scatter_base_", TaskRole.CALL, 13),
        ("c10d::_reduce_scatter_base_", TaskRole.CALL, 2),
    ]
    assert run(made, **{"aten::clone": 110})["gloo:all_reduce"] == (128, 168)


@pytest.mark.parametrize(
    ("name", "size"), [("all_gather", 8000), ("all_to_all", 4000), ("broadcast", 4000)]
)
def test_sizes_count_as_in_nccl_tests(tmp_path, name, size):
    op = f"c10d::{name.replace('_', '')}_"
    write(tmp_path / "t.json", synchronous(10, op=op, name=name), rank=0, world_size=2)
    (trace,) = read_kineto(tmp_path / "t.json")
    (info,) = link(trace).collectives
    assert (info.operation, info.message_bytes, info.group_size) == (name, size, 2)


def test_group_is_named_where_there_is_only_one(tmp_path):
    def of(*groups):
        about = {"backend": "gloo", "rank": 0, "world_size": 4, "pg_config": list(groups)}
        write(tmp_path / "t.json", synchronous(10), distributedInfo=about)
        (trace,) = read_kineto(tmp_path / "t.json")
        return link(trace)

    half = {"pg_name": "half", "pg_size": 2, "ranks": [0, 2]}
    (info,) = of(half).collectives
    assert (info.group, info.ranks, info.group_size) == ("half", (0, 2), 2)
    linked = of(half, {"pg_name": "all", "pg_size": 4, "ranks": [0, 1, 2, 3]})
    assert linked.collectives[0].group_size == 4
    assert "2 process groups" in linked.notes[-1]


def test_rank_that_sends_need_not_meet_who_receives_later(tmp_path):
    root = [
        operator("c10d::broadcast_", 0, 5, **FLOATS),
        gloo("broadcast", 10, 15),
        operator("after 0", 30, 10),
    ]
    late = [
        operator("before", 0, 90),
        operator("c10d::broadcast_", 90, 5, **FLOATS),
        gloo("broadcast", 100, 15),
        operator("after 1", 120, 10),
    ]
    made = made_of(tmp_path, root, late)
    assert not collective_members(made.graph)
    times = run(made)
    assert times["gloo:broadcast", 0] == (10, 25)
    assert times["after 0", 0] == (30, 40)
    assert times["gloo:broadcast", 1] == (100, 115)
    assert not made.notes


def test_send_and_receive_of_two_ranks(tmp_path):
    sender = [
        operator("c10d::send", 0, 5, **FLOATS),
        gloo("send", 3, 60, tid=11),
        operator("aten::mm", 5, 25),
        operator("after 0", 70, 10),
    ]
    receiver = [
        operator("before", 0, 40),
        operator("c10d::recv_", 40, 5, **FLOATS),
        gloo("recv", 43, 17, tid=11),
        operator("after 1", 66, 10),
    ]
    made = made_of(tmp_path, sender, receiver)
    traces = read_kineto(tmp_path)
    (collective,) = match_collectives(traces)
    assert (collective.operation, collective.ranks, collective.complete) == (
        "send_recv",
        (0, 1),
        True,
    )
    # The computation meanwhile is not part of the send.
    assert ("aten::mm", TaskRole.KERNEL, 25) in parts(made)
    later = run(made, before=80)
    assert later["gloo:recv", 1] == (83, 100)
    assert later["gloo:send", 0] == (83, 103)
    assert later["after 0", 0] == (110, 120)


def random_rank(rng):
    """Nested operators of two threads, and collectives on two threads of gloo."""
    events, free = [], {30: 0, 31: 0}
    for tid in (11, 12):
        now, backward = 0, {"Sequence number": 1, "Fwd thread id": 1} if tid == 12 else {}
        for _ in range(int(rng.integers(4, 12))):
            length = int(rng.choice([0, 5, 30, 200]))
            events.append(operator(f"op {rng.integers(3)}", now, length, tid=tid, **backward))
            inner = now + int(rng.integers(4))
            while inner < now + length and rng.random() < 0.8:
                took = min(int(rng.integers(40)), now + length - inner)
                asks = tid == 11 and rng.random() < 0.3
                name = "c10d::allreduce_" if asks else f"aten::x{rng.integers(3)}"
                args = FLOATS if asks else {}
                events.append(operator(name, inner, took, tid=tid, **args))
                if asks:
                    own = int(rng.choice(list(free)))
                    start = max(free[own], inner + int(rng.integers(30)))
                    free[own] = start + int(rng.choice([1, 40, 300]))
                    events.append(gloo("all_reduce", start, free[own] - start, tid=own))
                inner += took + int(rng.integers(3))
            now += length + int(rng.choice([0, 0, 25, 150]))
    return events


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happened_on_a_cpu_is_replayed(tmp_path, seed):
    made = made_of(tmp_path, random_rank(np.random.default_rng(seed)), world_size=1)
    times = simulate(made.graph)
    deviation_us = np.abs(times.start_s * 1e6 - made.measured_start_ns / 1e3)
    assert deviation_us[made.role != TaskRole.STREAM_GAP].max() <= 3
    (result,) = compare_with_measured(made, times)
    assert result.error == pytest.approx(0, abs=0.01)
    # Longer computation never ends a step sooner.
    slower_s = np.where(made.role == TaskRole.KERNEL, 1.5, 1.0) * made.graph.duration_s
    assert (
        compare_with_measured(made, simulate(made.graph, slower_s))[0].simulated_s
        >= result.simulated_s
    )
