"""JSON Schemas of files, from their classes: what editors complete, explain and underline."""

from __future__ import annotations

from dataclasses import dataclass
import inspect
import re
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices
from pydantic.json_schema import GenerateJsonSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel, GetJsonSchemaHandler
    from pydantic_core import CoreSchema, core_schema

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Bounds under the names that pydantic gives them behind a validator, and their keywords.
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}

#: An entry of a section of a docstring: its name and text, whose other lines are indented deeper.
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_ATTRIBUTES = re.compile(r"^Attributes:\n((?: {4}.*(?:\n|\Z)|\n)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Examples:
    """Annotates text with names that editors offer, where others are possible too.

    Attributes:
        names: Returns the names; called when a schema is made.
    """

    names: Callable[[], Iterable[str]]

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Adds the names."""
        found: dict[str, Any] = handler(schema)
        return {**found, "examples": list(self.names())}


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of a file, for editors.

    Descriptions are those of the docstrings: of a block, and of its fields under ``Attributes``.
    """
    return {"$schema": _DIALECT, **model.model_json_schema(schema_generator=_FileSchema)}


class _FileSchema(GenerateJsonSchema):
    """Schemas with the bounds, descriptions and former names that pydantic leaves out."""

    def generate(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Returns the schema of a document."""
        found: dict[str, Any] = _with_keywords(super().generate(*arguments, **options))
        return found

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leaves titles out, which repeat the names of fields."""
        del schema
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        """Returns the schema of a block."""
        found = super().model_schema(schema)
        block: type[BaseModel] = schema["cls"]
        found.pop("title", None)
        if summary := _ATTRIBUTES.sub("", inspect.getdoc(block) or "").strip():
            found["description"] = _unwrapped(summary)
        properties = found.get("properties", {})
        descriptions = field_descriptions(block)
        for name, field in block.model_fields.items():
            names: Any = field.validation_alias or name
            if isinstance(names, AliasChoices):
                names, *former = (str(choice) for choice in names.choices)
                for other in former:
                    properties[other] = {
                        **properties[names],
                        "description": f"Former name of `{names}`.",
                        "deprecated": True,
                    }
            if name in descriptions and names in properties:
                properties[names]["description"] = descriptions[name]
        return found


def field_descriptions(block: type[BaseModel]) -> dict[str, str]:
    """Returns what the docstrings of a class and of its bases say about each field.

    A class may name another one in ``described_by`` whose fields of the same names mean the same.
    """
    found: dict[str, str] = {}
    for base in reversed(block.__mro__):
        if other := base.__dict__.get("described_by"):
            found |= field_descriptions(other)
        section = _ATTRIBUTES.search(inspect.cleandoc(base.__doc__ or "") + "\n")
        if section is not None:
            found |= {name: _unwrapped(text) for name, text in _ENTRY.findall(section[1])}
    return found


def _unwrapped(text: str) -> str:
    """Joins the lines of each paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))


def _with_keywords(node: Any) -> Any:
    """Replaces bounds by the keywords of JSON Schema."""
    if isinstance(node, list):
        return [_with_keywords(item) for item in node]
    if not isinstance(node, dict):
        return node
    # A field may be called as a bound is; its value is a schema then.
    return {
        _BOUNDS.get(key, key) if isinstance(value, int | float) else key: _with_keywords(value)
        for key, value in node.items()
    }
