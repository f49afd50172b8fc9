"""Answer of a study: what to take, the fastest and the cheapest, and how far it is proven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report._decision import certificate_words, decision_entries, gap_words
from dse.search import conclude, decide

if TYPE_CHECKING:
    from dse.report._decision import DecisionEntry
    from dse.search import StudyResult

_TITLES = {"take": "Take", "fastest": "Fastest", "cheapest": "Cheapest"}


@dataclass(frozen=True, slots=True)
class CardView:
    """One answer.

    Attributes:
        number: Trial number.
        title: What it is, such as ``Take`` or ``Fastest``.
        also: What else it is, such as ``also the fastest``; may be empty.
        setting: Machines, set-up, program and batch.
        speed: Throughput, or the time of a step.
        facts: Labelled figures.
    """

    number: int
    title: str
    also: str
    setting: str
    speed: str
    facts: tuple[tuple[str, str], ...]


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
    rule = decision.rule + ("" if gap is None else f". Its plan is {gap_words(gap)}")
    return DecisionView(
        tuple(_card(entry) for entry in decision_entries(decision)),
        rule,
        certificate_words(study),
    )


def _card(entry: DecisionEntry) -> CardView:
    choice = entry.choice
    facts = (
        ("90 % interval", entry.interval),
        ("Price", entry.price),
        ("Cost", entry.cost),
        ("Bound by", choice.bound_by),
        ("Twice the ranks", entry.doubling),
    )
    return CardView(
        number=choice.number,
        title=_TITLES[entry.role],
        also=" and ".join(f"the {role}" for role in entry.also),
        setting=entry.setting,
        speed=entry.speed,
        facts=tuple((label, text) for label, text in facts if text),
    )
