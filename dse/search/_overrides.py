"""Overrides of what a study was made from, and how a study keeps them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
import hashlib
from typing import TYPE_CHECKING, Any

from dse.config import (
    SCHEMA_VERSION,
    Document,
    NonNegativeFloat,
    StrictModel,
    UnitKind,
    check_data,
    exact_quantity,
    override,
    parse_json,
)
from dse.errors import ConfigError, UnknownNameError
from dse.machine.platforms import (
    ChangedFigure,
    Override,
    override_platform,
    override_platforms,
    parse_override,
)
from dse.search._records import CHANGES_ROLE, InputFile
from dse.search.space._common_schema import LinkBlock, NetworkBlock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine.platforms import Platform
    from dse.search.space import SearchSpace


class _OverrideBlock(StrictModel):
    """One override as it is stored."""

    text: str
    platform: str
    path: str
    value: str
    content: str = ""


class _OldChangeBlock(StrictModel):
    """One override as older versions stored it."""

    text: str
    platform: str
    field: str
    name: str
    factor: NonNegativeFloat | None
    value: NonNegativeFloat | None


class ChangesDocument(Document):
    """The overrides of a revised study, among its inputs."""

    changes: list[_OverrideBlock | _OldChangeBlock]


@dataclass(frozen=True, slots=True)
class StudyMachines:
    """The machines that candidates of a study are predicted on.

    Attributes:
        space: The search space, with the links and networks that it adds.
        platforms: By the name that the study knows them by.
    """

    space: SearchSpace
    platforms: Mapping[str, Platform]

    def parsed(self, changes: Sequence[str | Override]) -> tuple[Override, ...]:
        """Reads `PATH=VALUE` texts, where they are not read yet.

        Raises:
            ConfigError: A text is wrong.
        """
        names = {platform.name: name for name, platform in self.platforms.items()}
        names |= {name: name for name in self.platforms}
        return tuple(
            parse_override(one, names) if isinstance(one, str) else one for one in changes
        )

    def overridden(
        self, overrides: Sequence[Override]
    ) -> tuple[StudyMachines, tuple[ChangedFigure, ...]]:
        """Returns the machines after overrides, and each figure that changed.

        An override of all platforms may name what only some of them have.

        Raises:
            UnknownNameError: No platform has what an override names.
            ConfigError: A value is wrong or impossible.
        """
        space, figures = override_space(self.space, overrides)
        platforms, moved = override_platforms(
            self.platforms,
            overrides,
            price_basis=space.price_basis,
            price_provider=space.price_provider,
            used={figure.text for figure in figures},
        )
        return StudyMachines(space, platforms), (*figures, *moved)


def override_space(
    space: SearchSpace, overrides: Sequence[Override]
) -> tuple[SearchSpace, tuple[ChangedFigure, ...]]:
    """Returns a search space after overrides of the links and networks that it adds."""
    links: dict[str, dict[str, object]] = {
        link.name: {
            "kind": link.kind,
            "bandwidth": exact_quantity(link.bandwidth_bytes_per_s, UnitKind.BANDWIDTH),
            "latency": exact_quantity(link.latency_s, UnitKind.TIME),
        }
        for link in space.links
    }
    networks: dict[str, dict[str, object]] = {
        network.name: {
            "kind": network.kind,
            "nics": network.nics_per_node,
            "bandwidth": exact_quantity(network.nic_bandwidth_bytes_per_s, UnitKind.BANDWIDTH),
            "latency": exact_quantity(network.latency_s, UnitKind.TIME),
        }
        for network in space.networks
    }
    data: dict[str, Any] = {"links": links, "networks": networks}
    figures: list[ChangedFigure] = []
    for change in overrides:
        if change.platform:
            continue
        try:
            data, fields = override(data, change.path, change.value)
        except UnknownNameError:
            continue  # it is one of the platforms'
        except ConfigError as error:
            raise ConfigError(f"--set {change.text}: {error}") from error
        figures += [
            ChangedFigure("", field.path, field.before, field.after, change.text)
            for field in fields
        ]
    if not figures:
        return space, ()
    added = check_data(data, _AddedBlocks, file=f"{space.name} after --set")
    changed = replace(
        space,
        links=tuple(
            replace(link, bandwidth_bytes_per_s=block.bandwidth, latency_s=block.latency)
            for link, block in zip(space.links, added.links.values(), strict=True)
        ),
        networks=tuple(block.to_spec(name) for name, block in added.networks.items()),
    )
    return changed, tuple(figures)


class _AddedBlocks(StrictModel):
    """What a search space adds to every platform."""

    links: dict[str, LinkBlock]
    networks: dict[str, NetworkBlock]


def override_study_platform(
    platform: Platform,
    name: str,
    overrides: Sequence[Override],
    space: SearchSpace | None,
) -> Platform:
    """Returns a platform of a study after overrides.

    Args:
        platform: The platform.
        name: Name that the study knows it by.
        overrides: Of this platform and of others.
        space: Which list prices count; the cheapest on-demand ones without it.
    """
    changed, _ = override_platform(
        platform,
        overrides,
        name=name,
        price_basis="on_demand" if space is None else space.price_basis,
        price_provider="" if space is None else space.price_provider,
        unknown={},  # it may be another platform's
    )
    return changed


def check_price_changes(overrides: Sequence[Override], name: str) -> None:
    """Checks that overrides of a study of a captured trace change nothing but prices.

    Raises:
        ConfigError: One changes another figure of the machine.
    """
    for change in overrides:
        if not change.of_price:
            raise ConfigError(
                f"--set {change.text}: {name} is of a captured trace, so only prices can be "
                "changed; use `dse trace whatif TRACE` for other changes of the machine"
            )


def with_overrides(
    files: Sequence[InputFile], overrides: Sequence[Override]
) -> tuple[InputFile, ...]:
    """Returns the inputs of a revised study: its own, and all overrides so far."""
    every = [*stored_overrides(files), *overrides]
    document = ChangesDocument(
        schema_version=SCHEMA_VERSION,
        changes=[_OverrideBlock(**asdict(change)) for change in every],
    )
    text = document.model_dump_json(indent=1) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    kept = [file for file in files if file.role != CHANGES_ROLE]
    return (*kept, InputFile(CHANGES_ROLE, "changes", "", digest, text))


def stored_overrides(files: Sequence[InputFile]) -> tuple[Override, ...]:
    """Returns the overrides of a revised study from its inputs; none of any other study.

    Raises:
        ConfigError: They do not have the form that this version or an older one writes.
    """
    return tuple(
        _old_override(block)
        if isinstance(block, _OldChangeBlock)
        else Override(block.text, block.platform, block.path, block.value, block.content)
        for file in files
        if file.role == CHANGES_ROLE
        for block in parse_json(file.text, ChangesDocument, file="changes").changes
    )


def _old_override(block: _OldChangeBlock) -> Override:
    """Returns an override of the older form, whose name stood apart from its field."""
    head, _, rest = block.field.replace("price", "prices").partition(".")
    path = ".".join(part for part in (head, block.name, rest) if part)
    value = block.text.partition("=")[2].strip() if block.factor is None else f"*{block.factor!r}"
    return Override(block.text, block.platform, path, value)
