"""Figures with units, as people write them: `80 GiB`, `3.35 TB/s`, `5 us`, `55.04 USD/h`.

The text must be one number and one unit; Pint converts it to SI. Inside the package every figure
is a plain float in SI units. Only the units of this field exist here: to Pint's own registry a
bit has no dimension, `Gb` is a gigabarn and `mB` a thousandth of a byte.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
import math
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from dse._reading import MAX_RANKS
from dse._suggest import nearest

if TYPE_CHECKING:
    import pint

_NUMBER = r"[+-]?(?:\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([^\s\d.,+*_-].*)", re.DOTALL)
_BARE_NUMBER = re.compile(_NUMBER)
_COUNT = re.compile(rf"({_NUMBER})\s*([kMGTP]?)(?:\s*([a-z]+))?")
_COUNT_SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


_MAX_SHOWN = 60


class UnitKind(StrEnum):
    """Dimensions of figures, each with the word that error messages use."""

    SIZE = "size"
    BANDWIDTH = "bandwidth"
    TIME = "time"
    COMPUTE_RATE = "compute rate"
    PRICE = "price"
    MONEY = "sum of money"
    FRACTION = "share"


_SI_UNIT = {
    UnitKind.SIZE: "byte",
    UnitKind.BANDWIDTH: "byte/second",
    UnitKind.TIME: "second",
    UnitKind.COMPUTE_RATE: "FLOP/second",
    UnitKind.PRICE: "USD/hour",
    UnitKind.MONEY: "USD",
    UnitKind.FRACTION: "share",
}

_EXAMPLE = {
    UnitKind.SIZE: "80 GiB",
    UnitKind.BANDWIDTH: "3.35 TB/s",
    UnitKind.TIME: "5 us",
    UnitKind.COMPUTE_RATE: "989.4 TFLOP/s",
    UnitKind.PRICE: "55.04 USD/h",
    UnitKind.MONEY: "500 USD",
    UnitKind.FRACTION: "8 %",
}

_MAY_BE_ZERO = {UnitKind.TIME, UnitKind.PRICE, UnitKind.MONEY, UnitKind.FRACTION}

# A share has a dimension of its own, so that `1 B/GB` is not taken for one.
_DEFINITIONS = """\
kilo- = 1e3
mega- = 1e6
giga- = 1e9
tera- = 1e12
peta- = 1e15
exa- = 1e18
milli- = 1e-3
micro- = 1e-6
nano- = 1e-9
kibi- = 2**10
mebi- = 2**20
gibi- = 2**30
tebi- = 2**40
pebi- = 2**50
byte = [information]
bit = byte / 8
second = [time]
minute = 60 * second
hour = 60 * minute
day = 24 * hour
FLOP = [floating_point_operation]
USD = [currency]
share = [share]
percent = 0.01 * share
"""

_LARGE = {"k": "kilo", "M": "mega", "G": "giga", "T": "tera", "P": "peta", "E": "exa"}
_BINARY = {"Ki": "kibi", "Mi": "mebi", "Gi": "gibi", "Ti": "tebi", "Pi": "pebi"}
_SMALL = {"m": "milli", "u": "micro", "µ": "micro", "n": "nano"}


def _spelled(symbols: str, words: str, unit: str, prefixes: dict[str, str]) -> dict[str, str]:
    """Returns the spellings of a unit and its multiples, each with the name that Pint gets."""
    spellings = f"{symbols} {words}".split()
    names = dict.fromkeys(spellings, unit)
    for short, long in prefixes.items():
        names |= dict.fromkeys([short + word for word in spellings], long + unit)
        names |= dict.fromkeys([long + word for word in words.split()], long + unit)
    return names


_DATA = _spelled("B", "byte bytes", "byte", _LARGE | _BINARY) | _spelled(
    "b", "bit bits", "bit", _LARGE | _BINARY
)
_DATA_RATES = _spelled("Bps", "", "byte/second", _LARGE) | _spelled(
    "bps", "", "bit/second", _LARGE
)
_TIMES = (
    _spelled("s sec", "second seconds", "second", _SMALL)
    | _spelled("min", "minute minutes", "minute", {})
    | _spelled("h hr", "hour hours", "hour", {})
    | _spelled("d", "day days", "day", {})
)
_OPERATIONS = _spelled("", "FLOP FLOPs", "FLOP", _LARGE)
_OPERATION_RATES = _spelled("", "FLOPS", "FLOP/second", _LARGE)
_SHARES = {"%": "percent", "percent": "percent"}

#: From each spelling to what Pint calls it. What is not here is no unit: Pint would also take
#: every prefix before every unit, and an `s` behind it.
_NAMES = _DATA | _DATA_RATES | _TIMES | _OPERATIONS | _OPERATION_RATES | _SHARES | {"USD": "USD"}

#: What `did you mean …?` may propose.
_OFFERED = {
    UnitKind.SIZE: tuple(_DATA),
    UnitKind.BANDWIDTH: (*(f"{name}/s" for name in _DATA), *_DATA_RATES),
    UnitKind.TIME: tuple(_TIMES),
    UnitKind.COMPUTE_RATE: (*(f"{name}/s" for name in _OPERATIONS), *_OPERATION_RATES),
    UnitKind.PRICE: tuple(f"USD/{name}" for name in ("h", "hour", "min", "s", "day")),
    UnitKind.MONEY: ("USD",),
    UnitKind.FRACTION: tuple(_SHARES),
}

_UNITS_IN_WORDS = {
    UnitKind.SIZE: "B, kB, MB, GB, TB, PB, EB, KiB, MiB, GiB, TiB, PiB, and the same with bit",
    UnitKind.BANDWIDTH: "B/s, kB/s, MB/s, GB/s, TB/s, GiB/s, and the same with bit/s",
    UnitKind.TIME: "ns, us, ms, s, min, h, day",
    UnitKind.COMPUTE_RATE: "FLOP/s, kFLOP/s, MFLOP/s, GFLOP/s, TFLOP/s, PFLOP/s, EFLOP/s",
    UnitKind.PRICE: "USD/h, USD/min, USD/s, USD/day",
    UnitKind.MONEY: "USD",
    UnitKind.FRACTION: "%, or a plain number",
}


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
    shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    expected = f"expected a {kind.value} such as `{_EXAMPLE[kind]}`, found `{shown}`"
    stripped = text.strip()
    if _BARE_NUMBER.fullmatch(stripped):
        if kind is UnitKind.FRACTION:
            return _checked(float(stripped.replace("_", "")), kind, expected)
        raise ValueError(f"{expected}, which has no unit; {_units(kind)}")
    match = _QUANTITY.fullmatch(stripped)
    if match is None:
        raise ValueError(f"{expected}; write one number, with a decimal point, and one unit")
    number = float(match.group(1).replace("_", ""))
    written = match.group(2).replace("\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}")
    unit = _unit(written)
    if unit is None:
        raise ValueError(f"{expected}, whose unit is unknown; {_meant(written, kind)}")
    found = _kind_of(unit)
    if found is not kind:
        what = f"is a {found.value}" if found else "has another dimension"
        raise ValueError(f"{expected}, which {what}{_per_time(written, kind)}")
    value = float(_registry().Quantity(number, unit).to(_SI_UNIT[kind]).magnitude)
    return _checked(value, kind, expected)


def parse_count(text: str, what: str = "samples") -> float:
    """Reads a number of things: `4.2G`, `500k samples`, `1e9`.

    Args:
        text: One number, with `k`, `M`, `G`, `T` or `P` behind it or not, and what is counted.
        what: What is counted, in the plural; it may be left out.

    Raises:
        ValueError: It is something else, or not more than zero; the message says what was
            expected and found.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or match.group(3) not in (None, what, what.removesuffix("s")):
        raise ValueError(
            f"expected a number of {what} such as `4.2G` or `500k {what}`, found "
            f"`{text[:_MAX_SHOWN]}`; a number may end in {', '.join(_COUNT_SUFFIXES)}"
        )
    value = float(match.group(1).replace("_", "")) * _COUNT_SUFFIXES.get(match.group(2), 1.0)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"expected more than 0 {what}, found `{text[:_MAX_SHOWN]}`")
    return value


