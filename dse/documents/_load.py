"""Reading documents: all problems at once, each at its place."""

from __future__ import annotations

from dataclasses import dataclass
import hashlib
import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dse.documents._diagnose import diagnose
from dse.documents._yaml import LocatedData, read_yaml
from dse.errors import ConfigError, Diagnostic

_MAX_YAML_BYTES = 64 * 2**20
_MAX_JSON_BYTES = 64 * 2**20

Model = TypeVar("Model", bound=BaseModel)


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
        ConfigError: The file is missing, a folder, unreadable, too large or not UTF-8.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if file.is_dir():
            raise ConfigError(f"{file}: this is a folder; a file is expected")
        if size > _MAX_YAML_BYTES:
            raise ConfigError(f"{file}: {size} bytes, more than the limit of {_MAX_YAML_BYTES}")
        content = file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            diagnostics=(Diagnostic(str(file), line, None, "", "not UTF-8 text"),)
        ) from error
    return DocumentSource(file, text, hashlib.sha256(content).hexdigest())


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
        if len(text) > _MAX_JSON_BYTES:
            raise ConfigError(f"{file}: longer than the limit of {_MAX_JSON_BYTES} bytes")
        located.data = json.loads(text)
    except json.JSONDecodeError as error:
        located.problems.append(
            Diagnostic(file, error.lineno, error.colno, "", f"not valid JSON: {error.msg}")
        )
    except RecursionError:
        located.problems.append(Diagnostic(file, None, None, "", "nested too deeply"))
    except ValueError as error:
        # Integers of thousands of digits.
        located.problems.append(Diagnostic(file, None, None, "", f"not valid JSON: {error}"))
    return _validated(located, model, file)


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
    problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0, problem.field))
    raise ConfigError(diagnostics=tuple(problems))
