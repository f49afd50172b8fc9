"""A validation on a terminal and on the page: what was measured beside what was predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from dse.search import CalibrationFactor, ValidatedCandidate, Validation


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One candidate on the page; times in milliseconds.

    Attributes:
        number: Trial number.
        label: Trial numbers of all that are the same.
        chosen: ``best`` or ``random``.
        run: Ranks and batch of the run in words.
        predicted: Low, expected and high predicted time.
        measured: Low, median and high measured time; ends are None with too few rounds.
        error_percent: Predicted over measured, less 1.
        inside: Whether the measured time lies in the predicted interval.
        note: Favourite, fastest, or a tie with fastest.
    """

    number: int
    label: str
    chosen: str
    run: str
    predicted: tuple[float, float, float]
    measured: tuple[float | None, float, float | None]
    error_percent: float
    inside: bool
    note: str


@dataclass(frozen=True, slots=True)
class ValidationView:
    """What the page shows of a validation.

    Attributes:
        sentence: What to do.
        rows: Candidates, predicted fastest first.
        figures: `(name, value)` in words.
        words: What was run, in sentences.
        left_out: `(trial, reason)`.
    """

    sentence: str
    rows: tuple[ValidationRow, ...]
    figures: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    left_out: tuple[tuple[int, str], ...]


def validation_view(validation: Validation | None) -> ValidationView | None:
    """Extracts what the page shows; None where there is no validation."""
    if validation is None:
        return None
    return ValidationView(
        sentence=validation.sentence,
        rows=tuple(_row(validation, one) for one in validation.candidates),
        figures=figures_of(validation),
        words=(_where(validation), *validation.setting.words),
        left_out=validation.setting.left_out,
    )


def render_validation(validation: Validation, console: Console) -> None:
    """Prints how candidates were run, a table of them, the figures, and the sentence last."""
    setting = validation.setting
    for words in (_where(validation), *setting.words):
        console.print(words, markup=False, highlight=False, style="dim")
    console.print(_table(validation))
    for line in _notes(validation):
        console.print(line, markup=False, highlight=False)
    figures = Table(box=None, show_header=False)
    figures.add_column(style="bold")
    figures.add_column()
    for name, value in figures_of(validation):
        figures.add_row(name, value)
    console.print(figures)
    for number, reason in setting.left_out:
        console.print(f"{number} left out: {reason}", markup=False, highlight=False, style="dim")
    console.print(validation.sentence, markup=False, highlight=False, style="bold")


def _table(validation: Validation) -> Table:
    per_sample = len({one.run_batch_size for one in validation.candidates}) > 1
    table = Table(box=None, header_style="bold")
    titles = ["#", "run", "predicted", "90 %", "measured", "95 %", "error", "in"]
    units = {"predicted": "ms", "measured": "ms", "run": "× batch", "#": ""}
    if per_sample:
        titles[6:6] = ["a sample"]
        units["a sample"] = "µs"
    for title in titles:
        table.add_column(f"{title}\n{units.get(title, '')}", justify="right", no_wrap=True)
    for candidate in validation.candidates:
        row = _row(validation, candidate)
        cells = [
            f"{row.number} +{len(candidate.same)}" if candidate.same else str(row.number),
            row.run,
            _digits(row.predicted[1]),
            _span(row.predicted),
            _digits(row.measured[1]),
            _span(row.measured),
            f"{row.error_percent:+.0f} %",
            "yes" if row.inside else "no",
        ]
        if per_sample:
            cells[6:6] = [_digits(1e6 * candidate.measured_sample_s)]
        table.add_row(*cells)
    return table


def _notes(validation: Validation) -> list[str]:
    """Says which rows are which: the ends of both orders, ties, and what stands for others."""
    found = validation.agreement
    by_number = {one.number: one for one in validation.candidates}
    fastest = by_number[found.fastest]
    ties = [
        str(one.number)
        for one in validation.candidates
        if one is not fastest and one.ties_with(fastest)
    ]
    line = f"predicted fastest: {found.favourite}; measured fastest: {found.fastest}"
    lines = [line + (f", a tie with {', '.join(ties)}" if ties else "")]
    drawn = [str(one.number) for one in validation.candidates if one.chosen == "random"]
    if drawn:
        lines.append(f"chosen at random: {', '.join(drawn)}")
    for one in validation.candidates:
        if one.same:
            same = ", ".join(map(str, one.same))
            lines.append(f"{one.number} stands for {same}, which would be the same run here")
    return lines


