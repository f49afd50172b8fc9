"""Files of a study: their digests, and of platforms their facts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from dse._io.reading import open_file
from dse.config import (
    IN_MEMORY,
    DocumentKind,
    display_path,
    find_document,
    mapping_text,
    read_source,
)
from dse.errors import ConfigError
from dse.search._records import (
    BASE_ROLE,
    CALIBRATION_ROLE,
    PLATFORM_ROLE,
    TRACE_ROLE,
    Fact,
    InputFile,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dse.machine.platforms import DerivedPlatform, Platform
    from dse.search.space import SearchSpace
    from dse.trace import RankTrace


def text_file(role: str, name: str, path: Path) -> InputFile:
    """Returns a text file with its text."""
    source = read_source(path)
    return InputFile(role, name, display_path(path), source.sha256, source.text)


def mapping_file(space: Mapping[str, object]) -> InputFile:
    """Returns a search space that was given as a mapping, with the text of a YAML file."""
    text = mapping_text(space)
    return InputFile("space", "", IN_MEMORY, _text_digest(text), text)


def object_file(space: SearchSpace) -> InputFile:
    """Returns a search space that came from no file."""
    text = repr(space)
    return InputFile("space", space.name, "", _text_digest(text), text)


def platform_files(name: str, platform: Platform) -> list[InputFile]:
    """Returns the file of a platform and those of its fitted models."""
    file = text_file(PLATFORM_ROLE, name, find_document(DocumentKind.PLATFORM, name))
    return [file, *_calibration_files(name, platform)]


def derived_platform_files(
    derived: DerivedPlatform, platform: Platform, given_in: str
) -> list[InputFile]:
    """Returns what a derived platform is made from: its mapping, the other platform's files.

    Args:
        derived: What differs from the other platform.
        platform: The derived platform.
        given_in: Where the mapping is.
    """
    base = find_document(DocumentKind.PLATFORM, derived.base)
    return [
        InputFile(PLATFORM_ROLE, derived.name, given_in, _text_digest(derived.text), derived.text),
        text_file(BASE_ROLE, derived.base, base),
        *_calibration_files(derived.name, platform),
    ]


def _calibration_files(name: str, platform: Platform) -> list[InputFile]:
    return [
        InputFile(CALIBRATION_ROLE, f"{name}: {used.name}", used.path, used.sha256, used.text)
        for used in platform.calibrations
    ]


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def platform_facts(name: str, platform: Platform) -> list[Fact]:
    """Returns where the figures of a platform come from."""
    return [
        Fact(name, fact.quantity, fact.value, fact.origin, fact.source, fact.as_of)
        for fact in platform.facts
    ]


def trace_files(path: Path, traces: Sequence[RankTrace]) -> list[InputFile]:
    """Returns the files that traces were read from, with their digests only.

    Raises:
        ConfigError: A file went away since it was read.
    """
    if path.is_dir():
        places = [trace.file for trace in traces]
        files = [
            item
            for item in sorted(path.iterdir())
            # Members of an archive are called by the archive and their name in it.
            if any(place == str(item) or place.startswith(f"{item}:") for place in places)
        ]
    else:
        files = [path]
    try:
        return [
            InputFile(TRACE_ROLE, file.name, str(file), _digest(file), text="") for file in files
        ]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def _digest(file: Path) -> str:
    with open_file(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
