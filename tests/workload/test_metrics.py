"""Metrics: what one description says about a figure, for every kind of workload."""

from __future__ import annotations

import csv
import math

import pytest

from dse.config import UnitKind
from dse.errors import ConfigError
from dse.report import build_view
from dse.search import RunOptions, load_study, run
from dse.workload import (
    COMMON_METRICS,
    PRICE_FIGURES,
    SAMPLE_FIGURES,
    Configuration,
    Figures,
    MemoryAccount,
    Metric,
    Prediction,
    metrics_with,
    workload_kind,
)
from tests.conftest import SMALL_SPACE

PER_USD = Metric(
    "samples_per_usd",
    "Samples per dollar",
    lambda figures: 1e6 / figures.cost_usd_per_million_samples,
    maximize=True,
    unit="k samples/USD",
    scale=1e-3,
    digits=1,
    time_exponent=-1,
)
SLOW_END = Metric(
    "iteration_time_p95_s",
    "Slow iteration",
    lambda figures: figures.iteration_time_p95_s,
    unit="ms",
    scale=1e3,
    limit_unit=UnitKind.TIME,
)
FIGURES = Figures(
    world_size=4, price_usd_per_hour=7.2, cost_usd_per_million_samples=0.25, iteration_time_s=0.01
)


def test_values_follow_from_figures_or_come_from_the_job():
    assert PER_USD.of(FIGURES) == 4e6
    assert PER_USD.of(FIGURES, {"samples_per_usd": 3.0}) == 3.0
    assert math.isnan(SLOW_END.of(FIGURES))
    assert math.isnan(Metric("loss", "Loss").of(FIGURES))
    assert Metric("loss", "Loss").of(FIGURES, {"loss": 0.5}) == 0.5
    # Machines that cost nothing have no samples per dollar.
    assert math.isnan(PER_USD.of(Figures(cost_usd_per_million_samples=0.0)))


def test_what_people_see():
    assert PER_USD.title_with_unit == "Samples per dollar (k samples/USD)"
    assert PER_USD.text(4e6) == "4,000.0"
    assert PER_USD.text(3.14) == "0.0031"
    assert PER_USD.text(0.0) == "0.0"
    assert PER_USD.noun == "samples per dollar"
    assert Metric("mfu", "MFU").noun == Metric("mfu", "MFU").title_with_unit == "MFU"


def test_a_metric_says_what_it_needs():
    needs_price = {metric.name for metric in COMMON_METRICS if metric.needs(*PRICE_FIGURES)}
    assert needs_price == {"cost_usd_per_million_samples", "price_usd_per_hour"}
    needs_samples = {metric.name for metric in COMMON_METRICS if metric.needs(*SAMPLE_FIGURES)}
    assert needs_samples == {
        "throughput_samples_per_s",
        "cost_usd_per_million_samples",
        "global_batch_size",
    }
    assert PER_USD.needs(*PRICE_FIGURES)
    assert PER_USD.needs(*SAMPLE_FIGURES)
    assert not PER_USD.needs()
    assert not SLOW_END.needs(*PRICE_FIGURES, *SAMPLE_FIGURES)
    assert not Metric("loss", "Loss").needs(*PRICE_FIGURES)


def test_a_kind_replaces_adds_and_leaves_out():
    other = Metric("iteration_time_s", "Step", lambda figures: figures.iteration_time_s)
    found = metrics_with(other, PER_USD, SLOW_END, unknown=("iteration_time_p95_s", "world_size"))
    names = [metric.name for metric in COMMON_METRICS if metric.name != "world_size"]
    assert [metric.name for metric in found] == [*names, "samples_per_usd"]
    assert other in found


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "dlrm",
            "throughput_samples_per_s iteration_time_s cost_usd_per_million_samples "
            "price_usd_per_hour memory_headroom_fraction world_size global_batch_size",
        ),
        (
            "transformer",
            "throughput_samples_per_s iteration_time_s cost_usd_per_million_samples "
            "price_usd_per_hour memory_headroom_fraction world_size global_batch_size "
            "throughput_tokens_per_s model_flops_utilization",
        ),
        (
            "trace",
            "throughput_samples_per_s iteration_time_s cost_usd_per_million_samples "
            "price_usd_per_hour world_size speedup",
        ),
    ],
)
def test_names_in_files_stay(kind, names):
    found = [metric.name for metric in workload_kind(kind).metrics]
    assert [name for name in found if name in names.split()] == names.split()
    with pytest.raises(ConfigError, match="did you mean `iteration_time_s`"):
        workload_kind(kind).metric("iteration_time")


