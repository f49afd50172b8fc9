"""Reading and validating documents; all problems are reported together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
import hashlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError, create_model

from dse._io.reading import (
    MAX_DOCUMENT_BYTES,
    JsonProblemError,
    byte_limit,
    decoded,
    load_json,
    read_bytes,
    too_large,
)
from dse.config._base import Document, StrictModel
from dse.config._diagnose import chosen_class, diagnose
from dse.config._kinds import other_kind
from dse.config._yaml import LocatedData, read_yaml
from dse.errors import ConfigError, Diagnostic

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

Model = TypeVar("Model", bound=BaseModel)
Record = TypeVar("Record")

#: Longest JSON text, in characters, whose problems are reported with their place.
_MAX_PLACED = 1_000_000


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Contents of a file.

    Attributes:
        text: Decoded text.
        sha256: Digest of the bytes.
    """

    text: str
    sha256: str


def read_source(path: str | Path) -> DocumentSource:
    """Reads a text file.

    Raises:
        ConfigError: The file is missing, not regular, unreadable, too large or not UTF-8.
    """
    content = read_bytes(path)
    return DocumentSource(decoded(content, path), hashlib.sha256(content).hexdigest())


def load_document(path: str | Path, model: type[Model]) -> Model:
    """Reads and validates a YAML file.

    Args:
        path: The file.
        model: Class of the document.

    Raises:
        ConfigError: The file is invalid; diagnostics hold every problem, in file order.
    """
    source = read_source(path)
    return parse_document(source.text, model, file=str(path))


def parse_document(
    text: str,
    model: type[Model],
    *,
    file: str = "<string>",
    context: Mapping[str, object] | None = None,
) -> Model:
    """Validates YAML text; see :func:`load_document`.

    Args:
        text: The text.
        model: Class of the document.
        file: File name for messages.
        context: What the class has to know besides the text.
    """
    return _validated(read_yaml(text, file), model, file, context)


#: What a mapping in place of a file is called in messages.
IN_MEMORY = "<mapping>"


def mapping_text(mapping: Mapping[str, object]) -> str:
    """Returns the YAML text of a mapping that is given in place of a file."""
    import yaml

    return yaml.safe_dump(_plain(mapping), sort_keys=False, allow_unicode=True)


def _plain(value: object) -> object:
    """Returns mappings and sequences of any kind as those that YAML can write."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def parse_plain(text: str, *, file: str = "<string>") -> object:
    """Parses YAML text (JSON is YAML, too) without validating its contents.

    Args:
        text: The text.
        file: File name for messages.

    Raises:
        ConfigError: The text is not valid YAML or breaks a limit.
    """
    located = read_yaml(text, file)
    if located.problems:
        raise ConfigError(diagnostics=tuple(located.problems))
    return located.data


def checked_record(kind: type[Record], data: object) -> Record:
    """Builds a dataclass from the data of a file and checks all types.

    Args:
        kind: A dataclass, possibly with nested ones.
        data: Keys and values.

    Raises:
        ValueError: The data do not match; the message has the first wrong field.
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


def key_places(text: str, *, file: str) -> dict[tuple[int | str, ...], str]:
    """Returns the place of each key of a YAML text, for messages of later checks.

    Args:
        text: Text accepted by :func:`parse_document`.
        file: File name for the places.

    Returns:
        `file:line:column` by the path of the key.
    """
    places = read_yaml(text, file).keys
    return {path: f"{file}:{line}:{column}" for path, (line, column) in places.items()}


def parse_json(text: str, model: type[Model], *, file: str = "<string>") -> Model:
    """Validates JSON text; diagnostics of long texts have the path of a field but no line."""
    located = LocatedData()
    try:
        if len(text) > (limit := byte_limit(MAX_DOCUMENT_BYTES)):
            raise too_large(file, f"{len(text)} characters", limit)
        located.data = load_json(text, finite=False)
    except JsonProblemError as error:
        located.problems.append(Diagnostic(file, error.line, error.column, "", error.message))
    try:
        return _validated(located, model, file)
    except ConfigError:
        if located.problems or len(text) > _MAX_PLACED:
            raise
    # JSON is YAML, too, whose reader is slow but knows the place of every value.
    placed = read_yaml(text, file)
    placed.data, placed.problems = located.data, []
    return _validated(placed, model, file)


def check_data(data: object, model: type[Model], *, file: str) -> Model:
    """Checks plain data; see :func:`load_document`. Problems have the path of their field.

    Args:
        data: Keys and values.
        model: Class of the whole document.
        file: What the data are called in messages.
    """
    return _validated(LocatedData(data=data), model, file)


def _validated(
    located: LocatedData,
    model: type[Model],
    file: str,
    context: Mapping[str, object] | None = None,
) -> Model:
    problems = list(located.problems)
    if located.data is not None:
        try:
            document = model.model_validate(located.data, context=context)
        except ValidationError as error:
            if not problems and (found := _of_another_kind(model, located.data, file)):
                raise ConfigError(diagnostics=(Diagnostic(file, 1, 1, "", found),)) from error
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
        problems.append(Diagnostic(file, None, None, "", "the file is empty"))
    problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0, problem.field))
    raise ConfigError(diagnostics=tuple(problems))


def _of_another_kind(model: type[BaseModel], data: object, file: str) -> str:
    wanted = chosen_class(model, data)
    # What has no name may be a kind of another package, of whose keys nothing is known here.
    if not (issubclass(wanted, Document) and wanted.called):
        return ""
    return other_kind(data, wanted.model_fields, wanted.called, file)
