"""Words for decisions and certificates, on a terminal and on the page."""

from __future__ import annotations

from dataclasses import replace
import io
import math

import pytest
from rich.console import Console

from dse.report import build_view, render_report
from dse.report._decision import certificate_text, decision_entries
from dse.report.terminal.studies import print_study
from dse.search import Certificate
from dse.search.analyse import decide
from dse.workload import Parameter
from tests.search.analyse.studies import study_of_trials, trial

PROVEN = Certificate(True, 10_388, 312, 10_000, 76, 0.0)


def printed(study, width=80):
    out = io.StringIO()
    print_study(study, Console(file=out, width=width), [])
    return out.getvalue()


def three():
    return study_of_trials(trial(0, 1e6, 0.10), trial(1, 9e6, 0.90), trial(2, 8e6, 0.20))


def test_roles_of_one_outcome_are_one_entry():
    entries = decision_entries(decide(three()))
    assert [(entry.role, entry.also) for entry in entries] == [
        ("take", ()),
        ("fastest", ()),
        ("cheapest", ()),
    ]
    single = decision_entries(decide(study_of_trials(trial(0, 1e6, 0.1))))
    assert [(entry.role, entry.also) for entry in single] == [("take", ("fastest", "cheapest"))]


def test_figures_of_an_entry():
    take = decision_entries(decide(three()))[0]
    assert take.speed == "8.00 M samples/s"
    assert take.interval == "6.40–10.00"
    assert take.cost == "200 USD per billion samples"
    assert take.doubling == ""


@pytest.mark.parametrize(
    ("probability", "shown"),
    [(0.62, True), (0.98, True), (0.9999, False), (1.0, False), (math.nan, False)],
)
def test_an_entry_says_how_likely_the_memory_suffices_where_that_is_in_doubt(probability, shown):
    found = decide(study_of_trials(trial(0, 1e6, 0.1)))
    take = replace(found.take, fit_probability=probability)
    (entry,) = decision_entries(replace(found, take=take, fastest=None, cheapest=None))
    assert bool(entry.fits) is shown
    assert f"{100 * probability:.0f} %" in entry.fits or not shown


def test_the_speed_of_a_captured_step_is_its_length_and_over_what_it_was():
    take = replace(decide(three()).take, iteration_time_s=0.0125, throughput_per_s=math.nan)
    one = replace(decide(three()), fastest=None, cheapest=None)
    (plain,) = decision_entries(replace(one, take=take))
    (faster,) = decision_entries(replace(one, take=replace(take, speedup=2.0)))
    assert plain.speed == "12.500 ms a step"
    assert faster.speed == "12.500 ms a step, 2 × as captured"


def test_an_entry_has_the_price_of_its_machines_where_it_is_known():
    decision = decide(study_of_trials(trial(0, 1e6, 0.10)))
    # A million samples a second for 0.10 USD a million: 0.10 USD a second.
    assert decision_entries(decision)[0].price == "360.00 USD/h"
    unknown = replace(decision.take, price_usd_per_hour=None)
    alone = replace(decision, take=unknown, fastest=None, cheapest=None)
    assert decision_entries(alone)[0].price == ""


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (PROVEN, ("front complete", "312 of 10,388", "10,000", "76")),
        (replace(PROVEN, tied=23), ("10,000 proven dominated", "23 tied with the front")),
        (
            replace(PROVEN, complete=False, hypervolume_missing_at_most=0.021),
            ("2.1 %", "--resume"),
        ),
        (replace(PROVEN, complete=False, hypervolume_missing_at_most=math.nan), ("not known",)),
    ],
)
def test_the_certificate_says_how_much_can_be_missing(certificate, words):
    text = certificate_text(replace(three(), certificate=certificate))
    assert all(word in text for word in words)


def test_without_a_certificate_the_last_gain_says_whether_the_front_grew():
    late = [trial(number, 1e6 - number, 1.0) for number in range(9)] + [trial(9, 9e6, 0.5)]
    words = certificate_text(study_of_trials(*late))
    assert "10 of 10" in words
    assert "--trials 20" in words
    # A search that was stopped goes on to as many as it was to evaluate.
    stopped = certificate_text(replace(study_of_trials(*late), trials=40))
    assert "--resume" in stopped
    assert "--trials" not in stopped
    early = certificate_text(study_of_trials(*(replace(late[9 - n], number=n) for n in range(10))))
    assert "1 of 10" in early
    looked_at = [Parameter("platform", ("a",)), Parameter("world_size", (1, 2, 8))]
    whole = replace(three(), parameters=tuple(looked_at))
    assert certificate_text(whole).startswith("front complete")


def test_the_terminal_begins_with_what_to_take_and_what_is_proven():
    text = printed(replace(three(), certificate=PROVEN))
    assert text.startswith("take")
    assert text.index("\nwhy ") < text.index("front complete") < text.index("Pareto front")


def test_a_row_of_the_front_stays_short_on_a_narrow_terminal():
    names = ("link", "network", "precision", "launch", "communication_precision")
    records = []
    for number in range(3):
        record = trial(number, 1e6 * (number + 1), 0.1 * (number + 1))
        chosen = {name: f"quite_a_long_{name}_{number}" for name in names}
        chosen["sharding_types"] = "data_parallel+table_wise+table_row_wise+table_column_wise"
        parameters = (*record.parameters, *chosen.items())
        records.append(replace(record, parameters=parameters))
    lines = printed(study_of_trials(*records)).splitlines()
    first = next(place for place, line in enumerate(lines) if line.strip().startswith("2 "))
    rows = lines[first : lines.index("", first)]
    assert len(rows) <= 3 * 5
    assert max(map(len, rows)) <= 82


def test_equal_configurations_stand_in_their_row():
    record = trial(0, 1e6, 0.1, equal_count=5, equal_because=("network",))
    assert "(+5 equal but for network)" in printed(study_of_trials(record), width=200)
    assert build_view(study_of_trials(record)).equal == ((0, "+5 equal but for network"),)


def test_the_page_opens_with_the_cards_and_how_it_scales():
    study = study_of_trials(
        trial(0, 1e6, 0.1, world_size=2), trial(1, 9e6, 0.9), trial(2, 8e6, 0.2)
    )
    view = build_view(replace(study, description="Which machines?"))
    assert view.title == "Which machines?"
    assert [card.number for card in view.decision.cards] == [2, 1, 0]
    assert view.front.recommended == 2
    (scaling,) = view.scaling
    assert [(point.ranks, point.number) for point in scaling.points] == [(2, 0), (8, 1)]
    html = render_report(study)
    assert html.index('data-choose="2"') < html.index('id="h-front"')


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (1e-4, "its plan is as fast as the best possible"),
        (6e-4, "its plan is at most 0.1 % slower than the best possible"),
    ],
)
def test_a_gap_that_rounds_to_nothing_is_none(gap, words):
    found = trial(0, 1e6, 0.1)
    bound_s = found.prediction.iteration_time_s / (1 + gap)
    assert words in printed(study_of_trials(replace(found, lower_bound_s=bound_s)), 200)
