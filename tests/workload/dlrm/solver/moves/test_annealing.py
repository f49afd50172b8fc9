"""Annealed balancing of many ranks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dse.workload.dlrm.solver.moves import AnnealingBalancer, MovableShards
from dse.workload.dlrm.solver.starts._hierarchical import THOROUGH_SCHEDULE


def make_shards(loads, rank, ranks, *, table=None, allowed=None):
    """Shards with some loads and a byte each."""
    loads = np.atleast_2d(np.array(loads, dtype=float))
    count = loads.shape[1]
    return MovableShards(
        table=np.arange(count) if table is None else np.array(table),
        offset=np.zeros(count, dtype=np.int64),
        rank=np.array(rank, dtype=np.int64),
        node=np.full(count, -1),
        loads=np.vstack((loads, np.ones(count))),
        fixed=np.zeros((len(loads) + 1, ranks)),
        load_of=np.arange(len(loads)),
        allowed=allowed,
    )


def annealed(shards, weights=None, memory_bytes=1e9):
    costs = np.ones(len(shards.load_of)) if weights is None else weights
    balancer = AnnealingBalancer(shards, costs, memory_bytes, 8, lambda: False)
    balancer.anneal(THOROUGH_SCHEDULE)
    return balancer


def sums(shards, rank):
    """Loads of all ranks, without bytes."""
    total = np.zeros((len(shards.load_of), shards.fixed.shape[1]))
    np.add.at(total.T, rank, shards.loads[:-1].T)
    return total


def test_annealing_finds_the_even_split_of_two_loads_at_once():
    # Each kind twice on a rank is uneven; one of each kind on every rank is exactly even.
    loads = [[4, 4, 4, 4, 1, 1, 1, 1], [1, 1, 1, 1, 4, 4, 4, 4]]
    shards = make_shards(loads, [0, 0, 1, 1, 2, 2, 3, 3], 4)
    found = annealed(shards)
    assert sums(shards, found.places).tolist() == [[5.0] * 4, [5.0] * 4]


def test_annealing_lowers_ranks_that_are_equally_loaded():
    # Three ranks are the most loaded: no single exchange lowers the largest load.
    shards = make_shards([[5, 5, 5, 5, 5, 5, 1, 1, 1]], [0, 0, 1, 1, 2, 2, 3, 4, 5], 6)
    found = annealed(shards)
    assert sums(shards, found.places).max() == 6.0


@pytest.mark.parametrize("seed", range(4))
def test_annealing_is_near_the_optimum_and_never_worse_than_the_start(seed):
    rng = np.random.default_rng(seed)
    loads = rng.integers(1, 20, (2, 7)).astype(float)
    shards = make_shards(loads, [0] * 7, 3)
    found = annealed(shards)
    costs = [
        sums(shards, np.array(each)).max(axis=1).sum() for each in product(range(3), repeat=7)
    ]
    cost = sums(shards, found.places).max(axis=1).sum()
    assert cost <= 1.15 * min(costs)
    start = AnnealingBalancer(shards, np.ones(2), 1e9, 8, lambda: False)
    assert found.value() <= start.value()


def test_annealing_keeps_memory_shards_of_a_table_apart_and_pins():
    crowded = make_shards([[9, 1, 1, 1]], [0, 1, 1, 1], 2)
    places = annealed(crowded, memory_bytes=3.0).places
    assert np.bincount(places, minlength=2).max() <= 3
    cut = make_shards([[8, 8, 1, 1]], [0, 1, 0, 1], 2, table=[0, 0, 1, 2])
    places = annealed(cut).places
    assert places[0] != places[1]
    allowed = np.array([[True, False], [True, True], [True, True]])
    pinned = make_shards([[6, 5, 1]], [0, 0, 0], 2, allowed=allowed)
    places = annealed(pinned).places
    assert places[0] == 0
    assert sums(pinned, places).max() == 6.0


def test_annealing_leaves_a_single_rank_and_no_shards_alone():
    assert annealed(make_shards([[3, 2]], [0, 0], 1)).places.tolist() == [0, 0]
    empty = make_shards(np.zeros((1, 0)), [], 2)
    assert len(annealed(empty).places) == 0
