"""Two studies side by side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.report._metrics import metric_formats
from dse.report.console import (
    UNKNOWN,
    Table,
    duration,
    figures,
    line,
    names,
    signed_percent,
    texts,
)
from dse.report.terminal.studies._study import print_best, short_name

if TYPE_CHECKING:
    from rich.console import Console

    from dse.search import StudyResult, TrialRecord
    from dse.search.compare import StudyComparison

#: Rows of each table, and of the table of predictions that differ.
_MAX_ROWS = 12
_MAX_MOVED = 5


def print_comparison(
    comparison: StudyComparison, folders: tuple[str, str], console: Console
) -> None:
    """Prints differences of the inputs, both fronts, the best, common candidates, a conclusion.

    Args:
        comparison: Both studies.
        folders: What they are called, such as their folders.
        console: Where to print.
    """
    studies = (comparison.first, comparison.second)
    for letter, folder, study in zip("AB", folders, studies, strict=True):
        front = f"{len(study.front)} on the front"
        line(console, f"{letter}: {folder}   {study.name}, {study.created}, {front}")
    if not comparison.same_objectives:
        shared = ", ".join(axis.metric for axis in comparison.objectives)
        line(console, f"the objectives differ; compared in {shared} only")
    _print_differences(comparison, console)
    for letter, study in zip("AB", studies, strict=True):
        _print_front(letter, study, comparison, console)
    formats = metric_formats(comparison.first, comparison.second)
    print_best(comparison.best, ("A", "B"), formats, console)
    if comparison.hypervolumes is not None:
        before, after = comparison.hypervolumes
        line(
            console,
            f"hypervolume {before:.4f} → {after:.4f}, relative to the box between the best and "
            "the worst values of both fronts",
        )
    _print_common(comparison, console)
    line(console, comparison.conclusion, "bold")


def _print_differences(comparison: StudyComparison, console: Console) -> None:
    if not comparison.differences:
        line(console, "made from the same inputs, versions and settings")
        return
    table = Table("what differs", names(""), texts("of", "A", "B"))
    for difference in comparison.differences[:_MAX_ROWS]:
        table.add(
            difference.kind,
            " ".join(filter(None, (difference.name, difference.quantity))),
            difference.first or UNKNOWN,
            difference.second or UNKNOWN,
        )
    table.print(console)
    hidden = len(comparison.differences) - _MAX_ROWS
    if hidden > 0:
        line(console, f"… and {hidden} more; --json has all")


def _print_front(
    letter: str, study: StudyResult, comparison: StudyComparison, console: Console
) -> None:
    first = letter == "A"
    other = comparison.second if first else comparison.first
    formats = metric_formats(study, other)
    forms = [(axis, formats[axis.metric]) for axis in comparison.objectives]
    titles = [form.title_with_unit for _, form in forms]
    columns = (figures("#", *titles), texts("Configuration", "in B" if first else "in A"))
    table = Table(f"front of {letter}", *columns)
    elsewhere = {
        pair.first if first else pair.second: pair.second if first else pair.first
        for pair in reversed(comparison.common)
    }
    on_front = {record.number for record in other.front}
    for record in study.front[:_MAX_ROWS]:
        table.add(
            str(record.number),
            *(form.text(record.metrics[axis.metric]) for axis, form in forms),
            short_name(study, record),
            _elsewhere(record, elsewhere, on_front),
        )
    table.print(console)
    hidden = len(study.front) - _MAX_ROWS
    if hidden > 0:
        line(console, f"… and {hidden} more")


def _elsewhere(record: TrialRecord, elsewhere: dict[int, int], on_front: set[int]) -> str:
    number = elsewhere.get(record.number)
    if number is None:
        return "not evaluated"
    return f"#{number}, on the front" if number in on_front else f"#{number}"


def _print_common(comparison: StudyComparison, console: Console) -> None:
    common = comparison.common
    if not common:
        line(console, "no configuration was evaluated in both studies")
        return
    moved = sorted(
        (pair for pair in common if pair.moved),
        key=lambda pair: (-abs(math.log(pair.time_ratio)), pair.first),
    )
    line(console, f"{len(common)} outcomes in both, {len(moved)} predicted differently")
    if not moved:
        return
    title = "predicted differently, largest difference first"
    columns = (figures("A", "B", "time in A", "time in B", "change"), texts("because"))
    table = Table(title, *columns)
    records = {record.number: record for record in comparison.first.records}
    for pair in moved[:_MAX_MOVED]:
        prediction = records[pair.first].prediction
        assert prediction is not None
        seconds = prediction.iteration_time_s
        table.add(
            f"#{pair.first}",
            f"#{pair.second}",
            duration(seconds),
            duration(seconds * pair.time_ratio),
            signed_percent(pair.time_ratio - 1),
            "; ".join(pair.reasons) or "the program itself",
        )
    table.print(console)
