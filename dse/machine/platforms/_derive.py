"""Platforms derived from others: `{from: h100_sxm, price: 2.10 USD/GPU/h, network: {nics: 4}}`.

A mapping in place of a platform's name says what differs from the platform that it names: a
price, which is then the only one, and any figure by its key in the platform's file. `link` and
`network` change all links and networks of the platform, `links` and `networks` single ones; a new
one has to be complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from dse._text.suggest import hint
from dse.config import (
    DocumentKind,
    Examples,
    FieldChange,
    RentalPrice,
    StrictModel,
    builtin_folder,
    check_data,
    from_folder,
    list_documents,
    override,
    parse_plain,
    readable_quantity,
)
from dse.errors import ConfigError, UnknownNameError
from dse.machine.platforms._build import offer_fact
from dse.machine.platforms._hardware_schema import (
    DeviceBlock,
    HostBlock,
    LinkBlock,
    Name,
    NetworkBlock,
    NodeBlock,
    PodBlock,
)
from dse.machine.platforms._host_profiles import (
    HOST_PROFILE,
    kept_host_profile,
    read_host_profile,
)
from dse.machine.platforms._override import rebuilt, spelled_out
from dse.machine.platforms._own_schema import Own
from dse.machine.platforms._prices import given_price
from dse.machine.platforms._provenance import PlatformFact
from dse.machine.platforms._schema import PlatformDocument

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dse.machine.platforms._platform import Platform
    from dse.machine.platforms._provenance import CalibrationSource

#: Keys of a mapping that lead to a host profile.
_PROFILE = tuple(HOST_PROFILE.split("."))

#: Origin of figures that a mapping gave.
GIVEN = "given"

#: What a new link or network needs.
_WIRES = {
    "links": ("kind", "bandwidth", "latency"),
    "networks": ("kind", "nics", "bandwidth", "latency"),
}

#: Longest list of changes in a name that nobody chose.
_LONGEST_CHANGES = 60


@dataclass(frozen=True, slots=True)
class DerivedPlatform:
    """A platform that differs from another one in some figures.

    Attributes:
        base: Name or path of the other platform.
        name: Its own name.
        price: For each GPU or for a whole node, with its unit; empty for the other's prices.
        changes: Keys and new value of each figure that differs, in the order of the mapping.
        text: The mapping as YAML, from which it can be made again.
    """

    base: str
    name: str
    price: str
    changes: tuple[tuple[tuple[str, ...], str], ...]
    text: str

    @property
    def mapping(self) -> dict[str, Any]:
        """The keys that were given, as a file has them."""
        found = parse_plain(self.text)
        assert isinstance(found, dict)
        return found


#: Name or file of a platform.
PlatformName = Annotated[
    Annotated[str, Field(min_length=1, max_length=4000)],
    Examples(lambda: [path.stem for path in list_documents(DocumentKind.PLATFORM)]),
]


class DerivedPlatformBlock(StrictModel):
    """A platform with a price or figures of one's own, in place of a platform's name.

    Attributes:
        base: Name or file of a platform.
        name: Its own name; by default that of the other platform and what differs.
        price: What a GPU (USD/GPU/h) or a whole node (USD/h) costs, in place of all offers.
        link: Figures of all links of the platform.
        links: Single links, by name; a new one is complete.
        network: Figures of all networks of the platform.
        networks: Single networks, by name; a new one is complete.
    """

    described_by: ClassVar = PlatformDocument

    base: Annotated[PlatformName, Field(alias="from")]
    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^:=\n]+$")] = ""
    description: Annotated[str, Field(max_length=200)] = ""
    price: RentalPrice | None = None
    device: Own[DeviceBlock] | None = None
    node: Own[NodeBlock] | None = None
    pod: Own[PodBlock] | None = None
    link: Own[LinkBlock] | None = None
    links: dict[Name, Own[LinkBlock]] | None = None
    default_link: Name | None = None
    network: Own[NetworkBlock] | None = None
    networks: dict[Name, Own[NetworkBlock]] | None = None
    default_network: Name | None = None
    host: Own[HostBlock] | None = None

    @field_validator("name")
    @classmethod
    def _own_name(cls, value: str) -> str:
        if (builtin_folder(DocumentKind.PLATFORM) / f"{value}.yaml").is_file():
            raise PydanticCustomError(
                "name", "`{name}` is a built-in platform; choose another name", {"name": value}
            )
        return value

    def __str__(self) -> str:
        """Returns the name of the platform."""
        return self.to_derived().name

    def in_folder(self, folder: str) -> DerivedPlatformBlock:
        """Returns it with paths from the current folder, where they count from another one."""
        changes: dict[str, object] = {"base": from_folder(self.base, folder)}
        host = self.host
        if host is not None and host.profile is not None:
            path = str(PurePath(folder) / host.profile)
            changes["host"] = host.model_copy(update={"profile": path})
        return self.model_copy(update=changes)

    @property
    def mapping(self) -> dict[str, Any]:
        """The keys that were given, as a file has them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)

    def to_derived(self) -> DerivedPlatform:
        """Returns what differs, as plain values."""
        import yaml

        given = self.mapping
        text = yaml.safe_dump(given, sort_keys=False, allow_unicode=True)
        figures = {key: given[key] for key in given if key not in ("from", "name", "price")}
        changes = tuple(_leaves(figures, ()))
        price = self.price or ""
        name = self.name or _name(self.base, price, changes)
        return DerivedPlatform(self.base, name, price, changes, text)


