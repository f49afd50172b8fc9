"""Nodes that are alike are looked at once, and nothing changes by that."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from dse.sharding import ShardingType
from dse.workload.dlrm import ExchangeGroup, PlanScorer, slot_durations_s
from dse.workload.dlrm.scoring._features import FEATURE_COUNT
from dse.workload.dlrm.solver import planning_request, solve
from dse.workload.dlrm.solver.bound import table_choices
from tests.conftest import make_cluster
from tests.workload.dlrm.solver.bound.oracle import dlrm, random_tables

EVERY_GROUP = (1 << len(ExchangeGroup)) - 1
CHOICES = "dse.workload.dlrm.solver.bound._choices"
PLACING = "dse.workload.dlrm.solver.starts._placing"


def problem(seed, world, **settings):
    tables = random_tables(np.random.default_rng(seed), 5)
    return dlrm(tables, make_cluster(world, 2), batch=64 * world, **settings)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_stands_for_several_takes_as_long_as_they_do(seed):
    rng = np.random.default_rng(seed)
    work = problem(seed, 12)
    width = FEATURE_COUNT
    different = rng.random((width, 3, 2, 4)) * 1e6
    counts = np.array([3, 1, 2])
    of_all = np.repeat(different, counts, axis=1).reshape(width, 12, 4)
    expected = slot_durations_s(work, EVERY_GROUP, of_all)
    found = slot_durations_s(
        work, EVERY_GROUP, different.reshape(width, 6, 4), counts.astype(float)
    )
    kept = np.array([0, 1, 6, 7, 8, 9])
    np.testing.assert_allclose(found, expected[:, kept], rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_choices_on_many_nodes_are_those_of_all_ranks(seed, monkeypatch):
    scorer = PlanScorer(problem(seed, 16))
    request = planning_request(scorer, frozenset(ShardingType), 0)
    expected = table_choices(scorer, request)
    monkeypatch.setattr(f"{CHOICES}._MANY_NODES", 1)
    found = table_choices(scorer, request)
    for field in fields(expected):
        before, after = (getattr(one, field.name) for one in (expected, found))
        if isinstance(before, np.ndarray):
            np.testing.assert_allclose(after, before, rtol=1e-12, err_msg=field.name)
        else:
            assert after == before


@pytest.mark.parametrize("seed", range(2))
def test_plans_are_constructed_as_if_every_node_were_looked_at(seed, monkeypatch):
    scorer = PlanScorer(problem(seed, 64))
    looked_at = []

    def spied(options, used, shards):
        looked_at.append(len(enough(options, used, shards)))
        return enough(options, used, shards)

    def every(options, used, shards):
        return np.arange(options.request.node_count)

    from dse.workload.dlrm.solver.starts import _placing

    enough = _placing._enough_nodes
    plans = []
    for chosen in (spied, every):
        monkeypatch.setattr(f"{PLACING}._enough_nodes", chosen)
        plans.append(solve(scorer).plan)
    assert plans[0] == plans[1]
    assert min(looked_at) < 32
