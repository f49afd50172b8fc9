"""Kinds of workloads: those of this package and those that others add through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from dse._io.reading import is_folder
from dse._text.suggest import hint
from dse.config import (
    IN_MEMORY,
    DocumentKind,
    builtin_folder,
    key_places,
    mapping_text,
    parse_plain,
    read_source,
)
from dse.errors import ConfigError
from dse.model import DlrmModel, TransformerModel, find_model
from dse.workload._workload import Workload

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

#: Entry point group of workloads of other packages.
ENTRY_POINTS = "dse.workloads"

#: Kind of a model file that does not name one.
_DEFAULT_KIND = "dlrm"

#: Ends of the names of captured steps' files, and how many other files a message names.
_CAPTURES = (".trace.json", ".trace.json.gz", ".et.json", ".et.json.gz")
_MOST_NAMES = 5

_BUILT_IN = {
    "dlrm": ("dse.workload.dlrm", "DlrmWorkload"),
    "transformer": ("dse.workload.transformer", "TransformerWorkload"),
    "trace": ("dse.workload.recorded", "RecordedWorkload"),
}


@cache
def workload_kinds() -> Mapping[str, type[Workload]]:
    """Returns every kind of workload by its name, those of this package first.

    Raises:
        ConfigError: An installed package announces something that is not a workload.
    """
    found: dict[str, type[Workload]] = {
        kind: getattr(import_module(package), name) for kind, (package, name) in _BUILT_IN.items()
    }
    for entry in entry_points(group=ENTRY_POINTS):
        added = entry.load()
        if not (isinstance(added, type) and issubclass(added, Workload)):
            raise ConfigError(
                f"entry point `{entry.name}` of group {ENTRY_POINTS} is {added!r}; expected a "
                "subclass of dse.workload.Workload"
            )
        found.setdefault(added.kind, added)
    return found


def workload_kind(kind: str) -> type[Workload]:
    """Returns a kind of workload.

    Raises:
        ConfigError: There is no such kind; the message names those that there are.
    """
    kinds = workload_kinds()
    if kind not in kinds:
        raise ConfigError(
            f"no workload is of kind `{kind}`; {hint(kind, tuple(kinds))} (other packages add "
            f"kinds through the entry point group {ENTRY_POINTS})"
        )
    return kinds[kind]


def workload_from_text(text: str, *, file: str = "<string>") -> Workload:
    """Returns the workload that a model file describes.

    Args:
        text: YAML of a model of any kind.
        file: File name for messages.

    Raises:
        ConfigError: The text is wrong, or its kind is not known.
    """
    document = parse_plain(text, file=file)
    kind = document.get("kind", _DEFAULT_KIND) if isinstance(document, dict) else _DEFAULT_KIND
    try:
        found = workload_kind(str(kind))
    except ConfigError as error:
        place = key_places(text, file=file).get(("kind",), file)
        raise ConfigError(f"{place}: {error}") from None
    return found.from_text(text, file=file)


def load_workload(
    source: str | PathLike[str] | Mapping[str, object] | DlrmModel | TransformerModel | Workload,
) -> Workload:
    """Returns a workload from a built-in name or alias, a path, a mapping, or an object.

    Args:
        source: What is trained; models become workloads, workloads are returned as they are.

    Raises:
        UnknownNameError: No built-in model has that name.
        ConfigError: The file is missing or wrong; every problem is listed with its place.
    """
    if isinstance(source, Workload):
        return source
    if isinstance(source, DlrmModel):
        return _built_in("dlrm", source)
    if isinstance(source, TransformerModel):
        return _built_in("transformer", source)
    if isinstance(source, Mapping):
        return workload_from_text(mapping_text(source), file=IN_MEMORY)
    path = find_model(source)
    _refuse_others(path)
    return _read_once(path) if path.parent == builtin_folder(DocumentKind.MODEL) else _read(path)


# Built-in files do not change while a process runs.
@lru_cache(maxsize=64)
def _read_once(path: Path) -> Workload:
    return _read(path)


def _read(path: Path) -> Workload:
    return workload_from_text(read_source(path).text, file=str(path))


def _refuse_others(path: Path) -> None:
    """Refuses captured steps and folders, with the commands that take them.

    Raises:
        ConfigError: The path is one of these.
    """
    folder = is_folder(path)
    names = [] if folder else [path.name]
    if folder:
        # One that cannot be listed is a folder all the same.
        with suppress(OSError):
            names = [item.name for item in path.iterdir()]
    if any(name.endswith(_CAPTURES) for name in names):
        raise ConfigError(
            f"{path}: captured steps, not a model; `dse trace simulate {path}` predicts a step as "
            f"it was, `dse trace whatif {path}` under changes"
        )
    if folder:
        files = sorted(name for name in names if name.endswith((".yaml", ".yml")))[:_MOST_NAMES]
        there = f"; it has {', '.join(files)}" if files else ""
        raise ConfigError(f"{path} is a folder; give the file of a model{there}")


def _built_in(kind: str, model: DlrmModel | TransformerModel) -> Workload:
    package, name = _BUILT_IN[kind]
    made: Workload = getattr(import_module(package), name)(model)
    return made
