"""Reading models by name, alias or path."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

from dse.documents import DocumentKind
from dse.documents import find_document
from dse.documents import list_documents
from dse.documents import load_document
from dse.errors import UnknownNameError
from dse.workloads._schema import ModelDocument

if TYPE_CHECKING:
    from pathlib import Path

    from dse.workloads._dlrm import DlrmModel


def find_model(name_or_path: str) -> Path:
    """Returns the file of a model: a built-in name or alias, or a path.

    Raises:
        UnknownNameError: No built-in model has that name or alias.
        ConfigError: The path does not exist.
    """
    try:
        return find_document(DocumentKind.MODEL, name_or_path)
    except UnknownNameError:
        aliases = _aliases()
        if name_or_path in aliases:
            return aliases[name_or_path]
        near = get_close_matches(name_or_path, [*aliases, *list_models()], n=1)
        if near:
            raise UnknownNameError(
                f"no model is called `{name_or_path}`; did you mean `{near[0]}`?"
            ) from None
        raise


def load_model(name_or_path: str) -> DlrmModel:
    """Loads a model by built-in name or alias, or by path.

    Raises:
        ConfigError: The file is missing or wrong; every problem is listed with its place.
    """
    return load_document(find_model(str(name_or_path)), ModelDocument).to_model()


def list_models() -> tuple[str, ...]:
    """Returns the names of the built-in models."""
    return tuple(path.stem for path in list_documents(DocumentKind.MODEL))


@cache
def _aliases() -> dict[str, Path]:
    """Aliases of the built-in models; read only when a name is not a file's name."""
    return {
        alias: path
        for path in list_documents(DocumentKind.MODEL)
        for alias in load_document(path, ModelDocument).aliases
    }
