"""Explanations of predictions on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dse.report._metrics import gibibytes, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.explanation import Difference, Explanation, PathShare, RankExplanation
    from dse.workload.dlrm import PairedComparison, Prediction

#: Parts of the critical path that are listed one by one.
_MOST_SHARES = 16
#: Steps of a difference that are listed one by one.
_MOST_STEPS = 14
#: Changes below are no thousandth of a millisecond.
_SMALLEST_CHANGE_S = 0.5e-6
#: Gains below are not worth a line.
_SMALLEST_GAIN = 0.00005
#: Cells that say nothing.
_NOTHING = ("–", "0.000")
#: Characters of the widest table.
_WIDEST = 120
#: Characters of the longest bar.
_BAR = 20


@dataclass(frozen=True, slots=True)
class PredictionColumn:
    """One of two predictions side by side.

    Attributes:
        title: What tells it from the other.
        plan: Where its plan comes from.
        prediction: What the model says.
    """

    title: str
    plan: str
    prediction: Prediction


def render_explanation(explanation: Explanation, console: Console, place: str = "rank") -> None:
    """Prints why an iteration takes as long as it does.

    Args:
        explanation: The answer.
        console: Where to print.
        place: What its ranks are called.
    """
    _line(console, explanation.sentence, style="bold")
    for table in (
        _path_table(explanation, place),
        _rank_table(explanation, place),
        _sensitivity_table(explanation),
    ):
        _print(console, table)
    balance = explanation.imbalance
    if balance is not None:
        _line(
            console,
            f"tables: rank {balance.most_loaded_rank} has most lookups and updates, "
            f"{milliseconds(balance.most_s)}, {100 * balance.excess:.1f} % more than the mean; "
            f"evenly spread they would {_even_words(balance.gain_if_even_s)}",
        )


def _even_words(gain_s: float) -> str:
    if gain_s <= 0.0:
        return "not make the iteration shorter"
    return f"make the iteration {milliseconds(gain_s)} shorter"


def render_difference(
    columns: Sequence[PredictionColumn],
    paired: PairedComparison,
    difference: Difference,
    console: Console,
) -> None:
    """Prints two predictions side by side, whether they can be told apart, and why they differ.

    Args:
        columns: The two predictions.
        paired: Their comparison under the same errors of the models.
        difference: Where their iteration times differ.
        console: Where to print.
    """
    console.print(_side_by_side(columns), crop=False)
    render_waterfall(columns[1].title, paired, difference, console)


def render_waterfall(
    title: str, paired: PairedComparison, difference: Difference, console: Console
) -> None:
    """Prints whether two predictions can be told apart, and why they differ.

    Args:
        title: What tells the second from the first.
        paired: Their comparison under the same errors of the models.
        difference: Where their iteration times differ.
        console: Where to print.
    """
    _line(console, tie_words(title, paired), style="bold")
    _print(console, _waterfall(difference))
    _line(
        console,
        "time on the critical path of each iteration, by group and resource; the changes add up "
        "to the difference",
    )


def tie_words(title: str, paired: PairedComparison) -> str:
    """Says which prediction has the higher throughput, or that they are a tie."""
    interval = (
        f"90 % of paired samples from {_percent(paired.ratio_p5)} to {_percent(paired.ratio_p95)}"
    )
    if paired.tie:
        return f"tie: B has {_percent(paired.ratio)} throughput, {interval}; run both to know"
    better = "higher" if paired.ratio > 1 else "lower"
    return f"{title} has {better} throughput: {_percent(paired.ratio)}, {interval}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True, style=style)


def _print(console: Console, table: Table) -> None:
    # As part of a narrow table a title would be broken.
    console.print()
    _line(console, str(table.title), style="bold")
    table.title = None
    # Figures are never cut off; a narrow terminal breaks the lines instead.
    wide = console.options.update(max_width=_WIDEST)
    table.width = console.measure(table, options=wide).maximum
    console.print(table, crop=False)


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, box=None, header_style="bold dim")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _path_table(explanation: Explanation, place: str) -> Table:
    left = ("operator group", "resource")
    table = _table("critical path", left, (f"{place}s", "tasks", "time", "share"))
    rows = _over_ranks(explanation.path)
    for (group, resource), shares in rows[:_MOST_SHARES]:
        ranks = sorted({one.rank for one in shares})
        table.add_row(
            group,
            resource,
            _rank_words(ranks),
            str(sum(one.tasks for one in shares)),
            milliseconds(sum(one.seconds for one in shares)),
            f"{100 * sum(one.share for one in shares):.1f} %",
        )
    rest = [one for _, shares in rows[_MOST_SHARES:] for one in shares]
    if rest:
        table.add_row(
            f"{len(rows) - _MOST_SHARES} more, in --json",
            "",
            "",
            "",
            milliseconds(sum(one.seconds for one in rest)),
            f"{100 * sum(one.share for one in rest):.1f} %",
        )
    return table


def _over_ranks(
    path: Sequence[PathShare],
) -> list[tuple[tuple[str, str], list[PathShare]]]:
    """Shares by group and resource, most time first: the path often changes ranks for little."""
    found: dict[tuple[str, str], list[PathShare]] = {}
    for one in path:
        found.setdefault((one.group, one.resource_name), []).append(one)
    return sorted(found.items(), key=lambda item: -sum(one.seconds for one in item[1]))


def _rank_table(explanation: Explanation, place: str) -> Table:
    names = ("compute", "transfer", "waiting", "waits for", "host", "idle", "without its tables")
    cells_of = {
        rank.rank: _rank_cells(rank, explanation.iteration_time_s) for rank in explanation.ranks
    }
    # Without meetings nothing is waited for, without tables none can move.
    used = [
        column
        for column, name in enumerate(names)
        if not name.startswith(("wait", "without"))
        or any(cells[column] not in _NOTHING for cells in cells_of.values())
    ]
    table = _table(f"{place}s, in ms", (), (place, *(names[column] for column in used)))
    grouped: dict[tuple[str, ...], list[int]] = {}
    for rank, cells in cells_of.items():
        grouped.setdefault(tuple(cells[column] for column in used), []).append(rank)
    for cells, ranks in grouped.items():
        table.add_row(_rank_words(ranks), *cells)
    return table


def _rank_cells(rank: RankExplanation, iteration_s: float) -> tuple[str, ...]:
    waited = rank.waited_for[0] if rank.waited_for else None
    parts = (rank.compute_s, rank.transfer_s, rank.waiting_s)
    gain = rank.gain_without_movable_s / iteration_s if iteration_s else 0.0
    return (
        *map(_ms, parts),
        f"rank {waited.rank} ({waited.times}×)" if waited else "–",
        _ms(rank.host_s),
        _ms(rank.idle_s),
        f"−{100 * gain:.1f} %" if gain >= _SMALLEST_GAIN * 10 else "–",
    )


def _rank_words(ranks: Sequence[int]) -> str:
    """Shortens runs of ranks: 0–3, 7."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ", ".join(words[:4]) + (" …" if len(words) > 4 else "")


