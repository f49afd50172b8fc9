"""Recommendations: the answer, the runners-up, and the space they are relative to."""

from __future__ import annotations

from collections import Counter
import math
from typing import TYPE_CHECKING

from dse._text.digits import dollars, significant
from dse._text.percent import difference
from dse.config import UnitKind, format_quantity
from dse.report._metrics import format_cost
from dse.report.console import (
    UNKNOWN,
    Table,
    duration,
    facts,
    figures,
    fit_text,
    gib,
    line,
    percent,
    plural,
    probability,
    span,
    texts,
)
from dse.search.recommend import (
    SURE,
    Budget,
    Deadline,
    Verdict,
    format_duration,
    format_rate,
    job_cost_usd,
)
from dse.workload import BOUND_LABEL, program_label, workload_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from dse.search.recommend import Goal, Option, Recommendation, Solved

_MAX_UNDECIDED = 5
_MAX_REASONS = 3
#: Share below which a gap rounds to nothing.
_SMALL = 5e-4


def print_recommendation(found: Recommendation, console: Console) -> None:
    """Prints a recommendation.

    Args:
        found: The recommendation.
        console: Where to print.
    """
    if found.answer is not None:
        line(console, f"{found.goal.text}: {found.answer.option.text}", "bold")
        facts(console, _figures(found, found.answer))
        _print_others(found, console)
    else:
        count = len(found.judgements)
        none = f"none of {count} configurations" if count > 1 else "the only configuration"
        does = "does" if count > 1 else "does not"
        line(console, f"{found.goal.text}: {none} {does}", "bold")
        for text in _closest(found):
            line(console, text)
        if found.program:
            line(console, f"program: {program_label(found.program)}")
    line(console, _proof(found))
    line(console, f"space: {'; '.join(found.space)}")
    for text in (*_impossible(found), *_unpriced(found)):
        line(console, text)
    for judgement in found.undecided_better[:_MAX_UNDECIDED]:
        solved = judgement.solved
        assert solved is not None
        reaches = f"reaches {_rate(found, solved.throughput_per_s)}"
        line(
            console,
            f"undecided: {judgement.option.text} at {_price(judgement.option)} would be better, "
            f"but its best plan found "
            f"{reaches if solved.prediction.feasible else 'does not fit the memory'}; no plan can "
            f"exceed {_rate(found, judgement.bound_per_s, 5)}",
        )
    hidden = len(found.undecided_better) - _MAX_UNDECIDED
    if hidden > 0:
        line(console, f"… and {hidden} more undecided")


def samples_of(goal: Goal) -> float | None:
    """Returns the samples of the whole job, where the goal has a job."""
    return goal.samples if isinstance(goal, Deadline | Budget) else None


def _rate(found: Recommendation, samples_per_s: float, digits: int = 4) -> str:
    """Prints a throughput in samples, or in tokens where these were asked for."""
    return format_rate(samples_per_s, digits, tokens_per_sample=found.tokens_per_sample)


def _price(option: Option) -> str:
    return format_quantity(option.price_usd_per_hour, UnitKind.PRICE)


def _figures(found: Recommendation, solved: Solved) -> list[tuple[str, str]]:
    prediction, batch = solved.prediction, solved.option.global_batch_size
    cost, samples = prediction.cost_usd_per_billion, samples_of(found.goal)
    memory = f"{gib(prediction.peak_memory_bytes)} of {gib(prediction.usable_memory_bytes)}"
    memory_parts = (f"{memory} a device", fit_text(prediction.fit_probability))
    ends = (prediction.iteration_time_p95_s, prediction.iteration_time_p5_s)
    return [
        *([("program", program_label(found.program))] if found.program else []),
        (
            "throughput",
            f"{_rate(found, solved.throughput_per_s)} (90 % interval "
            f"{span(*(_rate(found, batch / end_s) for end_s in ends))}), "
            f"an iteration of {duration(prediction.iteration_time_s)}",
        ),
        (
            "price",
            _price(solved.option) + ("" if cost is None else f", {format_cost(prediction)}"),
        ),
        *([("rented", prediction.rented)] if prediction.rented else []),
        *([("network", prediction.network)] if prediction.network else []),
        *([] if samples is None else [("whole job", _job(samples, solved))]),
        *([("batch", text)] if (text := _batch(found, solved)) else []),
        ("bound by", prediction.bound_text),
        ("reaches it", _chance(found, solved)),
        *([("plan", plan)] if (plan := _plan(solved)) else []),
        ("memory", ", ".join(filter(None, memory_parts))),
    ]


