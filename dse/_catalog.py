"""Catalog of built-in documents."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dse._reading import path_exists, shown_path
from dse._suggest import nearest
from dse.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable


class DocumentKind(StrEnum):
    """Kinds of documents that ship with the package."""

    MODEL = "model"
    PLATFORM = "platform"
    SEARCH_SPACE = "search-space"

    @property
    def words(self) -> str:
        """What messages call it."""
        return self.value.replace("-", " ")


_FOLDERS = {
    DocumentKind.MODEL: "models",
    DocumentKind.PLATFORM: "platforms",
    DocumentKind.SEARCH_SPACE: "search_spaces",
}

_PACKAGE = Path(__file__).resolve().parent


# Built-in documents do not change while a process runs.
@cache
def builtin_folder(kind: DocumentKind) -> Path:
    """Returns the folder of built-in documents: in the wheel, or next to the package."""
    installed = _PACKAGE / "_data" / _FOLDERS[kind]
    return installed if installed.is_dir() else _PACKAGE.parent / _FOLDERS[kind]


@cache
def list_documents(kind: DocumentKind) -> tuple[Path, ...]:
    """Returns the built-in documents of a kind, sorted by name."""
    return tuple(sorted(builtin_folder(kind).glob("*.yaml")))


def find_document(kind: DocumentKind, name_or_path: str) -> Path:
    """Resolves a built-in name or a path to a file.

    Text without a path separator or a YAML suffix is a built-in name, anything else a path.

    Raises:
        UnknownNameError: No built-in document has this name; the hint suggests similar ones.
        ConfigError: The path does not exist.
    """
    names = {path.stem: path for path in list_documents(kind)}
    looks_like_path = (
        name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path or "\\" in name_or_path
    )
    if not looks_like_path:
        if name_or_path in names:
            return names[name_or_path]
        near = name_hint(kind, name_or_path, names)
        raise UnknownNameError(
            f"no {kind.words} is called `{name_or_path}`; {near}", value=name_or_path, hint=near
        )
    path = Path(name_or_path)
    if path_exists(path):
        return path
    advice = "" if path.is_absolute() else "; paths count from the current folder"
    if path.stem in names:
        advice = f"; the built-in one is called `{path.stem}`"
    raise ConfigError(f"{shown_path(name_or_path)}: no such file{advice}")


def name_hint(kind: DocumentKind, name: str, names: Iterable[str]) -> str:
    """Returns what an unknown name may have been meant to be, or how to see all names.

    Args:
        kind: Kind of the document.
        name: The name, which no document has.
        names: All names.
    """
    for suffix in (".yaml", ".yml"):
        if path_exists(Path(name + suffix)):
            return f"did you mean the file `{name}{suffix}`?"
    near = nearest(name, names)
    return f"did you mean `{near}`?" if near else f"`dse list {kind.value}s` names all"


def display_path(path: Path) -> str:
    """Returns a path for provenance: folder and name of built-in documents, others as given."""
    for kind, folder in _FOLDERS.items():
        if path.parent == builtin_folder(kind):
            return f"{folder}/{path.name}"
    return str(path)