def parse_rate(text: str, what: str = "samples") -> float:
    """Reads things a second: `10M samples/s`, `1.2G samples/h`.

    Args:
        text: A count as for :func:`parse_count`, a slash, and a unit of time.
        what: What is counted, in the plural.

    Returns:
        Things a second.

    Raises:
        ValueError: It is something else; the message says what was expected and found.
    """
    count, _, time = text.partition("/")
    unit = _TIMES.get(time.strip())
    wrong = (
        f"expected {what} in a time such as `10M {what}/s`, found `{text[:_MAX_SHOWN]}`; "
        f"the times are {_UNITS_IN_WORDS[UnitKind.TIME]}"
    )
    if unit is None:
        raise ValueError(wrong)
    try:
        counted = parse_count(count, what)
    except ValueError:
        raise ValueError(wrong) from None
    return counted / float(_registry().Quantity(1.0, unit).to("second").magnitude)


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
    if kind is UnitKind.MONEY:
        return f"{value:.2f} USD"
    return f"{100 * value:.3g} %"


def exact_quantity(value: float, kind: UnitKind) -> str:
    """Prints a figure in SI units such that :func:`parse_quantity` returns the same float."""
    return repr(value) if kind is UnitKind.FRACTION else f"{value!r} {_SI_UNIT[kind]}"


