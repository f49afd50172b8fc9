"""Numbers with units, as in `80 GiB`, `3.35 TB/s`, `5 us` or `55.04 USD/h`.

Inside the package every quantity is a plain float in SI units (prices: USD per hour).
"""

from __future__ import annotations

from enum import StrEnum
import math
import re
from typing import TYPE_CHECKING

from dse._suggest import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBER = r"[+-]?(?:\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([^\s\d.,+*_-].*)", re.DOTALL)
_BARE_NUMBER = re.compile(_NUMBER)
_COUNT = re.compile(rf"({_NUMBER})\s*([kMGBTP]?)(?:\s*([a-z]+))?")
_COUNT_SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}

_MAX_SHOWN = 60


class UnitKind(StrEnum):
    """Dimensions of quantities, named as in error messages."""

    SIZE = "size"
    BANDWIDTH = "bandwidth"
    TIME = "time"
    COMPUTE_RATE = "compute rate"
    PRICE = "price"
    DEVICE_PRICE = "price per GPU"
    MONEY = "sum of money"
    FRACTION = "share"


_SI_UNIT = {
    UnitKind.SIZE: "byte",
    UnitKind.BANDWIDTH: "byte/second",
    UnitKind.TIME: "second",
    UnitKind.COMPUTE_RATE: "FLOP/second",
    UnitKind.PRICE: "USD/hour",
    UnitKind.DEVICE_PRICE: "USD/GPU/hour",
    UnitKind.MONEY: "USD",
    UnitKind.FRACTION: "share",
}

EXAMPLES = {
    UnitKind.SIZE: "80 GiB",
    UnitKind.BANDWIDTH: "3.35 TB/s",
    UnitKind.TIME: "5 us",
    UnitKind.COMPUTE_RATE: "989.4 TFLOP/s",
    UnitKind.PRICE: "55.04 USD/h",
    UnitKind.DEVICE_PRICE: "2.10 USD/GPU/h",
    UnitKind.MONEY: "500 USD",
    UnitKind.FRACTION: "8 %",
}

MAY_BE_ZERO = {
    UnitKind.TIME,
    UnitKind.PRICE,
    UnitKind.DEVICE_PRICE,
    UnitKind.MONEY,
    UnitKind.FRACTION,
}

#: Least and largest count, and figures of each kind in SI units, zero aside: beyond any machine,
#: and what follows from them can still be computed. Linear programs take 1e20 s for infinite.
_COUNTS = (1e-30, 1e30)
_FIGURES = {
    UnitKind.SIZE: (1e-3, 1e24),
    UnitKind.BANDWIDTH: (1e-6, 1e24),
    UnitKind.TIME: (1e-18, 1e18),
    UnitKind.COMPUTE_RATE: (1e-6, 1e27),
    UnitKind.PRICE: (1e-9, 1e18),
    UnitKind.DEVICE_PRICE: (1e-9, 1e18),
    UnitKind.MONEY: (1e-9, 1e18),
    UnitKind.FRACTION: (0.0, 1.0),
}

