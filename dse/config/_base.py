"""Base classes of documents."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

SCHEMA_VERSION = 1


class StrictModel(BaseModel):
    """A block of a file: immutable, without unknown keys, with finite numbers only."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=False, allow_inf_nan=False
    )


class Document(StrictModel):
    """A whole file.

    Attributes:
        schema_version: Version of the file format.
    """

    schema_version: int

    @field_validator("schema_version", mode="before")
    @classmethod
    def _known_version(cls, value: object) -> object:
        if value != SCHEMA_VERSION or isinstance(value, bool):
            raise PydanticCustomError(
                "version",
                "expected {known}, found `{found}`; this version of dse reads no other: "
                "update dse for newer files",
                {"known": SCHEMA_VERSION, "found": str(value)},
            )
        return value


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of a file, for editors."""
    schema = model.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
