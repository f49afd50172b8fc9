"""Catalog of built-in documents."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from dse._io.reading import path_exists, shown_path
from dse._text.suggest import nearest
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

_PACKAGE = Path(__file__).resolve().parent.parent


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


def is_path(name_or_path: str) -> bool:
    """Returns whether a text is a path: one with a separator or a YAML suffix."""
    return name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path or "\\" in name_or_path


def from_folder(name_or_path: str, folder: str) -> str:
    """Returns a name as it is, and a path that a file names as one from the current folder.

    Args:
        name_or_path: As the file has it.
        folder: Folder of the file.
    """
    # What needs no folder stays as it was written: `./h100_sxm` is no built-in name.
    if folder in ("", ".") or not is_path(name_or_path):
        return name_or_path
    return str(Path(folder) / name_or_path)


def find_document(kind: DocumentKind, source: object) -> Path:
    """Resolves a built-in name or a path to a file.

    Raises:
        UnknownNameError: No built-in document has this name; the hint suggests similar ones.
        ConfigError: It is neither, or the path does not exist or is a study.
    """
    if not isinstance(source, str | PathLike):
        raise ConfigError(f"expected the name or the path of a {kind.words}, found {source!r}")
    name_or_path = str(source)
    names = {path.stem: path for path in list_documents(kind)}
    if not is_path(name_or_path):
        if name_or_path in names:
            return names[name_or_path]
        near = name_hint(kind, name_or_path, names)
        raise UnknownNameError(
            f"no {kind.words} is called `{name_or_path}`; {near}", value=name_or_path, hint=near
        )
    path = Path(name_or_path)
    if _is_study(path):
        raise ConfigError(
            f"{path} is a study, not a {kind.words}; `dse report {path}` shows its answers"
        )
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
    if _is_study(Path(name)):
        return f"the folder `{name}` is a study; `dse report {name}` shows its answers"
    if path_exists(Path(name)):
        return f"for the file or folder of that name write `./{name}`"
    for other in DocumentKind:
        if other is not kind and name in {path.stem for path in list_documents(other)}:
            return f"it is a {other.words}; `dse list {kind.value}s` names all"
    near = nearest(name, names)
    return f"did you mean `{near}`?" if near else f"`dse list {kind.value}s` names all"


def _is_study(path: Path) -> bool:
    return path_exists(path / "study.yaml")


def display_path(path: Path) -> str:
    """Returns a path for provenance: folder and name of built-in documents, others as given."""
    for kind, folder in _FOLDERS.items():
        if path.parent == builtin_folder(kind):
            return f"{folder}/{path.name}"
    return str(path)
