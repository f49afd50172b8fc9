"""Loading models of any kind by name, alias or path."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field, RootModel

from dse.config import (
    IN_MEMORY,
    DocumentKind,
    builtin_folder,
    find_document,
    list_documents,
    load_document,
    mapping_text,
    name_hint,
    parse_document,
)
from dse.errors import UnknownNameError
from dse.model.dlrm import DlrmModel, ModelDocument
from dse.model.transformer import TransformerDocument, TransformerModel

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path


class ModelFile(
    RootModel[Annotated[ModelDocument | TransformerDocument, Field(discriminator="kind")]]
):
    """File of a model of any kind, distinguished by `kind`."""

    # Fields of all kinds next to the alternatives, for tools that read only the top level.
    model_config = ConfigDict(
        json_schema_extra={
            "properties": {
                "schema_version": {"const": 1, "description": "Version of the file format."},
                "kind": {
                    "enum": ["dlrm", "transformer"],
                    "description": "A recommendation model, or a transformer.",
                },
            }
        }
    )

    @property
    def aliases(self) -> list[str]:
        """Other names of the model."""
        return self.root.aliases

    def to_model(self) -> DlrmModel | TransformerModel:
        """Returns the model as plain values."""
        return self.root.to_model()


def find_model(source: object) -> Path:
    """Returns the file of a model: a built-in name or alias, or a path.

    Raises:
        UnknownNameError: No built-in model has that name or alias.
        ConfigError: It is neither, or the path does not exist.
    """
    try:
        return find_document(DocumentKind.MODEL, source)
    except UnknownNameError:
        name_or_path = str(source)
        aliases = _aliases()
        if name_or_path in aliases:
            return aliases[name_or_path]
        names = [*list_models(), *aliases]
        near = name_hint(DocumentKind.MODEL, name_or_path, names)
        raise UnknownNameError(f"no model is called `{name_or_path}`; {near}") from None


def load_model(
    source: str | PathLike[str] | Mapping[str, object] | DlrmModel | TransformerModel,
) -> DlrmModel | TransformerModel:
    """Loads a model of any kind by built-in name or alias, by path, or from a mapping.

    A mapping has the content of a model file. A model is returned as it is.

    Raises:
        ConfigError: The file is missing or wrong; every problem is listed with its place.
    """
    if isinstance(source, DlrmModel | TransformerModel):
        return source
    if isinstance(source, Mapping):
        return parse_document(mapping_text(source), ModelFile, file=IN_MEMORY).to_model()
    path = find_model(source)
    return _builtin(path) if path.parent == builtin_folder(DocumentKind.MODEL) else _read(path)


# Built-in files do not change while a process runs.
@lru_cache(maxsize=64)
def _builtin(path: Path) -> DlrmModel | TransformerModel:
    return _read(path)


def _read(path: Path) -> DlrmModel | TransformerModel:
    return load_document(path, ModelFile).to_model()


def list_models() -> tuple[str, ...]:
    """Returns the names of the built-in models."""
    return tuple(path.stem for path in list_documents(DocumentKind.MODEL))


@cache
def _aliases() -> dict[str, Path]:
    """Aliases of the built-in models; read only when a name is not a file's name."""
    return {
        alias: path
        for path in list_documents(DocumentKind.MODEL)
        for alias in load_document(path, ModelFile).aliases
    }
