"""Loading platforms by name or path, or as a mapping that derives one from another."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
import re
from typing import TYPE_CHECKING

from dse.config import (
    DocumentKind,
    builtin_folder,
    check_data,
    find_document,
    list_documents,
    parse_document,
    parse_plain,
    read_source,
)
from dse.errors import ConfigError
from dse.machine.platforms._build import built_platform
from dse.machine.platforms._calibrations import check_versions, use_calibrations
from dse.machine.platforms._derive import DerivedPlatformBlock, derive_platform
from dse.machine.platforms._host_profiles import (
    kept_host_profile,
    read_host_profile,
    with_host_profile,
)
from dse.machine.platforms._platform import Platform
from dse.machine.platforms._schema import FILE_BELOW, PlatformDocument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from dse.machine.platforms._provenance import CalibrationSource

#: What gave a platform that is in no file.
_A_MAPPING = "a mapping"


def load_platform(source: str | PathLike[str] | Mapping[str, object] | Platform) -> Platform:
    """Loads a platform.

    Args:
        source: Built-in name, path, or a mapping such as
            ``{"from": "h100_sxm", "price": "2.10 USD/GPU/h"}``; a platform is returned as it is.

    Raises:
        ConfigError: The file or the mapping is wrong; every problem is listed with its place.
        UnknownNameError: A name does not exist.
    """
    if isinstance(source, Platform):
        return source
    if isinstance(source, Mapping):
        block = check_data(dict(source), DerivedPlatformBlock, file="platform")
        derived = block.to_derived()
        return derive_platform(derived, load_platform(derived.base), _A_MAPPING)
    path = find_document(DocumentKind.PLATFORM, source)
    return (
        _read_once(path) if path.parent == builtin_folder(DocumentKind.PLATFORM) else _read(path)
    )


# Built-in files do not change while a process runs.
@lru_cache(maxsize=64)
def _read_once(path: Path) -> Platform:
    return _read(path)


def _read(path: Path) -> Platform:
    text = read_source(path).text
    if _is_derived(text, str(path)):
        raise ConfigError(
            f"{path}: a mapping of what differs from another platform (`from`) belongs among "
            "the platforms of a search space, in a file for --versus, or in Python; here, name "
            "the other platform and give each difference with --set, such as "
            "`--set price=2USD/GPU/h`"
        )
    context = {"folder": str(path.parent)}
    document = parse_document(text, PlatformDocument, file=str(path), context=context)
    return _platform(document, str(path), ())


def platform_from_text(
    text: str,
    file: str,
    calibrations: Sequence[CalibrationSource] = (),
    bases: Mapping[str, str] | None = None,
) -> Platform:
    """Makes a platform from the text of its file, as a study keeps it.

    Args:
        text: The text; of a derived platform its mapping.
        file: Where it came from.
        calibrations: Texts of fitted models that the platform names and that are not built in; no
            file is read in their place.
        bases: Texts of the platforms that others are derived from, by the name they are called by.

    Raises:
        ConfigError: The text is wrong, or a fitted model or the other platform is missing.
    """
    if bases and _is_derived(text, file):
        derived = parse_document(text, DerivedPlatformBlock, file=file).to_derived()
        if derived.base not in bases:
            raise ConfigError(f"{file}: {derived.name}: platform `{derived.base}` is missing")
        base = platform_from_text(bases[derived.base], derived.base, calibrations)
        return derive_platform(derived, base, file, kept=calibrations)
    return _platform(parse_document(text, PlatformDocument, file=file), "", calibrations, file)


def _is_derived(text: str, file: str) -> bool:
    data = parse_plain(text, file=file)
    return isinstance(data, dict) and "from" in data


def list_platforms() -> tuple[str, ...]:
    """Returns the names of the built-in platforms."""
    return tuple(path.stem for path in list_documents(DocumentKind.PLATFORM))


def _platform(
    document: PlatformDocument, path: str, kept: Sequence[CalibrationSource], shown: str = ""
) -> Platform:
    """Makes a platform; without a path nothing is read but what is kept or built in."""
    used = use_calibrations(document.calibrations, path, kept, shown or path)
    platform = built_platform(document, used)
    check_versions(platform.links)
    profile = document.host.profile
    if profile is None:
        return platform
    if not path:
        return with_host_profile(platform, kept_host_profile(profile, kept, shown))
    if re.fullmatch(FILE_BELOW, profile) is None:
        raise ConfigError(
            f"{path}: host.profile: expected a file in the platform's folder or below, found "
            f"`{profile}`"
        )
    folder = str(Path(path).parent)
    return with_host_profile(platform, read_host_profile(profile, folder=folder))
