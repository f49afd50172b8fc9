"""Ranks that do the same, told by one of them, take as long as the graph of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import SimulationError
from dse.graph import GraphBuilder, TaskKind
from dse.simulate import (
    CompiledGraph,
    SymmetricRanks,
    SyncScope,
    breakdown,
    breakdown_of_copies,
    critical_path,
    expanded,
    path_over_copies,
    simulate,
    timeline_of_copies,
)
from tests.simulate.random_graphs import symmetric_ranks


def members_of(scope: SyncScope, node_count: int, local_size: int) -> list[list[int]]:
    """Returns the groups of ranks of each collective."""
    by_node = np.arange(node_count * local_size).reshape(node_count, local_size)
    if scope is SyncScope.ALL:
        return [by_node.reshape(-1).tolist()]
    return (by_node if scope is SyncScope.NODE else by_node.T).tolist()


def everyone(ranks: SymmetricRanks, durations_s):
    """Returns the graph of all copies with durations of shape `(tasks, copies)`.

    Tasks of one copy are as many numbers apart as there are copies.
    """
    one, copies = ranks.graph, ranks.copies
    builder = GraphBuilder()
    for stream in one.streams:
        for copy in range(copies):
            builder.add_stream(copy, stream.name)
    for task in range(one.task_count):
        for copy in range(copies):
            builder.add_task(
                one.names[task],
                TaskKind(one.kind[task]),
                int(one.stream[task]) * copies + copy,
                float(durations_s[task, copy]),
                [int(other) * copies + copy for other in one.dependencies_of(task)],
            )
        index = int(one.collective[task])
        if index >= 0:
            for group in members_of(ranks.scopes[index], ranks.node_count, ranks.local_size):
                builder.add_collective([task * copies + copy for copy in group])
    return builder.build()


@given(symmetric_ranks(), st.integers(0, 2**32 - 1))
def test_one_copy_describes_when_the_tasks_of_all_copies_run(ranks, seed):
    rng = np.random.default_rng(seed)
    durations_s = rng.random((ranks.graph.task_count, ranks.copies)) * 5
    start_s, end_s = (times[..., 0] for times in ranks.times_s(durations_s[..., None]))
    timeline = simulate(everyone(ranks, durations_s))
    np.testing.assert_allclose(start_s.reshape(-1), timeline.start_s, atol=1e-12)
    np.testing.assert_allclose(end_s.reshape(-1), timeline.end_s, atol=1e-12)
    by_copy = breakdown_of_copies(ranks.graph, start_s, end_s)
    for mine, expected in zip(by_copy, breakdown(timeline), strict=False):
        assert mine.compute_s == pytest.approx(expected.compute_s, abs=1e-9)
        assert mine.idle_s == pytest.approx(expected.idle_s, abs=1e-9)
        assert mine.host_s == pytest.approx(expected.host_s, abs=1e-9)
    tasks, seconds = path_over_copies(ranks, end_s)
    path = critical_path(timeline)
    assert sum(seconds) == pytest.approx(timeline.makespan_s, abs=1e-12)
    # Copies are numbered task by task.
    assert tasks.tolist() == [task // ranks.copies for task in path.tasks.tolist()]


@given(symmetric_ranks(), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_equal_copies_held_once_have_the_times_of_all(ranks, different, seed):
    rng = np.random.default_rng(seed)
    # Few different durations, so that nodes and local ranks repeat.
    durations_s = rng.integers(1, 1 + different, (ranks.graph.task_count, ranks.copies)) * 1.0
    folded, kept, of_copy, _ = ranks.folded(durations_s)
    assert folded.copies == len(kept) <= ranks.copies
    assert (durations_s[:, kept][:, of_copy] == durations_s).all()
    for few, all_of_them in zip(
        folded.times_s(durations_s[:, kept, None]),
        ranks.times_s(durations_s[..., None]),
        strict=True,
    ):
        assert few[:, of_copy].tolist() == all_of_them.tolist()
    if different == 1:
        assert len(kept) == 1


@given(symmetric_ranks(), st.integers(0, 2**32 - 1))
def test_the_graph_of_all_copies_is_the_one_that_is_built_task_by_task(ranks, seed):
    durations_s = np.random.default_rng(seed).random((ranks.graph.task_count, ranks.copies)) * 5
    graph, scopes = expanded(ranks.unfolded(), durations_s)
    built = everyone(ranks, durations_s)
    for name in ("streams", "names"):
        assert getattr(graph, name) == getattr(built, name)
    for name in ("kind", "stream", "duration_s", "dependency_offsets", "dependency_tasks"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(built, name))
        assert getattr(graph, name).dtype == getattr(built, name).dtype
    np.testing.assert_array_equal(graph.collective, built.collective)
    assert len(scopes) == built.collective.max(initial=-1) + 1
    timeline = timeline_of_copies(ranks, graph, durations_s)
    expected = simulate(built)
    np.testing.assert_allclose(timeline.ready_s, expected.ready_s, atol=1e-12)
    np.testing.assert_allclose(timeline.start_s, expected.start_s, atol=1e-12)
    np.testing.assert_allclose(timeline.end_s, expected.end_s, atol=1e-12)


@given(symmetric_ranks(), st.integers(0, 2**32 - 1))
def test_the_last_end_is_the_latest_of_all_ends(ranks, seed):
    rng = np.random.default_rng(seed)
    durations_s = rng.random((ranks.graph.task_count, ranks.copies, 3)) * 5
    expected_s = ranks.times_s(durations_s)[1].max(axis=(0, 1), initial=0.0)
    assert ranks.last_end_s(durations_s).tolist() == expected_s.tolist()


@given(symmetric_ranks(), st.integers(0, 2**32 - 1))
def test_tasks_may_share_rows_of_durations(ranks, seed):
    rng = np.random.default_rng(seed)
    row = rng.permutation(np.arange(ranks.graph.task_count) // 2)
    durations_s = rng.random((int(row.max(initial=-1)) + 1, ranks.copies, 3)) * 5
    expected_s = ranks.last_end_s(durations_s[row])
    assert ranks.last_end_s(durations_s, row).tolist() == expected_s.tolist()
    with pytest.raises(SimulationError):
        ranks.last_end_s(np.concatenate([durations_s, np.zeros((1, ranks.copies, 3))]), row)


@given(symmetric_ranks(), st.integers(0, 2**32 - 1))
def test_the_batch_agrees_for_any_choice_of_varying_tasks(ranks, seed):
    rng = np.random.default_rng(seed)
    count = ranks.graph.task_count
    rows, candidates = 4, 3
    row_of = np.where(rng.random(count) < 0.5, rng.integers(0, rows, count), -1)
    varying_s = rng.random((rows, ranks.copies, candidates)) * 5
    varying_s[0] = varying_s[0, :1]
    varying_s[1, 0] = 0.0
    found_s = CompiledGraph(ranks, row_of, equal_rows=[0]).makespan_s(varying_s)
    for candidate in range(candidates):
        durations_s = np.repeat(ranks.graph.duration_s[:, None], ranks.copies, axis=1)
        durations_s[row_of >= 0] = varying_s[row_of[row_of >= 0], :, candidate]
        expected = simulate(everyone(ranks, durations_s)).makespan_s
        assert found_s[candidate] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def two_nodes(scope: SyncScope) -> SymmetricRanks:
    """Two nodes of two ranks: work, a collective of a second, work."""
    builder = GraphBuilder()
    stream = builder.add_stream(0, "compute")
    builder.add_task("before", TaskKind.COMPUTE, stream, 0.0)
    builder.add_collective([builder.add_task("meet", TaskKind.COLLECTIVE, stream, 1.0)])
    builder.add_task("after", TaskKind.COMPUTE, stream, 0.0)
    return SymmetricRanks(builder.build(), 2, 2, (scope,))


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        # Work before: 1, 2 | 3, 7; after: 9, 4 | 2, 0. The last end is that of rank 0.
        (SyncScope.NODE, 2.0 + 1.0 + 9.0),
        (SyncScope.ACROSS, 3.0 + 1.0 + 9.0),
        (SyncScope.ALL, 7.0 + 1.0 + 9.0),
    ],
)
def test_ranks_wait_for_the_ranks_in_their_scope(scope, expected):
    varying_s = np.array([[1.0, 2.0, 3.0, 7.0], [9.0, 4.0, 2.0, 0.0]])[:, :, None]
    simulator = CompiledGraph(two_nodes(scope), np.array([0, -1, 1]))
    assert simulator.makespan_s(varying_s).tolist() == [expected]


def test_what_does_not_fit_is_an_error():
    ranks = two_nodes(SyncScope.ALL)
    with pytest.raises(SimulationError, match="row_of"):
        CompiledGraph(ranks, np.array([0]))
    simulator = CompiledGraph(ranks, np.array([0, -1, 1]))
    with pytest.raises(SimulationError, match="4 copies"):
        simulator.makespan_s(np.zeros((2, 3, 1)))
    with pytest.raises(SimulationError, match="3, 4, candidates"):
        ranks.times_s(np.zeros((3, 2, 1)))
    with pytest.raises(SimulationError, match="3, 4, candidates"):
        ranks.last_end_s(np.zeros((2, 4, 1)))
