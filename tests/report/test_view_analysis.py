"""What the page says of a study as a whole."""

from __future__ import annotations

from dataclasses import replace
import re

import numpy as np
import pytest

from dse.report import build_view, render_report
from dse.report.page._analysis import failures_view
from dse.report.page._importance import MIN_TRIALS, importance_views
from dse.report.page._prices import prices_view
from dse.report.page._progress import hypervolume_history, hypervolume_view, reference_point
from dse.report.page._tornado import tornado_view
from dse.search import Fact, InputFile, RunOptions, TrialStatus, mark_front, run
from dse.search.analyse import hypervolume
from dse.search.space import Objective
from tests.report.test_report import EVIL, make_record, make_study
from tests.search.revise.studies import GPT_SPACE, SPACE, study_of
from tests.search.traces import write_job

EMPTY = {"values": (), "configuration": None, "prediction": None, "planner": ""}


def rejected(number):
    return make_record(number, 0, 0, status=TrialStatus.REJECTED, reason="too dear", **EMPTY)


def failed(number, reason, traceback=""):
    status = TrialStatus.FAILED
    return make_record(number, 0, 0, status=status, reason=reason, traceback=traceback, **EMPTY)


def test_hypervolume_of_four_points_by_hand():
    points = np.array([[1.0, 3.0], [2.0, 2.0], [1.0, 1.0], [3.0, 1.0]])
    # 1 × 3, then 1 × 2 more, nothing of a point that is beaten, 1 × 1 more.
    history = hypervolume_history(points, np.zeros(2), [True, True])
    assert history == pytest.approx([3, 5, 5, 6])
    history = hypervolume_history(-points, np.zeros(2), [False, False])
    assert history == pytest.approx([3, 5, 5, 6])
    # A point that two others cover in part and that covers a third.
    late = np.vstack((points, [[2.0, 3.0]]))
    assert hypervolume_history(late, np.zeros(2), [True, True])[-1] == pytest.approx(7)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hypervolume_after_each_point_is_that_of_all_points_so_far(count):
    rng = np.random.default_rng(count)
    # Coarse values, so that many points are equal in one objective or in all.
    points = rng.integers(0, 9, size=(80, count)) / 4
    points[5] = np.nan
    maximize = [True, False, True][:count]
    reference = reference_point(points, maximize)
    history = hypervolume_history(points, reference, maximize)
    expected = [hypervolume(points[: row + 1], reference, maximize) for row in range(len(points))]
    assert history == pytest.approx(expected, rel=1e-12)
    assert (np.diff(history) >= 0).all()


def test_the_reference_lies_a_tenth_of_the_range_behind_the_worst():
    points = np.array([[1.0, 5.0, 7.0], [3.0, 9.0, 7.0], [np.nan] * 3])
    assert reference_point(points, [True, False, True]) == pytest.approx([0.8, 9.4, 6.0])


def test_equal_values_of_any_size_are_better_than_the_reference():
    points = np.array([[1e30, 5.0], [1e30, 5.0]])
    worst = reference_point(points, [True, False])
    assert hypervolume_history(points, worst, [True, False]).tolist() == pytest.approx([1e21] * 2)


def test_hypervolume_counts_evaluations_and_says_when_it_was_there():
    records = [
        make_record(0, 1e6, 0.1),
        rejected(1),
        make_record(2, 9e6, 0.01, status=TrialStatus.INFEASIBLE, reason="too big"),
        make_record(3, 2e6, 0.05),
        make_record(4, 1e6, 0.2),
    ]
    view = hypervolume_view(make_study(records))
    # The best of all in both objectives is the third evaluation; the last one adds nothing.
    assert view.evaluations == (1, 3, 4)
    assert view.shares[1:] == (1.0, 1.0)
    # Reference 0.9e6 and 0.215: (0.1 × 0.115) of (1.1 × 0.165).
    assert view.shares[0] == pytest.approx(0.1 * 0.115 / (1.1 * 0.165), rel=1e-5)
    assert "after 3 of 4 evaluations" in view.sentence
    assert "0.9000 M samples/s" in view.reference
    assert "215.0 USD per billion" in view.reference


def test_without_feasible_points_there_is_no_line():
    records = [make_record(0, 1, 1, status=TrialStatus.INFEASIBLE, reason="too big"), rejected(1)]
    view = hypervolume_view(make_study(records))
    assert view.evaluations == ()
    assert "No configuration is feasible" in view.sentence
    no_price = hypervolume_view(make_study([make_record(0, 1e6, float("nan"))]))
    assert no_price.evaluations == ()
    assert "every objective" in no_price.sentence


