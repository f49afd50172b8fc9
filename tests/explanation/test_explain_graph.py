"""Explanations of hand-made graphs with answers by hand, and laws on random graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.errors import SimulationError
from dse.explanation import (
    FASTER,
    ROW,
    Resource,
    TaskResources,
    compare_explanations,
    explain_graph,
    resource_names,
)
from dse.graph import GraphBuilder, TaskKind
from dse.machine import Precision
from dse.simulate import breakdown, expanded, simulate
from tests.conftest import make_cluster
from tests.simulate.random_graphs import graphs, symmetric_ranks


def resources_of(graph, overlapped=(), sequential=()):
    """Resources from `(resource, task, seconds)` triples."""
    arrays = []
    for triples in (overlapped, sequential):
        array = np.zeros((len(Resource), graph.task_count))
        for resource, task, seconds in triples:
            array[ROW[resource], task] += seconds
        arrays.append(array)
    return TaskResources.of(graph.duration_s, *arrays)


#: Tasks of `slow_and_fast`, by index.
LOOKUP_0, LOOKUP_1, EXCHANGE_0, EXCHANGE_1, PRODUCT_0, PRODUCT_1, LAUNCH = range(7)
GROUPS = ["lookups", "lookups", "all-to-all", "all-to-all", "products", "products", "host"]
MOVABLE = np.array([True, True, False, False, False, False, False])


def slow_and_fast(slow_s=6.0):
    """Rank 1 looks up for 6 s and rank 0 for 2 s; both exchange for 3 s and multiply for 4 s.

    A task of the host takes 1 s beside all that on rank 0.
    """
    builder = GraphBuilder()
    streams = {
        (rank, name): builder.add_stream(rank, name)
        for rank in (0, 1)
        for name in ("compute", "communication", "host")
    }
    lookups = [
        builder.add_task("lookup", TaskKind.COMPUTE, streams[rank, "compute"], seconds)
        for rank, seconds in enumerate((2.0, slow_s))
    ]
    exchanges = [
        builder.add_task(
            "exchange", TaskKind.COLLECTIVE, streams[rank, "communication"], 3.0, (lookups[rank],)
        )
        for rank in (0, 1)
    ]
    builder.add_collective(exchanges)
    for rank in (0, 1):
        builder.add_task(
            "product", TaskKind.COMPUTE, streams[rank, "compute"], 4.0, (exchanges[rank],)
        )
    builder.add_task("launch", TaskKind.HOST, streams[0, "host"], 1.0)
    return builder.build()


def needs(graph):
    """Lookups are memory, of which 1 s is hidden cache; exchanges 1 s of latency and 2 s of link.

    Products keep arithmetic busy for 4 s and memory for 3.8 s.
    """
    duration = graph.duration_s
    return resources_of(
        graph,
        overlapped=[
            (Resource.MEMORY, LOOKUP_0, duration[LOOKUP_0]),
            (Resource.MEMORY, LOOKUP_1, duration[LOOKUP_1]),
            (Resource.CACHE, LOOKUP_1, 1.0),
            *((Resource.ARITHMETIC, task, 4.0) for task in (PRODUCT_0, PRODUCT_1)),
            *((Resource.MEMORY, task, 3.8) for task in (PRODUCT_0, PRODUCT_1)),
        ],
        sequential=[
            *((Resource.COLLECTIVE_LATENCY, task, 1.0) for task in (EXCHANGE_0, EXCHANGE_1)),
            *((Resource.LINK, task, 2.0) for task in (EXCHANGE_0, EXCHANGE_1)),
            (Resource.HOST, LAUNCH, 1.0),
        ],
    )


@pytest.fixture
def explained():
    graph = slow_and_fast()
    return explain_graph(graph, needs(graph), GROUPS, MOVABLE)


def test_the_path_by_group_resource_and_rank(explained):
    assert explained.iteration_time_s == 13.0
    # The path may go on either rank after the exchange; ties stay on the stream with lower index.
    found = [(one.group, one.resource, one.tasks, one.seconds) for one in explained.path]
    assert found == [
        ("lookups", Resource.MEMORY, 1, 6.0),
        ("products", Resource.ARITHMETIC, 1, 4.0),
        ("all-to-all", Resource.LINK, 1, 2.0),
        ("all-to-all", Resource.COLLECTIVE_LATENCY, 1, 1.0),
    ]
    assert explained.path[0].rank == 1
    assert sum(one.share for one in explained.path) == pytest.approx(1.0)


def test_the_sentence_names_group_rank_and_resource(explained):
    assert explained.sentence == (
        "bound by lookups on rank 1 (memory bandwidth), 46 % of the iteration; "
        "then products on rank 0 (FLOP rate), 31 %"
    )


def test_a_collective_in_the_sentence_has_no_rank():
    graph = slow_and_fast(slow_s=2.5)
    groups = ["lookups", "lookups", "products", "products", "products", "products", "host"]
    assert "products (FLOP rate), " in explain_graph(graph, needs(graph), groups).sentence


def test_every_task_of_the_path_is_listed_with_who_came_last(explained):
    listed = [(one.name, one.start_s, one.seconds) for one in explained.tasks]
    assert listed == [("lookup", 0.0, 6.0), ("exchange", 6.0, 3.0), ("product", 9.0, 4.0)]
    lookup, exchange, _ = explained.tasks
    assert (lookup.rank, lookup.resource, lookup.longest_wait_s) == (1, Resource.MEMORY, 0.0)
    assert (exchange.last_rank, exchange.longest_wait_s) == (1, 4.0)
    assert exchange.resource is Resource.LINK


def test_where_the_iteration_of_each_rank_goes(explained):
    fast, slow = explained.ranks
    assert (fast.compute_s, fast.transfer_s, fast.waiting_s) == (6.0, 3.0, 4.0)
    assert (slow.compute_s, slow.transfer_s, slow.waiting_s) == (10.0, 3.0, 0.0)
    # The launch is hidden behind the lookup.
    assert (fast.host_s, fast.idle_s) == (0.0, 0.0)
    assert [(one.rank, one.times, one.seconds) for one in fast.waited_for] == [(1, 1, 4.0)]
    assert slow.waited_for == ()


def test_a_rank_without_its_tables(explained):
    fast, slow = explained.ranks
    # Without the slow lookup the fast one of 2 s is waited for.
    assert slow.gain_without_movable_s == 4.0
    assert fast.gain_without_movable_s == 0.0
    assert (fast.movable_s, slow.movable_s) == (2.0, 6.0)


def test_the_imbalance_of_tables(explained):
    balance = explained.imbalance
    assert (balance.most_loaded_rank, balance.most_s, balance.mean_s) == (1, 6.0, 4.0)
    assert balance.excess == pytest.approx(0.5)
    assert balance.gain_if_even_s == pytest.approx(2.0)


def test_sensitivities_by_hand(explained):
    gains = {one.resource: one.gain_s for one in explained.sensitivities}
    saved = 1 - 1 / FASTER
    assert gains[Resource.MEMORY] == pytest.approx(6.0 * saved)
    assert gains[Resource.LINK] == pytest.approx(2.0 * saved)
    assert gains[Resource.COLLECTIVE_LATENCY] == pytest.approx(saved)
    # Past the ridge the products are bound by memory, at 3.8 s.
    assert gains[Resource.ARITHMETIC] == pytest.approx(0.2)
    # The host works beside the path, and the cache beside memory.
    assert gains[Resource.HOST] == 0.0
    assert gains[Resource.CACHE] == 0.0
    assert Resource.NETWORK not in gains
    assert explained.sensitivities[0].resource is Resource.MEMORY


def test_the_difference_by_hand_adds_up_exactly(explained):
    graph = slow_and_fast(slow_s=1.0)
    difference = compare_explanations(explained, explain_graph(graph, needs(graph), GROUPS))
    # Now rank 0 with its 2 s is the slow one.
    assert (difference.before_s, difference.after_s, difference.change_s) == (13.0, 9.0, -4.0)
    first = difference.steps[0]
    assert (first.group, first.resource, first.before_s, first.after_s) == (
        "lookups",
        Resource.MEMORY,
        6.0,
        2.0,
    )
    assert all(step.change_s == 0.0 for step in difference.steps[1:])


def test_a_group_on_one_path_only_is_a_step(explained):
    graph = slow_and_fast()
    renamed = ["other" if group == "lookups" else group for group in GROUPS]
    difference = compare_explanations(explained, explain_graph(graph, needs(graph), renamed))
    changes = {step.group: step.change_s for step in difference.steps}
    assert (changes["lookups"], changes["other"]) == (-6.0, 6.0)
    assert difference.change_s == 0.0


def test_what_parts_leave_over_is_not_told_apart():
    graph = slow_and_fast()
    explained = explain_graph(graph, resources_of(graph), GROUPS)
    assert {one.resource for one in explained.path} == {Resource.OTHER}
    assert explained.sensitivities == ()
    assert explained.imbalance is None


def test_parts_longer_than_the_task_are_an_error():
    graph = slow_and_fast()
    with pytest.raises(SimulationError, match="exceed its duration"):
        resources_of(graph, sequential=[(Resource.HOST, LAUNCH, 1.1)])


def test_arguments_of_another_graph_are_an_error():
    graph = slow_and_fast()
    with pytest.raises(SimulationError, match="the graph has 7"):
        explain_graph(graph, needs(graph), GROUPS[:-1])


def test_an_empty_graph_takes_no_time():
    graph = GraphBuilder().build()
    explained = explain_graph(graph, resources_of(graph), ())
    assert (explained.iteration_time_s, explained.path, explained.ranks) == (0.0, (), ())


def test_nothing_is_faster_where_nothing_takes_time():
    builder = GraphBuilder()
    builder.add_task("lookup", TaskKind.COMPUTE, builder.add_stream(0, "compute"), 0.0)
    graph = builder.build()
    explained = explain_graph(graph, resources_of(graph), ("lookups",))
    assert (explained.iteration_time_s, explained.sensitivities) == (0.0, ())


@pytest.mark.parametrize(
    ("precision", "name"),
    [(Precision.FP32, "FLOP rate"), (Precision.TF32, "tensor cores")],
)
def test_what_multiplies_matrices_depends_on_the_precision(precision, name):
    assert resource_names(make_cluster(), precision)[Resource.ARITHMETIC] == name


@st.composite
def shared_graphs(draw):
    """Random graphs whose tasks are divided among random resources."""
    graph = draw(graphs(least=1, most=10))
    shape = (len(Resource), graph.task_count)
    weights = np.array(
        draw(
            st.lists(
                st.floats(0, 1), min_size=2 * shape[0] * shape[1], max_size=2 * shape[0] * shape[1]
            )
        )
    ).reshape(2, *shape)
    taken = weights[0].max(axis=0) + weights[1].sum(axis=0)
    scale = np.divide(graph.duration_s, taken, out=np.zeros_like(taken), where=taken > 0.1)
    resources = TaskResources.of(graph.duration_s, weights[0] * scale, weights[1] * scale)
    groups = [draw(st.sampled_from(("a", "b", "c"))) for _ in range(graph.task_count)]
    return graph, resources, groups


@given(shared_graphs())
def test_paths_and_ranks_add_up(case):
    graph, resources, groups = case
    explained = explain_graph(graph, resources, groups)
    length_s = simulate(graph).makespan_s
    length = pytest.approx(length_s, rel=1e-9, abs=1e-12)
    assert explained.iteration_time_s == length_s
    assert sum(one.seconds for one in explained.path) == length
    assert sum(one.seconds for one in explained.tasks) == length
    for rank, parts in zip(explained.ranks, breakdown(simulate(graph)), strict=True):
        whole = rank.compute_s + rank.transfer_s + rank.waiting_s + rank.host_s + rank.idle_s
        assert whole == length
        assert rank.compute_s == parts.compute_s
        assert rank.transfer_s == pytest.approx(parts.exposed_communication_s, abs=1e-9)


@given(shared_graphs())
def test_a_faster_resource_never_costs_time_and_gains_no_more_than_its_work(case):
    graph, resources, groups = case
    explained = explain_graph(graph, resources, groups)
    for one in explained.sensitivities:
        assert -1e-9 <= one.gain_s <= explained.iteration_time_s * (1 - 1 / FASTER) + 1e-9
        row = ROW[one.resource]
        if not (resources.overlapped_s[row].any() or resources.sequential_s[row].any()):
            assert one.gain_s == 0.0


@given(shared_graphs(), shared_graphs())
def test_differences_add_up(first, second):
    difference = compare_explanations(explain_graph(*first), explain_graph(*second))
    total_s = sum(step.change_s for step in difference.steps)
    assert total_s == pytest.approx(difference.change_s, rel=1e-9, abs=1e-9)


def without_work_of(graph, movable, rank):
    rank_of = np.array([stream.rank for stream in graph.streams])[graph.stream]
    duration_s = np.where(movable & (rank_of == rank), 0.0, graph.duration_s)
    return simulate(graph, duration_s).makespan_s


@given(shared_graphs(), st.randoms(use_true_random=False))
def test_the_gain_of_every_rank_is_that_of_the_graph_without_its_work(case, random):
    graph, resources, groups = case
    movable = np.array([random.random() < 0.5 for _ in groups])
    explained = explain_graph(graph, resources, groups, movable)
    for one in explained.ranks:
        shorter_s = without_work_of(graph, movable, one.rank)
        gain_s = explained.iteration_time_s - shorter_s
        assert one.gain_without_movable_s == pytest.approx(gain_s, abs=1e-9)


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@given(symmetric_ranks(), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_ranks_that_repeat_others_are_explained_as_if_they_were_there(ranks, different, seed):
    rng = np.random.default_rng(seed)
    count = ranks.graph.task_count
    # Few different durations, so that nodes and local ranks repeat.
    durations_s = rng.integers(1, 1 + different, (count, ranks.copies)) * 1.0
    movable, group = rng.random(count) < 0.5, rng.choice(["a", "b"], count)

    def explained(chosen, folded):
        graph = expanded(chosen, durations_s[:, chosen.kept]).graph
        copies = len(chosen.kept)
        resources = resources_of(
            graph, [(Resource.MEMORY, task, each) for task, each in enumerate(graph.duration_s)]
        )
        groups = np.repeat(group, copies).tolist()
        return explain_graph(graph, resources, groups, np.repeat(movable, copies), folded)

    folded = ranks.folded(durations_s)
    few, every = explained(folded, folded), explained(ranks.unfolded(), None)
    assert few.iteration_time_s == every.iteration_time_s
    assert [(one.task, one.rank) for one in few.tasks] == [
        (one.task, one.rank) for one in every.tasks
    ]
    assert (few.imbalance is None) == (every.imbalance is None)
    if few.imbalance and every.imbalance:
        assert few.imbalance.most_loaded_rank == every.imbalance.most_loaded_rank
        assert few.imbalance.mean_s == near(every.imbalance.mean_s)
        assert few.imbalance.gain_if_even_s == near(every.imbalance.gain_if_even_s)
    for mine, expected in zip(few.ranks, every.ranks, strict=True):
        assert mine.rank == expected.rank
        for part in ("compute_s", "transfer_s", "waiting_s", "host_s", "idle_s", "movable_s"):
            assert getattr(mine, part) == near(getattr(expected, part))
        assert mine.gain_without_movable_s == near(expected.gain_without_movable_s)
        assert [(one.rank, one.times) for one in mine.waited_for] == [
            (one.rank, one.times) for one in expected.waited_for
        ]
