"""Editing a graph: every change against what it means, order against a closure by force."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import SimulationError
from dse.graph import GraphBuilder, GraphEditor, Stream, TaskKind, predecessors
from dse.simulate import simulate
from tests.simulate.random_graphs import graphs


def two_streams():
    """Host a → b; a launches k on a stream, b launches m behind it; k takes longest."""
    builder = GraphBuilder()
    host, stream = builder.add_stream(0, "host"), builder.add_stream(0, "stream")
    a = builder.add_task("a", TaskKind.HOST, host, 1.0)
    b = builder.add_task("b", TaskKind.HOST, host, 2.0)
    k = builder.add_task("k", TaskKind.COMPUTE, stream, 5.0, [a])
    m = builder.add_task("m", TaskKind.COMPUTE, stream, 1.0, [b])
    return GraphEditor(builder.build()), (a, b, k, m)


def makespan(editor):
    return simulate(editor.build().graph).makespan_s


def start_of(editor, task):
    edited = editor.build()
    return simulate(edited.graph).start_s[edited.place[task]]


def test_without_changes_the_graph_stays():
    editor, _ = two_streams()
    edited = editor.build()
    assert edited.task.tolist() == edited.place.tolist() == [0, 1, 2, 3]
    assert simulate(edited.graph).makespan_s == 7.0


def test_scaling_changes_durations_only():
    editor, (_, _, k, _) = two_streams()
    editor.scale([k], 0.2)
    editor.set_duration(3, 4.0)
    assert makespan(editor) == 3.0 + 4.0


def test_behind_and_ahead_keep_the_order_of_the_stream():
    editor, (_, _, k, m) = two_streams()
    stream = editor.stream_of(k)
    first = editor.insert("first", TaskKind.COMPUTE, stream, 1.0, behind=k)
    second = editor.insert("second", TaskKind.COMPUTE, stream, 1.0, behind=k)
    before = editor.insert("before", TaskKind.COMPUTE, stream, 0.5, ahead_of=k)
    nested = editor.insert("nested", TaskKind.COMPUTE, stream, 0.5, ahead_of=second)
    last = editor.insert("last", TaskKind.COMPUTE, stream, 1.0)
    assert editor.tasks_of_stream(stream) == (before, k, first, nested, second, m, last)
    # The inserted task ahead of k waits for nothing, k still waits for a.
    assert makespan(editor) == 1.0 + 5.0 + 1.0 + 0.5 + 1.0 + 1.0 + 1.0


def test_an_inserted_task_waits_and_is_waited_for():
    editor, (_, b, k, m) = two_streams()
    stream = editor.stream(0, "copies")
    assert editor.stream(0, "copies") == stream
    copy = editor.insert("copy", TaskKind.COPY, stream, 10.0, after=[b], before=[m])
    assert start_of(editor, copy) == 3.0
    assert start_of(editor, m) == 13.0
    assert editor.streams[stream] == Stream(0, "copies")
    assert start_of(editor, k) == 1.0


def test_what_waited_for_a_removed_task_waits_for_what_that_waited_for():
    editor, (a, b, k, m) = two_streams()
    editor.remove([b])
    assert editor.is_removed(b)
    # m was launched by b, which came after a on the host.
    edited = editor.build()
    assert [edited.task[one] for one in edited.graph.dependencies_of(edited.place[m])] == [a]
    assert makespan(editor) == 1.0 + 5.0 + 1.0
    editor.remove([k])
    assert makespan(editor) == 2.0


def test_removing_twice_and_strangers_are_errors():
    editor, (_, b, *_) = two_streams()
    editor.remove([b])
    with pytest.raises(SimulationError, match="was removed before"):
        editor.remove([b])
    with pytest.raises(SimulationError, match="was removed before"):
        editor.scale([b], 2.0)
    with pytest.raises(SimulationError, match="task 99 does not exist; the graph has 4"):
        editor.scale([99], 2.0)


def test_a_task_can_be_put_after_a_removed_one():
    editor, (a, b, *_) = two_streams()
    editor.remove([b])
    editor.build()
    late = editor.insert("late", TaskKind.HOST, editor.stream(0, "other"), 1.0, after=[b])
    edited = editor.build()
    assert [edited.task[one] for one in edited.graph.dependencies_of(edited.place[late])] == [a]


def test_members_of_a_collective_start_together():
    builder = GraphBuilder()
    streams = [builder.add_stream(rank, "stream") for rank in range(2)]
    for rank in range(2):
        builder.add_task(f"k{rank}", TaskKind.COMPUTE, streams[rank], 1.0 + rank)
    editor = GraphEditor(builder.build())
    tasks = [
        editor.insert("all_reduce", TaskKind.COLLECTIVE, streams[rank], 1.0) for rank in range(2)
    ]
    editor.add_collective(tasks)
    assert makespan(editor) == 3.0
    assert start_of(editor, tasks[0]) == 2.0
    with pytest.raises(SimulationError, match="in a collective already"):
        editor.add_collective(tasks)
    editor.remove([tasks[1]])
    assert start_of(editor, tasks[0]) == 1.0


def test_a_cycle_is_named():
    editor, (a, _, k, _) = two_streams()
    editor.add_dependencies(a, [k])
    with pytest.raises(SimulationError, match=r"a` .*k`|k` .*a`"):
        editor.build()


def test_an_order_needs_all_tasks_of_the_stream():
    editor, (a, _, k, m) = two_streams()
    editor.reorder(editor.stream_of(k), [m, k])
    assert makespan(editor) == 3.0 + 1.0 + 5.0
    with pytest.raises(SimulationError, match="each of its tasks once"):
        editor.reorder(editor.stream_of(k), [m, a])


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_impossible_factors(factor):
    editor, _ = two_streams()
    with pytest.raises(SimulationError, match="at least 0"):
        editor.scale([0], factor)
    with pytest.raises(SimulationError, match="at least 0"):
        editor.set_duration(0, factor)


def test_neighbours_are_on_the_same_stream():
    editor, (a, _, k, _) = two_streams()
    with pytest.raises(SimulationError, match="is elsewhere"):
        editor.insert("x", TaskKind.HOST, editor.stream_of(k), 1.0, behind=a)
    with pytest.raises(SimulationError, match="not both"):
        editor.insert("x", TaskKind.HOST, editor.stream_of(k), 1.0, behind=k, ahead_of=k)
    with pytest.raises(SimulationError, match="stream 7 does not exist"):
        editor.insert("x", TaskKind.HOST, 7, 1.0)


def reach(graph):
    """For every task, all tasks that come before it."""
    waits = predecessors(graph)
    result = [set() for _ in waits]
    changed = True
    while changed:
        changed = False
        for task, others in enumerate(waits):
            more = set(others).union(*(result[other] for other in others))
            if not more <= result[task]:
                result[task] |= more
                changed = True
    return result


@given(graphs(), st.data())
def test_removal_keeps_the_order_of_what_is_left(graph, data):
    editor = GraphEditor(graph)
    known = reach(graph)
    alone = [task for task in range(graph.task_count) if graph.collective[task] < 0]
    chosen = data.draw(st.sets(st.sampled_from(alone))) if alone else set()
    # In two goes, so that one removal follows another.
    first = {task for task in chosen if task % 2}
    editor.remove(sorted(first))
    if data.draw(st.booleans()):
        editor.build()
    editor.remove(sorted(chosen - first))
    edited = editor.build()
    left = reach(edited.graph)
    for place, task in enumerate(edited.task.tolist()):
        assert {int(edited.task[one]) for one in left[place]} == known[task] - chosen


@given(graphs(), st.floats(0.0, 1.0))
def test_less_work_is_never_slower_than_removal_of_it(graph, factor):
    editor = GraphEditor(graph)
    tasks = list(range(0, graph.task_count, 2))
    if not tasks:
        return
    editor.scale(tasks, factor)
    scaled = simulate(editor.build().graph).makespan_s
    assert scaled <= simulate(graph).makespan_s + 1e-9
    editor.scale(tasks, 0.0)
    assert simulate(editor.build().graph).makespan_s <= scaled + 1e-9


def test_numbers_of_the_graph_follow_the_editor():
    editor, (_, b, k, m) = two_streams()
    new = editor.insert("new", TaskKind.HOST, 0, 1.0, behind=b)
    editor.remove([k])
    edited = editor.build()
    assert edited.original_count == 4
    assert edited.place[k] == -1
    assert edited.graph.names[edited.place[new]] == "new"
    assert np.array_equal(edited.place[edited.task], np.arange(edited.graph.task_count))
    assert edited.graph.names[edited.place[m]] == "m"