def study_where_one_parameter_matters(count, values=(1, 2, 4, 8)):
    rng = np.random.default_rng(7)
    records = []
    for number in range(count):
        size, noise = int(rng.choice(values)), float(rng.uniform(0, 0.01))
        records.append(
            make_record(
                number,
                1e6 * (size + noise),
                0.5 + 0.1 * size,
                parameters=(
                    ("never", "the same"),
                    ("size", size),
                    ("colour", str(rng.choice(["red", "green", "blue"]))),
                    ("flag", bool(rng.integers(2))),
                    (f"plan.{EVIL}", str(rng.integers(5))),
                ),
            )
        )
    return make_study(records)


def test_importance_finds_the_only_parameter_that_matters():
    study = study_where_one_parameter_matters(300)
    throughput, cost = importance_views(study)
    for view in (throughput, cost):
        assert view.parameters[0] == "size"
        assert set(view.parameters) == {"size", "colour", "flag"}
        assert view.shares[0] > 0.9
        assert sum(view.shares) == pytest.approx(1, abs=1e-3)
    assert throughput.title == "Throughput"
    assert "best 30 of 300" in throughput.sentence
    assert importance_views(study) == (throughput, cost)


def test_importance_follows_the_direction_of_an_objective():
    # Few are small and cheap, many are large: which of the two is good decides what is seen.
    records = [
        make_record(
            number,
            1e6,
            1.0 if number < 5 else 2.0 + number,
            parameters=(("size", 1 if number < 5 else 2 + number % 2), ("world_size", number % 2)),
        )
        for number in range(60)
    ]
    cost = importance_views(make_study(records))[1]
    assert cost.parameters[0] == "size"
    assert cost.shares[0] > 0.9


def test_importance_says_why_it_is_missing():
    few = importance_views(study_where_one_parameter_matters(MIN_TRIALS - 1))
    assert all(view.parameters == () for view in few)
    assert f"Only {MIN_TRIALS - 1} feasible trials" in few[0].sentence
    assert "No feasible trial" in importance_views(make_study([rejected(0)]))[0].sentence
    records = [make_record(n, 1e6, 0.1 * n, parameters=(("size", n),)) for n in range(20)]
    same, varied = importance_views(make_study(records))
    assert same.parameters == ()
    assert "same value" in same.sentence
    assert varied.parameters == ("size",)
    constant = [make_record(n, 1e6 + n, 0.1, parameters=(("size", 1),)) for n in range(20)]
    assert "No parameter varies" in importance_views(make_study(constant))[0].sentence


def test_trials_without_a_price_count_for_the_other_objective():
    records = list(study_where_one_parameter_matters(60).records)
    for number in range(55):
        throughput = records[number].values[0]
        records[number] = replace(records[number], values=(throughput, float("nan")))
    throughput, cost = importance_views(make_study(records))
    assert throughput.parameters[0] == "size"
    assert "Only 5 feasible trials" in cost.sentence


@pytest.fixture(scope="module", params=[SPACE, GPT_SPACE], ids=["dlrm", "gpt"])
def result(request):
    return study_of(request.param).result


def test_bars_have_the_signs_of_physics(result):
    view = tornado_view(result, result.front[0].number)
    assert view.number == result.front[0].number
    axes = {axis.title.split(" (")[0]: axis for axis in view.axes}
    assert {"Throughput", "Cost", "Iteration time"} <= set(axes)
    for axis in axes.values():
        spans = [max(0.0, *bar.changes) - min(0.0, *bar.changes) for bar in axis.bars]
        assert spans == sorted(spans, reverse=True)
    for bar in axes["Iteration time"].bars:
        low, high = bar.changes
        if bar.name.endswith("bandwidth") or bar.name == "compute peak":
            assert bar.steps == (-0.1, 0.1)
            # More of it is never slower.
            assert high <= 0 <= low
        if bar.name == "price":
            assert bar.changes == (0.0, 0.0)
    throughput = {bar.name: bar for bar in axes["Throughput"].bars}
    for name, bar in throughput.items():
        assert bar.changes[0] <= 0 <= bar.changes[1], name
    # The host waits for nothing in so small a recommendation model; transformers compute.
    faster = "batch size" if result.kind == "dlrm" else "compute peak"
    assert throughput[faster].changes[0] < 0 < throughput[faster].changes[1]
    price = next(bar for bar in axes["Cost"].bars if bar.name == "price")
    assert price.changes == pytest.approx((-0.1, 0.1))
    leading = view.axes[0]
    own = result.front[0].metrics[result.objectives[0].metric]
    scale = 1e-6 if result.objectives[0].metric == "throughput_samples_per_s" else 1.0
    assert leading.base == pytest.approx(own * scale, rel=1e-5)
    for bar in leading.bars:
        shown = (bar.values[0] / leading.base - 1, bar.values[1] / leading.base - 1)
        assert shown == pytest.approx(bar.changes, abs=1e-5)