def test_common_figures_of_a_prediction():
    prediction = Prediction(
        iteration_time_s=0.01,
        iteration_time_p5_s=0.009,
        iteration_time_p95_s=0.012,
        throughput_samples_per_s=1e5,
        price_usd_per_hour=None,
        cost_usd_per_million_samples=None,
        breakdown=(),
        memory=(MemoryAccount((("tables", 30.0),)), MemoryAccount((("tables", 60.0),))),
        usable_memory_bytes=80.0,
        feasible=True,
        infeasible_reason="",
    )
    found = Figures.of(Configuration("dlrm", "h100_sxm", 2, 1000, ()), prediction)
    assert (found.world_size, found.global_batch_size) == (2, 1000)
    assert (found.iteration_time_p5_s, found.iteration_time_p95_s) == (0.009, 0.012)
    assert (found.peak_memory_bytes, found.memory_headroom_fraction) == (60.0, 0.25)
    assert math.isnan(found.price_usd_per_hour)
    assert math.isnan(found.cost_usd_per_million_samples)


@pytest.fixture
def more_metrics(monkeypatch):
    """Gives recommendation models two metrics more, one of them from the job."""
    kind = workload_kind("dlrm")
    share = Metric("lookup_share", "Lookups", maximize=True, unit="%", scale=100.0, digits=1)
    monkeypatch.setattr(kind, "metrics", metrics_with(PER_USD, SLOW_END, share))
    from dse.workload.dlrm import DlrmJob

    monkeypatch.setattr(DlrmJob, "metrics", lambda job, seconds: (("lookup_share", 0.125),))


@pytest.mark.usefixtures("more_metrics")
def test_one_entry_is_an_objective_a_limit_a_column_and_an_axis(tmp_path):
    path = tmp_path / "space.yaml"
    text = SMALL_SPACE.replace("cost_usd_per_million_samples", "iteration_time_p95_s")
    text = text.replace("throughput_samples_per_s", "samples_per_usd")
    limits = "constraints:\n  - {metric: iteration_time_p95_s, at_most: 500 ms}\n"
    limits += "  - {metric: lookup_share, at_most: 0.2}\nsearch:"
    path.write_text(text.replace("search:", limits))
    options = RunOptions(out=tmp_path / "study", trials=8, executor="serial")
    result = run(path, options).result
    assert result.front
    for record in result.front:
        prediction = record.prediction
        cost = prediction.cost_usd_per_million_samples
        assert record.values == (pytest.approx(1e6 / cost), prediction.iteration_time_p95_s)
        assert record.metrics["lookup_share"] == 0.125
    with (tmp_path / "study" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"samples_per_usd", "iteration_time_p95_s", "lookup_share"} <= set(rows[0])
    assert load_study(tmp_path / "study").result.objectives == result.objectives

    view = build_view(result)
    assert [axis.title for axis in view.axes] == [
        "Samples per dollar (k samples/USD)",
        "Slow iteration (ms)",
    ]
    assert "Lookups (%)" in [figure.title for figure in view.figures.figures]
    point = next(point for point in view.front.points if point.number == result.front[0].number)
    per_usd, slow_end = point.predicted
    # Twice as long an iteration gives half as many samples per dollar.
    prediction = result.front[0].prediction
    assert per_usd[1] / per_usd[0] == pytest.approx(
        prediction.iteration_time_p95_s / prediction.iteration_time_p5_s, rel=1e-4
    )
    assert slow_end is None


@pytest.mark.usefixtures("more_metrics")
def test_a_limit_without_its_unit_is_refused(tmp_path):
    path = tmp_path / "space.yaml"
    limit = "constraints: [{metric: iteration_time_p95_s, at_most: 0.5}]\nsearch:"
    path.write_text(SMALL_SPACE.replace("search:", limit))
    with pytest.raises(ConfigError, match=r"constraints\[0\].*no unit"):
        run(path, RunOptions(out=tmp_path / "study", trials=1))


def test_a_study_whose_metric_is_not_known_is_refused(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SMALL_SPACE)
    run(path, RunOptions(out=tmp_path / "study", trials=2, executor="serial"))
    header = tmp_path / "study" / "study.yaml"
    text = header.read_text()
    header.write_text(text.replace("metric: throughput_samples_per_s", "metric: through", 1))
    with pytest.raises(ConfigError, match=r"study\.yaml: .*did you mean `throughput_samples"):
        load_study(tmp_path / "study")
