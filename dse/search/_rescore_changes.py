"""Changes of a study's inputs, as people write them: `platform.h100_sxm.price=40USD/h`.

A path names a field as the YAML of a platform does. What may stand in front says which platform;
without it the change is made to all of them, as `link.bandwidth=+20%` is to all links::

    [platform.NAME.]price[.PROVIDER]          of one node, whoever rents it out
    [platform.NAME.]device.memory.bandwidth   `device.` and `node.` may be left out
    [platform.NAME.]device.peak[.PRECISION]
    [platform.NAME.]links[.LINK].bandwidth    also `link`, `networks`, `network`
    [platform.NAME.]host.launch

A value is one figure with its unit, a share more or less (`+20%`, `-10%`), or a factor (`*1.5`).
"""

from __future__ import annotations

from dataclasses import dataclass
import re
from typing import TYPE_CHECKING

from dse._suggest import hint, nearest
from dse.config import UnitKind, format_quantity, parse_quantity
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.machine.platforms import Platform
    from dse.search.space import SearchSpace

#: Fields of one platform and what they measure; None for counts. `links` and `networks` take a
#: name before their field, `price` one behind.
FIELDS: dict[str, UnitKind | None] = {
    "price": UnitKind.PRICE,
    "device.memory.capacity": UnitKind.SIZE,
    "device.memory.reserved": UnitKind.SIZE,
    "device.memory.bandwidth": UnitKind.BANDWIDTH,
    "device.l2.size": UnitKind.SIZE,
    "device.l2.bandwidth": UnitKind.BANDWIDTH,
    "device.kernel_floor": UnitKind.TIME,
    "device.peak": UnitKind.COMPUTE_RATE,
    "device.peak.fp32": UnitKind.COMPUTE_RATE,
    "device.peak.tf32": UnitKind.COMPUTE_RATE,
    "device.peak.fp16": UnitKind.COMPUTE_RATE,
    "device.peak.bf16": UnitKind.COMPUTE_RATE,
    "node.host_link.bandwidth": UnitKind.BANDWIDTH,
    "node.host_link.latency": UnitKind.TIME,
    "node.host_memory.capacity": UnitKind.SIZE,
    "links.bandwidth": UnitKind.BANDWIDTH,
    "links.latency": UnitKind.TIME,
    "links.pair_bandwidth": UnitKind.BANDWIDTH,
    "networks.bandwidth": UnitKind.BANDWIDTH,
    "networks.latency": UnitKind.TIME,
    "networks.nics": None,
    "host.between_operators": UnitKind.TIME,
    "host.before_launch": UnitKind.TIME,
    "host.after_launch": UnitKind.TIME,
    "host.launch": UnitKind.TIME,
    "host.between_launches": UnitKind.TIME,
    "host.graph_launch": UnitKind.TIME,
}

#: Shorter words for fields that are asked for often.
_ALIASES = {
    "prices": "price",
    "memory": "device.memory.capacity",
    "memory_bandwidth": "device.memory.bandwidth",
    "device.memory": "device.memory.capacity",
    "device.memory_bandwidth": "device.memory.bandwidth",
    "host_memory": "node.host_memory.capacity",
    "node.host_memory": "node.host_memory.capacity",
}

#: Blocks that the YAML has by name.
_NAMED = {"link": "links", "links": "links", "network": "networks", "networks": "networks"}

