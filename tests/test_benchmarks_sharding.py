"""Tasks of benchmarks/sharding.py, and how its marks are judged."""

from __future__ import annotations

import importlib
import sys

import pytest

from dse.sharding import PLANNERS, total_device_bytes
from dse.workload.dlrm import DlrmJob, PlanScorer
from dse.workload.dlrm.solver import planning_request
from tests.conftest import ROOT

MODULES = ("sharding_marks", "sharding_tasks", "speed", "torchrec_planner")


@pytest.fixture
def benchmarks(monkeypatch):
    # The benchmark asks for one thread unless told otherwise; that stays in this test.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def tasks(benchmarks):
    return benchmarks("sharding_tasks")


@pytest.fixture
def marks(benchmarks, tasks):
    return benchmarks("sharding_marks")


def test_a_draw_depends_on_its_number_and_seed_alone(tasks):
    def names(**arguments):
        task = tasks.draw_task(10, **{"ranks": 2, **arguments})
        return [table.name for table in task.problem.model.tables]

    assert names() == names()
    assert len(set(names())) == 10
    assert names() == names(ranks=8) == names(platform="a100_sxm_40") == names(tight=True)
    assert names() != names(number=1)
    assert names() != names(seed=1)


def test_all_tables_can_be_drawn(tasks):
    task = tasks.draw_task(856, 128)
    assert task.problem.model.tables == tasks.load_model(tasks.MODEL).tables
    assert task.setting == (856, 128, "h100_sxm", "loose")


def test_tables_fill_the_memory_of_a_tight_task(tasks):
    loose, tight = (tasks.draw_task(20, 8, tight=tight) for tight in (False, True))
    scorers = [PlanScorer(task.problem) for task in (loose, tight)]
    request = planning_request(scorers[0], tasks.ALL_TYPES, 0)
    plan = PLANNERS["memory_balanced"](request)
    filled = []
    for scorer in scorers:
        fixed = scorer.memory.fixed_bytes
        free = 8 * (scorer.problem.cluster.device.usable_memory_bytes - fixed)
        memory = DlrmJob.scored(scorer, plan).memory()
        held = sum(account.total_bytes for account in memory) - 8 * fixed
        filled.append(held / free)
    assert filled[0] < 0.2
    assert filled[1] == pytest.approx(0.875)
    # Weights and state are most of it, the buffers that follow the tables the rest.
    assert 0.5 < total_device_bytes(request) / free < 0.875
    assert tight.problem.cluster.device.memory_bytes < loose.problem.cluster.device.memory_bytes


def test_all_methods_are_scored_against_one_bound(tasks):
    result = tasks.run_task(tasks.draw_task(8, 2), (0.05,), with_torchrec=False)
    methods = [one.method for one in result.outcomes]
    assert methods == [*tasks.PLANNERS, "ours, 0.05 s"]
    assert all(result.gap(method) >= 0 for method in methods)
    assert result.outcome("ours, 0.05 s").iteration_time_s <= result.others_best_s


def made_up(tasks, baseline_s, ours_s):
    outcomes = (
        tasks.Outcome("size_greedy", 0.1, 0.1, baseline_s, 0),
        tasks.Outcome("ours, 0.9 s", 0.8, 0.8, ours_s, 10),
    )
    return tasks.TaskResult(tasks.draw_task(1, 1), outcomes, 1.0, 0.1)


def test_marks_say_what_was_missed(tasks, marks):
    none = float("inf")
    good = [made_up(tasks, 1.2, 1.01), made_up(tasks, 1.2, 1.03), made_up(tasks, none, 1.015)]
    assert [mark.met for mark in marks.gap_marks(good)] == [True, True, True]
    assert [mark.met for mark in marks.comparison_marks(good, "ours, 0.9 s")] == [True, True]
    bad = [made_up(tasks, 1.0, 1.1), made_up(tasks, 1.2, none)]
    assert [mark.met for mark in marks.gap_marks(bad)] == [False, False, True]
    worse, lost = marks.comparison_marks(bad, "ours, 0.9 s")
    assert (worse.figure[:6], lost.figure[:6]) == ("2 of 2", "1 of 2")
    assert not worse.met
    assert not lost.met


def test_the_exponent_of_a_power_law_is_found(marks):
    sizes = ((20, 4), (100, 8), (400, 16))
    points = [marks.Growth(*size, 0.0, 0) for size in sizes]
    points = [marks.Growth(one.tables, one.ranks, 3e-4 * one.size**0.7, 0) for one in points]
    assert points[0].size == pytest.approx(20 * 4 * 4.3219, rel=1e-4)
    assert marks.growth_exponent(points) == pytest.approx(0.7)
    (mark,) = marks.growth_marks(points)
    assert mark.met
