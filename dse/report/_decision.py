"""Words for what to take from a study, and for how much of its front can be missing."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse.report._metrics import format_cost, format_price, rate, rate_parts
from dse.report.console import duration, fit_text, percent, plural, signed_percent
from dse.workload import program_label

if TYPE_CHECKING:
    from dse.search import Certificate, StudyResult
    from dse.search.analyse import Choice, Decision, Outcome

#: Share of the evaluations after which a gain says that the front was still growing.
_STILL_GROWING = 0.75

#: Relative differences below round to nothing.
_SAME = 0.005

#: Probabilities from here on need no mention.
_SURE = 0.99

#: Gaps below show as 0.0 %.
_NO_GAP = 5e-4


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """One answer of a decision in words.

    Attributes:
        role: ``take``, ``fastest`` or ``cheapest``.
        also: The other roles that the same outcome has.
        choice: The outcome.
        setup: Set-up, program and batch.
        speed: Throughput, or the time of a step where that is not known.
        interval: 90 % interval of the throughput, without unit; empty without one.
        price: Price of all machines an hour, and whose it is; empty without a price.
        cost: Cost of a billion samples or tokens; empty without a price.
        fits: How likely the memory suffices; empty where that is beyond doubt or not known.
        doubling: What twice the ranks of the same platform bring; empty where that is not known.
    """

    role: str
    also: tuple[str, ...]
    choice: Choice
    setup: str
    speed: str
    interval: str
    price: str
    cost: str
    fits: str
    doubling: str

    @property
    def setting(self) -> str:
        """Machines, set-up, program and batch."""
        return ", ".join(filter(None, (self.choice.machines, self.setup)))


def decision_entries(decision: Decision) -> tuple[DecisionEntry, ...]:
    """Returns the answers of a decision, one an outcome."""
    roles: dict[int, list[str]] = {}
    choices = {}
    for role, choice in (
        ("take", decision.take),
        ("fastest", decision.fastest),
        ("cheapest", decision.cheapest),
    ):
        if choice is not None:
            roles.setdefault(choice.number, []).append(role)
            choices[choice.number] = choice
    return tuple(
        _entry(names[0], tuple(names[1:]), choices[number]) for number, names in roles.items()
    )


def certificate_text(study: StudyResult) -> str:
    """Returns how much of a study's front can be missing, and how to go on."""
    evaluated = [record for record in study.records if record.evaluated]
    found = study.certificate
    if found is not None and (found.distinct or found.complete):
        return _certified(found)
    size = math.prod(len(parameter.choices) for parameter in study.parameters)
    if study.parameters and len(study.records) >= size:
        return f"front complete: the whole space of {plural(size, 'configuration')} was looked at"
    # Whatever enlarged the front last is still on it, so its youngest trial is the last gain.
    on_front = [place for place, record in enumerate(evaluated, start=1) if record.on_front]
    if not on_front:
        return ""
    gain, count = max(on_front), len(evaluated)
    of = ", ".join([f"{gain} of {count}", *([] if found is None else _ruled_out(found))])
    more = "continue with --resume"
    if count >= study.trials:
        more += f" --trials {min(2 * count, size) if study.parameters else 2 * count}"
    if gain > _STILL_GROWING * count:
        return f"the front was still growing (last gain at {of}): {more}"
    return f"not proven complete: the last gain came at {of}; to be surer, {more}"


def equal_text(outcome: Outcome) -> str:
    """Returns how many other configurations have an outcome, and what does not matter to it."""
    if not outcome.equal:
        return ""
    because = ", ".join(name.replace("_", " ") for name in outcome.because)
    return f"+{outcome.equal} equal{f' but for {because}' if because else ''}"


def gap_text(gap: float) -> str:
    """Returns how far a plan is from the best possible one at most."""
    if gap < _NO_GAP:
        return "as fast as the best possible"
    return f"at most {percent(gap)} slower than the best possible"


def _certified(found: Certificate) -> str:
    seen = f"{plural(found.evaluated, 'outcome')} evaluated"
    if found.distinct:
        seen = f"{found.evaluated:,} of {plural(found.distinct, 'outcome')} evaluated"
    ruled_out = _ruled_out(found)
    if found.complete:
        if found.proven_dominated and not (found.proven_infeasible or found.tied):
            ruled_out = ["the others proven dominated"]
        return f"front complete: {', '.join([seen, *ruled_out])}"
    missing = found.hypervolume_missing_at_most
    how_much = (
        "front not complete, what is missing is not known"
        if math.isnan(missing)
        else f"at most {float(f'{100 * missing:.2g}'):g} % of the hypervolume is missing"
    )
    more = "continue with --resume, and with more --trials if they were limited"
    return f"{how_much}: {', '.join([seen, *ruled_out])}; {more}"


def _ruled_out(found: Certificate) -> list[str]:
    """Returns how many outcomes need no evaluation, by the reason."""
    return [
        f"{count:,} {how}"
        for count, how in (
            (found.proven_dominated, "proven dominated"),
            (found.tied, "tied with the front within 0.01 %"),
            (found.proven_infeasible, "proven infeasible"),
        )
        if count
    ]


def _entry(role: str, also: tuple[str, ...], choice: Choice) -> DecisionEntry:
    price = choice.price_usd_per_hour
    setup = (
        choice.setup,
        program_label(choice.program),
        f"batch {choice.global_batch_size:,}" if choice.global_batch_size else "",
    )
    return DecisionEntry(
        role=role,
        also=also,
        choice=choice,
        setup=", ".join(filter(None, setup)),
        speed=_speed(choice),
        interval=_interval(choice),
        price="" if price is None else format_price(price, choice.rented),
        cost="" if choice.cost_usd_per_billion is None else format_cost(choice),
        fits=fit_text(choice.fit_probability) if choice.fit_probability < _SURE else "",
        doubling=_doubling(choice),
    )


def _speed(choice: Choice) -> str:
    parts = []
    if math.isfinite(choice.throughput_per_s):
        parts.append(rate(choice.throughput_per_s, choice.counts))
    if not parts or choice.speedup is not None:
        parts.append(f"{duration(choice.iteration_time_s)} a step")
    if choice.speedup is not None:
        parts.append(f"{choice.speedup:.3g} × as captured")
    return ", ".join(parts)


def _interval(choice: Choice) -> str:
    ends = (choice.throughput_p5_per_s, choice.throughput_p95_per_s)
    if not all(map(math.isfinite, ends)):
        return ""
    return "–".join(rate_parts(end, choice.throughput_per_s)[0] for end in ends)


def _changed(ratio: float) -> str:
    return "same" if abs(ratio - 1) < _SAME else signed_percent(ratio - 1, 0)


def _doubling(choice: Choice) -> str:
    found = choice.doubled
    if found is None:
        return ""
    text = f"{_changed(found.speed_ratio)} speed"
    if found.cost_ratio is not None:
        text += f", {_changed(found.cost_ratio)} cost"
    return f"{text} (#{found.number})"
