"""Ranking metrics, calibration factor and one-sentence summary of a validation."""

from __future__ import annotations

from itertools import combinations
import math
import statistics
from typing import TYPE_CHECKING

import numpy as np

from dse._median import FEWEST_SAMPLES
from dse._text.percent import difference
from dse.errors import ConfigError
from dse.ranking import (
    coverage,
    kendall_tau,
    pairwise_accuracy,
    success_within,
    top1_regret,
)
from dse.search import CalibrationFactor, RankingMetrics, ValidationMode
from dse.validation.measurement import budget_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.search import ValidatedCandidate

#: The candidate that was predicted best may be this much slower than the fastest.
TOLERANCE = 0.10

#: A pair counts if its measurements differ by more than this fraction.
PAIR_DIFFERENCE = 0.05


def ranking_agreement(candidates: Sequence[ValidatedCandidate]) -> RankingMetrics:
    """Returns the ranking metrics of all candidates, compared by the time per sample.

    Raises:
        ConfigError: There are no candidates.
    """
    if not candidates:
        raise ConfigError("no candidate was measured, so there is nothing to compare")
    measured = [one.measured_sample_s for one in candidates]
    predicted = [one.predicted_sample_s for one in candidates]
    study = [one.study_time_s / one.global_batch_size for one in candidates]
    decided = all(one.measured_low_s is not None for one in candidates)
    pairs = list(combinations(candidates, 2))
    tied = sum(one.ties_with(other) for one, other in pairs)
    ordered = decided and tied < len(pairs)
    return RankingMetrics(
        favourite=predicted_best(candidates).number,
        fastest=min(candidates, key=lambda one: (one.measured_sample_s, one.number)).number,
        top1_regret=top1_regret(measured, predicted) if decided else None,
        success=success_within(measured, predicted, tolerance=TOLERANCE) if decided else None,
        kendall_tau=_known(kendall_tau(measured, predicted)) if ordered else None,
        pairwise_accuracy=(
            _known(pairwise_accuracy(measured, predicted, PAIR_DIFFERENCE)) if decided else None
        ),
        counted_pairs=sum(_differ(*pair) for pair in pairs),
        pairs=len(pairs),
        tied_pairs=tied,
        coverage=coverage(
            [one.measured_s for one in candidates],
            [one.predicted_low_s for one in candidates],
            [one.predicted_high_s for one in candidates],
        ),
        study_kendall_tau=_known(kendall_tau(measured, study)) if ordered else None,
    )


def predicted_best(candidates: Sequence[ValidatedCandidate]) -> ValidatedCandidate:
    """Returns the candidate that was predicted fastest; of ties the slowest, as in the regret."""
    return min(
        candidates, key=lambda one: (one.predicted_sample_s, -one.measured_sample_s, one.number)
    )


def platform_factor(
    candidates: Sequence[ValidatedCandidate],
    platform: str,
    mode: ValidationMode,
    trainer: str,
    applied: float,
) -> CalibrationFactor:
    """Returns the geometric mean of measured over predicted times.

    Args:
        candidates: Measured candidates.
        platform: Platform that predicted.
        mode: How candidates were run.
        trainer: What trained them.
        applied: Factor that the predictions already include.
    """
    ratios = [math.log(one.measured_s * applied / one.predicted_s) for one in candidates]
    return CalibrationFactor(
        platform,
        mode,
        len(ratios),
        math.exp(statistics.fmean(ratios)),
        math.exp(float(np.std(ratios))),
        trainer,
    )


