from __future__ import annotations

from dataclasses import replace
import re

import numpy as np
import pytest
import yaml

from dse.report import render_report
from dse.search import Certificate, TrialStatus, load_study
from dse.search.analyse import conclude, decide, recommended_trial
from dse.search.analyse._decision import below_chord
from dse.search.space import Constraint
from tests.search.analyse.studies import COST, MEMORY, SPEED, study_of_trials, trial
from tests.search.files import without_checksums
from tests.search.revise.studies import SPACE, study_of


def knee_study(**changes):
    """Of these, #2 is nearly as fast as the fastest and nearly as cheap as the cheapest."""
    points = [(1e6, 0.10), (9e6, 0.90), (8e6, 0.20), (4e6, 0.19)]
    records = (trial(number, speed, cost) for number, (speed, cost) in enumerate(points))
    return study_of_trials(*records, **changes)


def test_the_knee_is_taken():
    decision = decide(knee_study())
    assert (decision.take.number, decision.fastest.number, decision.cheapest.number) == (2, 1, 0)
    assert recommended_trial(knee_study()).number == 2


def test_a_throughput_that_is_asked_for_is_kept_by_the_whole_interval():
    # 8 M samples/s may turn out as 6.4 M, 9 M as 7.2 M.
    def taken(least):
        limit = Constraint("throughput_samples_per_s", None, least)
        return decide(knee_study(constraints=(limit,))).take.number

    assert taken(0.7e6) == 0
    assert taken(6.3e6) == 2
    assert taken(6.5e6) == 1
    # Nothing is sure of 8 M, so the least cost.
    assert taken(8e6) == 0


def test_a_time_that_is_asked_for_is_kept_by_the_whole_interval():
    # 1000 samples at 8 M samples/s take 0.125 ms, at most 0.15625 ms.
    for most_s, number in ((0.16e-3, 2), (0.15e-3, 1)):
        limit = Constraint("iteration_time_s", most_s, None)
        assert decide(knee_study(constraints=(limit,))).take.number == number


def test_other_limits_leave_the_knee():
    limit = Constraint("price_usd_per_hour", 1e6, None)
    assert decide(knee_study(constraints=(limit,))).take.number == 2


@pytest.mark.parametrize(
    ("fast", "slow", "taken", "factors"),
    [
        ((1.16e6, 1.71), (1e6, 1.0), 1, ["1.71", "1.16"]),
        ((2e6, 1.1), (1e6, 1.0), 0, ["2.00", "1.10"]),
    ],
)
def test_of_two_the_larger_ratio_decides(fast, slow, taken, factors):
    decision = decide(study_of_trials(trial(0, *fast), trial(1, *slow)))
    assert decision.take.number == taken
    assert re.findall(r"[\d.]+\d", decision.rule.partition(" it ")[2]) == factors
    assert (decision.fastest.number, decision.cheapest.number) == (0, 1)


@pytest.mark.parametrize(
    ("dear", "words"), [(1.002, "by less than 0.5 %"), (1.0051, "by a factor of 1.01")]
)
def test_a_small_loss_is_no_factor_of_one(dear, words):
    decision = decide(study_of_trials(trial(0, 2e6, dear), trial(1, 1e6, 1.0)))
    assert decision.rule.endswith(f"worse in cost {words}")


def test_above_the_line_between_its_ends_a_front_has_no_knee():
    # Half-way, but nearly as dear as the fastest: twice as fast wins over 1.5 times as dear.
    study = study_of_trials(trial(0, 2e6, 1.5), trial(1, 1.5e6, 1.45), trial(2, 1e6, 1.0))
    assert decide(study).take.number == 0


def test_free_memory_is_not_worth_its_ratio():
    axes = (SPEED, MEMORY)
    records = [
        trial(number, speed, None, free=free, objectives=axes)
        for number, (speed, free) in enumerate([(8.6e3, 0.05), (7.9e3, 0.3)])
    ]
    decision = decide(study_of_trials(*records, objectives=axes))
    assert decision.take.number == 0
    assert decision.cheapest is None


def test_cost_is_weighed_wherever_it_stands():
    axes = (SPEED, MEMORY, COST)
    points = [(1e6, 0.10, 0.1), (9e6, 0.90, 0.9), (8e6, 0.20, 0.5)]
    records = [
        trial(number, speed, cost, free=free, objectives=axes)
        for number, (speed, cost, free) in enumerate(points)
    ]
    assert decide(study_of_trials(*records, objectives=axes)).take.number == 2


def test_one_objective_takes_the_best():
    records = [
        trial(number, speed, 1.0, objectives=(SPEED,)) for number, speed in enumerate((1, 3))
    ]
    decision = decide(study_of_trials(*records, objectives=(SPEED,)))
    assert decision.take == decision.fastest
    assert decision.take.number == 1