def quantity_parts(text: str) -> tuple[float, str] | None:
    """Splits a figure into its number and its unit, as written; None for any other text."""
    stripped = text.strip()
    if _BARE_NUMBER.fullmatch(stripped):
        return float(stripped.replace("_", "")), ""
    match = _QUANTITY.fullmatch(stripped)
    if match is None or _unit(match.group(2)) is None:
        return None
    return float(match.group(1).replace("_", "")), match.group(2)


def readable_quantity(text: str) -> str:
    """Prints a figure with its unit as :func:`format_quantity` does, and other text as it is."""
    parts = quantity_parts(text)
    unit = _unit(parts[1]) if parts is not None and parts[1] else None
    kind = None if unit is None else _kind_of(unit)
    if parts is None or unit is None or kind is None:
        return text
    value = _registry().Quantity(parts[0], unit).to(_SI_UNIT[kind]).magnitude
    return format_quantity(float(value), kind)


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

    registry: pint.UnitRegistry[Any] = pint.UnitRegistry(None)
    for definition in _DEFINITIONS.splitlines():
        registry.define(definition)
    return registry


def _unit(written: str) -> pint.Unit | None:
    """Returns the unit, or None when a part of it is no unit of this field."""
    parts = written.split("/")
    if any(part not in _NAMES for part in parts):
        return None
    registry = _registry()
    unit, *divisors = (registry.Unit(_NAMES[part]) for part in parts)
    for divisor in divisors:
        unit = unit / divisor
    return unit


def _kind_of(unit: pint.Unit) -> UnitKind | None:
    registry = _registry()
    for kind, si_unit in _SI_UNIT.items():
        if unit.dimensionality == registry.Unit(si_unit).dimensionality:
            return kind
    return None


def _meant(written: str, kind: UnitKind) -> str:
    """Returns a half sentence: the units that were probably meant, or those there are."""
    same_letters = [name for name in _OFFERED[kind] if name.casefold() == written.casefold()]
    near = None if same_letters else nearest(written, _OFFERED[kind])
    meant = same_letters or ([near] if near else [])
    if meant:
        return f"did you mean {' or '.join(f'`{name}`' for name in meant)}?"
    return _units(kind)


def _per_time(written: str, kind: UnitKind) -> str:
    """Returns a hint where only the time was left out: `25 GB` as a bandwidth."""
    rates = [f"{written}/{time}" for time in ("s", "h") if f"{written}/{time}" in _OFFERED[kind]]
    return f"; did you mean `{rates[-1]}`?" if rates else ""


def _units(kind: UnitKind) -> str:
    return f"the units are {_UNITS_IN_WORDS[kind]}"


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


def _serializer(kind: UnitKind) -> PlainSerializer:
    """What is dumped as JSON can be read again, to the last bit."""
    return PlainSerializer(
        lambda value: exact_quantity(value, kind), return_type=str, when_used="json"
    )


Bytes = Annotated[
    float,
    _validator(UnitKind.SIZE),
    _serializer(UnitKind.SIZE),
    _schema(UnitKind.SIZE),
]
BytesPerSecond = Annotated[
    float,
    _validator(UnitKind.BANDWIDTH),
    _serializer(UnitKind.BANDWIDTH),
    _schema(UnitKind.BANDWIDTH),
]
Seconds = Annotated[
    float,
    _validator(UnitKind.TIME),
    _serializer(UnitKind.TIME),
    _schema(UnitKind.TIME),
]
FlopsPerSecond = Annotated[
    float,
    _validator(UnitKind.COMPUTE_RATE),
    _serializer(UnitKind.COMPUTE_RATE),
    _schema(UnitKind.COMPUTE_RATE),
]
UsdPerHour = Annotated[
    float,
    _validator(UnitKind.PRICE),
    _serializer(UnitKind.PRICE),
    _schema(UnitKind.PRICE),
]
Fraction = Annotated[
    float,
    _validator(UnitKind.FRACTION),
    _serializer(UnitKind.FRACTION),
    _schema(UnitKind.FRACTION),
]


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise _error(f"expected a number, found the switch `{str(value).lower()}`")
    return value


#: Largest number of anything: up to here floating-point numbers count exactly.
MAX_COUNT = 2**53

Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=MAX_COUNT)]
RankCount = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=MAX_RANKS)]
NonNegativeFloat = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