def summary_sentence(
    candidates: Sequence[ValidatedCandidate],
    agreement: RankingMetrics,
    mode: ValidationMode,
    needed_s: float,
) -> str:
    """Returns the recommendation in one sentence.

    Args:
        candidates: Measured candidates.
        agreement: Their ranking metrics.
        mode: How candidates were run.
        needed_s: Budget that is expected to give every median an interval, in seconds.
    """
    if agreement.top1_regret is None:
        rounds = min(len(one.samples_s) for one in candidates)
        noun = "round was" if rounds == 1 else "rounds were"
        return (
            f"Nothing can be said yet: {rounds} {noun} measured, and an interval takes "
            f"{FEWEST_SAMPLES}; a budget of {budget_text(needed_s)} gives as many."
        )
    by_number = {one.number: one for one in candidates}
    best, fastest = by_number[agreement.favourite], by_number[agreement.fastest]
    where = {
        ValidationMode.REAL: "",
        ValidationMode.RANK_SERIAL: ", rank after rank with modelled collectives",
        ValidationMode.SCALED: ", on a scaled-down model on this machine",
    }[mode]
    if len(candidates) == 1:
        side = "above" if best.error > 0 else "below"
        return (
            f"Candidate {best.number} was the only one run: its prediction is "
            f"{difference(best.error)} {side} its measurement{where}, and nothing can "
            "be said of its rank."
        )
    tied = agreement.success and all(one.ties_with(fastest) for one in candidates)
    if tied and (agreement.counted_pairs or _widest_difference(candidates) > TOLERANCE):
        every = "both" if len(candidates) == 2 else f"all {len(candidates)}"
        return (
            f"Take candidate {best.number} for now: it was predicted fastest, and {every} "
            f"measurements overlap, so that none can be told from the fastest{where}; a larger "
            "budget or a quieter machine decides."
        )
    if agreement.counted_pairs == 0:
        every = "both" if len(candidates) == 2 else "all"
        return (
            f"Take candidate {best.number}, or whichever of the {len(candidates)} is "
            f"cheapest to deploy: {every} were measured within {100 * PAIR_DIFFERENCE:.0f} % of "
            f"each other{where}."
        )
    ranking = _ranking_text(agreement)
    if agreement.success:
        # Rounded first, so that 8 % plus a rounding error does not become 9 %.
        percent = max(1, math.ceil(round(100 * agreement.top1_regret, 6)))
        how = f"within {percent} % of the fastest"
        if best is fastest:
            how = "fastest"
            same = sum(one.ties_with(fastest) for one in candidates) - 1
            if same:
                how += f" (but {same} of the others cannot be told from it yet)"
        elif best.ties_with(fastest):
            how += " and cannot be told from it"
        return (
            f"Take candidate {best.number}: it was predicted fastest and measured "
            f"{how}{where}; {ranking}."
        )
    tie = ", though the two cannot be told apart yet" if best.ties_with(fastest) else ""
    return (
        f"Take candidate {fastest.number} and not {best.number}, which was predicted fastest "
        f"but measured {difference(agreement.top1_regret)} slower{where}{tie}; {ranking}."
    )


def _widest_difference(candidates: Sequence[ValidatedCandidate]) -> float:
    """Returns by how much candidates may differ within their measured intervals, as a share."""
    slowest = max((one.measured_high_s or math.inf) / one.run_batch_size for one in candidates)
    fastest = min((one.measured_low_s or 0.0) / one.run_batch_size for one in candidates)
    return slowest / fastest - 1.0 if fastest else math.inf


def _ranking_text(agreement: RankingMetrics) -> str:
    assert agreement.pairwise_accuracy is not None
    right = agreement.pairwise_accuracy * agreement.counted_pairs
    left_out = agreement.pairs - agreement.counted_pairs
    pairs = "pair" if agreement.counted_pairs == 1 else "pairs"
    rest = f" that differ by more than {100 * PAIR_DIFFERENCE:.0f} %" if left_out else ""
    return f"the ranking agrees in {right:g} of {agreement.counted_pairs} {pairs}{rest}"


def _differ(one: ValidatedCandidate, other: ValidatedCandidate) -> bool:
    low, high = sorted((one.measured_sample_s, other.measured_sample_s))
    return high / low - 1.0 > PAIR_DIFFERENCE


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
