from __future__ import annotations

import numpy as np
import pytest

from dse.errors import SimulationError
from dse.graph import (
    GraphBuilder,
    TaskKind,
    followers,
    predecessors,
    topological_order,
    wait_counts,
)


def two_streams() -> tuple[GraphBuilder, int, int]:
    builder = GraphBuilder()
    return builder, builder.add_stream(0, "a"), builder.add_stream(1, "b")


def test_stream_order_and_dependencies_are_predecessors():
    builder, a, b = two_streams()
    first = builder.add_task("first", TaskKind.COMPUTE, a, 1.0)
    other = builder.add_task("other", TaskKind.COMPUTE, b, 1.0)
    second = builder.add_task("second", TaskKind.COMPUTE, a, 1.0, (other, first))
    graph = builder.build()
    assert predecessors(graph)[second] == [other, first]
    assert list(graph.dependencies_of(second)) == [other, first]


def test_followers_are_the_other_side_of_predecessors():
    builder, a, b = two_streams()
    # Dependencies may lead upwards, be named twice, or be the predecessor on the stream.
    builder.add_task("first", TaskKind.COMPUTE, a, 1.0, (3,))
    builder.add_task("second", TaskKind.COMPUTE, a, 1.0, (0, 3, 3))
    builder.add_task("alone", TaskKind.COMPUTE, builder.add_stream(1, "c"), 1.0)
    builder.add_task("third", TaskKind.COMPUTE, b, 1.0)
    graph = builder.build()
    found = followers(graph)
    assert [found.of(task) for task in range(4)] == [[1], [], [], [0, 1]]
    assert wait_counts(graph) == [1, 2, 0, 0]
    assert followers(GraphBuilder().build()).tasks == []
    assert wait_counts(GraphBuilder().build()) == []


@pytest.mark.parametrize("duration_s", [-1.0, float("nan"), float("inf")])
def test_impossible_durations_are_refused(duration_s):
    builder, a, _ = two_streams()
    with pytest.raises(SimulationError, match="duration"):
        builder.add_task("bad", TaskKind.COMPUTE, a, duration_s)


def test_two_members_on_one_stream_are_refused():
    builder, a, _ = two_streams()
    tasks = [builder.add_task(f"m{i}", TaskKind.COLLECTIVE, a, 1.0) for i in range(2)]
    with pytest.raises(SimulationError, match="share a stream"):
        builder.add_collective(tasks)


def test_a_task_is_in_one_collective():
    builder, a, _ = two_streams()
    task = builder.add_task("m", TaskKind.COLLECTIVE, a, 1.0)
    builder.add_collective([task])
    with pytest.raises(SimulationError, match="already"):
        builder.add_collective([task])


def test_unknown_dependency_is_refused():
    builder, a, _ = two_streams()
    builder.add_task("t", TaskKind.COMPUTE, a, 1.0, (7,))
    with pytest.raises(SimulationError, match="does not exist"):
        builder.build()


def test_crossed_collectives_are_a_named_cycle():
    builder, a, b = two_streams()
    a1 = builder.add_task("x on a", TaskKind.COLLECTIVE, a, 1.0)
    a2 = builder.add_task("y on a", TaskKind.COLLECTIVE, a, 1.0)
    b2 = builder.add_task("y on b", TaskKind.COLLECTIVE, b, 1.0)
    b1 = builder.add_task("x on b", TaskKind.COLLECTIVE, b, 1.0)
    builder.add_collective([a1, b1])
    builder.add_collective([a2, b2])
    with pytest.raises(SimulationError, match=r"wait for each other.*on [ab]"):
        topological_order(builder.build())


def test_the_cycle_named_is_a_shortest_one_without_tasks_that_only_wait_for_it():
    builder, a, b = two_streams()
    builder.add_task("ahead", TaskKind.COMPUTE, a, 1.0)
    # Tasks 1 and 2 wait for each other; 3 waits for them but is no part of the cycle.
    builder.add_task("left", TaskKind.COMPUTE, a, 1.0, (2,))
    builder.add_task("right", TaskKind.COMPUTE, b, 1.0, (1,))
    builder.add_task("behind", TaskKind.COMPUTE, b, 1.0)
    with pytest.raises(SimulationError) as caught:
        topological_order(builder.build())
    assert "`left` (rank 0, a) waits for `right` (rank 1, b)" in str(caught.value)
    assert "`right` (rank 1, b) waits for `left` (rank 0, a)" in str(caught.value)
    assert "behind" not in str(caught.value)


def test_a_collective_of_an_unknown_task_is_refused():
    builder, _, _ = two_streams()
    with pytest.raises(SimulationError, match="does not exist"):
        builder.add_collective([3])


def test_graphs_that_share_their_structure_share_its_order():
    builder, a, b = two_streams()
    first = builder.add_task("first", TaskKind.COMPUTE, a, 1.0)
    builder.add_task("second", TaskKind.COMPUTE, b, 1.0, (first,))
    graph = builder.build()
    longer = graph.with_durations(np.array([3.0, 4.0]))
    assert topological_order(longer) is topological_order(graph)
    again = builder.build()
    assert topological_order(again) is not topological_order(graph)
    assert topological_order(again) == topological_order(graph)