#: A platform as files name it: a name or file, or what differs from another one.
PlatformChoice = Annotated[
    Annotated[PlatformName, Tag("(name)")] | Annotated[DerivedPlatformBlock, Tag("(mapping)")],
    Discriminator(
        lambda value: "(mapping)" if isinstance(value, dict | DerivedPlatformBlock) else "(name)"
    ),
]


def _leaves(
    node: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), str(value)


def _name(base: str, price: str, changes: tuple[tuple[tuple[str, ...], str], ...]) -> str:
    """Returns a name that tells what differs."""
    stem = PurePath(base).stem if base.endswith((".yaml", ".yml")) else base
    parts = [f"{'.'.join(keys)} {readable_quantity(value)}" for keys, value in changes]
    if len(", ".join(parts)) > _LONGEST_CHANGES:
        parts = [f"own {block}" for block in dict.fromkeys(keys[0] for keys, _ in changes)]
    if price:
        parts.insert(0, price)
    return f"{stem} ({', '.join(parts) or 'as it is'})".replace(":", " ").replace("=", " ")


def derive_platform(
    derived: DerivedPlatform,
    base: Platform,
    given_in: str,
    places: Mapping[tuple[int | str, ...], str] | None = None,
    *,
    kept: Sequence[CalibrationSource] | None = None,
) -> Platform:
    """Returns a platform with what differs from another one.

    Measured kernels and collectives move with the physics that they are ratios to, as they do
    under :func:`override_platform`.

    Args:
        derived: What differs.
        base: The other platform.
        given_in: Where it was given: the source of its figures.
        places: Place of each key of the mapping, for messages; `given_in` if left out.
        kept: Texts that a study keeps; no file is read in their place.

    Raises:
        UnknownNameError: The other platform has no such field, link or network.
        ConfigError: The platform would be impossible.
    """
    known = dict(places or {})
    known[()] = known.get(("from",), given_in)
    source = f"given in {given_in}"[:200]
    data: dict[str, Any] = base.document.model_dump(mode="json")
    data["name"] = derived.name
    facts = {fact.quantity: fact for fact in base.facts}
    for keys, value in derived.changes:
        try:
            data, moved = _changed(data, derived, keys, value, source)
        except ConfigError as error:
            place = next(
                known[keys[:end]] for end in range(len(keys), -1, -1) if keys[:end] in known
            )
            raise type(error)(f"{place}: {'.'.join(keys)}: {error}") from error
        for change in moved:
            facts[change.path] = _fact(change, source, facts.get(change.path))
    facts.pop("description", None)
    if derived.price:
        price = given_price(derived.price, data["node"]["devices"], source)
        data["offers"] = [price]
        facts = {name: fact for name, fact in facts.items() if not name.startswith("price ")}
        instead = f"{source}, instead of the prices of {base.name}"
        facts[offer_fact(price)] = PlatformFact(
            offer_fact(price), readable_quantity(derived.price), GIVEN, instead, ""
        )
    document = check_data(data, PlatformDocument, file=known[()])
    profile = None
    if name := next((value for keys, value in derived.changes if keys == _PROFILE), None):
        if kept is None:
            profile = read_host_profile(name)
        else:
            profile = kept_host_profile(name, kept, known[()])
    return rebuilt(base, document, tuple(facts.values()), profile)


def _changed(
    data: dict[str, Any],
    derived: DerivedPlatform,
    keys: tuple[str, ...],
    value: str,
    source: str,
) -> tuple[dict[str, Any], tuple[FieldChange, ...]]:
    """Returns a platform's data with one figure changed, or of a new link or network given."""
    path, sourced = ".".join(keys), {"origin": "assumed", "source": source}
    block, name = keys[0], keys[1] if len(keys) > 2 else ""
    if block not in _WIRES or not name:
        return override(data, spelled_out(path), value, sourced)
    wires = data[block]
    own = {key[2] for key, _ in derived.changes if key[:2] == (block, name)}
    if name not in wires:
        missing = [key for key in _WIRES[block] if key not in own]
        if missing:
            raise UnknownNameError(
                f"there is no {block[:-1]} `{name}`; {hint(name, list(wires))}; a new one also "
                f"needs {', '.join(f'`{key}`' for key in missing)}"
            )
        wires = {**wires, name: dict(sourced)}
    wire = wires[name]
    if keys[2] in wire:
        return override(data, path, value)
    wires = {**wires, name: {**wire, keys[2]: value}}
    return {**data, block: wires}, (FieldChange(path, "not set", readable_quantity(value)),)


def _fact(change: FieldChange, source: str, former: PlatformFact | None) -> PlatformFact:
    before = change.before if former is None else f"{former.value} ({former.origin})"
    return PlatformFact(change.path, change.after, GIVEN, f"{source}; was {before}", "")
