"""What decides the length of a graph; seconds by hand, and laws on random graphs."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import SimulationError
from dse.graph import GraphBuilder, TaskKind
from dse.simulate import critical_path, simulate
from tests.simulate.random_graphs import graphs


def names(timeline, path):
    return [timeline.graph.names[task] for task in path.tasks]


def builder_with(streams):
    builder = GraphBuilder()
    return builder, [builder.add_stream(rank, "stream") for rank in range(streams)]


def branches():
    """Beginning 1, then 2 beside 5, then 3; and a task of 4 that nobody waits for."""
    builder, (a, b, c) = builder_with(3)
    first = builder.add_task("first", TaskKind.HOST, a, 1.0)
    short = builder.add_task("short", TaskKind.COMPUTE, a, 2.0)
    long = builder.add_task("long", TaskKind.COPY, b, 5.0, (first,))
    builder.add_task("join", TaskKind.COMPUTE, a, 3.0, (short, long))
    builder.add_task("lonely", TaskKind.COMPUTE, c, 4.0)
    return simulate(builder.build())


def test_the_longer_branch_is_critical():
    timeline = branches()
    path = critical_path(timeline)
    assert names(timeline, path) == ["first", "long", "join"]
    assert path.seconds.tolist() == [1.0, 5.0, 3.0]
    assert path.length_s == 9.0


def test_another_end_has_another_path():
    timeline = branches()
    path = critical_path(timeline, [1, 4])
    assert names(timeline, path) == ["lonely"]
    assert path.length_s == 4.0


def one_collective():
    """Rank 0 is ready at 1, rank 1 at 3; they transfer 2 and 0.5, then 1 and 4 follow."""
    builder, (a, b) = builder_with(2)
    builder.add_task("early", TaskKind.COMPUTE, a, 1.0)
    builder.add_task("late", TaskKind.COMPUTE, b, 3.0)
    on_a = builder.add_task("meet a", TaskKind.COLLECTIVE, a, 2.0)
    on_b = builder.add_task("meet b", TaskKind.COLLECTIVE, b, 0.5)
    builder.add_collective([on_a, on_b])
    builder.add_task("after a", TaskKind.COMPUTE, a, 4.0)
    builder.add_task("after b", TaskKind.COMPUTE, b, 1.0)
    return simulate(builder.build())


def test_the_path_goes_on_where_the_last_member_came_from():
    timeline = one_collective()
    path = critical_path(timeline)
    # The member on rank 0 transfers; its start was decided on rank 1.
    assert names(timeline, path) == ["late", "meet a", "after a"]
    assert path.seconds.tolist() == [3.0, 2.0, 4.0]
    assert path.arrivals.tolist() == [1, 3, 4]


def test_members_that_come_together_stay_on_their_stream():
    builder, streams = builder_with(3)
    for stream in streams:
        builder.add_task(f"work {stream}", TaskKind.COMPUTE, stream, 1.0)
    members = [
        builder.add_task(f"meet {stream}", TaskKind.COLLECTIVE, stream, 1.0) for stream in streams
    ]
    builder.add_collective(members)
    builder.add_task("end", TaskKind.COMPUTE, streams[1], 1.0)
    timeline = simulate(builder.build())
    path = critical_path(timeline)
    assert names(timeline, path) == ["work 1", "meet 1", "end"]
    assert path.arrivals.tolist() == path.tasks.tolist()


def test_ties_go_to_the_own_stream_then_to_the_lowest_index():
    builder, (a, b, c) = builder_with(3)
    other = builder.add_task("other", TaskKind.COMPUTE, a, 1.0)
    another = builder.add_task("another", TaskKind.COMPUTE, b, 1.0)
    builder.add_task("own", TaskKind.COMPUTE, c, 1.0)
    builder.add_task("nothing", TaskKind.COMPUTE, c, 0.0)
    builder.add_task("end", TaskKind.COMPUTE, c, 1.0, (another, other))
    timeline = simulate(builder.build())
    assert names(timeline, critical_path(timeline)) == ["own", "nothing", "end"]
    builder, (a, b, c) = builder_with(3)
    waits = [builder.add_task(f"{stream}", TaskKind.COMPUTE, stream, 1.0) for stream in (b, a)]
    builder.add_task("end", TaskKind.COMPUTE, c, 1.0, waits[::-1])
    timeline = simulate(builder.build())
    assert critical_path(timeline).tasks.tolist() == [0, 2]


def test_an_empty_graph_has_an_empty_path():
    timeline = simulate(GraphBuilder().build())
    path = critical_path(timeline)
    assert path.tasks.tolist() == []
    assert path.length_s == 0.0


@pytest.mark.parametrize("ends", [[], [5], [-1]])
def test_end_tasks_that_are_not_there_are_refused(ends):
    with pytest.raises(SimulationError, match="from 0 to 4"):
        critical_path(branches(), ends)


@given(graphs(least=1))
def test_contributions_add_up_and_follow_each_other(graph):
    timeline = simulate(graph)
    path = critical_path(timeline)
    assert math.fsum(path.seconds) == pytest.approx(timeline.makespan_s, rel=1e-12)
    assert path.length_s == timeline.makespan_s
    np.testing.assert_allclose(path.seconds, graph.duration_s[path.tasks], rtol=0, atol=1e-12)
    assert (timeline.start_s[path.tasks[1:]] == timeline.end_s[path.tasks[:-1]]).all()
    assert timeline.start_s[path.tasks[0]] == 0
    assert len(set(path.tasks.tolist())) == len(path.tasks)
    # The arrival is a member of the same collective, and the last to be ready.
    same = graph.collective[path.arrivals] == graph.collective[path.tasks]
    assert (same & ((graph.collective[path.tasks] >= 0) | (path.arrivals == path.tasks))).all()
    assert (timeline.ready_s[path.arrivals] == timeline.start_s[path.tasks]).all()


@given(graphs(least=1), st.data())
def test_shortening_beside_the_path_changes_nothing(graph, data):
    timeline = simulate(graph)
    beside = np.setdiff1d(np.arange(graph.task_count), critical_path(timeline).tasks)
    shorter = graph.duration_s.copy()
    factors = st.lists(st.floats(0, 1), min_size=len(beside), max_size=len(beside))
    shorter[beside] *= data.draw(factors)
    assert simulate(graph, shorter).makespan_s == timeline.makespan_s


@given(graphs(least=1), st.data())
def test_a_critical_task_that_grows_moves_the_end(graph, data):
    timeline = simulate(graph)
    task = data.draw(st.sampled_from(critical_path(timeline).tasks.tolist()))
    longer = graph.duration_s.copy()
    longer[task] += data.draw(st.floats(0, 20))
    expected_s = timeline.makespan_s + longer[task] - graph.duration_s[task]
    assert simulate(graph, longer).makespan_s == pytest.approx(expected_s, rel=1e-9, abs=1e-9)
