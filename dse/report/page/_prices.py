"""List prices of a study and their age."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.search import Fact, StudyResult

#: Days after which a list price is worth looking up again.
MAX_AGE_DAYS = 180

_PREFIX = "price "
_SUPERSEDED = " (superseded)"
_AMOUNT = re.compile(r"(?P<amount>[0-9][0-9.,eE+-]*) (?P<currency>[^/ ]+)(?P<each>/GPU)?/h")
_DATE = re.compile(r"(?P<year>\d{4})(?:-(?P<month>\d{2})(?:-(?P<day>\d{2}))?)?")


@dataclass(frozen=True, slots=True)
class PriceView:
    """One list price.

    Attributes:
        platform: Whose.
        offer: Provider, instance and region.
        amount: Price per hour, of an instance or of each GPU.
        currency: Its currency, and whether it is for each GPU.
        source: Citation.
        as_of: Date, as the source gives it; empty where it is not known.
        age_days: Days from that date to the study's creation, from the end of a month or year
            where the day is not known; None where the date is not known, below zero where the
            price is newer than the study.
        origin: ``list price``, or what changed it.
        warning: What to do about it; empty where nothing is.
    """

    platform: str
    offer: str
    amount: str
    currency: str
    source: str
    as_of: str
    age_days: int | None
    origin: str
    warning: str


@dataclass(frozen=True, slots=True)
class PricesView:
    """All prices of a study.

    Attributes:
        prices: Those a study chooses from, in the order of the platforms' files.
        unpriced: Platforms of which no price is known.
        superseded: How many prices are left out because a newer one of the same offer is there.
        warning: Summary of the warnings; may be empty.
    """

    prices: tuple[PriceView, ...]
    unpriced: tuple[str, ...]
    superseded: int
    warning: str


def prices_view(study: StudyResult) -> PricesView:
    """Reads the prices from the facts of a study."""
    facts = [fact for fact in study.facts if fact.quantity.startswith(_PREFIX)]
    current = [fact for fact in facts if not fact.quantity.endswith(_SUPERSEDED)]
    created = _day(study.created[:10])
    prices = tuple(_price(fact, created) for fact in current)
    priced = {price.platform for price in prices}
    platforms = dict.fromkeys(file.name for file in study.inputs if file.role == "platform")
    old = sum(1 for price in prices if (price.age_days or 0) > MAX_AGE_DAYS)
    undated = sum(1 for price in prices if price.warning and price.age_days is None)
    warnings = []
    if old:
        warnings.append(
            f"{old} of {len(prices)} prices were more than {MAX_AGE_DAYS} days old when the study "
            "was made."
        )
    if undated:
        warnings.append(f"The date of {undated} of {len(prices)} prices is not known.")
    if warnings:
        warnings.append(
            "Look them up before you decide, and score the study again with "
            "“dse whatif STUDY_DIR --set NAME.price=…USD/h”."
        )
    return PricesView(
        prices,
        tuple(name for name in platforms if name not in priced),
        len(facts) - len(current),
        " ".join(warnings),
    )


def _price(fact: Fact, created: date | None) -> PriceView:
    match = _AMOUNT.fullmatch(fact.value)
    stated = _day(fact.as_of)
    age = (created - stated).days if created and stated else None
    warning = ""
    if age is not None and age > MAX_AGE_DAYS:
        warning = f"more than {MAX_AGE_DAYS} days old"
    elif age is None and fact.origin == "list price":
        warning = "date not known"
    return PriceView(
        platform=fact.subject,
        offer=fact.quantity.removeprefix(_PREFIX),
        amount=match["amount"] if match else fact.value,
        currency=match["currency"] + (" per GPU" if match["each"] else "") if match else "",
        source=fact.source,
        as_of="" if stated is None else fact.as_of,
        age_days=age,
        origin=fact.origin,
        warning=warning,
    )


def _day(text: str) -> date | None:
    """Returns the last day that a date such as 2025-06 may mean; None for other text."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day = (int(part) if part else None for part in match.groups())
    try:
        assert year is not None
        if day is not None and month is not None:
            return date(year, month, day)
        if month is None or month == 12:
            return date(year, 12, 31)
        return date(year, month + 1, 1) - timedelta(days=1)
    except ValueError:
        return None
