"""Overrides of a platform's file: `h100_sxm.price=2.10 USD/GPU/h`, `link.bandwidth=+20%`.

A path names a field as the YAML of a platform does; a name in front selects a platform::

    [platform.][NAME.]price[.PROVIDER]          USD/GPU/h for each GPU, USD/h for a whole node
    [platform.][NAME.]device.memory.bandwidth   `device.` and `node.` may be left out
    [platform.][NAME.]device.peak[.PRECISION]
    [platform.][NAME.]links[.LINK].bandwidth    also `link`, `networks`, `network`
    [platform.][NAME.]host.launch                 or host.profile, a file of measured figures

For values, and for blocks of named entries, see :func:`dse.config.override`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dse._text.suggest import hint, nearest
from dse.config import (
    StrictModel,
    check_data,
    override,
)
from dse.errors import ConfigError, UnknownNameError
from dse.machine.host import HostProfile, host_profile_text
from dse.machine.platforms._build import built_platform
from dse.machine.platforms._calibrations import check_versions, collective_facts
from dse.machine.platforms._hardware_schema import DeviceBlock, NodeBlock
from dse.machine.platforms._host_profiles import (
    HOST_PROFILE,
    check_host_figures,
    read_host_profile,
    with_host_profile,
)
from dse.machine.platforms._moved_calibrations import pinned_calibrations
from dse.machine.platforms._prices import override_prices
from dse.machine.platforms._provenance import PlatformFact
from dse.machine.platforms._schema import PlatformDocument

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from os import PathLike

    from dse.machine import LinkSpec
    from dse.machine.platforms._host_profiles import UsedHostProfile
    from dse.machine.platforms._platform import Platform

#: Shorter paths of fields that are often overridden.
_ALIASES = {
    "memory": "device.memory.capacity",
    "memory_bandwidth": "device.memory.bandwidth",
    "device.memory": "device.memory.capacity",
    "device.memory_bandwidth": "device.memory.bandwidth",
    "host_memory": "node.host_memory.capacity",
    "node.host_memory": "node.host_memory.capacity",
    "power": "device.power.limit",
    "device.power": "device.power.limit",
    "storage": "node.storage.bandwidth",
    "node.storage": "node.storage.bandwidth",
}
_BLOCKS = {"link": "links", "network": "networks", "price": "prices"}

#: Blocks whose name may be left out of a path.
_OPENED: dict[str, type[StrictModel]] = {"device": DeviceBlock, "node": NodeBlock}

#: Fields of a platform's file that say what it is, and change nothing.
_NO_FIGURES = ("schema_version", "name", "description")

#: Origin of figures that an override changed.
CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Override:
    """One field of one or all platforms that gets another value.

    Attributes:
        text: As it was written, `PATH=VALUE`.
        platform: Name of the platform; empty for all.
        path: Dotted path of the field, short forms spelled out.
        value: New value, absolute or relative.
        content: Text of the file that the value names; empty for a figure.
    """

    text: str
    platform: str
    path: str
    value: str
    content: str = ""

    @property
    def of_price(self) -> bool:
        """Whether it changes nothing but prices."""
        return self.path.partition(".")[0] == "prices"


@dataclass(frozen=True, slots=True)
class ChangedFigure:
    """One figure before and after an override.

    Attributes:
        platform: Platform; empty for what a search space adds.
        quantity: As in the platform's facts, for example ``links.nvswitch.bandwidth``.
        before: With its unit.
        after: With its unit.
        text: The override as it was written.
    """

    platform: str
    quantity: str
    before: str
    after: str
    text: str

    @property
    def of_price(self) -> bool:
        """Whether it is the price of an offer."""
        return self.quantity.startswith("price ")


def parse_override(text: str, platforms: Mapping[str, str]) -> Override:
    """Reads `PATH=VALUE`.

    Args:
        text: The text.
        platforms: From each name that may be written to the name of the platform.

    Raises:
        ConfigError: It has another form, or names a file that is missing or wrong.
        UnknownNameError: There is no such platform.
    """
    path, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not path or not value:
        raise ConfigError(
            f"--set {text}: expected PATH=VALUE, such as `price=2.10 USD/GPU/h` or "
            "`h100_sxm.link.bandwidth=+20%`"
        )
    platform, path = _split_platform(path, text, platforms)
    path = spelled_out(path)
    if path.casefold() == HOST_PROFILE:
        return replace(host_profile_override(value), text=text, platform=platform)
    return Override(text, platform, path, value)


def host_profile_override(profile: str | PathLike[str] | HostProfile) -> Override:
    """Returns the override that gives all platforms a host profile.

    Args:
        profile: A profile, or the path of one.

    Raises:
        ConfigError: The file is missing or wrong.
    """
    if isinstance(profile, HostProfile):
        name, content = profile.name, host_profile_text(profile)
    else:
        name, content = str(profile), read_host_profile(str(profile)).source.text
    return Override(f"{HOST_PROFILE}={name}", "", HOST_PROFILE, name, content)


def override_platforms(
    platforms: Mapping[str, Platform],
    overrides: Sequence[Override | str],
    *,
    price_basis: str = "on_demand",
    price_provider: str = "",
    used: Collection[str] = (),
) -> tuple[dict[str, Platform], tuple[ChangedFigure, ...]]:
    """Returns platforms after overrides, and each figure that changed.

    An override of all platforms may name what only some of them have.

    Args:
        platforms: By the names that overrides call them.
        overrides: In the order in which they are made.
        price_basis: Which list prices an absolute price replaces.
        price_provider: Only this provider's; empty for all.
        used: Texts of overrides that changed something else.

    Raises:
        UnknownNameError: No platform has what an override names.
        ConfigError: A value is wrong or impossible.
    """
    names = {platform.name: name for name, platform in platforms.items()}
    names |= {name: name for name in platforms}
    changes = [
        parse_override(item, names) if isinstance(item, str) else item for item in overrides
    ]
    figures: list[ChangedFigure] = []
    changed: dict[str, Platform] = {}
    unknown: dict[str, UnknownNameError] = {}
    for name, platform in platforms.items():
        changed[name], moved = override_platform(
            platform,
            changes,
            name=name,
            price_basis=price_basis,
            price_provider=price_provider,
            unknown=unknown,
        )
        figures += moved
    moving = {*used, *(figure.text for figure in figures)}
    for text, error in unknown.items():
        if text not in moving:
            raise error
    return changed, tuple(figures)


def override_platform(
    platform: Platform,
    overrides: Iterable[Override | str],
    *,
    name: str = "",
    price_basis: str = "on_demand",
    price_provider: str = "",
    unknown: dict[str, UnknownNameError] | None = None,
) -> tuple[Platform, tuple[ChangedFigure, ...]]:
    """Returns a platform as its file would describe it after overrides.

    Measured kernels and collectives move with the physics that they are ratios to; see
    :mod:`dse.machine.platforms._moved_calibrations`.

    Args:
        platform: The platform.
        overrides: In the order in which they are made; those of other platforms are left out.
        name: Name by which overrides call the platform, its own by default.
        price_basis: Which list prices an absolute price replaces.
        price_provider: Only this provider's; empty for all.
        unknown: Where overrides are for several platforms: collects errors of names that this one
            lacks, by the text of the override, instead of raising them.

    Returns:
        The changed platform, and each figure that changed.

    Raises:
        UnknownNameError: The platform has no such field, link, network or provider.
        ConfigError: A value is wrong, or the platform is impossible afterwards.
    """
    called = name or platform.name
    names = {platform.name: called, called: called}
    data: dict[str, Any] = platform.document.model_dump(mode="json")
    figures: list[ChangedFigure] = []
    profile: UsedHostProfile | None = None
    for item in overrides:
        change = parse_override(item, names) if isinstance(item, str) else item
        if change.platform not in ("", called):
            continue
        source = f"--set {change.text}"[:200]
        try:
            if change.of_price:
                data, moved = override_prices(
                    data, change.path, change.value, source, price_basis, price_provider
                )
            else:
                head = change.path.partition(".")[0]
                if head.casefold() not in data or head.casefold() in _NO_FIGURES:
                    known = ["price", *(key for key in data if key not in _NO_FIGURES)]
                    raise UnknownNameError(f"there is no figure `{head}`; {hint(head, known)}")
                if change.path.startswith("device.power.") and not data["device"]["power"]:
                    raise UnknownNameError(
                        "there is no `device.power`, so no power limits its arithmetic; describe "
                        "`limit` and `operation_energy` in its file"
                    )
                given = {"origin": "assumed", "source": source}
                data, moved = override(data, change.path, change.value, given)
                if change.path == HOST_PROFILE:
                    profile = read_host_profile(change.value, change.content)
        except ConfigError as error:
            located = type(error)(f"--set {change.text}: {error}")
            if unknown is None or not isinstance(located, UnknownNameError):
                raise located from error
            unknown.setdefault(change.text, located)
            continue
        figures += [
            ChangedFigure(called, field.path, field.before, field.after, change.text)
            for field in moved
        ]
    if not figures:
        return platform, ()
    texts = " ".join(dict.fromkeys(f"--set {figure.text}" for figure in figures))
    document = check_data(data, PlatformDocument, file=f"{called} with {texts}")
    return rebuilt(platform, document, _facts(platform.facts, figures), profile), tuple(figures)


def _split_platform(path: str, text: str, platforms: Mapping[str, str]) -> tuple[str, str]:
    """Splits the platform off a path; no platform stands for all."""
    rest = path.removeprefix("platforms.").removeprefix("platform.")
    # Names of files have dots, so the longest name that fits is meant.
    for name in sorted(platforms, key=len, reverse=True):
        if rest.startswith(f"{name}."):
            return platforms[name], rest.removeprefix(f"{name}.")
    head, dot, _ = rest.partition(".")
    names = dict.fromkeys(platforms.values())
    misspelt = dot and nearest(head, names)
    if head in _known_heads() or (rest == path and not misspelt):
        return "", rest
    raise UnknownNameError(f"--set {text}: there is no platform `{head}`; {hint(head, names)}")


def _known_heads() -> set[str]:
    """Returns what a path may begin with."""
    return {*PlatformDocument.model_fields, *_ALIASES, *_BLOCKS, *_BLOCKS.values(), *_opened()}


def _opened() -> dict[str, str]:
    """Returns the fields whose block may be left out of a path, with the block of each."""
    return {field: block for block, kind in _OPENED.items() for field in kind.model_fields}


def spelled_out(path: str) -> str:
    """Returns a path with its short forms replaced."""
    if path in _ALIASES:
        return _ALIASES[path]
    head, dot, rest = path.partition(".")
    if head in _BLOCKS:
        return _BLOCKS[head] + dot + rest
    block = "" if head in PlatformDocument.model_fields else _opened().get(head, "")
    return f"{block}.{path}" if block else path


def rebuilt(
    platform: Platform,
    document: PlatformDocument,
    facts: tuple[PlatformFact, ...],
    profile: UsedHostProfile | None = None,
) -> Platform:
    """Returns the platform of a document with the measurements of the one it is derived from.

    Args:
        platform: The one that it is derived from.
        document: The changed document.
        facts: Where its figures come from.
        profile: The host profile that the document names, if it is another one.

    Raises:
        ConfigError: A figure was changed that another measurement decides.
    """
    built = built_platform(document)
    measured = platform.device
    # No measured kernel depends on the size of the memory.
    sized = replace(
        built.device,
        memory_bytes=measured.memory_bytes,
        reserved_memory_bytes=measured.reserved_memory_bytes,
    )
    same = sized == replace(measured, calibrations=())
    kernels = measured.calibrations if same else pinned_calibrations(measured)
    former = {link.name: link for link in platform.links}
    links = [
        _measured(link, former[link.name]) if link.name in former else link for link in built.links
    ]
    check_versions(links)
    if any(link.name in former and link.nccl != former[link.name].nccl for link in links):
        before = {fact.quantity for fact in collective_facts(platform.links)}
        others = [fact for fact in facts if fact.quantity not in before]
        facts = (*others, *collective_facts(links))
    # Fitted networks are shares of rates and multiples of latencies: they move by themselves.
    fitted = {network.name: network.calibrations for network in platform.networks}
    networks = [
        replace(network, calibrations=fitted.get(network.name, ())) for network in built.networks
    ]
    former_profile = platform.host.profile
    changed = with_host_profile(
        replace(
            built,
            device=replace(built.device, calibrations=kernels),
            links=tuple(links),
            networks=tuple(networks),
            host=former_profile.host_spec(built.host) if former_profile else built.host,
            facts=facts,
            calibrations=platform.calibrations,
        ),
        profile,
    )
    check_host_figures(platform.document.host, changed)
    return changed


def _measured(link: LinkSpec, former: LinkSpec) -> LinkSpec:
    """Returns a link with the measurements of the one that it was before an override."""
    origin = replace(former.measured_on or former, calibrations=(), nccl=link.nccl)
    changed = link != origin
    return replace(link, calibrations=former.calibrations, measured_on=origin if changed else None)


def _facts(
    facts: Iterable[PlatformFact], figures: Sequence[ChangedFigure]
) -> tuple[PlatformFact, ...]:
    """Returns where figures come from: those that changed, from the override."""
    last = {figure.quantity: figure for figure in figures}
    kept = []
    for fact in facts:
        figure = last.pop(fact.quantity, None)
        kept.append(fact if figure is None else _fact(figure, f"{fact.value} ({fact.origin})"))
    return (*kept, *(_fact(figure, figure.before) for figure in last.values()))


def _fact(figure: ChangedFigure, before: str) -> PlatformFact:
    source = f"--set {figure.text}; was {before}"
    return PlatformFact(figure.quantity, figure.after, CHANGED, source, "")
