"""YAML and JSON documents: parsing with places, validation, quantities with units."""

from __future__ import annotations

from dse._catalog import (
    DocumentKind,
    builtin_folder,
    display_path,
    find_document,
    from_folder,
    list_documents,
    name_hint,
)
from dse._reading import MAX_RANKS
from dse.config._base import SCHEMA_VERSION, Document, OneOrMany, StrictModel
from dse.config._diagnose import problem_text
from dse.config._fields import (
    MAX_COUNT,
    Bytes,
    BytesPerSecond,
    Count,
    FlopsPerSecond,
    Fraction,
    NonNegativeFloat,
    Number,
    PositiveFloat,
    RankCount,
    RentalPrice,
    Seconds,
    UsdPerHour,
    WholeNumber,
)
from dse.config._json_schema import Examples, json_schema
from dse.config._load import (
    DocumentSource,
    check_data,
    checked_record,
    key_places,
    load_document,
    parse_document,
    parse_json,
    parse_plain,
    read_source,
)
from dse.config._override import (
    FieldChange,
    new_value,
    override,
    relative_factor,
)
from dse.config._quantities import (
    exact_quantity,
    format_quantity,
    parse_count,
    parse_quantity,
    parse_rate,
    parse_rental_price,
    readable_quantity,
)
from dse.config._units import UnitKind

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
    "Examples",
    "FieldChange",
    "FlopsPerSecond",
    "Fraction",
    "NonNegativeFloat",
    "Number",
    "OneOrMany",
    "PositiveFloat",
    "RankCount",
    "RentalPrice",
    "Seconds",
    "StrictModel",
    "UnitKind",
    "UsdPerHour",
    "WholeNumber",
    "builtin_folder",
    "check_data",
    "checked_record",
    "display_path",
    "exact_quantity",
    "find_document",
    "format_quantity",
    "from_folder",
    "json_schema",
    "key_places",
    "list_documents",
    "load_document",
    "name_hint",
    "new_value",
    "override",
    "parse_count",
    "parse_document",
    "parse_json",
    "parse_plain",
    "parse_quantity",
    "parse_rate",
    "parse_rental_price",
    "problem_text",
    "read_source",
    "readable_quantity",
    "relative_factor",
]
