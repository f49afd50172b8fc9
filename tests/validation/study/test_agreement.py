"""Figures and the sentence, of candidates with times chosen by hand."""

from __future__ import annotations

from dataclasses import replace
import math

import pytest

from dse.errors import ConfigError
from dse.search import ValidatedCandidate, ValidationMode
from dse.validation.study._agreement import platform_factor, ranking_agreement, summary_sentence


def made(number, predicted_s, measured_s, batch=100, width=0.001, study_s=None):
    return ValidatedCandidate(
        number=number,
        same=(),
        chosen="best",
        world_size=8,
        global_batch_size=batch,
        study_time_s=predicted_s if study_s is None else study_s,
        run_world_size=2,
        run_batch_size=batch,
        predicted_s=predicted_s,
        predicted_low_s=0.9 * predicted_s,
        predicted_high_s=1.1 * predicted_s,
        measured_s=measured_s,
        measured_low_s=measured_s * (1 - width),
        measured_high_s=measured_s * (1 + width),
        samples_s=(measured_s,),
        iterations_per_sample=2,
        processor_s=measured_s,
        settled=True,
    )


def sentence(candidates, mode=ValidationMode.REAL):
    return summary_sentence(candidates, ranking_agreement(candidates), mode, 50.0)


def test_figures_by_hand():
    # Measured order 1, 2, 3; predicted order 2, 1, 3: one of three pairs is wrong. The pair
    # (1, 2) differs by 4 % and does not count.
    found = ranking_agreement([made(1, 2.0, 1.00), made(2, 1.0, 1.04), made(3, 3.0, 3.1)])
    assert (found.favourite, found.fastest) == (2, 1)
    assert found.top1_regret == pytest.approx(0.04)
    assert found.success
    assert found.kendall_tau == pytest.approx(1 / 3)
    assert (found.pairs, found.counted_pairs, found.pairwise_accuracy) == (3, 2, 1.0)
    assert found.tied_pairs == 0
    # 1.04 lies in 0.9–1.1, 3.1 in 2.7–3.3, 1.0 not in 1.8–2.2.
    assert found.coverage == pytest.approx(2 / 3)


def test_candidates_of_different_batches_are_compared_by_the_sample():
    # 2 takes longer for an iteration of twice the samples.
    found = ranking_agreement([made(1, 1.0, 1.0, batch=100), made(2, 1.5, 1.5, batch=200)])
    assert (found.favourite, found.fastest) == (2, 2)


def test_overlapping_intervals_are_ties():
    one, other = made(1, 1.0, 1.0, width=0.02), made(2, 2.0, 1.03, width=0.02)
    assert one.ties_with(other)
    assert other.ties_with(one)
    assert not one.ties_with(replace(other, measured_low_s=1.021))
    assert ranking_agreement([one, other]).tied_pairs == 1
    # Without a pair that can be told apart there is no order to compare.
    assert ranking_agreement([one, other]).kendall_tau is None
    assert ranking_agreement([one, other]).study_kendall_tau is None
    assert ranking_agreement([one, other, made(3, 0.5, 2.0)]).kendall_tau is not None
    # Nobody knows of an interval that is not there.
    assert one.ties_with(replace(other, measured_low_s=None))


def test_the_order_of_the_study_is_compared_too():
    rows = [made(1, 1.0, 1.0, study_s=3.0), made(2, 2.0, 2.0, study_s=2.0)]
    found = ranking_agreement(rows)
    assert (found.kendall_tau, found.study_kendall_tau) == (1.0, -1.0)


def test_a_success_names_the_favourite():
    assert sentence([made(17, 1.0, 1.018), made(4, 1.2, 1.0), made(5, 2.0, 2.5)]) == (
        "Take candidate 17: it was predicted fastest and measured within 2 % of the fastest; the "
        "ranking agrees in 2 of 2 pairs that differ by more than 5 %."
    )
    assert sentence([made(17, 1.0, 1.0), made(4, 1.2, 2.0)], ValidationMode.SCALED) == (
        "Take candidate 17: it was predicted fastest and measured fastest, on a scaled-down "
        "model on this machine; the ranking agrees in 1 of 1 pair."
    )


def test_a_failure_names_the_fastest():
    assert sentence([made(17, 1.0, 1.5), made(4, 1.2, 1.0)]) == (
        "Take candidate 4 and not 17, which was predicted fastest but measured 50 % slower; the "
        "ranking agrees in 0 of 1 pair."
    )
    wide = [made(17, 1.0, 1.5, width=0.3), made(4, 1.2, 1.0, width=0.3)]
    assert "though the two cannot be told apart yet" in sentence(wide)


def test_measurements_that_overlap_decide_nothing():
    wide = [
        made(17, 1.0, 1.08, width=0.1),
        made(4, 1.2, 1.0, width=0.1),
        made(5, 2.0, 1.1, width=0.1),
    ]
    assert sentence(wide) == (
        "Take candidate 17 for now: it was predicted fastest, and all 3 measurements overlap, so "
        "that none can be told from the fastest; a larger budget or a quieter machine decides."
    )
    # Medians that happen to be equal say no more.
    equal = [made(17, 1.0, 1.0, width=0.1), made(4, 1.2, 1.01, width=0.1)]
    assert sentence(equal) == (
        "Take candidate 17 for now: it was predicted fastest, and both measurements overlap, so "
        "that none can be told from the fastest; a larger budget or a quieter machine decides."
    )
    one_apart = [*wide, made(6, 3.0, 3.0)]
    assert "within 8 % of the fastest and cannot be told from it" in sentence(one_apart)


def test_few_candidates_claim_little():
    assert "the only one run: its prediction is 20 % below" in sentence([made(3, 0.8, 1.0)])
    near = sentence([made(1, 1.0, 1.0), made(2, 2.0, 1.01)])
    assert "whichever of the 2 is cheapest to deploy: both were measured within 5 %" in near
    with pytest.raises(ConfigError, match="no candidate"):
        ranking_agreement([])


def test_the_factor_is_a_geometric_mean():
    # Measured over predicted: 2 and 8; mean 4, spread 2.
    rows = [made(1, 1.0, 2.0), made(2, 1.0, 8.0)]
    found = platform_factor(rows, "cpu", ValidationMode.REAL, "reference", 1.0)
    assert found.factor == pytest.approx(4.0)
    assert found.spread == pytest.approx(2.0)
    assert found.candidates == 2
    # Predictions that contain a factor already give the same one again.
    scaled = [replace(one, predicted_s=3.0 * one.predicted_s) for one in rows]
    again = platform_factor(scaled, "cpu", ValidationMode.REAL, "reference", 3.0)
    assert math.isclose(again.factor, 4.0)


def test_without_intervals_nothing_is_said_but_what_budget_would_do():
    few = [
        replace(made(number, 1.0, 1.0 + number), measured_low_s=None, measured_high_s=None)
        for number in (1, 2)
    ]
    found = ranking_agreement(few)
    of_the_order = (
        found.kendall_tau,
        found.study_kendall_tau,
        found.pairwise_accuracy,
        found.top1_regret,
        found.success,
    )
    assert of_the_order == (None,) * 5
    # What one measurement says by itself stays: 2.0 and 3.0 are not in 0.9–1.1.
    assert found.coverage == 0
    said = sentence(few)
    assert "Nothing can be said" in said
    assert "50s" in said
    assert "Take" not in said
