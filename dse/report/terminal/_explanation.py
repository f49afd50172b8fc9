"""Explanations of predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from dse.report.console import (
    UNKNOWN,
    Table,
    duration,
    figures,
    line,
    ms,
    names,
    percent,
    rank_names,
    signed_percent,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dse.explanation import Difference, Explanation, PathShare, RankExplanation
    from dse.workload import PairedComparison

#: Rows of the critical path and of a difference.
_MAX_SHARES = 16
_MAX_STEPS = 14
#: Changes below round to 0.000 ms.
_SMALLEST_CHANGE_S = 0.5e-6
#: Gains below are not worth a row.
_SMALLEST_GAIN = 0.00005
#: Cells without information.
_NOTHING = (UNKNOWN, "0.000")
#: Characters of the longest bar.
_BAR = 8


def print_explanation(explanation: Explanation, console: Console, place: str = "rank") -> None:
    """Prints what determines the duration of an iteration.

    Args:
        explanation: The explanation.
        console: Where to print.
        place: What its ranks are called.
    """
    line(console, explanation.sentence, "bold")
    for table in (
        _path_table(explanation, place),
        _rank_table(explanation, place),
        _sensitivity_table(explanation),
    ):
        table.print(console)
    balance = explanation.imbalance
    if balance is not None:
        gain_s = balance.gain_if_even_s
        effect = (
            f"would shorten the iteration by {duration(gain_s)}"
            if gain_s > 0
            else "would not shorten the iteration"
        )
        line(
            console,
            f"tables: rank {balance.most_loaded_rank} has most lookups and updates, "
            f"{duration(balance.most_s)}, {percent(balance.excess)} more than the mean; an even "
            f"distribution {effect}",
        )


def print_waterfall(
    title: str, paired: PairedComparison, difference: Difference, console: Console
) -> None:
    """Prints whether two predictions can be told apart, and why they differ.

    Args:
        title: Distinguishes the second prediction from the first.
        paired: Their comparison under the same errors of the performance model.
        difference: Where their iteration times differ.
        console: Where to print.
    """
    ratio = signed_percent(paired.ratio - 1)
    interval = (
        f"90 % of paired samples from {signed_percent(paired.ratio_p5 - 1)} to "
        f"{signed_percent(paired.ratio_p95 - 1)}"
    )
    better = "higher" if paired.ratio > 1 else "lower"
    if paired.tie:
        verdict = f"tie: B has {better} throughput ({ratio}), {interval}; run both to decide"
    else:
        verdict = f"{title} has {better} throughput: {ratio}, {interval}"
    line(console, verdict, "bold")
    _waterfall(difference).print(console)
    line(
        console,
        "time on the critical path of each iteration, by group and resource; the changes add up "
        "to the difference",
    )


def _path_table(explanation: Explanation, place: str) -> Table:
    table = Table(
        "critical path",
        texts("operator group", "resource"),
        figures(f"{place}s", "tasks", "time", "share"),
    )
    rows = _over_ranks(explanation.path)
    for (group, resource), shares in rows[:_MAX_SHARES]:
        table.add(
            group,
            resource,
            rank_names(sorted({share.rank for share in shares})),
            str(sum(share.tasks for share in shares)),
            duration(sum(share.seconds for share in shares)),
            percent(sum(share.share for share in shares)),
        )
    rest = [share for _, shares in rows[_MAX_SHARES:] for share in shares]
    if rest:
        table.add(
            f"{len(rows) - _MAX_SHARES} more, in --json",
            "",
            "",
            "",
            duration(sum(share.seconds for share in rest)),
            percent(sum(share.share for share in rest)),
        )
    return table


def _over_ranks(
    path: Sequence[PathShare],
) -> list[tuple[tuple[str, str], list[PathShare]]]:
    """Returns shares by group and resource, most time first; the path often changes ranks."""
    found: dict[tuple[str, str], list[PathShare]] = {}
    for share in path:
        found.setdefault((share.group, share.resource_name), []).append(share)
    return sorted(found.items(), key=lambda item: -sum(share.seconds for share in item[1]))


def _rank_table(explanation: Explanation, place: str) -> Table:
    titles = ("compute", "transfer", "waiting", "waits for", "host", "idle", "without its tables")
    cells_of = {
        rank.rank: _rank_cells(rank, explanation.iteration_time_s) for rank in explanation.ranks
    }
    # Without collectives no rank waits; without tables nothing can move.
    used = [
        column
        for column, title in enumerate(titles)
        if not title.startswith(("wait", "without"))
        or any(cells[column] not in _NOTHING for cells in cells_of.values())
    ]
    table = Table(f"{place}s, in ms", figures(place, *(titles[column] for column in used)))
    grouped: dict[tuple[str, ...], list[int]] = {}
    for rank, cells in cells_of.items():
        grouped.setdefault(tuple(cells[column] for column in used), []).append(rank)
    for cells, ranks in grouped.items():
        table.add(rank_names(ranks), *cells)
    return table


def _rank_cells(rank: RankExplanation, iteration_s: float) -> tuple[str, ...]:
    waited = rank.waited_for[0] if rank.waited_for else None
    gain = rank.gain_without_movable_s / iteration_s if iteration_s else 0.0
    return (
        *map(ms, (rank.compute_s, rank.transfer_s, rank.waiting_s)),
        f"rank {waited.rank} ({waited.times}×)" if waited else UNKNOWN,
        ms(rank.host_s),
        ms(rank.idle_s),
        f"-{percent(gain)}" if gain >= _SMALLEST_GAIN * 10 else UNKNOWN,
    )


def _sensitivity_table(explanation: Explanation) -> Table:
    factor = explanation.sensitivities[0].factor if explanation.sensitivities else 1.0
    title = f"effect of making one resource {factor:g} times as fast"
    table = Table(title, texts("resource"), figures("iteration", "shorter by"))
    for effect in explanation.sensitivities:
        shorter = percent(effect.gain, 2) if effect.gain >= _SMALLEST_GAIN else "nothing"
        table.add(effect.resource_name, duration(effect.iteration_time_s), shorter)
    return table


def _waterfall(difference: Difference) -> Table:
    table = Table(
        "from A to B, in ms",
        texts("operator group", "resource"),
        figures("A", "B", "change"),
        names(""),
    )
    table.add("iteration of A", "", ms(difference.before_s))
    longest = max((abs(step.change_s) for step in difference.steps), default=0.0)
    # Parts that stay the same differ by the rounding of their sums.
    changed = [step for step in difference.steps if abs(step.change_s) >= _SMALLEST_CHANGE_S]
    shown = changed[:_MAX_STEPS]
    for step in shown:
        cells = (ms(step.before_s), ms(step.after_s), _signed(step.change_s))
        table.add(step.group, step.resource_name, *cells, _bar(step.change_s, longest))
    rest = difference.steps[len(shown) :]
    if rest:
        table.add(
            f"{len(rest)} more, in --json",
            "",
            ms(sum(step.before_s for step in rest)),
            ms(sum(step.after_s for step in rest)),
            _signed(sum(step.change_s for step in rest)),
        )
    table.add("iteration of B", "", "", ms(difference.after_s), _signed(difference.change_s))
    return table


def _signed(seconds: float) -> str:
    shown = round(1e3 * seconds, 3)
    return f"{shown + 0.0:+.3f}"


def _bar(seconds: float, longest_s: float) -> Text:
    length = round(_BAR * abs(seconds) / longest_s) if longest_s else 0
    return Text("█" * length, style="red" if seconds > 0 else "green")
