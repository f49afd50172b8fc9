"""Answer of a study: best value, fastest and cheapest, and how far the front is proven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report._decision import certificate_text, decision_entries, gap_text
from dse.search.analyse import conclude, decide

if TYPE_CHECKING:
    from collections.abc import Collection

    from dse.report._decision import DecisionEntry
    from dse.search import StudyResult

#: Without prices nothing says what the best value is.
_TITLES = {"take": "Recommended", "fastest": "Fastest", "cheapest": "Cheapest"}
_BEST_VALUE = "Best value"


@dataclass(frozen=True, slots=True)
class CardView:
    """One answer.

    Attributes:
        number: Trial number.
        title: What it is, such as ``Best value`` or ``Fastest``.
        also: What else it is, such as ``the fastest``; may be empty.
        machines: Ranks, platform and network.
        setup: Everything else that was chosen: parallelism, program, batch.
        speed: Throughput, or the time of a step.
        interval: Its 90 % interval in the unit of `speed`; empty without one.
        facts: Labelled figures.
        has_plan: Whether its details hold a sharding plan.
    """

    number: int
    title: str
    also: str
    machines: str
    setup: str
    speed: str
    interval: str
    facts: tuple[tuple[str, str], ...]
    has_plan: bool


@dataclass(frozen=True, slots=True)
class DecisionView:
    """The answer of a study.

    Attributes:
        cards: Answers, what to take first; empty if nothing is feasible.
        rule: Why the first is taken, or why there is no answer.
        certificate: How much of the front can be missing; may be empty.
    """

    cards: tuple[CardView, ...]
    rule: str
    certificate: str


def decision_view(study: StudyResult) -> DecisionView:
    """Extracts the answer of a study."""
    decision = decide(study)
    if decision is None:
        return DecisionView((), conclude(study), "")
    gap = decision.take.plan_gap
    rule = decision.rule + ("" if gap is None else f". Its plan is {gap_text(gap)}")
    planned = {
        record.number
        for record in study.front
        if record.configuration is not None and record.configuration.plan is not None
    }
    return DecisionView(
        tuple(_card(entry, planned) for entry in decision_entries(decision)),
        rule,
        certificate_text(study),
    )


def _card(entry: DecisionEntry, planned: Collection[int]) -> CardView:
    choice = entry.choice
    facts = (
        ("Price", entry.price),
        ("Cost", entry.cost),
        ("Bound by", choice.bound_by),
        ("Memory", entry.fits),
        ("Twice the ranks", entry.doubling),
    )
    title = _TITLES[entry.role]
    if entry.role == "take" and entry.cost:
        title = _BEST_VALUE
    return CardView(
        number=choice.number,
        title=title,
        also=" and ".join(f"the {role}" for role in entry.also),
        machines=choice.machines,
        setup=entry.setup,
        speed=entry.speed,
        interval=entry.interval,
        facts=tuple((label, text) for label, text in facts if text),
        has_plan=choice.number in planned,
    )
