"""Types of fields for pydantic models: quantities with units, counts and numbers."""

from __future__ import annotations

from datetime import date
from pathlib import Path
import re
from typing import TYPE_CHECKING, Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from dse._io.catalog import from_folder, is_path
from dse._io.reading import MAX_RANKS, path_exists, shown_path
from dse.config._quantities import (
    exact_quantity,
    parse_quantity,
    parse_rental_price,
    quantity_pattern,
)
from dse.config._units import EXAMPLES, UnitKind
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def known_to(find: Callable[[str], object]) -> AfterValidator:
    """Returns a check of names in a file, so that a wrong one is reported with its place.

    A name is looked for while a file is read whose context has its ``folder``, from which paths
    count. A study's own copy has none: it keeps the files with it.

    Args:
        find: Raises a :class:`ConfigError` for what it does not know.
    """

    def check(value: object, info: ValidationInfo) -> object:
        folder = (info.context or {}).get("folder")
        if folder is None or not isinstance(value, str):
            return value
        here = from_folder(value, str(folder))
        if is_path(value) and not path_exists(Path(here)):
            message = f"{shown_path(here)}: no such file; paths count from the folder of this one"
            raise _error(message)
        try:
            find(here)
        except ConfigError as error:
            raise _error(str(error)) from None
        return value

    return AfterValidator(check)


def is_date(text: str) -> bool:
    """Returns whether a text is a year, month or day that exists: YYYY, YYYY-MM or YYYY-MM-DD."""
    if not re.fullmatch("[0-9]{4}(-[0-9]{2}){0,2}", text):
        return False
    try:
        date.fromisoformat((text + "-01-01")[: len("YYYY-MM-DD")])
    except ValueError:
        return False
    return True


def _checked_date(text: str) -> str:
    if text != "unknown" and not is_date(text):
        raise _error(f"expected YYYY, YYYY-MM, YYYY-MM-DD or unknown, found `{text[:60]}`")
    return text


#: When a figure was read or measured.
AsOf = Annotated[
    str,
    Field(
        json_schema_extra={
            "pattern": r"^(\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?|unknown)$"
        }
    ),
    AfterValidator(_checked_date),
]


def _validator(kind: UnitKind) -> BeforeValidator:
    def validate(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _error(f"expected a {kind.value} such as `{EXAMPLES[kind]}`")
        try:
            return parse_quantity(str(value), kind)
        except ValueError as error:
            raise _error(str(error)) from error

    return BeforeValidator(validate)


def _checked_rental_price(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _error(f"expected a price such as `{EXAMPLES[UnitKind.DEVICE_PRICE]}`")
    text = " ".join(str(value).split())
    try:
        parse_rental_price(text)
    except ValueError as error:
        raise _error(str(error)) from error
    return text


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("quantity", "{message}", {"message": message})


def _text_schema(*kinds: UnitKind) -> dict[str, object]:
    """Returns the JSON Schema of text with a quantity of one of several kinds."""
    examples = [EXAMPLES[kind] for kind in kinds]
    return {
        "type": "string",
        "pattern": quantity_pattern(*kinds),
        "patternErrorMessage": f"expected a {kinds[0].value} such as {' or '.join(examples)}",
        "examples": examples,
    }


def _schema(kind: UnitKind) -> WithJsonSchema:
    text = _text_schema(kind)
    if kind is UnitKind.FRACTION:
        number = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
        return WithJsonSchema({"anyOf": [number, text]})
    return WithJsonSchema(text)


def _serializer(kind: UnitKind) -> PlainSerializer:
    """Values dumped as JSON can be read again exactly."""
    return PlainSerializer(
        lambda value: exact_quantity(value, kind), return_type=str, when_used="json"
    )


# Aliases, so that a schema defines each once.
Bytes = TypeAliasType(
    "Bytes",
    Annotated[
        float,
        _validator(UnitKind.SIZE),
        _serializer(UnitKind.SIZE),
        _schema(UnitKind.SIZE),
    ],
)
BytesPerSecond = TypeAliasType(
    "BytesPerSecond",
    Annotated[
        float,
        _validator(UnitKind.BANDWIDTH),
        _serializer(UnitKind.BANDWIDTH),
        _schema(UnitKind.BANDWIDTH),
    ],
)
Seconds = TypeAliasType(
    "Seconds",
    Annotated[
        float,
        _validator(UnitKind.TIME),
        _serializer(UnitKind.TIME),
        _schema(UnitKind.TIME),
    ],
)
FlopsPerSecond = TypeAliasType(
    "FlopsPerSecond",
    Annotated[
        float,
        _validator(UnitKind.COMPUTE_RATE),
        _serializer(UnitKind.COMPUTE_RATE),
        _schema(UnitKind.COMPUTE_RATE),
    ],
)
Watts = TypeAliasType(
    "Watts",
    Annotated[
        float,
        _validator(UnitKind.POWER),
        _serializer(UnitKind.POWER),
        _schema(UnitKind.POWER),
    ],
)
Joules = TypeAliasType(
    "Joules",
    Annotated[
        float,
        _validator(UnitKind.ENERGY),
        _serializer(UnitKind.ENERGY),
        _schema(UnitKind.ENERGY),
    ],
)
#: What machines cost to rent, as written: for each GPU, or for a whole node.
RentalPrice = TypeAliasType(
    "RentalPrice",
    Annotated[
        str,
        BeforeValidator(_checked_rental_price),
        WithJsonSchema(_text_schema(UnitKind.DEVICE_PRICE, UnitKind.PRICE)),
    ],
)
UsdPerHour = TypeAliasType(
    "UsdPerHour",
    Annotated[
        float,
        _validator(UnitKind.PRICE),
        _serializer(UnitKind.PRICE),
        _schema(UnitKind.PRICE),
    ],
)
Fraction = TypeAliasType(
    "Fraction",
    Annotated[
        float,
        _validator(UnitKind.FRACTION),
        _serializer(UnitKind.FRACTION),
        _schema(UnitKind.FRACTION),
    ],
)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise _error(f"expected a number, found the switch `{str(value).lower()}`")
    return value


#: Largest count: up to here floats represent integers exactly.
MAX_COUNT = 2**53

#: Numbers; `true` is none.
WholeNumber = Annotated[int, BeforeValidator(_no_bool)]
Number = Annotated[float, BeforeValidator(_no_bool)]

Count = Annotated[WholeNumber, Field(ge=1, le=MAX_COUNT)]
RankCount = Annotated[WholeNumber, Field(ge=1, le=MAX_RANKS)]
NonNegativeFloat = Annotated[Number, Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[Number, Field(gt=0, allow_inf_nan=False)]
