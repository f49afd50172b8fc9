"""Validations: candidates that were run for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse._text.digits import significant
from dse.report.console import UNKNOWN, Table, facts, figures, line, signed_percent
from dse.report.page import validation_view

if TYPE_CHECKING:
    from rich.console import Console

    from dse.report.page import ValidationView
    from dse.search import Validation


def print_validation(validation: Validation, console: Console) -> None:
    """Prints how candidates were run, a table of them, the figures, and the conclusion last."""
    view = validation_view(validation)
    for sentence in view.words:
        line(console, sentence, "dim")
    _print_candidates(validation, view, console)
    for text in _notes(validation):
        line(console, text)
    facts(console, view.figures)
    for number, reason in view.left_out:
        line(console, f"{number} left out: {reason}", "dim")
    line(console, view.sentence, "bold")


def _print_candidates(validation: Validation, view: ValidationView, console: Console) -> None:
    batches = {candidate.run_batch_size for candidate in validation.candidates}
    per_sample = ["µs a sample"] if len(batches) > 1 else []
    titles = ("#", "run (ranks × batch)", "predicted (ms)", "90 %", "measured (ms)", "95 %")
    table = Table("", figures(*titles, *per_sample, "error", "inside"))
    for candidate, row in zip(validation.candidates, view.rows, strict=True):
        table.add(
            f"{row.number} +{len(candidate.same)}" if candidate.same else str(row.number),
            row.run,
            significant(row.predicted[1]),
            _span(row.predicted),
            significant(row.measured[1]),
            _span(row.measured),
            *[significant(1e6 * candidate.measured_sample_s) for _ in per_sample],
            signed_percent(candidate.error, 0),
            "yes" if row.inside else "no",
        )
    table.print(console)


def _notes(validation: Validation) -> list[str]:
    """Returns which rows are the fastest, tie with it, were drawn, or stand for others."""
    found, candidates = validation.agreement, validation.candidates
    fastest = next(run for run in candidates if run.number == found.fastest)
    ties = [str(run.number) for run in candidates if run is not fastest and run.ties_with(fastest)]
    measured = f"{found.fastest}, a tie with {', '.join(ties)}" if ties else str(found.fastest)
    if not validation.decided:
        measured = "undecided"
    lines = [f"predicted fastest: {found.favourite}; measured fastest: {measured}"]
    drawn = [str(run.number) for run in candidates if run.chosen == "random"]
    if drawn:
        lines.append(f"chosen at random: {', '.join(drawn)}")
    for run in candidates:
        if run.same:
            same = ", ".join(map(str, run.same))
            lines.append(f"{run.number} stands for {same}, which would be the same run here")
    return lines


def _span(values: tuple[float | None, float, float | None]) -> str:
    low, _, high = values
    return UNKNOWN if low is None or high is None else f"{significant(low)}–{significant(high)}"
