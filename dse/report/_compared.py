"""Two studies beside each other, on a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dse.report._metrics import metric_formats, milliseconds, title_with_unit
from dse.report._rescored import percent, short_words

if TYPE_CHECKING:
    from rich.console import Console

    from dse.search import StudyComparison, StudyResult, TrialRecord

#: Rows of each table.
_MAX_ROWS = 12


def print_comparison(
    comparison: StudyComparison, names: tuple[str, str], console: Console
) -> None:
    """Prints what differs, both fronts, candidates in common, the best, and the conclusion.

    Args:
        comparison: Both studies.
        names: What they are called, such as their folders.
        console: Where to print.
    """
    first, second = comparison.first, comparison.second
    _line(
        console, f"A: {names[0]}   {first.name}, {first.created}, {len(first.front)} on the front"
    )
    _line(
        console,
        f"B: {names[1]}   {second.name}, {second.created}, {len(second.front)} on the front",
    )
    if not comparison.same_objectives:
        shared = ", ".join(axis.metric.value for axis in comparison.objectives)
        _line(console, f"the objectives are not the same; compared in {shared} alone")
    console.print(_differences(comparison))
    for letter, study in (("A", first), ("B", second)):
        console.print(_front(letter, study, comparison))
    console.print(_best(comparison))
    if comparison.hypervolumes is not None and comparison.hypervolume_ratio is not None:
        _line(
            console,
            f"hypervolume, both fronts in one box: {comparison.hypervolumes[0]:.4f} → "
            f"{comparison.hypervolumes[1]:.4f} ({comparison.hypervolume_ratio:.3f} times)",
        )
    _common(comparison, console)
    console.print(comparison.conclusion, markup=False, highlight=False, style="bold")


def _differences(comparison: StudyComparison) -> Table | str:
    if not comparison.differences:
        return "made from the same inputs, versions and settings"
    table = Table(title="what differs", title_justify="left", box=None, header_style="bold")
    for title in ("", "of", "A", "B"):
        table.add_column(title, overflow="fold")
    for difference in comparison.differences[:_MAX_ROWS]:
        table.add_row(
            difference.kind,
            Text(" ".join(filter(None, (difference.name, difference.quantity)))),
            Text(difference.first or "–"),
            Text(difference.second or "–"),
        )
    hidden = len(comparison.differences) - _MAX_ROWS
    if hidden > 0:
        table.caption = f"… and {hidden} more; --json has all"
        table.caption_justify = "left"
    return table


def _front(letter: str, study: StudyResult, comparison: StudyComparison) -> Table:
    table = Table(title=f"front of {letter}", title_justify="left", box=None, header_style="bold")
    table.add_column("#", justify="right")
    forms = [(axis, metric_formats(study)[axis.metric]) for axis in comparison.objectives]
    for _, form in forms:
        table.add_column(title_with_unit(form), justify="right", overflow="fold")
    table.add_column("Configuration", overflow="fold")
    other = {
        one.first if letter == "A" else one.second: one.second if letter == "A" else one.first
        for one in comparison.common
    }
    there = comparison.second if letter == "A" else comparison.first
    on_front = {record.number for record in there.front}
    table.add_column("in B" if letter == "A" else "in A", overflow="fold")
    for record in study.front[:_MAX_ROWS]:
        table.add_row(
            str(record.number),
            *(form.text(record.metrics[axis.metric]) for axis, form in forms),
            Text(short_words(record)),
            _elsewhere(record, other, on_front),
        )
    hidden = len(study.front) - _MAX_ROWS
    if hidden > 0:
        table.caption = f"… and {hidden} more"
        table.caption_justify = "left"
    return table


def _elsewhere(record: TrialRecord, other: dict[int, int], on_front: set[int]) -> str:
    number = other.get(record.number)
    if number is None:
        return "not evaluated"
    return f"#{number}, on the front" if number in on_front else f"#{number}"


def _best(comparison: StudyComparison) -> Table:
    table = Table(title="best", title_justify="left", box=None, header_style="bold")
    table.add_column("objective")
    for title in ("A", "B", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    formats = metric_formats(comparison.first)
    for move in comparison.best:
        form = formats[move.metric]
        cells = [
            "–" if number is None else f"{form.text(value)} (#{number})"
            for number, value in (
                (move.number_before, move.value_before),
                (move.number_after, move.value_after),
            )
        ]
        change = percent(move.value_before, move.value_after)
        unknown = math.isnan(move.value_before) or math.isnan(move.value_after)
        table.add_row(title_with_unit(form), *cells, change or ("–" if unknown else "same"))
    return table


def _common(comparison: StudyComparison, console: Console) -> None:
    common = comparison.common
    moved = sorted(
        (one for one in common if one.moved),
        key=lambda one: (-abs(math.log(one.time_ratio)), one.first),
    )
    if not common:
        _line(console, "no configuration was evaluated in both")
        return
    _line(console, f"{len(common)} configurations in both, {len(moved)} predicted otherwise")
    if not moved:
        return
    table = Table(
        title="predicted otherwise, the most first",
        title_justify="left",
        box=None,
        header_style="bold",
    )
    for title in ("A", "B", "time in A", "time in B", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("because", overflow="fold")
    records = {record.number: record for record in comparison.first.records}
    for one in moved[:5]:
        answer = records[one.first].prediction or records[one.first].trace
        assert answer is not None
        seconds = answer.iteration_time_s
        table.add_row(
            f"#{one.first}",
            f"#{one.second}",
            milliseconds(seconds),
            milliseconds(seconds * one.time_ratio),
            f"{100 * (one.time_ratio - 1):+.1f} %",
            Text("; ".join(one.reasons) or "the program itself"),
        )
    console.print(table)


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