_LARGE = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_LARGE_NAMES = {"kilo": 1e3, "mega": 1e6, "giga": 1e9, "tera": 1e12, "peta": 1e15, "exa": 1e18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BINARY_NAMES = {"kibi": 2**10, "mebi": 2**20, "gibi": 2**30, "tebi": 2**40, "pebi": 2**50}
_SMALL = {"m": 1e-3, "u": 1e-6, "\N{MICRO SIGN}": 1e-6, "n": 1e-9}
_SMALL_NAMES = {"milli": 1e-3, "micro": 1e-6, "nano": 1e-9}

#: SI factor and dimension of a unit.
_Unit = tuple[float, str]


def _spellings(
    dimension: str,
    factor: float,
    symbols: str,
    words: str,
    prefixes: dict[str, float],
    prefix_names: dict[str, float],
) -> dict[str, _Unit]:
    """Returns a unit and its multiples under all spellings; short prefixes also go with words."""
    names = f"{symbols} {words}".split()
    found = dict.fromkeys(names, factor)
    for prefix, scale in prefixes.items():
        found |= dict.fromkeys([prefix + name for name in names], scale * factor)
    for prefix, scale in prefix_names.items():
        found |= dict.fromkeys([prefix + name for name in words.split()], scale * factor)
    return {name: (value, dimension) for name, value in found.items()}


_DATA_PREFIXES = (_LARGE | _BINARY, _LARGE_NAMES | _BINARY_NAMES)
_DATA = _spellings("byte", 1.0, "B", "byte bytes", *_DATA_PREFIXES) | _spellings(
    "byte", 1 / 8, "b", "bit bits", *_DATA_PREFIXES
)
_DATA_RATES = _spellings("byte/s", 1.0, "Bps", "", _LARGE, {}) | _spellings(
    "byte/s", 1 / 8, "bps", "", _LARGE, {}
)
_TIMES = (
    _spellings("s", 1.0, "s sec", "second seconds", _SMALL, _SMALL_NAMES)
    | _spellings("s", 60.0, "min", "minute minutes", {}, {})
    | _spellings("s", 3600.0, "h hr", "hour hours", {}, {})
    | _spellings("s", 86400.0, "d", "day days", {}, {})
)
_OPERATIONS = _spellings("FLOP", 1.0, "", "FLOP FLOPs", _LARGE, _LARGE_NAMES)
_OPERATION_RATES = _spellings("FLOP/s", 1.0, "", "FLOPS", _LARGE, _LARGE_NAMES)
_SHARES: dict[str, _Unit] = {"%": (0.01, "share"), "percent": (0.01, "share")}
_MONEY: dict[str, _Unit] = {"USD": (1.0, "USD")}
_DEVICES: dict[str, _Unit] = {"GPU": (1.0, "GPU")}

#: All accepted units; anything else is unknown, even where SI would combine a prefix with it.
_UNITS = (
    _DATA | _DATA_RATES | _TIMES | _OPERATIONS | _OPERATION_RATES | _SHARES | _MONEY | _DEVICES
)

_KINDS = {
    "byte": UnitKind.SIZE,
    "byte/s": UnitKind.BANDWIDTH,
    "s": UnitKind.TIME,
    "FLOP/s": UnitKind.COMPUTE_RATE,
    "USD/s": UnitKind.PRICE,
    "USD/GPU/s": UnitKind.DEVICE_PRICE,
    "USD/s/GPU": UnitKind.DEVICE_PRICE,
    "USD": UnitKind.MONEY,
    "share": UnitKind.FRACTION,
}

#: What `did you mean …?` may propose.
_OFFERED = {
    UnitKind.SIZE: tuple(_DATA),
    UnitKind.BANDWIDTH: (*(f"{name}/s" for name in _DATA), *_DATA_RATES),
    UnitKind.TIME: tuple(_TIMES),
    UnitKind.COMPUTE_RATE: (*(f"{name}/s" for name in _OPERATIONS), *_OPERATION_RATES),
    UnitKind.PRICE: tuple(f"USD/{name}" for name in ("h", "hour", "min", "s", "day")),
    UnitKind.DEVICE_PRICE: tuple(f"USD/GPU/{name}" for name in ("h", "hour", "min", "s", "day")),
    UnitKind.MONEY: tuple(_MONEY),
    UnitKind.FRACTION: tuple(_SHARES),
}

_UNIT_LISTS = {
    UnitKind.SIZE: "B, kB, MB, GB, TB, PB, EB, KiB, MiB, GiB, TiB, PiB, and the same with bit",
    UnitKind.BANDWIDTH: "B/s, kB/s, MB/s, GB/s, TB/s, GiB/s, and the same with bit/s",
    UnitKind.TIME: "ns, us, ms, s, min, h, day",
    UnitKind.COMPUTE_RATE: "FLOP/s, kFLOP/s, MFLOP/s, GFLOP/s, TFLOP/s, PFLOP/s, EFLOP/s",
    UnitKind.PRICE: "USD/h, USD/min, USD/s, USD/day",
    UnitKind.DEVICE_PRICE: "USD/GPU/h, USD/GPU/min, USD/GPU/s, USD/GPU/day",
    UnitKind.MONEY: "USD",
    UnitKind.FRACTION: "%, or a plain number",
}


def parse_quantity(text: str, kind: UnitKind) -> float:
    """Converts a number with its unit to SI.

    Args:
        text: One number and one unit, for example `200 Gbit/s`.
        kind: The expected dimension.

    Returns:
        The value in bytes, bytes/s, seconds, FLOP/s, USD/h (of a device: for each), USD, or as a
        plain share.

    Raises:
        ValueError: Wrong dimension, missing or unknown unit, or a value out of range; the message
            contains what was expected and what was found.
    """
    shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    expected = f"expected a {kind.value} such as `{EXAMPLES[kind]}`, found `{shown}`"
    stripped = text.strip()
    if _BARE_NUMBER.fullmatch(stripped):
        if kind is UnitKind.FRACTION:
            return _checked(float(stripped.replace("_", "")), kind, expected)
        raise ValueError(f"{expected}, which has no unit; the units are {_UNIT_LISTS[kind]}")
    match = _QUANTITY.fullmatch(stripped)
    if match is None:
        raise ValueError(f"{expected}; write one number, with a decimal point, and one unit")
    number = float(match.group(1).replace("_", ""))
    written = match.group(2).replace("\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}")
    unit = _unit(written)
    if unit is None:
        raise ValueError(f"{expected}, whose unit is unknown; {_suggestion(written, kind)}")
    factor, found = unit
    if found is not kind:
        what = f"is a {found.value}" if found else "has another dimension"
        raise ValueError(f"{expected}, which {what}{_per_time(written, kind)}")
    return _checked(number * factor, kind, expected)


def _unit(written: str) -> tuple[float, UnitKind | None] | None:
    """Returns SI factor and kind of a unit; None if it is unknown."""
    parts = written.split("/")
    if any(part not in _UNITS for part in parts):
        return None
    factor, dimension = _UNITS[parts[0]]
    for part in parts[1:]:
        divisor, divided = _UNITS[part]
        # Prices are per hour inside the package.
        factor *= (3600.0 if dimension == "USD" else 1.0) / divisor
        dimension = f"{dimension}/{divided}"
    return factor, _KINDS.get(dimension)


def parse_rental_price(text: str) -> tuple[float, bool]:
    """Converts what machines cost to rent: `2.10 USD/GPU/h` for each GPU, `16.80 USD/h` in all.

    Args:
        text: One number and one unit.

    Returns:
        USD per hour, and whether that is for each GPU.

    Raises:
        ValueError: It is no price; the message has both forms.
    """
    parts = quantity_parts(text)
    unit = None if parts is None else _unit(parts[1])
    if unit is not None and unit[1] is UnitKind.DEVICE_PRICE:
        return parse_quantity(text, UnitKind.DEVICE_PRICE), True
    try:
        return parse_quantity(text, UnitKind.PRICE), False
    except ValueError as error:
        example = EXAMPLES[UnitKind.DEVICE_PRICE]
        raise ValueError(f"{error}; a price for each GPU is written `{example}`") from error


def parse_count(text: str, what: str = "samples") -> float:
    """Parses a count such as `4.2G`, `500k samples` or `1e9`.

    Args:
        text: One number, optionally with a suffix `k`, `M`, `G` or `B`, `T` or `P` and a
            noun.
        what: The noun, in the plural.

    Raises:
        ValueError: Not such a count, or not more than zero.
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
    if not _COUNTS[0] <= value <= _COUNTS[1]:
        raise ValueError(
            f"expected from {_COUNTS[0]:g} to {_COUNTS[1]:g} {what}, found `{text[:_MAX_SHOWN]}`"
        )
    return value


def parse_rate(text: str, what: str = "samples") -> float:
    """Parses a rate such as `10M samples/s` or `1.2G samples/h`.

    Args:
        text: A count as for :func:`parse_count`, a slash, and a unit of time.
        what: The noun, in the plural.

    Returns:
        The count per second.

    Raises:
        ValueError: Not such a rate.
    """
    count, _, time = text.partition("/")
    unit = _TIMES.get(time.strip())
    wrong = (
        f"expected {what} in a time such as `10M {what}/s`, found `{text[:_MAX_SHOWN]}`; "
        f"the times are {_UNIT_LISTS[UnitKind.TIME]}"
    )
    if unit is None:
        raise ValueError(wrong)
    try:
        counted = parse_count(count, what)
    except ValueError:
        raise ValueError(wrong) from None
    return counted / unit[0]


def format_quantity(value: float, kind: UnitKind) -> str:
    """Formats a value in SI units with three or four digits and a fitting prefix."""
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
    if kind is UnitKind.DEVICE_PRICE:
        return f"{value:.2f} USD/GPU/h"
    if kind is UnitKind.MONEY:
        return f"{value:.2f} USD"
    return f"{100 * value:.3g} %"


def exact_quantity(value: float, kind: UnitKind) -> str:
    """Formats a value in SI units so that :func:`parse_quantity` returns the same float."""
    return repr(value) if kind is UnitKind.FRACTION else f"{value!r} {_SI_UNIT[kind]}"


def quantity_parts(text: str) -> tuple[float, str] | None:
    """Splits a quantity into its number and its unit, as written; None for any other text."""
    stripped = text.strip()
    if _BARE_NUMBER.fullmatch(stripped):
        return float(stripped.replace("_", "")), ""
    match = _QUANTITY.fullmatch(stripped)
    if match is None or _unit(match.group(2)) is None:
        return None
    return float(match.group(1).replace("_", "")), match.group(2)


def readable_quantity(text: str) -> str:
    """Formats a quantity as :func:`format_quantity` does; returns other text unchanged."""
    number, written = quantity_parts(text) or (0.0, "")
    factor, kind = _unit(written) or (1.0, None)
    return text if kind is None else format_quantity(number * factor, kind)


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
    if value < 0 or (value == 0 and kind not in MAY_BE_ZERO):
        least = "at least 0" if kind in MAY_BE_ZERO else "more than 0"
        raise ValueError(f"{expected}; it must be {least}")
    low, high = _FIGURES[kind]
    if value and not low <= value <= high:
        raise ValueError(f"{expected}; it must be from {low:g} to {high:g} {_SI_UNIT[kind]}")
    return value


def _suggestion(written: str, kind: UnitKind) -> str:
    """Returns the units that were probably meant, or else the list of units."""
    same_letters = [name for name in _OFFERED[kind] if name.casefold() == written.casefold()]
    near = None if same_letters else nearest(written, _OFFERED[kind])
    meant = same_letters or ([near] if near else [])
    if meant:
        return f"did you mean {' or '.join(f'`{name}`' for name in meant)}?"
    return f"the units are {_UNIT_LISTS[kind]}"


def _per_time(written: str, kind: UnitKind) -> str:
    """Returns a hint if only the time is missing, as in `25 GB` for a bandwidth."""
    rates = [f"{written}/{time}" for time in ("s", "h") if f"{written}/{time}" in _OFFERED[kind]]
    return f"; did you mean `{rates[-1]}`?" if rates else ""


def quantity_pattern(*kinds: UnitKind) -> str:
    """Returns a regular expression of all quantities of some kinds, as JSON Schemas have them."""
    # Zero has no digit but 0 in front of its exponent.
    positive = "" if MAY_BE_ZERO.issuperset(kinds) else "(?=[0-9_.]*[1-9])"
    units = "|".join(map(_spellings_of, kinds))
    number = _NUMBER.removeprefix("[+-]?")
    return rf"^\s*\+?{positive}{number}\s*(?:{units})\s*$"


def _spellings_of(kind: UnitKind) -> str:
    """Returns a regular expression of all units of a kind."""

    def either(names: Iterable[str]) -> str:
        return f"(?:{'|'.join(sorted(map(re.escape, names)))})".replace("\N{MICRO SIGN}", "[µμ]")

    times = either(_TIMES)
    return {
        UnitKind.SIZE: either(_DATA),
        UnitKind.BANDWIDTH: f"(?:{either(_DATA)}/{times}|{either(_DATA_RATES)})",
        UnitKind.TIME: times,
        UnitKind.COMPUTE_RATE: f"(?:{either(_OPERATIONS)}/{times}|{either(_OPERATION_RATES)})",
        UnitKind.PRICE: f"USD/{times}",
        UnitKind.DEVICE_PRICE: f"USD/(?:GPU/{times}|{times}/GPU)",
        UnitKind.MONEY: either(_MONEY),
        UnitKind.FRACTION: either(_SHARES),
    }[kind]
