"""All evaluations of a graph give the same, hand-computed answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import SimulationError
from dse.graph import GraphBuilder, TaskKind, collective_members
from dse.simulate import CompiledGraph, SymmetricRanks, breakdown, simulate
from tests.simulate.by_time import simulate_by_time
from tests.simulate.random_graphs import graphs

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.graph import ExecutionGraph


def by_single(graph: ExecutionGraph) -> float:
    return simulate(graph).makespan_s


def by_compiled(graph: ExecutionGraph) -> float:
    """All durations vary."""
    program = CompiledGraph(SymmetricRanks.single(graph), np.arange(graph.task_count))
    return float(program.makespan_s(graph.duration_s[:, None, None])[0])


def by_folding(graph: ExecutionGraph) -> float:
    """All durations are constant: the compiler alone finds the answer."""
    none = np.full(graph.task_count, -1)
    program = CompiledGraph(SymmetricRanks.single(graph), none)
    return float(program.makespan_s(np.zeros((0, 1, 1)))[0])


def by_walking(graph: ExecutionGraph) -> float:
    ranks = SymmetricRanks.single(graph)
    return float(ranks.last_end_s(graph.duration_s[:, None, None])[0])


SIMULATORS: dict[str, Callable[[ExecutionGraph], float]] = {
    "plain": by_single,
    "compiled": by_compiled,
    "folding": by_folding,
    "walking": by_walking,
}


@pytest.fixture(params=SIMULATORS.values(), ids=SIMULATORS.keys())
def makespan(request):
    return request.param


def builder_with(streams: int) -> tuple[GraphBuilder, list[int]]:
    builder = GraphBuilder()
    return builder, [builder.add_stream(rank, "compute") for rank in range(streams)]


def test_empty_graph_takes_no_time(makespan):
    assert makespan(GraphBuilder().build()) == 0.0


def test_chain_adds_up(makespan):
    builder, (stream,) = builder_with(1)
    for seconds in (1.0, 2.0, 4.0):
        builder.add_task("t", TaskKind.COMPUTE, stream, seconds)
    assert makespan(builder.build()) == 7.0


def test_join_waits_for_the_later_branch(makespan):
    builder, (a, b) = builder_with(2)
    short = builder.add_task("short", TaskKind.COMPUTE, a, 1.0)
    long = builder.add_task("long", TaskKind.COMPUTE, b, 5.0)
    builder.add_task("join", TaskKind.COMPUTE, a, 2.0, (short, long))
    assert makespan(builder.build()) == 7.0


def test_collective_starts_with_the_last_rank_and_ends_per_member(makespan):
    builder, (a, b) = builder_with(2)
    builder.add_task("early", TaskKind.COMPUTE, a, 1.0)
    builder.add_task("late", TaskKind.COMPUTE, b, 3.0)
    on_a = builder.add_task("meet", TaskKind.COLLECTIVE, a, 2.0)
    on_b = builder.add_task("meet", TaskKind.COLLECTIVE, b, 0.5)
    builder.add_collective([on_a, on_b])
    builder.add_task("after", TaskKind.COMPUTE, b, 1.0)
    # Both start at 3; a ends at 5; b ends at 3.5 and works until 4.5.
    assert makespan(builder.build()) == 5.0


def test_collectives_in_a_row_carry_the_delay(makespan):
    builder, streams = builder_with(3)
    for round_ in range(2):
        for rank, stream in enumerate(streams):
            builder.add_task("work", TaskKind.COMPUTE, stream, 1.0 + (rank == round_))
        members = [
            builder.add_task("meet", TaskKind.COLLECTIVE, stream, 0.5) for stream in streams
        ]
        builder.add_collective(members)
    # Rank 0 is late in round 0, rank 1 in round 1: (2 + 0.5) twice.
    assert makespan(builder.build()) == 5.0


def test_zero_durations(makespan):
    builder, (a, b) = builder_with(2)
    first = builder.add_task("zero", TaskKind.COMPUTE, a, 0.0)
    builder.add_task("zero", TaskKind.COMPUTE, b, 0.0, (first,))
    assert makespan(builder.build()) == 0.0


def test_deadlock_is_an_error(makespan):
    builder, (a, b) = builder_with(2)
    first = builder.add_task("first", TaskKind.COMPUTE, a, 1.0, (1,))
    builder.add_task("second", TaskKind.COMPUTE, b, 1.0, (first,))
    with pytest.raises(SimulationError, match="first"):
        makespan(builder.build())


def test_time_line_separates_waiting_from_transfer():
    builder, (a, b) = builder_with(2)
    builder.add_task("late", TaskKind.COMPUTE, b, 3.0)
    on_a = builder.add_task("meet", TaskKind.COLLECTIVE, a, 2.0)
    on_b = builder.add_task("meet", TaskKind.COLLECTIVE, b, 2.0)
    builder.add_collective([on_a, on_b])
    timeline = simulate(builder.build())
    assert timeline.ready_s[on_a] == 0.0
    assert timeline.start_s[on_a] == 3.0
    assert timeline.end_s[on_a] == 5.0
    first, second = breakdown(timeline)
    assert (first.compute_s, first.exposed_communication_s, first.idle_s) == (0.0, 2.0, 3.0)
    assert (second.compute_s, second.exposed_communication_s, second.idle_s) == (3.0, 2.0, 0.0)


def three_streams():
    builder = GraphBuilder()
    return builder, *(builder.add_stream(0, name) for name in ("compute", "wire", "host"))


def parts(builder):
    return [
        (rank.compute_s, rank.exposed_communication_s, rank.host_s, rank.idle_s)
        for rank in breakdown(simulate(builder.build()))
    ]


def test_breakdown_gives_overlap_to_compute():
    builder, compute, wire, host = three_streams()
    # The host is done early; nothing waits for it.
    builder.add_task("host", TaskKind.HOST, host, 4.0)
    builder.add_task("compute", TaskKind.COMPUTE, compute, 2.0)
    builder.add_collective([builder.add_task("wire", TaskKind.COLLECTIVE, wire, 5.0)])
    assert parts(builder) == [(2.0, 3.0, 0.0, 0.0)]


def test_a_copy_does_not_hide_a_transfer():
    builder, compute, wire, copies = three_streams()
    builder.add_task("compute", TaskKind.COMPUTE, compute, 2.0)
    builder.add_collective([builder.add_task("wire", TaskKind.COLLECTIVE, wire, 5.0)])
    # The batch after the next one; for its last second nothing else runs.
    builder.add_task("copy", TaskKind.COPY, copies, 6.0)
    assert parts(builder) == [(3.0, 3.0, 0.0, 0.0)]


def test_time_that_hides_behind_late_launches_is_of_the_host():
    builder, compute, wire, host = three_streams()
    # Launches of 3 s each, kernels of 1 s, a collective of 2 s: only the last one is not hidden.
    launches = [builder.add_task("launch", TaskKind.HOST, host, 3.0) for _ in range(3)]
    builder.add_task("first", TaskKind.COMPUTE, compute, 1.0, launches[:1])
    sent = builder.add_task("wire", TaskKind.COLLECTIVE, wire, 2.0, launches[1:2])
    builder.add_collective([sent])
    builder.add_task("last", TaskKind.COMPUTE, compute, 1.0, (launches[2], sent))
    assert parts(builder) == [(1.0, 0.0, 9.0, 0.0)]


def test_a_host_that_runs_ahead_takes_no_time_but_its_first_launch():
    builder, compute, _, host = three_streams()
    launches = [builder.add_task("launch", TaskKind.HOST, host, 1.0) for _ in range(3)]
    for launch in launches:
        builder.add_task("kernel", TaskKind.COMPUTE, compute, 4.0, (launch,))
    assert parts(builder) == [(12.0, 0.0, 1.0, 0.0)]


def test_a_host_that_becomes_late_takes_the_time_from_then_on():
    builder, compute, _, host = three_streams()
    # Kernel 1 runs from 1 to 6, launch 2 ends at 2, launch 3 (long) at 10: kernel 2 is hidden.
    for launch_s, kernel_s in ((1.0, 5.0), (1.0, 2.0), (8.0, 3.0)):
        launch = builder.add_task("launch", TaskKind.HOST, host, launch_s)
        builder.add_task("kernel", TaskKind.COMPUTE, compute, kernel_s, (launch,))
    assert parts(builder) == [(3.0, 0.0, 10.0, 0.0)]


def test_a_rank_that_waits_for_another_ranks_host_is_idle():
    builder = GraphBuilder()
    members = []
    for rank, launch_s in ((0, 1.0), (1, 6.0)):
        host, device = builder.add_stream(rank, "host"), builder.add_stream(rank, "device")
        launch = builder.add_task("launch", TaskKind.HOST, host, launch_s)
        # The host of rank 0 goes on meanwhile; nothing waits for it.
        builder.add_task("next launch", TaskKind.HOST, host, 1.0)
        members.append(builder.add_task("meet", TaskKind.COLLECTIVE, device, 2.0, (launch,)))
    builder.add_collective(members)
    assert parts(builder) == [(0.0, 2.0, 1.0, 5.0), (0.0, 2.0, 6.0, 0.0)]


def test_a_host_that_works_longest_binds_the_rank():
    builder, compute, _, host = three_streams()
    launch = builder.add_task("launch", TaskKind.HOST, host, 1.0)
    builder.add_task("kernel", TaskKind.COMPUTE, compute, 2.0, (launch,))
    builder.add_task("load the next batch", TaskKind.HOST, host, 7.0)
    assert parts(builder) == [(0.0, 0.0, 8.0, 0.0)]


@given(graphs())
def test_one_pass_and_order_of_time_give_the_same_bits(graph):
    quick, slow = simulate(graph), simulate_by_time(graph)
    np.testing.assert_array_equal(quick.ready_s, slow.ready_s)
    np.testing.assert_array_equal(quick.start_s, slow.start_s)
    np.testing.assert_array_equal(quick.end_s, slow.end_s)


@given(graphs(), st.randoms())
def test_the_numbers_of_tasks_do_not_matter(graph, random):
    """Tasks of different streams may be numbered in any order, dependencies may lead upwards."""
    streams = graph.stream.tolist()
    shuffled = random.sample(streams, len(streams))
    rows = {
        stream: iter(np.flatnonzero(graph.stream == stream).tolist()) for stream in set(streams)
    }
    old = [next(rows[stream]) for stream in shuffled]
    new = {task: place for place, task in enumerate(old)}
    builder = GraphBuilder()
    for stream in graph.streams:
        builder.add_stream(stream.rank, stream.name)
    for task in old:
        after = [new[other] for other in graph.dependencies_of(task).tolist()]
        kind, seconds = TaskKind(graph.kind[task]), float(graph.duration_s[task])
        builder.add_task(graph.names[task], kind, streams[task], seconds, after)
    for members in collective_members(graph).values():
        builder.add_collective([new[member] for member in members])
    expected = simulate_by_time(graph)
    renumbered = builder.build()
    found = simulate(renumbered)
    np.testing.assert_array_equal(found.ready_s, expected.ready_s[old])
    np.testing.assert_array_equal(found.end_s, expected.end_s[old])
    ranks = SymmetricRanks.single(renumbered)
    _, end_s = ranks.times_s(renumbered.duration_s[:, None, None])
    np.testing.assert_array_equal(end_s[:, 0, 0], expected.end_s[old])


def test_repeated_dependencies_count_once(makespan):
    builder, (a, b) = builder_with(2)
    first = builder.add_task("first", TaskKind.COMPUTE, a, 1.0)
    builder.add_task("second", TaskKind.COMPUTE, a, 2.0, (first, first))
    builder.add_task("third", TaskKind.COMPUTE, b, 4.0, (first, first))
    assert makespan(builder.build()) == 5.0


@given(graphs(), st.integers(0, 2**32 - 1))
def test_simulators_agree_for_any_choice_of_varying_tasks(graph, seed):
    rng = np.random.default_rng(seed)
    variable = rng.random(graph.task_count) < rng.random()
    candidates = rng.random((int(variable.sum()), 7)) * 5
    row_of = np.where(variable, np.cumsum(variable) - 1, -1)
    program = CompiledGraph(SymmetricRanks.single(graph), row_of)
    makespan_s = program.makespan_s(candidates[:, None])
    for column, expected in enumerate(makespan_s):
        durations = graph.duration_s.copy()
        durations[variable] = candidates[:, column]
        timeline = simulate(graph, durations)
        assert timeline.makespan_s == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(graphs(), st.integers(0, 1000), st.floats(0, 5))
def test_a_longer_task_never_shortens_the_whole(graph, pick, more_s):
    if graph.task_count == 0:
        return
    longer = graph.duration_s.copy()
    longer[pick % graph.task_count] += more_s
    changed = replace(graph, duration_s=longer)
    assert by_single(changed) >= by_single(graph) - 1e-12


@given(graphs(), st.floats(0.1, 10))
def test_scaling_all_durations_scales_the_whole(graph, factor):
    scaled = replace(graph, duration_s=graph.duration_s * factor)
    assert by_compiled(scaled) == pytest.approx(factor * by_compiled(graph), rel=1e-9, abs=1e-12)


@given(graphs())
def test_no_stream_is_busier_than_the_whole_and_breakdowns_add_up(graph):
    timeline = simulate(graph)
    for stream in range(len(graph.streams)):
        busy_s = graph.duration_s[graph.stream == stream].sum()
        assert timeline.makespan_s >= busy_s - 1e-9
    for rank in breakdown(timeline):
        total = rank.compute_s + rank.exposed_communication_s + rank.host_s + rank.idle_s
        assert total == pytest.approx(timeline.makespan_s, abs=1e-9)
        assert min(rank.compute_s, rank.exposed_communication_s, rank.host_s) >= -1e-12


def test_ends_of_all_tasks_by_hand():
    builder, (a, b) = builder_with(2)
    first = builder.add_task("first", TaskKind.COMPUTE, a, 1.0)
    builder.add_task("second", TaskKind.COMPUTE, b, 3.0, (first,))
    builder.add_task("third", TaskKind.COMPUTE, a, 0.5)
    ranks = SymmetricRanks.single(builder.build())
    durations_s = np.array([[1.0, 2.0], [3.0, 3.0], [0.5, 4.0]])
    _, ends_s = ranks.times_s(durations_s[:, None])
    np.testing.assert_array_equal(ends_s[:, 0], [[1.0, 2.0], [4.0, 5.0], [1.5, 6.0]])


@pytest.mark.parametrize(
    ("durations_s", "message"),
    [([1.0, 2.0], "expected \\(1,\\)"), ([-1.0], "`t`: duration -1.0"), ([np.nan], "finite")],
)
def test_durations_that_do_not_fit_are_an_error(durations_s, message):
    builder, (stream,) = builder_with(1)
    builder.add_task("t", TaskKind.COMPUTE, stream, 1.0)
    with pytest.raises(SimulationError, match=message):
        simulate(builder.build(), np.array(durations_s))