def figures_of(validation: Validation) -> tuple[tuple[str, str], ...]:
    """Returns names and values of the figures over all candidates."""
    found = validation.agreement
    factors = [(f"factor of {one.platform}", _factor_words(one)) for one in validation.factors]
    own = []
    if found.study_kendall_tau is not None:
        own = [("Kendall τ of the study's own order", f"{found.study_kendall_tau:.2f}")]
    return (
        ("Kendall τ", "–" if found.kendall_tau is None else f"{found.kendall_tau:.2f}"),
        *own,
        (
            "pairs in the right order",
            "– (no two differ by more than 5 %)"
            if found.pairwise_accuracy is None
            else f"{found.pairwise_accuracy * found.counted_pairs:g} of {found.counted_pairs} "
            "that differ by more than 5 %",
        ),
        ("ties (measured intervals overlap)", f"{found.tied_pairs} of {found.pairs} pairs"),
        ("top-1 regret", f"{100 * found.top1_regret:.1f} %"),
        ("within 10 % of the fastest", "yes" if found.success else "no"),
        ("measured inside the interval", f"{100 * found.coverage:.0f} %"),
        *factors,
    )


def _where(validation: Validation) -> str:
    setting = validation.setting
    applied = ""
    if setting.applied_factor != 1.0:
        applied = (
            f", each multiplied by {setting.applied_factor:.3g}, the factor of an earlier "
            "validation"
        )
    versions = ", ".join(f"{name} {version}" for name, version in setting.versions)
    threads = "thread" if setting.threads == 1 else "threads"
    return (
        f"Mode {setting.mode.value} on {setting.device_name} ({setting.cores} cores, "
        f"{setting.threads} {threads} a rank; {versions}); predictions by the platform "
        f"{setting.platform}{applied}."
    )


def _factor_words(factor: CalibrationFactor) -> str:
    return (
        f"{factor.factor:.3g} (measured over predicted, {factor.mode.value}; spread × "
        f"{factor.spread:.2f}, {factor.candidates} "
        f"{'candidate' if factor.candidates == 1 else 'candidates'})"
    )


def _row(validation: Validation, one: ValidatedCandidate) -> ValidationRow:
    return ValidationRow(
        number=one.number,
        label=" = ".join(str(number) for number in (one.number, *one.same)),
        chosen=one.chosen,
        run=f"{one.run_world_size} × {one.run_batch_size // one.run_world_size:,}",
        predicted=(_ms(one.predicted_low_s), _ms(one.predicted_s), _ms(one.predicted_high_s)),
        measured=(
            None if one.measured_low_s is None else _ms(one.measured_low_s),
            _ms(one.measured_s),
            None if one.measured_high_s is None else _ms(one.measured_high_s),
        ),
        error_percent=round(100 * one.error, 1),
        inside=one.inside,
        note=_note(validation, one),
    )


def _note(validation: Validation, one: ValidatedCandidate) -> str:
    found = validation.agreement
    by_number = {other.number: other for other in validation.candidates}
    words = ["at random"] if one.chosen == "random" else []
    if one.number == found.favourite:
        words.append("predicted fastest")
    if one.number == found.fastest:
        words.append("measured fastest")
    elif one.ties_with(by_number[found.fastest]):
        words.append("tie with fastest")
    return ", ".join(words)


def _span(values: tuple[float | None, float, float | None]) -> str:
    low, _, high = values
    return "–" if low is None or high is None else f"{_digits(low)}–{_digits(high)}"


def _digits(value: float) -> str:
    """Three significant digits, all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> float:
    return float(f"{1e3 * seconds:.5g}")
