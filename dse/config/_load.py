"""Reading documents: all problems at once, each at its place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError, create_model

from dse._reading import (
    MAX_DOCUMENT_BYTES,
    JsonProblemError,
    byte_limit,
    decoded,
    load_json,
    read_bytes,
    too_large,
)
from dse.config._base import StrictModel
from dse.config._diagnose import diagnose
from dse.config._yaml import LocatedData, read_yaml
from dse.errors import ConfigError, Diagnostic

if TYPE_CHECKING:
    from collections.abc import Hashable

Model = TypeVar("Model", bound=BaseModel)
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A file as it was read.

    Attributes:
        path: Where.
        text: Its text.
        sha256: Digest of its bytes.
    """

    path: Path
    text: str
    sha256: str


def read_source(path: str | Path) -> DocumentSource:
    """Reads a text file of bounded size.

    Raises:
        ConfigError: The file is missing, no ordinary file, unreadable, too large or not UTF-8.
    """
    content = read_bytes(path)
    return DocumentSource(Path(path), decoded(content, path), hashlib.sha256(content).hexdigest())


def load_document(path: str | Path, model: type[Model]) -> Model:
    """Reads and checks a YAML file.

    Args:
        path: The file.
        model: Class of the whole document.

    Raises:
        ConfigError: With every problem as a diagnostic, in file order.
    """
    source = read_source(path)
    return parse_document(source.text, model, file=str(path))


def parse_document(text: str, model: type[Model], *, file: str = "<string>") -> Model:
    """Checks YAML text; see :func:`load_document`."""
    return _validated(read_yaml(text, file), model, file)


def parse_plain(text: str, *, file: str = "<string>") -> object:
    """Returns the plain data of YAML text (JSON is YAML, too), whatever they mean.

    Args:
        text: The text.
        file: File name for messages.

    Raises:
        ConfigError: The text is not YAML within the limits; with every problem at its place.
    """
    located = read_yaml(text, file)
    if located.problems:
        raise ConfigError(diagnostics=tuple(located.problems))
    return located.data


def checked_record(kind: type[Record], data: object) -> Record:
    """Makes a plain dataclass of the data of a file, in which all types are checked.

    Args:
        kind: A dataclass; other dataclasses may be inside it.
        data: Keys and values.

    Raises:
        ValueError: The data do not fit; the message names the first field and what is wrong.
    """
    try:
        return cast(
            "Record", _holder(cast("Hashable", kind)).model_validate({"record": data}).record
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"][1:])
        raise ValueError(f"{path}: {first['msg']}" if path else str(first["msg"])) from error


@cache
def _holder(kind: Any) -> Any:
    return create_model(kind.__name__, __base__=StrictModel, record=(kind, ...))


def key_places(text: str, *, file: str = "<string>") -> dict[tuple[int | str, ...], str]:
    """Returns where each key of a YAML text stands, for messages about what it means.

    Args:
        text: Text that :func:`parse_document` has accepted.
        file: File name for the places.

    Returns:
        `file:line:column` by the path of the key.
    """
    places = read_yaml(text, file).keys
    return {path: f"{file}:{line}:{column}" for path, (line, column) in places.items()}


def parse_json(text: str, model: type[Model], *, file: str = "<string>") -> Model:
    """Checks JSON text; see :func:`load_document`. Fields have no line there, only their path."""
    located = LocatedData()
    try:
        if len(text) > (limit := byte_limit(MAX_DOCUMENT_BYTES)):
            raise too_large(file, f"{len(text)} characters", limit)
        located.data = load_json(text, finite=False)
    except JsonProblemError as error:
        located.problems.append(Diagnostic(file, error.line, error.column, "", error.message))
    return _validated(located, model, file)


def check_data(data: object, model: type[Model], *, file: str) -> Model:
    """Checks plain data; see :func:`load_document`. Problems have the path of their field.

    Args:
        data: Keys and values.
        model: Class of the whole document.
        file: What the data are called in messages.
    """
    return _validated(LocatedData(data=data), model, file)


def _validated(located: LocatedData, model: type[Model], file: str) -> Model:
    problems = list(located.problems)
    if located.data is not None:
        try:
            document = model.model_validate(located.data)
        except ValidationError as error:
            known = {problem.field for problem in problems}
            problems += [
                problem
                for problem in diagnose(error, model, located, file)
                if problem.field not in known
            ]
        else:
            if not problems:
                return document
    elif not problems:
        problems.append(Diagnostic(file, None, None, "", "there is nothing in this file"))
    problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0, problem.field))
    raise ConfigError(diagnostics=tuple(problems))
