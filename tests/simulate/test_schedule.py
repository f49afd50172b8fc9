"""Streams that choose their next task: hand-made cases, and laws over random graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import SimulationError
from dse.graph import GraphBuilder, GraphEditor, TaskKind
from dse.simulate import schedule, simulate
from tests.simulate.random_graphs import graphs


def ordered(graph, orders):
    editor = GraphEditor(graph)
    for stream, tasks in orders.items():
        editor.reorder(stream, tasks)
    return editor.build()


def test_the_most_urgent_ready_task_goes_first():
    builder = GraphBuilder()
    compute, wire = builder.add_stream(0, "compute"), builder.add_stream(0, "wire")
    back = [builder.add_task(f"b{i}", TaskKind.COMPUTE, compute, 1.0) for i in range(3)]
    sends = [builder.add_task(f"s{i}", TaskKind.COPY, wire, 2.0, [back[i]]) for i in range(3)]
    graph = builder.build()
    # s0 is alone when the wire is free at 1; at 3 both others are ready and the last is urgent.
    orders = schedule(graph, [wire], [0, 0, 0, 3.0, 2.0, 1.0])
    assert orders == {wire: (sends[0], sends[2], sends[1])}


def test_ties_go_by_number_and_other_streams_keep_their_order():
    builder = GraphBuilder()
    free, fixed = builder.add_stream(0, "free"), builder.add_stream(0, "fixed")
    tasks = [builder.add_task(f"t{i}", TaskKind.COMPUTE, free, 1.0) for i in range(3)]
    rest = [builder.add_task(f"f{i}", TaskKind.COMPUTE, fixed, 1.0) for i in range(2)]
    assert schedule(builder.build(), [free], [0.0] * 5) == {free: tuple(tasks)}
    assert schedule(builder.build(), [fixed], [0, 0, 0, 1, 0]) == {fixed: (rest[1], rest[0])}


def test_ranks_agree_on_the_order_of_collectives():
    builder = GraphBuilder()
    streams = [builder.add_stream(rank, "wire") for rank in range(2)]
    # Rank 0 issues x before y, rank 1 the other way round: as fixed orders they would deadlock.
    x0 = builder.add_task("x", TaskKind.COLLECTIVE, streams[0], 1.0)
    y0 = builder.add_task("y", TaskKind.COLLECTIVE, streams[0], 1.0)
    y1 = builder.add_task("y", TaskKind.COLLECTIVE, streams[1], 1.0)
    x1 = builder.add_task("x", TaskKind.COLLECTIVE, streams[1], 1.0)
    builder.add_collective([x0, x1])
    builder.add_collective([y0, y1])
    graph = builder.build()
    with pytest.raises(SimulationError):
        simulate(graph)
    orders = schedule(graph, streams, [1.0, 0.0, 1.0, 1.0])
    assert orders == {streams[0]: (y0, x0), streams[1]: (y1, x1)}
    assert simulate(ordered(graph, orders).graph).makespan_s == 2.0


def test_a_real_cycle_is_named():
    builder = GraphBuilder()
    stream = builder.add_stream(0, "wire")
    builder.add_task("x", TaskKind.COPY, stream, 1.0, [1])
    builder.add_task("y", TaskKind.COPY, stream, 1.0, [0])
    with pytest.raises(SimulationError, match="`x`"):
        schedule(builder.build(), [stream], [0.0, 0.0])


@given(graphs(), st.data())
def test_the_order_found_runs_and_holds_every_task(graph, data):
    if not graph.streams:
        return
    chosen = sorted(data.draw(st.sets(st.integers(0, len(graph.streams) - 1), min_size=1)))
    priority = data.draw(
        st.lists(st.integers(0, 5), min_size=graph.task_count, max_size=graph.task_count)
    )
    orders = schedule(graph, chosen, priority)
    for stream in chosen:
        on_stream = [task for task in range(graph.task_count) if graph.stream[task] == stream]
        assert sorted(orders[stream]) == on_stream
    edited = ordered(graph, orders)
    simulate(edited.graph)


@given(graphs())
def test_some_task_runs_at_every_instant(graph):
    timeline = simulate(graph)
    streams = list(range(len(graph.streams)))
    orders = schedule(graph, streams, timeline.start_s.tolist())
    again = simulate(ordered(graph, orders).graph)
    assert again.makespan_s <= sum(graph.duration_s.tolist()) + 1e-9
