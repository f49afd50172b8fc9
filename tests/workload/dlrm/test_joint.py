"""Placements of tables as parameters."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from dse.model import Optimizer
from dse.sharding import PlanningRequest, ShardingType
from dse.workload.dlrm import DlrmWorkload
from dse.workload.dlrm._joint import _cut, joint_plan
from tests.conftest import make_model, make_table

CUTTING = frozenset({ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.ROW_WISE})


def request_for(world_size, tables, types=CUTTING):
    return PlanningRequest(tables, Optimizer.SGD, world_size, 8, types, 1e12)


def test_every_table_becomes_a_parameter_with_all_that_some_machine_allows():
    model = make_model((make_table("wide", dim=64), make_table("thin", dim=16)))
    platforms = {"h100_sxm": load_platform("h100_sxm")}
    choices = {
        "platform": ("h100_sxm",),
        "world_size": (2, 4),
        "sharding_types": ("table_wise+column_wise+row_wise",),
    }
    found = DlrmWorkload(model).placement_parameters(platforms, choices)
    wide, thin = (parameter.choices for parameter in found)
    assert [parameter.name for parameter in found] == ["plan.wide", "plan.thin"]
    # Four ranks cut 64 columns into 2 or 4 pieces; 16 columns are the narrowest piece.
    assert wide == (
        "table_wise",
        "column_wise/2",
        "column_wise/4",
        "row_wise",
    )
    assert thin == ("table_wise", "column_wise", "row_wise")


def test_a_cut_too_fine_for_the_machine_becomes_the_finest_it_allows():
    wide = (make_table("wide", dim=128),)
    assert _cut(0, request_for(8, wide), "column_wise/4").shards == 4
    assert _cut(0, request_for(2, wide), "column_wise/4").shards == 2
    assert _cut(0, request_for(1, wide), "column_wise/4").shards == 1
    assert _cut(0, request_for(8, wide), "column_wise").shards == 2


def test_plans_that_fit_come_before_faster_ones_that_do_not():
    scores = SimpleNamespace(
        fits=np.array([False, True, True]),
        iteration_time_s=np.array([1.0, 3.0, 2.0]),
        peak_memory_bytes=np.array([9e9, 1e9, 1e9]),
    )
    tables = (make_table("t0"), make_table("t1"))
    chosen = {"t0": "table_wise", "t1": "row_wise"}
    asked = request_for(2, tables)

    def planner(scores):
        return joint_plan(SimpleNamespace(score=lambda plans: scores), asked, chosen)[1]

    assert planner(scores) == "joint, ranks by size"
    scores.fits[:] = False
    scores.peak_memory_bytes[1] = 0.5e9
    assert planner(scores) == "joint, ranks by output width"


def test_more_tables_than_a_sampler_can_learn_are_refused():
    model = make_model(tuple(make_table(f"t{index}") for index in range(31)))
    choices = {"platform": ("h100_sxm",), "world_size": (2,), "sharding_types": ("row_wise",)}
    with pytest.raises(ConfigError, match="at most 30 tables"):
        DlrmWorkload(model).placement_parameters({"h100_sxm": load_platform("h100_sxm")}, choices)
