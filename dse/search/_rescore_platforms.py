"""Platforms and search spaces after changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from dse.errors import ConfigError
from dse.machine import LinkSpec, NetworkSpec, PeakRates, PriceSpec
from dse.machine.platforms import PlatformFact
from dse.search._rescore_calibrations import moved_curves, pinned_calibrations
from dse.search._rescore_changes import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.machine.platforms import Platform
    from dse.search._rescore_changes import Change
    from dse.search.space import SearchSpace

Spec = TypeVar("Spec", LinkSpec, NetworkSpec)

#: Fields of the YAML and where their figures are.
_DEVICE = {
    "device.memory.capacity": "memory_bytes",
    "device.memory.reserved": "reserved_memory_bytes",
    "device.memory.bandwidth": "memory_bandwidth_bytes_per_s",
    "device.l2.size": "l2_bytes",
    "device.l2.bandwidth": "l2_bandwidth_bytes_per_s",
    "device.kernel_floor": "kernel_floor_s",
}
_LINK = {
    "links.bandwidth": "bandwidth_bytes_per_s",
    "links.latency": "latency_s",
    "links.pair_bandwidth": "pair_bandwidth_bytes_per_s",
}
_NETWORK = {
    "networks.bandwidth": "nic_bandwidth_bytes_per_s",
    "networks.latency": "latency_s",
    "networks.nics": "nics_per_node",
}
_HOST_LINK = {
    "node.host_link.bandwidth": "bandwidth_bytes_per_s",
    "node.host_link.latency": "latency_s",
}
_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")

#: Origin of figures that a change made.
CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class PriceChoice:
    """Which list prices a study goes by.

    Attributes:
        basis: `on_demand`, `capacity_block`, `reserved` or `spot`.
        provider: Only this one's; empty for the cheapest of all.
    """

    basis: str = "on_demand"
    provider: str = ""


@dataclass(frozen=True, slots=True)
class ChangedFigure:
    """One figure before and after a change.

    Attributes:
        platform: Platform; empty for what the search space adds.
        quantity: As in the platform's facts, for example ``links.nvswitch.bandwidth``.
        before: With its unit.
        after: With its unit.
        text: The change as it was written.
    """

    platform: str
    quantity: str
    before: str
    after: str
    text: str


class _Notes:
    """Collects what changed."""

    def __init__(self, platform: str) -> None:
        self.platform = platform
        self.figures: list[ChangedFigure] = []

    def add(self, change: Change, quantity: str, old: float | None, new: float) -> None:
        before = "not set" if old is None else readable(change.field, old)
        after = readable(change.field, new)
        self.figures.append(ChangedFigure(self.platform, quantity, before, after, change.text))


def changed_platform(
    platform: Platform,
    changes: Sequence[Change],
    name: str = "",
    prices: PriceChoice | None = None,
) -> tuple[Platform, tuple[ChangedFigure, ...]]:
    """Returns a platform after changes, and each figure that moved.

    Measured kernels and collectives move with the physics that they are ratios to; see
    :mod:`dse.search._rescore_calibrations`.

    Args:
        platform: The platform.
        changes: In the order in which they are made; those of other platforms are left out.
        name: Name by which changes call it, its own by default.
        prices: Which prices an absolute price replaces; the on-demand ones by default.

    Raises:
        ConfigError: A figure that the platform lacks is to be changed by a share, or what comes
            out is impossible.
    """
    called = name or platform.name
    notes = _Notes(called)
    changed = platform
    for change in changes:
        if change.platform not in ("", called):
            continue
        changed = _make(changed, change, notes, prices or PriceChoice())
    device = changed.device
    if device.reserved_memory_bytes >= device.memory_bytes:
        reserved = readable("device.memory.reserved", device.reserved_memory_bytes)
        capacity = readable("device.memory.capacity", device.memory_bytes)
        raise ConfigError(
            f"{called}: after the changes {reserved} of {capacity} of memory are reserved; leave "
            "more than that"
        )
    if replace(device, memory_bytes=platform.device.memory_bytes) != platform.device:
        changed = replace(
            changed, device=replace(device, calibrations=pinned_calibrations(platform.device))
        )
    links = tuple(
        replace(new, calibrations=moved_curves(old, new))
        for old, new in zip(platform.links, changed.links, strict=True)
    )
    facts = _facts(platform.facts, notes.figures)
    return replace(changed, links=links, facts=facts), tuple(notes.figures)


def changed_space(
    space: SearchSpace, changes: Sequence[Change]
) -> tuple[SearchSpace, tuple[ChangedFigure, ...]]:
    """Returns a search space after changes of the links and networks that it adds."""
    notes = _Notes("")
    links, networks = space.links, space.networks
    for change in changes:
        if change.platform:
            continue
        links = _each(links, change, _LINK, notes)
        networks = _each(networks, change, _NETWORK, notes)
    return replace(space, links=links, networks=networks), tuple(notes.figures)


def _make(platform: Platform, change: Change, notes: _Notes, prices: PriceChoice) -> Platform:
    field = change.field
    if field == "price":
        return replace(platform, prices=_prices(platform, change, notes, prices))
    if field in _DEVICE:
        device = _set(platform.device, _DEVICE[field], change, field, notes)
        return replace(platform, device=device)
    if field.startswith("device.peak"):
        peak = _peak(platform.device.peak, change, notes, platform.name)
        return replace(platform, device=replace(platform.device, peak=peak))
    if field in _HOST_LINK:
        link = _set(platform.host_link, _HOST_LINK[field], change, field, notes)
        return replace(platform, host_link=link)
    if field == "node.host_memory.capacity":
        if platform.host_memory_bytes is None and change.amount.value is None:
            raise _not_known(change, platform.name)
        new = change.amount.of(platform.host_memory_bytes or 0.0)
        notes.add(change, field, platform.host_memory_bytes, new)
        return replace(platform, host_memory_bytes=new)
    if field.startswith("host."):
        host = _set(platform.host, f"{field.partition('.')[2]}_s", change, field, notes)
        return replace(platform, host=host)
    return replace(
        platform,
        links=_each(platform.links, change, _LINK, notes),
        networks=_each(platform.networks, change, _NETWORK, notes),
    )


def _set(block: Any, attribute: str, change: Change, quantity: str, notes: _Notes) -> Any:
    """Returns a block of figures with one of them changed."""
    old = getattr(block, attribute)
    new = change.amount.of(old)
    notes.add(change, quantity, old, new)
    return replace(block, **{attribute: new})


def _each(
    blocks: tuple[Spec, ...], change: Change, fields: dict[str, str], notes: _Notes
) -> tuple[Spec, ...]:
    """Returns links or networks, those that a change means with another figure."""
    if change.field not in fields:
        return blocks
    attribute = fields[change.field]
    kind, _, last = change.field.partition(".")
    changed: list[Spec] = []
    for block in blocks:
        old = getattr(block, attribute)
        # Only wiring in pairs has a bandwidth of pairs, whatever is asked of all links.
        if change.name not in ("", block.name) or old is None:
            changed.append(block)
            continue
        new = change.amount.of(old)
        if attribute == "nics_per_node":
            new = _whole(new, change)
        notes.add(change, f"{kind}.{block.name}.{last}", old, new)
        moved: dict[str, Any] = {attribute: new}
        changed.append(replace(block, **moved))
    return tuple(changed)


def _whole(value: float, change: Change) -> int:
    nearest = round(value)
    if nearest < 1 or abs(value - nearest) > 1e-9:
        raise ConfigError(
            f"--set {change.text}: {value:g} network cards; expected a whole number of them"
        )
    return nearest


def _peak(peak: PeakRates, change: Change, notes: _Notes, platform: str) -> PeakRates:
    _, _, precision = change.field.removeprefix("device.").partition(".")
    for name in (precision,) if precision else _PRECISIONS:
        attribute = f"{name}_flops_per_s"
        old = getattr(peak, attribute)
        if old is None and change.amount.value is None:
            if precision:
                raise _not_known(change, platform)
            continue
        new = change.amount.of(old or 0.0)
        notes.add(change, f"device.peak.{name}", old, new)
        peak = replace(peak, **{attribute: new})
    return peak


def _prices(
    platform: Platform, change: Change, notes: _Notes, prices: PriceChoice
) -> tuple[PriceSpec, ...]:
    """Returns list prices; a share moves all of them, a figure those that the study goes by."""
    node = platform.devices_per_node
    provider = change.name or prices.provider
    changed: list[PriceSpec] = []
    found = False
    for price in platform.prices:
        mine = not price.superseded and (not change.name or price.provider == change.name)
        if change.amount.value is not None:
            mine &= price.basis == prices.basis and provider in ("", price.provider)
        if mine:
            found = True
            nodes = price.devices / node if change.amount.value is not None else 1.0
            new = nodes * change.amount.of(price.usd_per_hour)
            notes.add(change, _price_quantity(price), price.usd_per_hour, new)
            price = replace(price, usd_per_hour=new)
        changed.append(price)
    if change.amount.value is not None and not found:
        price = PriceSpec(
            provider=provider or "set",
            instance=f"node of {node}",
            devices=node,
            usd_per_hour=change.amount.value,
            region="",
            as_of="unknown",
            basis=prices.basis,
            source=f"--set {change.text}",
        )
        notes.add(change, _price_quantity(price), None, price.usd_per_hour)
        changed.append(price)
    return tuple(changed)


def _price_quantity(price: PriceSpec) -> str:
    """The name of a price among a platform's facts."""
    region = f" {price.region}" if price.region else ""
    return f"price {price.provider} {price.instance}{region}"


def _not_known(change: Change, platform: str) -> ConfigError:
    return ConfigError(
        f"--set {change.text}: {platform} does not have `{change.field}`, so there is nothing to "
        "take a share of; give the figure itself"
    )


def _facts(
    facts: Iterable[PlatformFact], figures: Sequence[ChangedFigure]
) -> tuple[PlatformFact, ...]:
    """Returns where figures come from: those that changed, from the change."""
    last = {figure.quantity: figure for figure in figures}
    kept = []
    for fact in facts:
        figure = last.pop(fact.quantity, None)
        kept.append(fact if figure is None else _fact(figure, f"was {fact.value} ({fact.origin})"))
    return (*kept, *(_fact(figure, "was not set") for figure in last.values()))


def _fact(figure: ChangedFigure, before: str) -> PlatformFact:
    return PlatformFact(
        figure.quantity, figure.after, CHANGED, f"--set {figure.text}; {before}", ""
    )