def _batch(found: Recommendation, solved: Solved) -> str:
    """Returns how much larger the batch is than the model's own; empty if it is not."""
    own, batch = found.model_batch_size, solved.option.global_batch_size
    # The model's own, rounded up so that it divides over the ranks, is not larger.
    if not own or batch < own + solved.option.world_size:
        return ""
    return (
        f"{batch / own:.3g} × the model's own {own:,}; how well the model then trains is not "
        "predicted"
    )


def _job(samples: float, solved: Solved) -> str:
    cost = job_cost_usd(samples, solved.throughput_per_s, solved.option.price_usd_per_hour)
    return (
        f"{format_duration(samples / solved.throughput_per_s)} for "
        f"{format_quantity(cost, UnitKind.MONEY)}, without starting the machines"
    )


def _chance(found: Recommendation, solved: Solved) -> str:
    required = found.goal.required_per_s(solved.option.price_usd_per_hour)
    if required <= 0:
        return "for certain, by its price"
    text = (
        f"with a probability of {probability(solved.probability(found.goal))}, "
        f"{_spare(solved.throughput_per_s / required - 1)}"
    )
    return f"{text} ({BOUND_LABEL})" if found.is_bound else text


def _spare(share: float) -> str:
    return f"{difference(share, 1)} to spare" if share >= 0 else f"{difference(share, 1)} too slow"


def _plan(solved: Solved) -> str:
    configuration = solved.configuration
    if configuration.plan is None:
        return workload_kind(configuration.kind).summary(configuration)
    kinds = Counter(table.sharding_type.value for table in configuration.plan.tables)
    plan = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    gap = solved.bound_per_s / solved.throughput_per_s - 1
    if not math.isfinite(gap):
        return f"{plan} ({solved.planner})"
    better = (
        f"no plan is more than {percent(gap)} faster" if gap >= _SMALL else "no plan is faster"
    )
    return f"{plan} ({solved.planner}; {better})"


def _print_others(found: Recommendation, console: Console) -> None:
    """Prints the surest, the best with the model's own batch, and the other platforms' best."""
    assert found.answer is not None
    sure_words, own_words = f"{percent(SURE, 0)} sure", "own batch"
    rows: dict[Option, tuple[Solved, list[str]]] = {}
    named = [(found.sure, sure_words), (found.own_batch, own_words)]
    for solved, words in [*named, *((one, "") for one in found.runners_up)]:
        if solved is not None:
            rows.setdefault(solved.option, (solved, []))[1].append(words)
    if rows:
        _print_rows(list(rows.values()), found, console)
    if found.answer.probability(found.goal) < SURE and found.sure is None:
        line(console, f"no configuration is at least {sure_words}")
    if found.answer.option.doublings and found.own_batch is None:
        line(console, f"with the model's own batch of {found.model_batch_size:,} none reaches it")


