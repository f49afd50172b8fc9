"""A study under other inputs beside the study as it was, on a terminal."""

from __future__ import annotations

from collections import Counter
import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dse.report._metrics import metric_formats, title_with_unit
from dse.search import TrialStatus, best_moves, change_words, front_moves
from dse.workload.transformer import StepConfiguration, parallelism_words

if TYPE_CHECKING:
    from rich.console import Console

    from dse.report._metrics import MetricFormat
    from dse.search import FrontMove, Rescored, TrialRecord

#: Figures that moved and are named one by one.
_MAX_FIGURES = 12


def print_rescored(rescored: Rescored, console: Console, *, top: int = 15) -> None:
    """Prints what changed, both fronts beside each other, and the best before and after.

    Args:
        rescored: The study, scored again.
        console: Where to print.
        top: Rows of the front.
    """
    console.print(_figures(rescored))
    hidden = len(rescored.figures) - _MAX_FIGURES
    if hidden > 0:
        _line(console, f"… and {hidden} more figures")
    moves = front_moves(rescored.before, rescored.after)
    console.print(_front(rescored, moves[:top]))
    if len(moves) > top:
        _line(console, f"… and {len(moves) - top} more (--top {len(moves)} shows all)")
    console.print(_best(rescored))
    for move in moves:
        if move.reason:
            _line(console, f"#{move.number} leaves the front: {move.reason}")
    _line(console, _counts(rescored))
    _line(console, _plans(rescored))
    if rescored.newly_allowed:
        few = rescored.newly_allowed == 1
        _line(
            console,
            f"{rescored.newly_allowed} configuration{'' if few else 's'} that broke a hard limit "
            f"would be allowed now; {'it has' if few else 'they have'} no plan, so only a new "
            "`dse run` looks at them",
        )
    console.print(rescored.after.conclusion, markup=False, highlight=False, style="bold")


def _figures(rescored: Rescored) -> Table:
    table = Table(title="what changed", title_justify="left", box=None, header_style="bold")
    for title in ("platform", "figure"):
        table.add_column(title, overflow="fold")
    for title in ("before", "after"):
        table.add_column(title, justify="right", no_wrap=True)
    for figure in rescored.figures[:_MAX_FIGURES]:
        table.add_row(
            Text(figure.platform or "search space"),
            Text(figure.quantity),
            figure.before,
            figure.after,
        )
    return table


def _front(rescored: Rescored, moves: tuple[FrontMove, ...]) -> Table:
    study = rescored.after
    table = Table(title="front", title_justify="left", box=None, header_style="bold")
    table.add_column("rank", no_wrap=True)
    table.add_column("#", justify="right")
    formats = [metric_formats(study)[axis.metric] for axis in study.objectives]
    for form in formats:
        table.add_column(title_with_unit(form), justify="right", overflow="fold")
    table.add_column("Configuration", overflow="fold")
    records = {record.number: record for record in study.records}
    for move in moves:
        table.add_row(
            _rank(move),
            str(move.number),
            *(
                _moved(form, before, after)
                for form, before, after in zip(
                    formats, move.values_before, move.values_after, strict=True
                )
            ),
            Text(short_words(records[move.number])),
            style="dim" if move.rank_after is None else None,
        )
    return table


def short_words(record: TrialRecord) -> str:
    """Names a configuration by its machines and batch, or by its changes of a trace."""
    if record.trace is not None:
        return change_words(record)
    configuration = record.configuration
    if configuration is None:
        return ", ".join(str(value) for _, value in record.parameters[:3])
    words = f"{configuration.world_size} × {configuration.platform}"
    if isinstance(configuration, StepConfiguration):
        return f"{words}, {parallelism_words(configuration.parallelism)}"
    return f"{words}, batch {configuration.global_batch_size:,}"


def _rank(move: FrontMove) -> str:
    if move.rank_before is None:
        return f"{move.rank_after}  new"
    if move.rank_after is None:
        return f"out ({move.rank_before})"
    if move.rank_after == move.rank_before:
        return f"{move.rank_after}"
    return f"{move.rank_after}  was {move.rank_before}"


def _moved(form: MetricFormat, before: float, after: float) -> str:
    """One figure after the changes, and how far it moved."""
    if math.isnan(after):
        return "–"
    text = form.text(after)
    change = percent(before, after)
    return f"{text} ({change})" if change else text


def percent(before: float, after: float) -> str:
    """Prints a relative change; nothing where there is none or it cannot be told."""
    if before == after or math.isnan(before) or math.isnan(after) or before == 0:
        return ""
    return f"{100 * (after / before - 1):+.1f} %"


def _best(rescored: Rescored) -> Table:
    table = Table(title="best", title_justify="left", box=None, header_style="bold")
    table.add_column("objective")
    for title in ("before", "after", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    formats = metric_formats(rescored.after)
    for move in best_moves(rescored.before, rescored.after):
        form = formats[move.metric]
        table.add_row(
            title_with_unit(form),
            _with_number(form, move.number_before, move.value_before),
            _with_number(form, move.number_after, move.value_after),
            percent(move.value_before, move.value_after) or "same",
        )
    return table


def _with_number(form: MetricFormat, number: int | None, value: float) -> str:
    return "–" if number is None else f"{form.text(value)} (#{number})"


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
        better = [f"#{number}" for number, found in rescored.searched if found]
        words = ", ".join(better) or "none of them"
        return (
            f"plans were searched again for {len(rescored.searched)}: better for {words}; all "
            "others are kept"
        )
    if not rescored.simulated:
        return "plans are kept; these changes move no time, so they are as good as before"
    return (
        "plans are kept; a new search could find better ones (--replan N searches again for the "
        "best N)"
    )


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
