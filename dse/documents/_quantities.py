"""Figures with units, as people write them: `80 GiB`, `3.35 TB/s`, `5 us`, `55.04 USD/h`.

The text must be one number and one unit; Pint converts it to SI. Inside the package every figure
is a plain float in SI units.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
import math
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    import pint

_NUMBER = r"[+-]?(?:\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"^\s*({_NUMBER})\s*([A-Za-zµ%][A-Za-zµ/%]*)\s*$")
_BITS = re.compile(r"^([kKMGTP]i?)b(?=/|$)")
_BARE_NUMBER = re.compile(rf"^\s*{_NUMBER}\s*$")


class UnitKind(StrEnum):
    """Dimensions of figures, each with the word that error messages use."""

    SIZE = "size"
    BANDWIDTH = "bandwidth"
    TIME = "time"
    COMPUTE_RATE = "compute rate"
    PRICE = "price"
    FRACTION = "share"


_SI_UNIT = {
    UnitKind.SIZE: "byte",
    UnitKind.BANDWIDTH: "byte/second",
    UnitKind.TIME: "second",
    UnitKind.COMPUTE_RATE: "FLOP/second",
    UnitKind.PRICE: "USD/hour",
    UnitKind.FRACTION: "dimensionless",
}

_EXAMPLE = {
    UnitKind.SIZE: "80 GiB",
    UnitKind.BANDWIDTH: "3.35 TB/s",
    UnitKind.TIME: "5 us",
    UnitKind.COMPUTE_RATE: "989.4 TFLOP/s",
    UnitKind.PRICE: "55.04 USD/h",
    UnitKind.FRACTION: "8 %",
}

_MAY_BE_ZERO = {UnitKind.TIME, UnitKind.PRICE, UnitKind.FRACTION}


def parse_quantity(text: str, kind: UnitKind) -> float:
    """Converts a figure with its unit to SI.

    Args:
        text: One number and one unit, for example `200 Gbit/s`.
        kind: The dimension that is expected.

    Returns:
        The value in bytes, bytes/s, seconds, FLOP/s, USD/h, or as a plain share.

    Raises:
        ValueError: Another dimension, no unit, an unknown unit, or an impossible value; the
            message says what was expected and found.
    """
    expected = f"expected a {kind.value} such as `{_EXAMPLE[kind]}`, found `{text}`"
    if _BARE_NUMBER.match(text):
        if kind is UnitKind.FRACTION:
            return _checked(float(text.replace("_", "")), kind, expected)
        raise ValueError(f"{expected}, which has no unit")
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(expected)
    number, unit = float(match.group(1).replace("_", "")), match.group(2).replace("%", "percent")
    # `Gb` is a gigabit to everybody in this field, and a gigabarn to Pint.
    unit = _BITS.sub(r"\1bit", unit)
    import pint

    registry = _registry()
    try:
        parsed = registry.Quantity(number, unit)
    except (pint.UndefinedUnitError, pint.DefinitionSyntaxError, AttributeError) as error:
        raise ValueError(f"{expected}, whose unit is unknown") from error
    try:
        value = float(parsed.to(_SI_UNIT[kind]).magnitude)
    except pint.DimensionalityError:
        other = _kind_of(parsed)
        what = f", which is a {other.value}" if other else ", which has another dimension"
        raise ValueError(f"{expected}{what}") from None
    return _checked(value, kind, expected)


def format_quantity(value: float, kind: UnitKind) -> str:
    """Prints a figure in SI units with three or four digits and a fitting prefix."""
    if kind is UnitKind.SIZE:
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))
    if kind is UnitKind.BANDWIDTH:
        return _scaled(value, 1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))
    if kind is UnitKind.COMPUTE_RATE:
        return _scaled(value, 1000, ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s"))
    if kind is UnitKind.TIME:
        return _scaled(value * 1e9, 1000, ("ns", "us", "ms", "s"))
    if kind is UnitKind.PRICE:
        return f"{value:.2f} USD/h"
    return f"{100 * value:.3g} %"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    index = 0
    while abs(value) >= base and index < len(units) - 1:
        value /= base
        index += 1
    return f"{value:.4g} {units[index]}"


def _checked(value: float, kind: UnitKind, expected: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{expected}; it must be finite")
    if kind is UnitKind.FRACTION and not 0 <= value < 1:
        raise ValueError(f"{expected}; a share is at least 0 and less than 1")
    if value < 0 or (value == 0 and kind not in _MAY_BE_ZERO):
        least = "at least 0" if kind in _MAY_BE_ZERO else "more than 0"
        raise ValueError(f"{expected}; it must be {least}")
    return value


@cache
def _registry() -> pint.UnitRegistry[Any]:
    import pint

    registry: pint.UnitRegistry[Any] = pint.UnitRegistry(cache_folder=None)
    registry.define("USD = [currency]")
    registry.define("FLOP = [floating_point_operation] = FLOP")
    return registry


def _kind_of(quantity: pint.Quantity[Any]) -> UnitKind | None:
    registry = _registry()
    for kind, unit in _SI_UNIT.items():
        if quantity.is_compatible_with(registry.Unit(unit)):
            return kind
    return None


def _validator(kind: UnitKind) -> BeforeValidator:
    def validate(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise _error(f"expected a {kind.value} such as `{_EXAMPLE[kind]}`")
        try:
            return parse_quantity(str(value), kind)
        except ValueError as error:
            raise _error(str(error)) from error

    return BeforeValidator(validate)


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("quantity", "{message}", {"message": message})


def _schema(kind: UnitKind) -> WithJsonSchema:
    text: dict[str, object] = {
        "type": "string",
        "description": f"A {kind.value} with its unit.",
        "pattern": rf"^\s*{_NUMBER}\s*[A-Za-zµ%][A-Za-zµ/%]*\s*$",
        "examples": [_EXAMPLE[kind]],
    }
    if kind is UnitKind.FRACTION:
        number = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
        return WithJsonSchema({"anyOf": [number, text]})
    return WithJsonSchema(text)


Bytes = Annotated[float, _validator(UnitKind.SIZE), _schema(UnitKind.SIZE)]
BytesPerSecond = Annotated[float, _validator(UnitKind.BANDWIDTH), _schema(UnitKind.BANDWIDTH)]
Seconds = Annotated[float, _validator(UnitKind.TIME), _schema(UnitKind.TIME)]
FlopsPerSecond = Annotated[
    float, _validator(UnitKind.COMPUTE_RATE), _schema(UnitKind.COMPUTE_RATE)
]
UsdPerHour = Annotated[float, _validator(UnitKind.PRICE), _schema(UnitKind.PRICE)]
Fraction = Annotated[float, _validator(UnitKind.FRACTION), _schema(UnitKind.FRACTION)]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise _error(f"expected a number, found the switch `{str(value).lower()}`")
    return value


Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
NonNegativeFloat = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
