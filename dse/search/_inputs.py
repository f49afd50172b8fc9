"""Gathering everything a study is made from: space, model, platforms, and their files."""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
from typing import TYPE_CHECKING

from dse.documents import DocumentKind, display_path, find_document, read_source
from dse.platforms import load_platform
from dse.search._records import CALIBRATION_ROLE, Fact, InputFile
from dse.space import SearchSpace, load_space
from dse.workloads import find_model, load_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dse.platforms import Platform
    from dse.workloads import DlrmModel


@dataclass(frozen=True, slots=True)
class StudyInputs:
    """What a study is made from.

    Attributes:
        space: The search space.
        model: What is trained.
        platforms: Every platform that the space names, by that name.
        files: The files they came from.
        facts: Where the platforms' numbers come from.
    """

    space: SearchSpace
    model: DlrmModel
    platforms: Mapping[str, Platform]
    files: tuple[InputFile, ...]
    facts: tuple[Fact, ...]


def read_inputs(space: SearchSpace | str | Path) -> StudyInputs:
    """Reads a search space and all that it names.

    Args:
        space: A search space (kept by its representation), or the name or path of one.

    Raises:
        ConfigError: A file is missing or wrong.
    """
    if isinstance(space, SearchSpace):
        chosen = space
        files = [_in_memory(space)]
    else:
        chosen = load_space(space)
        path = find_document(DocumentKind.SEARCH_SPACE, str(space))
        files = [_file("space", chosen.name, path)]
    model = load_model(chosen.model)
    files.append(_file("model", model.name, find_model(chosen.model)))
    platforms: dict[str, Platform] = {}
    facts: list[Fact] = []
    for value in chosen.choices("platform"):
        name = str(value)
        platform = load_platform(name)
        platforms[name] = platform
        files.append(_file("platform", name, find_document(DocumentKind.PLATFORM, name)))
        files += [
            InputFile(CALIBRATION_ROLE, f"{name}: {used.name}", used.path, used.sha256, used.text)
            for used in platform.calibrations
        ]
        facts += [
            Fact(name, fact.quantity, fact.value, fact.origin, fact.source, fact.as_of)
            for fact in platform.facts
        ]
    return StudyInputs(chosen, model, platforms, tuple(files), tuple(facts))


def _file(role: str, name: str, path: Path) -> InputFile:
    source = read_source(path)
    return InputFile(role, name, display_path(path), source.sha256, source.text)


def _in_memory(space: SearchSpace) -> InputFile:
    text = repr(space)
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return InputFile("space", space.name, "", digest, text)