def test_a_choice_has_the_figures_of_its_prediction():
    take = decide(knee_study()).take
    assert take.machines == "8 × a"
    assert take.counts == "samples"
    assert take.throughput_per_s == pytest.approx(8e6)
    assert take.throughput_p5_per_s == pytest.approx(8e6 / 1.25)
    assert take.throughput_p95_per_s == pytest.approx(8e6 / 0.8)
    assert take.cost_usd_per_billion == pytest.approx(200.0)
    assert take.bound_by == "compute, 60 %"
    assert take.doubled is None


def test_doubling_keeps_the_platform():
    own = trial(0, 1e6, 1.0)
    other = trial(1, 3e6, 4.0, platform="b", world_size=16)
    assert decide(study_of_trials(own, other)).cheapest.doubled is None
    same = [trial(2, 1.5e6, 5.0, world_size=16), trial(3, 1.8e6, 5.0, world_size=16)]
    doubled = decide(study_of_trials(own, other, *same)).cheapest.doubled
    assert (doubled.number, doubled.machines) == (3, "16 × a")
    assert (doubled.speed_ratio, doubled.cost_ratio) == pytest.approx((1.8, 5.0))


def test_tokens_are_counted_where_there_are_any():
    record = trial(0, 10.0, 2000.0)
    metrics = (("throughput_tokens_per_s", 20_000.0),)
    record = replace(record, prediction=replace(record.prediction, metrics=metrics))
    take = decide(study_of_trials(record)).take
    assert (take.counts, take.throughput_per_s) == ("tokens", 20_000.0)
    # A sample has 2,000 tokens, so a million tokens are 500 samples.
    assert take.cost_usd_per_billion == pytest.approx(1000.0)


def test_nothing_feasible_is_said_with_the_reason():
    assert decide(study_of_trials()) is None
    assert conclude(study_of_trials()) == "nothing was evaluated"
    dear = trial(0, 1, 1, status=TrialStatus.REJECTED, reason="too dear")
    assert "too dear" in conclude(study_of_trials(dear))
    assert recommended_trial(study_of_trials(dear)) is None


def test_a_search_that_ended_early_says_so_where_it_has_no_answer():
    rejected = trial(0, 1, 1, status=TrialStatus.REJECTED, reason="too dear")
    dear = replace(rejected, prediction=None)
    early = Certificate(
        complete=False,
        distinct=9,
        evaluated=0,
        proven_dominated=0,
        proven_infeasible=1,
        hypervolume_missing_at_most=1.0,
    )
    study = replace(study_of_trials(dear), certificate=early)
    assert "before its first evaluation" in conclude(study)
    assert "--resume" in conclude(study)
    small = replace(rejected, status=TrialStatus.INFEASIBLE, reason="out of memory")
    one = replace(study_of_trials(small), certificate=replace(early, evaluated=1))
    assert "out of memory" in conclude(one)
    assert "--resume" in conclude(one)
    proven = replace(early, complete=True, hypervolume_missing_at_most=0.0)
    words = conclude(replace(study, certificate=proven))
    assert words == "nothing is feasible, none of 9 outcomes; for example: too dear"


@pytest.mark.parametrize("swap", [False, True])
def test_distance_from_the_chord(swap):
    points = np.array([[0.0, 2.0], [1.0, 0.5], [3.0, 1.9], [4.0, 0.0]])
    ends = (points[0], points[3])
    if swap:
        points, ends = points[:, ::-1], (points[3, ::-1], points[0, ::-1])
    # In units of the range: (0.25, 0.25) and (0.75, 0.95), from the line x + y = 1.
    expected = np.array([0.0, 0.5, -0.7, 0.0]) / np.sqrt(2)
    assert below_chord(points, *ends) == pytest.approx(expected)


def test_studies_of_former_versions_load_and_decide(tmp_path):
    study = study_of(SPACE)
    for name in ("journal.log", "study.yaml"):
        text = without_checksums((study.directory.root / name).read_bytes()).decode()
        for field in ('"equal_count":0,', ',"equal_count":0', ',"equal_because":[]'):
            text = text.replace(field, "")
        (tmp_path / name).write_text(text)
    header = yaml.safe_load((tmp_path / "study.yaml").read_text())
    for field in ("certificate", "constraints", "description"):
        header.pop(field, None)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(header))
    assert "equal_" not in (tmp_path / "journal.log").read_text()
    loaded = load_study(tmp_path).result
    assert (loaded.certificate, loaded.constraints, loaded.description) == (None, (), "")
    assert decide(loaded).take.number == decide(replace(study.result, constraints=())).take.number
    render_report(loaded)
