"""Reading search spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dse.config import (
    IN_MEMORY,
    DocumentKind,
    find_document,
    list_documents,
    mapping_text,
    parse_document,
    read_source,
)
from dse.search.space._schema import SpaceDocument
from dse.search.space._space import SearchSpace

if TYPE_CHECKING:
    from os import PathLike


def load_space(
    name_or_path: str | PathLike[str] | Mapping[str, object] | SearchSpace,
) -> SearchSpace:
    """Loads a search space by built-in name, by path, or from a mapping like the content of one.

    A space is returned as it is.

    Raises:
        ConfigError: The file is missing or wrong; every problem is listed with its place.
    """
    if isinstance(name_or_path, SearchSpace):
        return name_or_path
    if isinstance(name_or_path, Mapping):
        text = mapping_text(name_or_path)
        return parse_document(text, SpaceDocument, file=IN_MEMORY).to_space()
    path = find_document(DocumentKind.SEARCH_SPACE, name_or_path)
    folder = str(path.parent)
    text = read_source(path).text
    document = parse_document(text, SpaceDocument, file=str(path), context={"folder": folder})
    return document.to_space(folder)


def list_spaces() -> tuple[str, ...]:
    """Returns the names of the built-in search spaces."""
    return tuple(path.stem for path in list_documents(DocumentKind.SEARCH_SPACE))