_SHARE = re.compile(r"([+-])\s*(\d+(?:\.\d+)?)\s*%")
_FACTOR = re.compile(r"[*x×]\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class Amount:
    """What becomes of a figure: one of the two is None.

    Attributes:
        factor: What it is multiplied by.
        value: What it becomes, in SI units (prices in USD/h of one node).
    """

    factor: float | None
    value: float | None

    def of(self, old: float) -> float:
        """Returns the new figure."""
        if self.value is not None:
            return self.value
        return old * (1.0 if self.factor is None else self.factor)


@dataclass(frozen=True, slots=True)
class Change:
    """One field of one or all platforms that gets another value.

    Attributes:
        text: As it was written, `PATH=VALUE`.
        platform: Name of the platform; empty for all.
        field: A key of :data:`FIELDS`.
        name: Link, network or provider; empty for all.
        amount: The new value.
    """

    text: str
    platform: str
    field: str
    name: str
    amount: Amount

    @property
    def of_price(self) -> bool:
        """Whether it changes nothing but prices."""
        return self.field == "price"


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names that paths may hold.

    Attributes:
        platforms: By the name that the study knows them by.
        links: Interconnects that the search space adds.
        networks: Networks that the search space adds.
    """

    platforms: tuple[tuple[str, Platform], ...]
    links: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, platforms: Iterable[tuple[str, Platform]], space: SearchSpace | None = None
    ) -> KnownNames:
        """Returns the names in platforms and a search space."""
        if space is None:
            return cls(tuple(platforms))
        return cls(
            tuple(platforms),
            tuple(link.name for link in space.links),
            tuple(network.name for network in space.networks),
        )

    def inside(self, block: str, platform: str) -> tuple[str, ...]:
        """Returns the names in `links`, `networks` or `price` of one platform, or of all."""
        found: dict[str, None] = {}
        for name, one in self.platforms:
            if platform and name != platform:
                continue
            if block == "links":
                found |= dict.fromkeys(link.name for link in one.links)
            elif block == "networks":
                found |= dict.fromkeys(network.name for network in one.networks)
            else:
                found |= dict.fromkeys(price.provider for price in one.prices)
        if not platform and block == "links":
            found |= dict.fromkeys(self.links)
        if not platform and block == "networks":
            found |= dict.fromkeys(self.networks)
        return tuple(found)


def parse_changes(texts: Sequence[str], names: KnownNames) -> tuple[Change, ...]:
    """Reads changes from `PATH=VALUE` texts; see the module for what may be written.

    Args:
        texts: One change each.
        names: Platforms, links and networks that they may name.

    Raises:
        ConfigError: A path, a name or a value is wrong; says what was probably meant.
    """
    return tuple(_parse(text, names) for text in texts)


def _parse(text: str, names: KnownNames) -> Change:
    path, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not path or not value:
        raise ConfigError(
            f"--set {text}: expected PATH=VALUE, such as `platform.h100_sxm.price=40USD/h` or "
            "`link.bandwidth=+20%`"
        )
    platform, rest = _platform_of(path, text, names)
    field, name = _field_of(rest, platform, text, names)
    return Change(text, platform, field, name, _amount(value, field, text))


def _platform_of(path: str, text: str, names: KnownNames) -> tuple[str, str]:
    """Splits the platform off a path; no platform stands for all."""
    for prefix in ("platforms.", "platform."):
        if path.startswith(prefix):
            break
    else:
        return "", path
    rest = path.removeprefix(prefix)
    called = [(name, name) for name, _ in names.platforms]
    called += [(one.name, name) for name, one in names.platforms]
    # File names have dots of their own, so the longest name that fits is meant.
    for word, name in sorted(called, key=lambda pair: -len(pair[0])):
        if rest.startswith(word + "."):
            return name, rest.removeprefix(word + ".")
    if _known_field(rest):
        return "", rest
    wrong = rest.split(".")[0]
    raise ConfigError(
        f"--set {text}: the study has no platform `{wrong}`; "
        f"{hint(wrong, [name for name, _ in names.platforms])}"
    )


def _known_field(path: str) -> str:
    """Returns the field that a path without names is called, or nothing."""
    head, dot, tail = path.partition(".")
    path = _NAMED.get(head, head) + dot + tail
    path = _ALIASES.get(path, path)
    for candidate in (path, f"device.{path}", f"node.{path}"):
        if candidate in FIELDS:
            return candidate
    return ""


def _field_of(path: str, platform: str, text: str, names: KnownNames) -> tuple[str, str]:
    """Returns the field, and the link, network or provider that it is of."""
    known = _known_field(path)
    if known:
        return known, ""
    head, _, rest = path.partition(".")
    if _ALIASES.get(head, head) == "price":
        return "price", _one_of(rest, names.inside("price", platform), "provider", text)
    if head in _NAMED:
        block = _NAMED[head]
        name, _, last = rest.rpartition(".")
        field = f"{block}.{last}"
        if name and field in FIELDS:
            offered = names.inside(block, platform)
            return field, _one_of(name, offered, block.removesuffix("s"), text)
        fields = [one.partition(".")[2] for one in FIELDS if one.startswith(f"{block}.")]
        wrong = last or rest
        raise ConfigError(
            f"--set {text}: {block} have no field `{wrong}`; {hint(wrong, fields)} "
            f"({head}.NAME.FIELD, or {head}.FIELD for all)"
        )
    raise ConfigError(f"--set {text}: there is no field `{path}`; {_near(path)}")


def _one_of(name: str, offered: Sequence[str], kind: str, text: str) -> str:
    for one in offered:
        if one.casefold() == name.casefold():
            return one
    raise ConfigError(f"--set {text}: there is no {kind} `{name}`; {hint(name, offered)}")


def _near(path: str) -> str:
    words = [*FIELDS, *(name for name in _ALIASES if "." not in name)]
    words += [name.partition(".")[2] for name in FIELDS if name.startswith(("device.", "node."))]
    words += [name.replace("links", "link").replace("networks", "network") for name in FIELDS]
    near = nearest(path, dict.fromkeys(words))
    return f"did you mean `{near}`?" if near else f"there are {', '.join(FIELDS)}"


def _amount(value: str, field: str, text: str) -> Amount:
    share = _SHARE.fullmatch(value)
    factor = _FACTOR.fullmatch(value)
    if share is not None:
        change = float(share.group(2)) / 100
        return _relative(1 + change if share.group(1) == "+" else 1 - change, field, text)
    if factor is not None:
        return _relative(float(factor.group(1)), field, text)
    kind = FIELDS[field]
    if kind is None:
        if not value.isdigit() or int(value) < 1:
            raise ConfigError(f"--set {text}: expected a whole number, `*2` or `+20%`")
        return Amount(None, float(value))
    if field == "device.peak":
        raise ConfigError(
            f"--set {text}: say which precision, such as `device.peak.bf16={value}`, or change "
            "all of them by a share, such as `device.peak=+10%`"
        )
    try:
        return Amount(None, parse_quantity(value, kind))
    except ValueError as error:
        raise ConfigError(f"--set {text}: {error}; or a change such as `+20%`") from error


def _relative(factor: float, field: str, text: str) -> Amount:
    if factor < 0 or (factor == 0 and FIELDS[field] not in (UnitKind.PRICE, UnitKind.TIME)):
        raise ConfigError(f"--set {text}: nothing would be left; expected more than -100 %")
    return Amount(factor, None)


def readable(field: str, value: float) -> str:
    """Prints a figure of a field with its unit."""
    kind = FIELDS[field]
    return f"{value:g}" if kind is None else format_quantity(value, kind)
