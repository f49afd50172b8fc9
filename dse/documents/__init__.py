"""The edge where people's files come in: YAML and JSON, validated as a compiler would."""

from __future__ import annotations

from dse.documents._base import SCHEMA_VERSION, Document, StrictModel, json_schema
from dse.documents._catalog import (
    DocumentKind,
    builtin_folder,
    display_path,
    find_document,
    list_documents,
)
from dse.documents._load import (
    DocumentSource,
    key_places,
    load_document,
    parse_document,
    parse_json,
    read_source,
)
from dse.documents._quantities import (
    Bytes,
    BytesPerSecond,
    Count,
    FlopsPerSecond,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    Seconds,
    UnitKind,
    UsdPerHour,
    format_quantity,
    parse_quantity,
)

__all__ = [
    "SCHEMA_VERSION",
    "Bytes",
    "BytesPerSecond",
    "Count",
    "Document",
    "DocumentKind",
    "DocumentSource",
    "FlopsPerSecond",
    "Fraction",
    "NonNegativeFloat",
    "PositiveFloat",
    "Seconds",
    "StrictModel",
    "UnitKind",
    "UsdPerHour",
    "builtin_folder",
    "display_path",
    "find_document",
    "format_quantity",
    "json_schema",
    "key_places",
    "list_documents",
    "load_document",
    "parse_document",
    "parse_json",
    "parse_quantity",
    "read_source",
]
