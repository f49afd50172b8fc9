"""Host profiles of platforms: finding them, and what they say about the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from dse.config import UnitKind, format_quantity, read_source
from dse.errors import ConfigError
from dse.machine import HostSpec
from dse.machine.host import HOST_FIGURES, host_profile_from_text
from dse.machine.platforms._provenance import CalibrationSource, PlatformFact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine.host import HostProfile
    from dse.machine.platforms._hardware_schema import HostBlock
    from dse.machine.platforms._platform import Platform

#: Dotted keys of a platform's file that lead to the profile.
HOST_PROFILE = "host.profile"


@dataclass(frozen=True, slots=True)
class UsedHostProfile:
    """A host profile with the file that it comes from."""

    source: CalibrationSource
    content: HostProfile

    def facts(self) -> tuple[PlatformFact, ...]:
        """Returns the figures of the host that it gives, with their origin."""
        given = self.content.source
        devices = ", ".join(given.devices) or "unknown devices"
        origin = "measured", f"{self.source.path}: traces on {devices}", given.as_of
        found = [PlatformFact(HOST_PROFILE, self.content.name, *origin)]
        for name in HOST_FIGURES:
            if figure := getattr(self.content.shared, name):
                value = format_quantity(figure.mean_s, UnitKind.TIME)
                found.append(PlatformFact(f"host.{name}", value, *origin))
        return tuple(found)


def plain_host(block: HostBlock) -> HostSpec:
    """Returns the host of a platform's file without its profile."""
    return HostSpec(**{f"{name}_s": getattr(block, name) for name in HOST_FIGURES})


def read_host_profile(name: str, text: str | None = None, folder: str = "") -> UsedHostProfile:
    """Reads a host profile.

    Args:
        name: Its path as it was written.
        text: Its text where that is known; no file is read then.
        folder: Folder that the path counts from; the current one if empty.

    Raises:
        ConfigError: The file is missing or wrong.
    """
    path = Path(folder) / name
    if text is None:
        read = read_source(path)
        source = CalibrationSource(name, str(path), read.sha256, read.text)
    else:
        digest = hashlib.sha256(text.encode()).hexdigest()
        source = CalibrationSource(name, str(path), digest, text)
    return UsedHostProfile(source, host_profile_from_text(source.text, str(path)))


def kept_host_profile(name: str, kept: Sequence[CalibrationSource], shown: str) -> UsedHostProfile:
    """Returns a host profile whose text a study keeps.

    Args:
        name: As the platform names it.
        kept: What the study keeps of the platform.
        shown: What the platform's file is called in messages.

    Raises:
        ConfigError: The text is not kept.
    """
    for source in kept:
        if source.name == name:
            return UsedHostProfile(source, host_profile_from_text(source.text, source.path))
    raise ConfigError(
        f"{shown}: the text of host profile `{name}` is not kept with the platform; run the "
        "study again"
    )


def with_host_profile(platform: Platform, used: UsedHostProfile | None) -> Platform:
    """Returns a platform with the host profile that its document names, if there is one."""
    if used is None:
        return platform
    facts = {fact.quantity: fact for fact in (*platform.facts, *used.facts())}
    return replace(
        platform,
        host=used.content.host_spec(plain_host(platform.document.host)),
        facts=tuple(facts.values()),
        calibrations=(*platform.calibrations, used.source),
    )


def check_host_figures(before: HostBlock, platform: Platform) -> None:
    """Refuses to change figures of the host that its profile has measured.

    Args:
        before: The host of the platform that the other one is derived from.
        platform: The derived platform.

    Raises:
        ConfigError: A figure was changed that does not count.
    """
    after, profile = platform.document.host, platform.host.profile
    if profile is None:
        return
    for name in HOST_FIGURES:
        changed = getattr(before, name) != getattr(after, name)
        if changed and getattr(profile.shared, name) is not None:
            raise ConfigError(
                f"host.{name}: measured by the host profile `{profile.name}`, so the figure of "
                "the platform does not count; change it in the profile"
            )
