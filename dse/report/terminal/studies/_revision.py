"""A study under other inputs, next to the original."""

from __future__ import annotations

from collections import Counter
import math
from typing import TYPE_CHECKING

from dse.report._metrics import metric_formats
from dse.report.console import UNKNOWN, Table, change, figures, line, names, plural, texts
from dse.report.terminal.studies._study import print_best, short_name
from dse.search import TrialStatus
from dse.search.analyse import best_moves, conclude, front_moves

if TYPE_CHECKING:
    from rich.console import Console

    from dse.search.analyse import FrontMove
    from dse.search.revise import Revision
    from dse.workload import Metric

_MAX_FIGURES = 12


def print_revision(revision: Revision, console: Console, *, top: int = 15) -> None:
    """Prints the changes, both fronts side by side, and the best before and after.

    Args:
        revision: The study under the changed inputs.
        console: Where to print.
        top: Rows of the front.
    """
    _print_figures(revision, console)
    moves = front_moves(revision.before, revision.after)
    _print_front(revision, moves[:top], console)
    if len(moves) > top:
        line(console, f"… and {len(moves) - top} more (--top {len(moves)} shows all)")
    best = best_moves(revision.before, revision.after)
    print_best(best, ("before", "after"), metric_formats(revision.after), console)
    for move in moves:
        if move.reason:
            line(console, f"#{move.number} leaves the front: {move.reason}")
    line(console, _counts(revision))
    line(console, _plans(revision))
    if revision.newly_allowed:
        configurations = plural(revision.newly_allowed, "configuration")
        line(
            console,
            f"{configurations} rejected by a hard limit would be allowed now, but without a plan; "
            "evaluate with a new `dse run`",
        )
    line(console, conclude(revision.after), "bold")


def _print_figures(revision: Revision, console: Console) -> None:
    columns = (names("platform"), texts("figure"), figures("before", "after"))
    table = Table("what changed", *columns)
    for figure in revision.figures[:_MAX_FIGURES]:
        platform = figure.platform or "search space"
        table.add(platform, figure.quantity, figure.before, figure.after)
    table.print(console)
    hidden = len(revision.figures) - _MAX_FIGURES
    if hidden > 0:
        line(console, f"… and {plural(hidden, 'more figure')}")


def _print_front(revision: Revision, moves: tuple[FrontMove, ...], console: Console) -> None:
    study = revision.after
    formats = [metric_formats(study)[axis.metric] for axis in study.objectives]
    titles = [form.title_with_unit for form in formats]
    table = Table("front", names("place"), figures("#", *titles), texts("Configuration"))
    records = {record.number: record for record in study.records}
    for move in moves:
        # A candidate that failed has no values any more.
        values_after = move.values_after or (math.nan,) * len(formats)
        values = zip(formats, move.values_before, values_after, strict=True)
        table.add(
            _place(move),
            str(move.number),
            *(_moved(form, before, after) for form, before, after in values),
            short_name(study, records[move.number]),
            style="dim" if move.rank_after is None else None,
        )
    table.print(console)


def _place(move: FrontMove) -> str:
    if move.rank_before is None:
        return f"{move.rank_after}  new"
    if move.rank_after is None:
        return f"out ({move.rank_before})"
    if move.rank_after == move.rank_before:
        return f"{move.rank_after}"
    return f"{move.rank_after}  was {move.rank_before}"


def _moved(form: Metric, before: float, after: float) -> str:
    if math.isnan(after):
        return UNKNOWN
    moved = change(before, after)
    return f"{form.text(after)} ({moved})" if moved else form.text(after)


def _counts(revision: Revision) -> str:
    before = Counter(record.status for record in revision.before.records)
    after = Counter(record.status for record in revision.after.records)
    return (
        f"{revision.kept + revision.repriced + revision.simulated} candidates: {revision.kept} "
        f"untouched, {revision.repriced} with the same times, {revision.simulated} simulated "
        f"again; feasible {before[TrialStatus.FEASIBLE]} → {after[TrialStatus.FEASIBLE]}"
    )


def _plans(revision: Revision) -> str:
    if revision.searched:
        better = ", ".join(f"#{number}" for number, found in revision.searched if found)
        return (
            f"plans were searched again for {len(revision.searched)}, improved: "
            f"{better or 'none'}; all others are kept"
        )
    if not revision.simulated:
        return "plans are kept; these changes affect no time, so they are as good as before"
    return (
        "plans are kept; a new search could find better ones (--replan N searches again for the "
        "best N)"
    )
