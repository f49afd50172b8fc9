"""Overrides of prices: `price=2.10 USD/GPU/h`, `price.AWS=-20%`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse._text.suggest import hint
from dse.config import (
    FieldChange,
    new_value,
    parse_rental_price,
    readable_quantity,
    relative_factor,
)
from dse.errors import ConfigError, UnknownNameError
from dse.machine.platforms._build import offer_fact
from dse.machine.platforms._schema import ANY_NETWORK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def override_prices(
    data: dict[str, Any], path: str, value: str, source: str, basis: str, provider: str
) -> tuple[dict[str, Any], tuple[FieldChange, ...]]:
    """Overrides list prices: a share moves all, a figure those of one basis.

    A figure is for each GPU, or for a whole node. Offers that then cost the same stand in the
    order of their former prices: the first of equally cheap ones decides which network connects
    nodes, and that stays the same.

    Args:
        data: Of a platform, as its file has it.
        path: `prices`, or `prices.PROVIDER`.
        value: New value, absolute or relative.
        source: Where it was given.
        basis: Which list prices a figure replaces.
        provider: Only this provider's; empty for all.

    Returns:
        The changed data, and each price that changed.

    Raises:
        UnknownNameError: There is no such provider.
        ConfigError: The value is no price.
    """
    devices, offers = data["node"]["devices"], list(data["offers"])
    absolute = relative_factor(value) is None
    each = absolute and _each_device(value)
    named = _provider(offers, path.partition(".")[2])
    changes, places = [], []
    for place, offer in enumerate(offers):
        fits = not offer["superseded"] and named in ("", offer["provider"])
        if absolute and offer["basis"] != "given":
            wanted = (named or provider).casefold()
            fits &= offer["basis"] == basis and wanted in ("", offer["provider"].casefold())
        if fits:
            new = new_value(offer["price"], value)
            moved = {**offer, "price": new}
            if each and (offer["by_device"] or offer["devices"] >= devices):
                moved |= {"devices": 1, "by_device": True}
            elif absolute and not each:
                nodes = offer["devices"] / devices
                new = moved["price"] = new_value(new, f"*{nodes!r}")
            changes.append(
                FieldChange(offer_fact(offer), *map(readable_quantity, (offer["price"], new)))
            )
            offers[place] = moved
            places.append(place)
    if absolute:
        former = sorted(places, key=lambda place: _usd_per_device(data["offers"][place]))
        for place, moved in zip(places, [offers[one] for one in former], strict=True):
            offers[place] = moved
    if absolute and not changes:
        offer = given_price(value, devices, source)
        offer |= {"provider": named or provider or "set", "basis": basis}
        changes.append(FieldChange(offer_fact(offer), "not set", readable_quantity(value)))
        offers.append(offer)
    return {**data, "offers": offers}, tuple(changes)


def given_price(value: str, devices: int, source: str) -> dict[str, Any]:
    """Returns a price of one's own, bound to no network, as a platform's file would have it.

    Args:
        value: For each GPU, or for a whole node.
        devices: Devices of a node.
        source: Where it was given.

    Raises:
        ConfigError: It is no price.
    """
    each = _each_device(value)
    return {
        "provider": "own",
        "instance": "price",
        "by_device": each,
        "devices": 1 if each else devices,
        "price": value,
        "network": [ANY_NETWORK],
        "as_of": "unknown",
        "basis": "given",
        "source": source,
    }


def _usd_per_device(offer: Mapping[str, Any]) -> float:
    usd, each = parse_rental_price(offer["price"])
    return usd if each else usd / int(offer["devices"])


def _each_device(value: str) -> bool:
    """Returns whether a price is for each GPU."""
    try:
        return parse_rental_price(value)[1]
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _provider(offers: Sequence[Mapping[str, Any]], name: str) -> str:
    """Returns a provider in the spelling of the file."""
    known = dict.fromkeys(offer["provider"] for offer in offers)
    for provider in known:
        if provider.casefold() == name.casefold():
            return str(provider)
    if name:
        raise UnknownNameError(f"there is no provider `{name}`; {hint(name, known)}")
    return ""
