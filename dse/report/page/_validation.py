"""Candidates that were run for real: measured and predicted times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse._median import FEWEST_SAMPLES
from dse.report.console import UNKNOWN, percent, plural, signed_percent
from dse.report.page._payload import rounded

if TYPE_CHECKING:
    from dse.search import CalibrationFactor, ValidatedCandidate, Validation

#: Figure of an order that too few rounds were measured for.
_UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One candidate on the page; times in milliseconds.

    Attributes:
        number: Trial number.
        label: Trial numbers of all that are the same.
        chosen: ``best`` or ``random``.
        run: Ranks, and batch of each of them.
        predicted: Low, expected and high predicted time.
        measured: Low, median and high measured time; ends are None with too few rounds.
        error: Predicted over measured, less 1, in words.
        inside: Whether the measured time lies in the predicted interval.
        note: Predicted or measured fastest, or a tie with the fastest.
    """

    number: int
    label: str
    chosen: str
    run: str
    predicted: tuple[float, float, float]
    measured: tuple[float | None, float, float | None]
    error: str
    inside: bool
    note: str


@dataclass(frozen=True, slots=True)
class ValidationView:
    """A validation as it is shown.

    Attributes:
        sentence: What to do.
        rows: Candidates, predicted fastest first.
        figures: Name and value of each figure over all candidates.
        words: Sentences on what was run.
        left_out: `(trial, reason)`.
    """

    sentence: str
    rows: tuple[ValidationRow, ...]
    figures: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    left_out: tuple[tuple[int, str], ...]


def validation_view(validation: Validation) -> ValidationView:
    """Returns a validation as it is shown."""
    return ValidationView(
        sentence=validation.sentence,
        rows=tuple(_row(validation, candidate) for candidate in validation.candidates),
        figures=_figures(validation),
        words=(_where(validation), *validation.setting.words),
        left_out=validation.setting.left_out,
    )


def _figures(validation: Validation) -> tuple[tuple[str, str], ...]:
    return (
        *_order(validation),
        ("measured inside the interval", percent(validation.agreement.coverage, 0)),
        *(
            (f"factor of {factor.platform} ({factor.trainer})", _factor(factor))
            for factor in validation.factors
        ),
    )


def _order(validation: Validation) -> tuple[tuple[str, str], ...]:
    """Returns the figures that compare the predicted order with the measured one."""
    found = validation.agreement
    taus = [("Kendall τ", found.kendall_tau)]
    if found.study_kendall_tau is not None:
        taus.append(("Kendall τ of the study's own order", found.study_kendall_tau))
    order = f"{UNKNOWN} (no two differ by more than 5 %)"
    if found.pairwise_accuracy is not None:
        right = f"{found.pairwise_accuracy * found.counted_pairs:g} of {found.counted_pairs}"
        order = f"{right} that differ by more than 5 %"
    figures = (
        *((name, UNKNOWN if tau is None else f"{tau:.2f}") for name, tau in taus),
        ("pairs in the right order", order),
        ("ties (measured intervals overlap)", f"{found.tied_pairs} of {found.pairs} pairs"),
        ("top-1 regret", UNKNOWN if found.top1_regret is None else percent(found.top1_regret)),
        ("within 10 % of the fastest", "yes" if found.success else "no"),
    )
    if found.pairs == 0:
        # One alone has no rank.
        figures = ()
    if validation.decided:
        return figures
    # Files of earlier versions have figures of an order that the next round may turn around.
    counts = sorted({len(one.samples_s) for one in validation.candidates})
    rounds = "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    measured = f"{rounds} of at least {FEWEST_SAMPLES}; no interval, so no order yet"
    return (("rounds measured", measured), *((name, _UNDECIDED) for name, _ in figures))


def _where(validation: Validation) -> str:
    setting = validation.setting
    applied = ""
    if setting.applied_factor != 1.0:
        applied = (
            f", each multiplied by {setting.applied_factor:.3g}, the factor of an earlier "
            "validation"
        )
    versions = ", ".join(f"{name} {version}" for name, version in setting.versions)
    return (
        f"Mode {setting.mode.value} on {setting.device_name} ({setting.cores} cores, "
        f"{plural(setting.threads, 'thread')} a rank; {versions}); predictions by the platform "
        f"{setting.platform}{applied}."
    )


def _factor(factor: CalibrationFactor) -> str:
    return (
        f"{factor.factor:.3g} (measured over predicted, {factor.mode.value}; spread × "
        f"{factor.spread:.2f}, {plural(factor.candidates, 'candidate')})"
    )


def _row(validation: Validation, run: ValidatedCandidate) -> ValidationRow:
    low_s, high_s = run.measured_low_s, run.measured_high_s
    return ValidationRow(
        number=run.number,
        label=" = ".join(str(number) for number in (run.number, *run.same)),
        chosen=run.chosen,
        run=f"{run.run_world_size} × {run.run_batch_size // run.run_world_size:,}",
        predicted=(_ms(run.predicted_low_s), _ms(run.predicted_s), _ms(run.predicted_high_s)),
        measured=(
            None if low_s is None else _ms(low_s),
            _ms(run.measured_s),
            None if high_s is None else _ms(high_s),
        ),
        error=signed_percent(run.error),
        inside=run.inside,
        note=_note(validation, run),
    )


def _note(validation: Validation, run: ValidatedCandidate) -> str:
    found = validation.agreement
    by_number = {other.number: other for other in validation.candidates}
    parts = ["at random"] if run.chosen == "random" else []
    if run.number == found.favourite:
        parts.append("predicted fastest")
    if not validation.decided:
        return ", ".join(parts)
    if run.number == found.fastest:
        parts.append("measured fastest")
    elif run.ties_with(by_number[found.fastest]):
        parts.append("tie with fastest")
    return ", ".join(parts)


def _ms(seconds: float) -> float:
    return rounded(1e3 * seconds, 5)
