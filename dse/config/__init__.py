"""The edge where people's files come in: YAML and JSON, validated as a compiler would."""

from __future__ import annotations

from dse._reading import MAX_RANKS
from dse.config._base import SCHEMA_VERSION, Document, StrictModel, json_schema
from dse.config._catalog import (
    DocumentKind,
    builtin_folder,
    display_path,
    find_document,
    list_documents,
)
from dse.config._load import (
    DocumentSource,
    checked_record,
    key_places,
    load_document,
    parse_document,
    parse_json,
    parse_plain,
    read_source,
)
from dse.config._quantities import (
    MAX_COUNT,
    Bytes,
    BytesPerSecond,
    Count,
    FlopsPerSecond,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    RankCount,
    Seconds,
    UnitKind,
    UsdPerHour,
    format_quantity,
    parse_count,
    parse_quantity,
    parse_rate,
)

__all__ = [
    "MAX_COUNT",
    "MAX_RANKS",
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
    "RankCount",
    "Seconds",
    "StrictModel",
    "UnitKind",
    "UsdPerHour",
    "builtin_folder",
    "checked_record",
    "display_path",
    "find_document",
    "format_quantity",
    "json_schema",
    "key_places",
    "list_documents",
    "load_document",
    "parse_count",
    "parse_document",
    "parse_json",
    "parse_plain",
    "parse_quantity",
    "parse_rate",
    "read_source",
]