def test_a_candidate_that_cannot_be_predicted_says_why():
    study = make_study([make_record(0, 1e6, 0.1)])
    view = tornado_view(study, 0)
    assert view.axes == ()
    assert view.reason
    assert tornado_view(make_study([rejected(0)]), None).reason


def test_failures_are_grouped_by_their_last_line():
    first = f'Traceback:\n  File "{EVIL}"\nValueError: {EVIL}\n'
    records = [
        make_record(0, 1e6, 0.1),
        failed(1, "worker died"),
        failed(2, "ValueError", first),
        failed(3, "ValueError", f"Traceback: elsewhere\nValueError: {EVIL}"),
        *(failed(number, "again", "x" * 20_000 + "\nKeyError: 1") for number in range(4, 24)),
    ]
    study = make_study(records)
    view = failures_view(study)
    assert view.count == 23
    assert [group.count for group in view.groups] == [20, 2, 1]
    last, raised, died = view.groups
    assert last.last_line == "KeyError: 1"
    assert last.numbers.endswith("#15 and 8 more")
    assert len(last.traceback) < 13_000
    assert last.traceback.endswith("KeyError: 1")
    assert (raised.numbers, raised.traceback) == ("#2, #3", first)
    assert (died.last_line, died.traceback) == ("worker died", "")
    text = render_report(study)
    visible = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "Failed candidates (23)" in visible
    assert "ValueError: &lt;script&gt;alert(1)" in visible
    assert "<script>alert" not in visible
    assert "Failed candidates" not in render_report(make_study(records[:1]))


def price(platform, offer, value, as_of, origin="list price"):
    return Fact(platform, f"price {offer}", value, origin, "a list", as_of)


def test_ages_of_prices():
    platforms = tuple(InputFile("platform", name, "", "0" * 64, "") for name in ("a", "b"))
    facts = (
        Fact("a", "device.memory.bandwidth", "2 TB/s", "datasheet", "paper", "2020"),
        price("a", "X big", "12.50 USD/h", "2025-12-22"),
        price("a", "X big (superseded)", "99.00 USD/h", "2020"),
        price("a", "Y big", "1,300.00 USD/h", "2025-06"),
        price("a", "Z big", "3.00 USD/h", "unknown"),
        price("a", "W big", "4.00 USD/h", "", "changed"),
        price("a", "V big", "4.00 USD/h", "2026-02-30"),
        price("a", "U big", "4.00 USD/h", "2026-02"),
    )
    study = replace(make_study([make_record(0, 1e6, 0.1)]), facts=facts, inputs=platforms)
    view = prices_view(study)
    assert view.superseded == 1
    assert view.unpriced == ("b",)
    # Ten days to 1 January; from the end of June 185; 28 February is 58 days later.
    assert [price.age_days for price in view.prices] == [10, 185, None, None, None, -58]
    assert (view.prices[1].amount, view.prices[1].currency) == ("1,300.00", "USD")
    assert [bool(price.warning) for price in view.prices] == [0, 1, 1, 0, 1, 0]
    assert "1 of 6" in view.warning
    assert "2 of 6" in view.warning
    text = render_report(study)
    assert "No price is known for b" in text
    assert "newer than the study" in text
    assert prices_view(make_study([])).prices == ()


def test_pages_of_all_kinds_have_the_sections(result, tmp_path):
    trace = run(write_job(tmp_path / "job"), RunOptions(out=tmp_path / "study")).result
    one_objective = (Objective("throughput_samples_per_s", True),)
    records = [make_record(number, 1e6 * number, 0.1, values=(1e6 * number,)) for number in (1, 2)]
    single = replace(
        make_study([]), objectives=one_objective, records=mark_front(records, one_objective)
    )
    studies = {
        "model": result,
        "trace": trace,
        "one objective": single,
        "one trial": make_study([make_record(0, 1e6, 0.1)]),
        "not feasible": make_study([rejected(0)]),
        "empty": make_study([]),
    }
    for name, study in studies.items():
        text = render_report(study)
        for part in ("h-progress", "h-importance", "h-tornado", "h-prices"):
            assert f'id="{part}"' in text, name
    alone = build_view(studies["one trial"]).analysis
    assert alone.hypervolume.shares == (1.0,)
    assert "1 of 1 evaluation;" in alone.hypervolume.sentence
    assert build_view(single).analysis.hypervolume.shares == pytest.approx((1 / 11, 1), rel=1e-5)
    assert "captured trace" in build_view(trace).analysis.tornado.reason
    assert build_view(trace).analysis.hypervolume.shares[-1] == 1.0
