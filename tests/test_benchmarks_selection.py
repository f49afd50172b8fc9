"""Tasks of benchmarks/selection.py and how they are judged."""

from __future__ import annotations

import importlib
import math
import sys

import pytest

from dse.platforms import load_platform
from dse.prediction import PlanScorer, problem_of
from dse.solver import planning_request
from tests.conftest import ROOT


@pytest.fixture
def selection(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("selection")
    sys.modules.pop("selection", None)


def test_a_task_depends_on_its_number_and_seed_alone(selection):
    def names(number, seed):
        return [table.name for table in selection.draw_model(number, seed, 2, 8.0).tables]

    assert names(0, 0) == names(0, 0)
    assert names(0, 0) != names(1, 0)
    assert names(0, 0) != names(0, 1)


def test_tasks_fit_the_machine(selection):
    for number in range(5):
        model = selection.draw_model(number, 0, 2, 8.0)
        assert 8 <= len(model.tables) <= 24
        assert model.embedding_bytes <= 200e6
        assert model.global_batch_size % 2 == 0
        looked_up = sum(table.lookups_per_sample * table.dim * 4 for table in model.tables)
        assert model.global_batch_size * looked_up <= 8e6


def test_sharders_place_whole_tables(selection):
    model = selection.draw_model(0, 0, 2, 8.0)
    configuration = selection.configuration_of(model, 2)
    scorer = PlanScorer(problem_of(model, load_platform("cpu"), configuration))
    request = planning_request(scorer, selection.WHOLE_TABLES, 0)
    plans = {
        name: make(request) for name, make in selection.sharders(model.global_batch_size).items()
    }
    assert len(plans) == 6
    naive = [table.ranks for table in plans["naive"].tables]
    assert naive == [(number % 2,) for number in range(len(model.tables))]
    for plan in plans.values():
        assert [table.table for table in plan.tables] == [table.name for table in model.tables]
        assert all(len(table.ranks) == 1 for table in plan.tables)


def test_figures_of_made_up_tasks(selection):
    def plan(name, predicted_s, measured_s):
        return selection.PlanRow(
            (name,), predicted_s, measured_s, 0.9 * measured_s, 1.1 * measured_s, measured_s / 2
        )

    def task(number, plans, success, regret, tau):
        logs = [math.log(one.predicted_s / one.measured_s) for one in plans]
        error = math.expm1(sum(map(abs, logs)) / len(logs))
        scale = math.exp(sum(logs) / len(logs))
        return selection.TaskRow(number, 3, 64, plans, success, regret, tau, error, scale)

    # Predictions are half of the truth but for one, which is the truth and so looks slow.
    good = task(0, (plan("a", 1.0, 2.0), plan("b", 1.5, 3.0)), True, 0.0, 1.0)
    bad = task(1, (plan("a", 2.0, 2.0), plan("b", 1.25, 2.5)), False, 0.25, -1.0)
    found = selection.summary([good, bad])
    assert found["tasks"] == 2
    assert found["success_rate"] == 0.5
    assert found["mean_top1_regret"] == 0.125
    assert found["worst_top1_regret"] == 0.25
    assert found["kendall_tau"] == 0.0
    # Factors are 2, 2, 1, 2: the mean of their logarithms is 3/4 of log 2.
    assert found["geomean_time_error"] == pytest.approx(2**0.75 - 1)
    assert found["predicted_over_measured"] == pytest.approx(2**-0.75)
    # What is left: three times a quarter and once three quarters of log 2.
    assert found["geomean_time_error_after_scale"] == pytest.approx(2 ** (1.5 / 4) - 1)
    assert found["median_half_width"] == pytest.approx(0.1)
    assert found["wall_over_processor"] == pytest.approx(2.0)
    assert found["processor_success_rate"] == 0.5
    assert found["processor_kendall_tau"] == 0.0
    text = "\n".join(selection.lines([good, bad]))
    assert "chosen, loses 25.0%" in text
    assert text.count("chosen") == 2
