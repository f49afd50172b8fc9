"""The edge where people's files come in: YAML and JSON, validated as a compiler would."""

from __future__ import annotations

from dse.documents._base import Document
from dse.documents._base import StrictModel
from dse.documents._base import json_schema
from dse.documents._catalog import DocumentKind
from dse.documents._catalog import display_path
from dse.documents._catalog import find_document
from dse.documents._catalog import list_documents
from dse.documents._load import DocumentSource
from dse.documents._load import load_document
from dse.documents._load import parse_document
from dse.documents._load import parse_json
from dse.documents._load import read_source
from dse.documents._quantities import Bytes
from dse.documents._quantities import BytesPerSecond
from dse.documents._quantities import Count
from dse.documents._quantities import FlopsPerSecond
from dse.documents._quantities import Fraction
from dse.documents._quantities import NonNegativeFloat
from dse.documents._quantities import PositiveFloat
from dse.documents._quantities import Seconds
from dse.documents._quantities import UnitKind
from dse.documents._quantities import UsdPerHour
from dse.documents._quantities import format_quantity
from dse.documents._quantities import parse_quantity

__all__ = [
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
    "display_path",
    "find_document",
    "format_quantity",
    "json_schema",
    "list_documents",
    "load_document",
    "parse_document",
    "parse_json",
    "parse_quantity",
    "read_source",
]
