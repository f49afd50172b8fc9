"""Plans that were found for other jobs."""

from __future__ import annotations

from functools import cache
import math
import random

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


def test_every_faster_plan_is_returned():
    wanted, other = job(launch="eager"), job(launch="cuda_graphs")
    others = [other.with_plan(plan, "other") for plan in plans_of(other, 12, (WHOLE, ROWS))]
    times_s = {each.plan: wanted.with_plan(each.plan).simulated().time_s for each in others}
    limit_s = sorted(times_s.values())[6] * (1 + 1e-6)
    found = wanted.with_plans_of(others, limit_s)
    assert {each.plan for each in found} == {
        plan for plan, time_s in times_s.items() if time_s < limit_s
    }
    assert 6 < len(found) < len(times_s)
    assert {each.planner for each in found} == {"other"}
    assert all(each.simulated().time_s < limit_s for each in found)


def test_only_plans_that_may_be_used_are_returned():
    free, whole = job(), job(sharding_types="table_wise")
    rows, all_whole = (free.with_plan(next(plans_of(free, 1, (kind,)))) for kind in (ROWS, WHOLE))
    (found,) = whole.with_plans_of([rows, all_whole], math.inf)
    assert found.plan == all_whole.plan
    four = job(world_size=4)
    assert not free.with_plans_of([four.with_plan(next(plans_of(four, 1, (WHOLE,))))], math.inf)
    assert not free.with_plans_of([free], math.inf)
    by_rows = TableConstraints("t0", allowed_types=frozenset({ROWS}))
    pinned = job(constraints={"by_rows": (by_rows,)}, table_constraints="by_rows")
    assert not pinned.with_plans_of([all_whole], math.inf)
    hugectr = job(program="hugectr")
    assert not free.with_plans_of([hugectr.with_plan(all_whole.plan)], math.inf)


def test_a_plan_that_does_not_fit_is_not_returned():
    model = make_model((make_table("large", rows=400_000_000, dim=64),))
    wanted = job(model)
    whole, rows = (wanted.with_plan(next(plans_of(wanted, 1, (kind,)))) for kind in (WHOLE, ROWS))
    (found,) = wanted.with_plans_of([whole, rows], math.inf)
    assert found.plan == rows.plan
