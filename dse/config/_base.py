"""Base classes of documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError, core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

SCHEMA_VERSION = 1


class StrictModel(BaseModel):
    """A block of a file: immutable, without unknown keys, with finite numbers only.

    The docstring of a block describes its fields under ``Attributes``, or a class variable
    ``described_by`` names another class whose docstring does; editors show these texts.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=False, allow_inf_nan=False
    )


class Document(StrictModel):
    """A whole file.

    A class variable ``called`` has the words of messages for it, such as `a model`.

    Attributes:
        schema_version: Version of the file format.
    """

    called: ClassVar[str] = ""

    schema_version: Annotated[int, WithJsonSchema({"const": SCHEMA_VERSION})]

    @classmethod
    def chosen_block(cls, field: int | str, data: object) -> type[BaseModel] | None:
        """Returns which class of several the block of a field is meant to be, for messages.

        Args:
            field: The field.
            data: The whole document, which may be wrong.
        """
        del field, data
        return None

    @field_validator("schema_version", mode="before")
    @classmethod
    def _known_version(cls, value: object) -> object:
        if value != SCHEMA_VERSION or isinstance(value, bool):
            raise PydanticCustomError(
                "version",
                "expected {known}, found `{found}`; this version of dse reads no other: "
                "update dse for newer files",
                {"known": SCHEMA_VERSION, "found": repr(value)},
            )
        return value


class OneOrMany:
    """Annotates a list that a file may also give as a single value."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Wraps single values in a list before validation."""
        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, list) else [value], handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Returns the schema of an item, or of a list of them."""
        many = handler(schema)
        return {"anyOf": [handler.resolve_ref_schema(many)["items"], many]}
