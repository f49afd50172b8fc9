"""A study under other inputs, next to the original."""

from __future__ import annotations

from collections import Counter
import math
from typing import TYPE_CHECKING

from dse.report._metrics import metric_formats, title_with_unit
from dse.report.console import UNKNOWN, Table, change, figures, line, names, plural, texts
from dse.report.terminal._study import short_name
from dse.search import TrialStatus, best_moves, front_moves

if TYPE_CHECKING:
    from rich.console import Console

    from dse.report._metrics import MetricFormat
    from dse.search import FrontMove, Rescored

_MAX_FIGURES = 12


def print_rescored(rescored: Rescored, console: Console, *, top: int = 15) -> None:
    """Prints the changes, both fronts side by side, and the best before and after.

    Args:
        rescored: The study under the changed inputs.
        console: Where to print.
        top: Rows of the front.
    """
    _print_figures(rescored, console)
    moves = front_moves(rescored.before, rescored.after)
    _print_front(rescored, moves[:top], console)
    if len(moves) > top:
        line(console, f"… and {len(moves) - top} more (--top {len(moves)} shows all)")
    _print_best(rescored, console)
    for move in moves:
        if move.reason:
            line(console, f"#{move.number} leaves the front: {move.reason}")
    line(console, _counts(rescored))
    line(console, _plans(rescored))
    if rescored.newly_allowed:
        configurations = plural(rescored.newly_allowed, "configuration")
        line(
            console,
            f"{configurations} rejected by a hard limit would be allowed now, but without a plan; "
            "evaluate with a new `dse run`",
        )
    line(console, rescored.after.conclusion, "bold")


def _print_figures(rescored: Rescored, console: Console) -> None:
    columns = (names("platform"), texts("figure"), figures("before", "after"))
    table = Table("what changed", *columns)
    for figure in rescored.figures[:_MAX_FIGURES]:
        platform = figure.platform or "search space"
        table.add(platform, figure.quantity, figure.before, figure.after)
    table.print(console)
    hidden = len(rescored.figures) - _MAX_FIGURES
    if hidden > 0:
        line(console, f"… and {hidden} more figures")


def _print_front(rescored: Rescored, moves: tuple[FrontMove, ...], console: Console) -> None:
    study = rescored.after
    formats = [metric_formats(study)[axis.metric] for axis in study.objectives]
    titles = [title_with_unit(form) for form in formats]
    table = Table("front", names("rank"), figures("#", *titles), texts("Configuration"))
    records = {record.number: record for record in study.records}
    for move in moves:
        values = zip(formats, move.values_before, move.values_after, strict=True)
        table.add(
            _rank(move),
            str(move.number),
            *(_moved(form, before, after) for form, before, after in values),
            short_name(records[move.number]),
            style="dim" if move.rank_after is None else None,
        )
    table.print(console)


def _rank(move: FrontMove) -> str:
    if move.rank_before is None:
        return f"{move.rank_after}  new"
    if move.rank_after is None:
        return f"out ({move.rank_before})"
    if move.rank_after == move.rank_before:
        return f"{move.rank_after}"
    return f"{move.rank_after}  was {move.rank_before}"


def _moved(form: MetricFormat, before: float, after: float) -> str:
    if math.isnan(after):
        return UNKNOWN
    moved = change(before, after)
    return f"{form.text(after)} ({moved})" if moved else form.text(after)


def _print_best(rescored: Rescored, console: Console) -> None:
    table = Table("best", names("objective"), figures("before", "after", "change"))
    formats = metric_formats(rescored.after)
    for move in best_moves(rescored.before, rescored.after):
        form = formats[move.metric]
        table.add(
            title_with_unit(form),
            form.with_number(move.number_before, move.value_before),
            form.with_number(move.number_after, move.value_after),
            change(move.value_before, move.value_after) or "same",
        )
    table.print(console)


def _counts(rescored: Rescored) -> str:
    before = Counter(record.status for record in rescored.before.records)
    after = Counter(record.status for record in rescored.after.records)
    return (
        f"{rescored.kept + rescored.repriced + rescored.simulated} candidates: {rescored.kept} "
        f"untouched, {rescored.repriced} with the same times, {rescored.simulated} simulated "
        f"again; feasible {before[TrialStatus.FEASIBLE]} → {after[TrialStatus.FEASIBLE]}"
    )


def _plans(rescored: Rescored) -> str:
    if rescored.searched:
        better = ", ".join(f"#{number}" for number, found in rescored.searched if found)
        return (
            f"plans were searched again for {len(rescored.searched)}, improved: "
            f"{better or 'none'}; all others are kept"
        )
    if not rescored.simulated:
        return "plans are kept; these changes affect no time, so they are as good as before"
    return (
        "plans are kept; a new search could find better ones (--replan N searches again for the "
        "best N)"
    )