def _sensitivity_table(explanation: Explanation) -> Table:
    factor = explanation.sensitivities[0].factor if explanation.sensitivities else 1.0
    title = f"what one resource {factor:g} times as fast would bring"
    table = _table(title, ("resource",), ("iteration", "shorter by"))
    for one in explanation.sensitivities:
        shorter = f"{100 * one.gain:.2f} %" if one.gain >= _SMALLEST_GAIN else "nothing"
        table.add_row(one.resource_name, milliseconds(one.iteration_time_s), shorter)
    return table


def _side_by_side(columns: Sequence[PredictionColumn]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("", style="bold", no_wrap=True)
    for column in columns:
        table.add_column(Text(column.title), overflow="fold")
    predictions = [column.prediction for column in columns]
    table.add_row("plan", *(Text(column.plan) for column in columns))
    table.add_row("iteration time", *(milliseconds(one.iteration_time_s) for one in predictions))
    table.add_row(
        "90 % interval",
        *(
            f"{milliseconds(one.iteration_time_p5_s)} – {milliseconds(one.iteration_time_p95_s)}"
            for one in predictions
        ),
    )
    table.add_row(
        "throughput", *(f"{one.throughput_samples_per_s:,.0f} samples/s" for one in predictions)
    )
    table.add_row(
        "cost",
        *(
            "no price"
            if one.cost_usd_per_million_samples is None
            else f"{one.cost_usd_per_million_samples:.5f} USD per million samples"
            for one in predictions
        ),
    )
    table.add_row(
        "memory",
        *(
            f"{gibibytes(max(one.memory_bytes_per_rank))} of {gibibytes(one.usable_memory_bytes)}"
            for one in predictions
        ),
    )
    table.add_row(
        "feasible",
        *(Text("yes" if one.feasible else one.infeasible_reason) for one in predictions),
    )
    return table


def _waterfall(difference: Difference) -> Table:
    table = _table("from A to B, in ms", ("operator group", "resource"), ("A", "B", "change"))
    table.add_column("", no_wrap=True)
    table.add_row("iteration of A", "", _ms(difference.before_s))
    longest = max((abs(step.change_s) for step in difference.steps), default=0.0)
    # Parts that stay the same differ by the rounding of their sums.
    changed = [step for step in difference.steps if abs(step.change_s) >= _SMALLEST_CHANGE_S]
    shown = changed[:_MOST_STEPS]
    for step in shown:
        figures = (_ms(step.before_s), _ms(step.after_s), _signed(step.change_s))
        table.add_row(step.group, step.resource_name, *figures, _bar(step.change_s, longest))
    rest = difference.steps[len(shown) :]
    if rest:
        table.add_row(
            f"{len(rest)} more, in --json",
            "",
            _ms(sum(step.before_s for step in rest)),
            _ms(sum(step.after_s for step in rest)),
            _signed(sum(step.change_s for step in rest)),
        )
    table.add_row("iteration of B", "", "", _ms(difference.after_s), _signed(difference.change_s))
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _signed(seconds: float) -> str:
    shown = round(1e3 * seconds, 3)
    return f"{shown + 0.0:+.3f}".replace("-", "−")


def _bar(seconds: float, longest_s: float) -> Text:
    length = round(_BAR * abs(seconds) / longest_s) if longest_s else 0
    return Text("█" * length, style="red" if seconds > 0 else "green")