def _print_rows(
    rows: list[tuple[Solved, list[str]]], found: Recommendation, console: Console
) -> None:
    samples = samples_of(found.goal)
    counts = rows[0][0].prediction.counts
    unit = _rate(found, 1.0).rpartition(" ")[2]
    # The cost of the job says what the cost of a billion would.
    costs = [f"USD per billion {counts}"] if samples is None else ["job takes", "job costs"]
    titles = [unit, "USD/h", *costs, "probability"]
    title = "others: the best on each platform"
    if found.is_bound:
        title += f" ({BOUND_LABEL})"
    table = Table(title, figures(*titles), texts("configuration"))
    several = len({one.option.precision for one in found.judgements}) > 1
    for solved, words in rows:
        price = solved.option.price_usd_per_hour
        cost = solved.prediction.cost_usd_per_billion
        name = solved.option.text
        if not several:
            name = name.removesuffix(f", {solved.option.precision.value}")
        row = [
            _rate(found, solved.throughput_per_s).rpartition(" ")[0],
            dollars(price, grouped=True),
        ]
        if samples is None:
            row.append(UNKNOWN if cost is None else significant(cost))
        else:
            whole = job_cost_usd(samples, solved.throughput_per_s, price)
            row.append(format_duration(samples / solved.throughput_per_s))
            row.append(format_quantity(whole, UnitKind.MONEY))
        row.append(probability(solved.probability(found.goal)))
        if found.answer is not None and solved.option == found.answer.option:
            # The same machines, used in another way.
            words = [_plan(solved), *words]
        table.add(*row, "; ".join(filter(None, (name, solved.prediction.rented, *words))))
    table.print(console)


def _closest(found: Recommendation) -> Iterator[str]:
    """Yields what comes closest to a goal that nothing reaches, and why."""
    closest = found.closest
    if closest is not None:
        required = found.goal.required_per_s(closest.option.price_usd_per_hour)
        share = ""
        if math.isfinite(required) and required > 0:
            share = f", {percent(closest.throughput_per_s / required)} of what is needed"
        rate = _rate(found, closest.throughput_per_s)
        yield f"the closest is {closest.option.text}: {rate} at {_price(closest.option)}{share}"
        yield f"what limits it: {found.limit}"
        if found.advice:
            yield found.advice
        return
    possible = [
        judgement.option
        for judgement in found.judgements
        if judgement.verdict is not Verdict.IMPOSSIBLE
    ]
    if possible:
        cheapest = min(possible, key=lambda option: option.price_usd_per_hour)
        yield f"the cheapest that can run it is {cheapest.text} at {_price(cheapest)}"
        return
    reasons = dict.fromkeys(judgement.reason for judgement in found.judgements)
    yield from list(reasons)[:_MAX_REASONS]


def _impossible(found: Recommendation) -> Iterator[str]:
    """Yields which platforms cannot run it, with the reasons of some."""
    reasons = found.impossible_platforms
    if found.answer is None and found.count(Verdict.IMPOSSIBLE) == len(found.judgements):
        # The answer has said so.
        return
    named = list(reasons)[:_MAX_REASONS]
    for name in named:
        yield f"{name} cannot run it: {reasons[name]}"
    if others := [name for name in reasons if name not in named]:
        yield f"nor can {', '.join(others)}"


def _unpriced(found: Recommendation) -> Iterator[str]:
    """Yields what was left out because it has no price, a line for each reason."""
    names: dict[str, list[str]] = {}
    for one in found.unpriced:
        sizes = ", ".join(map(str, one.world_sizes))
        text = f"{sizes} × {one.platform}" if sizes else one.platform
        names.setdefault(one.reason, []).append(text)
    for reason, texts_of in names.items():
        yield f"left out, {reason}: {', '.join(texts_of)}"


def _proof(found: Recommendation) -> str:
    """Returns how many configurations were compared, and how the others were ruled out."""
    bounded = sum(
        judgement.solved is None and judgement.verdict is Verdict.BOUNDED
        for judgement in found.judgements
    )
    parts = [
        (found.solved, "solved"),
        (bounded, "ruled out by a bound on their throughput or by their price"),
        (found.count(Verdict.WORSE), "no better than the best found on their platform"),
        (found.count(Verdict.IMPOSSIBLE), "impossible"),
    ]
    ways = ", ".join(f"{count} {what}" for count, what in parts if count)
    return f"{plural(len(found.judgements), 'configuration')} looked at: {ways}"
