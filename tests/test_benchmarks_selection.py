"""Tasks of benchmarks/selection.py and how they are judged."""

from __future__ import annotations

from dataclasses import asdict
import importlib
import json
import math
import sys

import pytest

from dse.machine.platforms import load_platform
from dse.workload.dlrm import PlanScorer
from dse.workload.dlrm.solver import planning_request
from tests.conftest import ROOT

MODULES = (
    "selection",
    "selection_calibrate",
    "selection_clock",
    "selection_figures",
    "selection_phases",
    "selection_tasks",
)


@pytest.fixture
def selection(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("selection")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def tasks(selection):
    return importlib.import_module("selection_tasks")


@pytest.fixture
def figures(selection):
    return importlib.import_module("selection_figures")


@pytest.fixture
def clock(selection):
    return importlib.import_module("selection_clock")


@pytest.fixture
def phases(selection):
    return importlib.import_module("selection_phases")


def test_a_task_depends_on_its_number_and_seed_alone(tasks):
    def names(number, seed):
        return [table.name for table in tasks.draw_model(number, seed, 2, 8.0).tables]

    assert names(0, 0) == names(0, 0)
    assert names(0, 0) != names(1, 0)
    assert names(0, 0) != names(0, 1)


def test_tasks_fit_the_machine(tasks):
    for number in range(5):
        model = tasks.draw_model(number, 0, 2, 8.0)
        assert 8 <= len(model.tables) <= 24
        assert model.embedding_bytes <= 200e6
        assert model.global_batch_size % 2 == 0
        looked_up = sum(table.lookups_per_sample * table.dim * 4 for table in model.tables)
        assert model.global_batch_size * looked_up <= 8e6


def test_sharders_place_whole_tables(tasks):
    model = tasks.draw_model(0, 0, 2, 8.0)
    scorer = PlanScorer(tasks.task_problem(model, 2, load_platform("cpu")))
    request = planning_request(scorer, tasks.WHOLE_TABLES, 0)
    plans = {name: make(request) for name, make in tasks.sharders(model.global_batch_size).items()}
    assert len(plans) == 6
    naive = [table.ranks for table in plans["naive"].tables]
    assert naive == [(number % 2,) for number in range(len(model.tables))]
    for plan in plans.values():
        assert [table.table for table in plan.tables] == [table.name for table in model.tables]
        assert all(len(table.ranks) == 1 for table in plan.tables)


def test_figures_of_made_up_tasks(figures):
    def plan(name, predicted_s, measured_s):
        return figures.PlanRow(
            (name,), predicted_s, measured_s, 0.9 * measured_s, 1.1 * measured_s, measured_s / 2
        )

    def task(number, plans, success, regret, tau):
        logs = [math.log(one.predicted_s / one.measured_s) for one in plans]
        error = math.expm1(sum(map(abs, logs)) / len(logs))
        scale = math.exp(sum(logs) / len(logs))
        return figures.TaskRow(number, 3, 64, plans, success, regret, tau, error, scale)

    # Predictions are half of the truth but for one, which is the truth and so looks slow.
    good = task(0, (plan("a", 1.0, 2.0), plan("b", 1.5, 3.0)), True, 0.0, 1.0)
    bad = task(1, (plan("a", 2.0, 2.0), plan("b", 1.25, 2.5)), False, 0.25, -1.0)
    found = figures.summary([good, bad])
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
    text = "\n".join(figures.lines([good, bad]))
    assert "chosen, loses 25.0%" in text
    assert text.count("chosen") == 2


def test_finished_tasks_are_read_from_a_log(figures, tmp_path):
    plans = (figures.PlanRow(("naive", "random"), 1.0, 2.0, 1.9, 2.1, 1.8),)
    row = figures.TaskRow(3, 8, 64, plans, True, 0.0, None, 1.0, 0.5)
    log = tmp_path / "log.jsonl"
    assert figures.read_rows(log) == []
    log.write_text(json.dumps(asdict(row)) + "\n")
    assert figures.read_rows(log) == [row]


class MadeUpTime:
    """A processor and a wall clock that go on when they are told to."""

    def __init__(self):
        self.processor_s = self.wall_s = 0.0

    def thread_time(self):
        return self.processor_s

    def perf_counter(self):
        return self.wall_s

    def work(self, seconds):
        self.processor_s += seconds
        self.wall_s += seconds

    def wait(self, seconds):
        self.wall_s += seconds


def test_phases_do_not_hold_those_inside_them(clock, monkeypatch):
    now = MadeUpTime()
    monkeypatch.setattr(clock, "time", now)
    one = clock.Clock()

    def update():
        now.work(3.0)
        now.wait(1.0)

    update = one.timed("updates", update)

    def backward():
        now.work(1.0)
        update()
        update()
        now.wait(0.5)
        return "done"

    assert one.timed("backward", backward)() == "done"
    assert (one.processor_s["updates"], one.wall_s["updates"]) == (6.0, 8.0)
    assert (one.processor_s["backward"], one.wall_s["backward"]) == (1.0, 1.5)
    one.clear()
    assert set(one.wall_s.values()) == {0.0}


def rank_phases(clock, updates_s, waiting_s, messages_s, steps_s):
    processor = dict.fromkeys(clock.PHASES, 0.0) | {"updates": updates_s, "lookups": 1.0}
    wall = processor | {"outputs": waiting_s}
    return clock.RankPhases(processor, wall, messages_s, steps_s)


def test_parts_are_those_of_the_rank_with_most(clock, phases):
    ranks = [
        rank_phases(clock, 5.0, 1.0, 0.5, (6.0, 6.0)),
        rank_phases(clock, 3.0, 3.0, 1.0, (2.0, 8.0)),
    ]
    processor, wall = phases.measured_parts(ranks)
    assert processor == {
        "lookups": 1.0,
        "updates": 5.0,
        "own work": 0.0,
        "transfers": 1.0,
        "iteration": 6.5,
    }
    # Waiting of the training threads is that of exchanges and of the other rank.
    assert (wall["transfers"], wall["iteration"], wall["updates"]) == (2.0, 7.0, 5.0)
    # The slowest of both steps are 6 and 8, the slowest on average has 6.
    assert phases.straggler_s(ranks) == pytest.approx(1.0)


def test_every_measured_phase_is_in_one_part(clock, phases):
    listed = [phase for part in phases.PARTS.values() for phase in part]
    assert sorted(listed) == sorted(clock.PHASES)


def test_predicted_parts_hold_the_whole_of_a_rank(tasks, phases):
    from dse.sharding import ShardingPlan, ShardingType, TablePlan
    from dse.validation import Candidate

    model = tasks.draw_model(0, 0, 2, 2.0)
    # Both ranks hold the same, so none waits and the parts add up to the iteration.
    plan = ShardingPlan(
        2, tuple(TablePlan(table.name, ShardingType.ROW_WISE, (0, 1)) for table in model.tables)
    )
    problem = tasks.task_problem(model, 2, load_platform("cpu"))
    found = phases.predicted_parts(Candidate("rows", problem, plan))
    parts = sum(found[part] for part in (*phases.PARTS, phases.TRANSFERS))
    assert min(found.values()) > 0
    assert parts == pytest.approx(found[phases.ITERATION], rel=0.02)


def test_the_table_of_phases_gives_geometric_means(phases):
    def row(predicted, processor):
        parts = (*phases.PARTS, phases.TRANSFERS, phases.ITERATION)
        each = [dict.fromkeys(parts, value) for value in (predicted, processor, 2 * processor)]
        return phases.PhaseRow(0, ("naive",), *each, 0.1 * processor)

    text = "\n".join(phases.lines([row(1e-3, 4e-3), row(1e-3, 1e-3)]))
    assert "| iteration | 1.00 ms | 2.50 ms | 0.50 | 5.00 ms | 0.25 |" in text
    assert "10.0% of an iteration" in text


def test_calibration_time_goes_to_lookups_and_updates(selection):
    calibrate = importlib.import_module("selection_calibrate")
    plan = calibrate.calibration_plan(2)
    assert plan.busy_devices == 2
    first = plan.kernels[:300]
    share = sum(point.op.startswith("embedding_") for point in first) / len(first)
    assert 0.6 < share < 0.85
    # Whatever the budget reaches, each operator has points that check its fit.
    for op in calibrate.OPERATORS:
        purposes = [point.purpose.value for point in plan.kernels if point.op == op]
        assert purposes.count("fresh") == pytest.approx(len(purposes) / 4, rel=0.15)


def test_a_calibration_for_transformers_has_their_operators_and_exchanges(selection):
    calibrate = importlib.import_module("selection_calibrate")
    plan = calibrate.transformer_plan(2)
    assert plan.busy_devices == 2
    assert {point.op for point in plan.kernels} == set(calibrate.TRANSFORMER_OPERATORS)
    assert {one.op for one in plan.collectives} == set(calibrate.TRANSFORMER_COLLECTIVES)
