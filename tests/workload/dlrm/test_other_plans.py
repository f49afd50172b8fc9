"""Plans that were found for other jobs."""

from __future__ import annotations

from functools import cache
import random

import pytest

from dse.errors import PlanError
from dse.machine.platforms import load_platform
from dse.sharding import ShardingPlan, ShardingType, TableConstraints, TablePlan
from dse.workload.dlrm import DlrmWorkload
from tests.conftest import make_model, make_table

platform_of = cache(load_platform)
WHOLE, ROWS = ShardingType.TABLE_WISE, ShardingType.ROW_WISE


def job(model=None, constraints=(), **parameters):
    workload = DlrmWorkload(model or make_model()).with_table_constraints(dict(constraints))
    chosen = {"world_size": 2, "global_batch_size": 4096, "program": "ideal", **parameters}
    return workload.job(platform_of("a100_sxm_80"), chosen)


def plans_of(wanted, count, kinds):
    """Random plans of a job's tables."""
    rng, ranks = random.Random(count), wanted.cluster.world_size
    names = [table.name for table in wanted.problem.model.tables]
    for _ in range(count):
        drawn = [rng.choice(kinds) for _ in names]
        yield ShardingPlan(
            ranks,
            tuple(
                TablePlan(
                    name, kind, (rng.randrange(ranks),) if kind is WHOLE else (*range(ranks),)
                )
                for name, kind in zip(names, drawn, strict=True)
            ),
        )


def test_the_fastest_plan_is_taken():
    wanted, other = job(launch="eager"), job(launch="cuda_graphs")
    others = [other.with_plan(plan, "other") for plan in plans_of(other, 12, (WHOLE, ROWS))]
    found = wanted.with_best_plan(others)
    times_s = [wanted.with_plan(each.plan).simulated().time_s for each in others]
    assert found.simulated().time_s == pytest.approx(min(times_s))
    assert found.planner == "other"
    assert len({round(time_s, 9) for time_s in times_s}) > 3


def test_only_plans_that_may_be_used_are_taken():
    free, whole = job(), job(sharding_types="table_wise")
    rows, all_whole = (next(plans_of(free, 1, (kind,))) for kind in (ROWS, WHOLE))
    assert (
        whole.with_best_plan([free.with_plan(rows), free.with_plan(all_whole)]).plan == all_whole
    )
    with pytest.raises(PlanError):
        whole.with_best_plan([free.with_plan(rows)])
    four = job(world_size=4)
    with pytest.raises(PlanError):
        free.with_best_plan([four.with_plan(next(plans_of(four, 1, (WHOLE,)))), free])
    by_rows = TableConstraints("t0", allowed_types=frozenset({ROWS}))
    pinned = job(constraints={"by_rows": (by_rows,)}, table_constraints="by_rows")
    with pytest.raises(PlanError):
        pinned.with_best_plan([free.with_plan(all_whole)])
    hugectr = job(program="hugectr")
    with pytest.raises(PlanError):
        free.with_best_plan([hugectr.with_plan(all_whole)])


def test_a_plan_that_does_not_fit_is_not_taken():
    model = make_model((make_table("large", rows=400_000_000, dim=64),))
    wanted = job(model)
    whole, rows = (wanted.with_plan(next(plans_of(wanted, 1, (kind,)))) for kind in (WHOLE, ROWS))
    assert wanted.with_best_plan([whole, rows]).plan == rows.plan
    with pytest.raises(PlanError):
        wanted.with_best_plan([whole])
