"""A recommendation on a terminal: the answer, the runners-up, and what it is relative to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dse.config import UnitKind, format_quantity
from dse.report._metrics import gibibytes, milliseconds
from dse.search.recommend import (
    Budget,
    Deadline,
    Verdict,
    duration_words,
    job_cost_usd,
    rate_words,
)
from dse.workload.dlrm import Configuration
from dse.workload.transformer import StepConfiguration, parallelism_words

if TYPE_CHECKING:
    from rich.console import Console

    from dse.search.recommend import Goal, Recommendation, Solved

#: Undecided configurations that are named.
_MAX_UNDECIDED = 5


def print_recommendation(found: Recommendation, console: Console) -> None:
    """Prints a recommendation.

    Args:
        found: The recommendation.
        console: Where to print.
    """
    if found.answer is not None:
        words = f"{found.goal.words}: {found.answer.option.words}"
        console.print(Text(words), highlight=False, style="bold", soft_wrap=True)
        console.print(_figures(found, found.answer))
    else:
        _no_answer(found, console)
    if found.runners_up:
        console.print(_runners_up(found))
    _line(console, _proof(found))
    _line(console, f"space: {'; '.join(found.space)}")
    for judgement in found.undecided_better[:_MAX_UNDECIDED]:
        solved = judgement.solved
        assert solved is not None
        _line(
            console,
            f"undecided: {judgement.option.words} at "
            f"{format_quantity(judgement.option.price_usd_per_hour, UnitKind.PRICE)} would be "
            f"better, but its best plan found {_reaches(solved)}; no plan can exceed "
            f"{rate_words(judgement.bound_per_s, 5)}",
        )
    hidden = len(found.undecided_better) - _MAX_UNDECIDED
    if hidden > 0:
        _line(console, f"… and {hidden} more undecided")


def _reaches(solved: Solved) -> str:
    if not solved.prediction.feasible:
        return "does not fit the memory"
    return f"reaches {rate_words(solved.throughput_per_s)}"


def _figures(found: Recommendation, solved: Solved) -> Table:
    table = Table(box=None, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    prediction, goal = solved.prediction, found.goal
    price = solved.option.price_usd_per_hour
    table.add_row(
        "throughput",
        f"{rate_words(solved.throughput_per_s)} (90 % interval "
        f"{rate_words(solved.option.global_batch_size / prediction.iteration_time_p95_s)} – "
        f"{rate_words(solved.option.global_batch_size / prediction.iteration_time_p5_s)}), "
        f"an iteration of {milliseconds(prediction.iteration_time_s)}",
    )
    cost = prediction.cost_usd_per_million_samples
    table.add_row(
        "price",
        format_quantity(price, UnitKind.PRICE)
        + ("" if cost is None else f", {cost:.4g} USD per million samples"),
    )
    samples = samples_of(goal)
    if samples is not None:
        table.add_row("whole job", _job(samples, solved))
    table.add_row("reaches it", _chance(found, solved))
    table.add_row("plan", Text(_plan_words(solved)))
    fullest = max(memory.total_bytes for memory in prediction.memory)
    table.add_row(
        "memory", f"{gibibytes(fullest)} of {gibibytes(prediction.usable_memory_bytes)} a device"
    )
    return table


def samples_of(goal: Goal) -> float | None:
    """Returns the samples of the whole job, where the goal tells them."""
    return goal.samples if isinstance(goal, Deadline | Budget) else None


def _job(samples: float, solved: Solved) -> str:
    cost = job_cost_usd(samples, solved.throughput_per_s, solved.option.price_usd_per_hour)
    return (
        f"{duration_words(samples / solved.throughput_per_s)} for "
        f"{format_quantity(cost, UnitKind.MONEY)}, without the start of the machines"
    )


def _chance(found: Recommendation, solved: Solved) -> str:
    required = found.goal.required_per_s(solved.option.price_usd_per_hour)
    if required <= 0:
        return "for certain, by its price"
    share = solved.throughput_per_s / required - 1
    return (
        f"with a probability of {chance_words(solved.probability(found.goal))}, "
        f"{100 * share:+.1f} % from what is needed"
    )


def chance_words(probability: float) -> str:
    """Prints a probability; the tails of a fitted interval are not known to a thousandth."""
    if probability > 0.995:
        return "over 99 %"
    if probability < 0.005:
        return "under 1 %"
    return f"{100 * probability:.0f} %"


def _plan_words(solved: Solved) -> str:
    configuration = solved.configuration
    gap = solved.bound_per_s / solved.throughput_per_s - 1
    if isinstance(configuration, StepConfiguration):
        return parallelism_words(configuration.parallelism)
    assert isinstance(configuration, Configuration)
    kinds: dict[str, int] = {}
    for table in configuration.plan.tables:
        kind = table.sharding_type.value
        kinds[kind] = kinds.get(kind, 0) + 1
    words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    if not math.isfinite(gap):
        return f"{words} ({solved.planner})"
    return f"{words} ({solved.planner}; no plan is more than {100 * gap:.1f} % faster)"


def _runners_up(found: Recommendation) -> Table:
    table = Table(
        title="best of the other platforms", title_justify="left", box=None, header_style="bold"
    )
    table.add_column("configuration", overflow="fold")
    for title in ("samples/s", "USD/h", "USD per million", "probability"):
        table.add_column(title, justify="right")
    samples = samples_of(found.goal)
    if samples is not None:
        for title in ("job takes", "job costs"):
            table.add_column(title, justify="right", no_wrap=True)
    for solved in found.runners_up:
        price = solved.option.price_usd_per_hour
        cost = solved.prediction.cost_usd_per_million_samples
        row = [
            solved.option.words,
            rate_words(solved.throughput_per_s).removesuffix(" samples/s"),
            f"{price:,.2f}",
            "–" if cost is None else f"{cost:.4g}",
            chance_words(solved.probability(found.goal)),
        ]
        if samples is not None:
            whole = job_cost_usd(samples, solved.throughput_per_s, price)
            row.append(duration_words(samples / solved.throughput_per_s))
            row.append(format_quantity(whole, UnitKind.MONEY))
        table.add_row(*map(Text, row))
    return table


def _no_answer(found: Recommendation, console: Console) -> None:
    console.print(
        f"{found.goal.words}: none of {len(found.judgements)} configurations does",
        markup=False,
        highlight=False,
        style="bold",
    )
    closest = found.closest
    if closest is not None:
        price = closest.option.price_usd_per_hour
        required = found.goal.required_per_s(price)
        words = (
            f"the closest is {closest.option.words}: {rate_words(closest.throughput_per_s)} at "
            f"{format_quantity(price, UnitKind.PRICE)}"
        )
        if math.isfinite(required) and required > 0:
            words += f", {100 * closest.throughput_per_s / required:.1f} % of what is needed"
        _line(console, words)
        _line(console, f"what limits it: {found.limit}")
        return
    cheapest = min(
        (one for one in found.judgements if one.verdict is not Verdict.IMPOSSIBLE),
        key=lambda one: one.option.price_usd_per_hour,
        default=None,
    )
    if cheapest is not None:
        price = cheapest.option.price_usd_per_hour
        _line(
            console,
            f"the cheapest that can run it is {cheapest.option.words} at "
            f"{format_quantity(price, UnitKind.PRICE)}",
        )
        return
    for reason in list(dict.fromkeys(one.reason for one in found.judgements))[:3]:
        _line(console, reason)


def _proof(found: Recommendation) -> str:
    """Says what the answer is the best of, and how the others were ruled out."""
    parts = [
        (found.solved, "solved"),
        (
            sum(one.solved is None and one.verdict is Verdict.BOUNDED for one in found.judgements),
            "ruled out by a bound on their throughput or by their price",
        ),
        (found.count(Verdict.WORSE), "could not be better than what was found on their platform"),
        (found.count(Verdict.IMPOSSIBLE), "impossible"),
    ]
    words = ", ".join(f"{count} {what}" for count, what in parts if count)
    return f"{len(found.judgements)} configurations looked at: {words}"


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
