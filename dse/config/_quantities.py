"""Numbers with units, as in `80 GiB`, `3.35 TB/s`, `5 us` or `55.04 USD/h`.

Inside the package every quantity is a plain float in SI units (prices: USD per hour).
"""

from __future__ import annotations

import math
import re

from dse._text.digits import dollars
from dse._text.suggest import nearest
from dse.config._units import (
    EXAMPLES,
    FIGURES,
    MAY_BE_ZERO,
    SI_UNIT,
    SPELLINGS,
    TIMES,
    UNIT_LISTS,
    UnitKind,
    parse_unit,
    unit_pattern,
)

_NUMBER = r"[+-]?(?:\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([^\s\d.,+*_-].*)", re.DOTALL)
_BARE_NUMBER = re.compile(_NUMBER)
_COUNT = re.compile(rf"({_NUMBER})\s*([kKMGBTP]?)(?:\s*([a-z]+))?")
_COUNT_SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}

_MAX_SHOWN = 60

#: Least and largest count.
_COUNTS = (1e-30, 1e30)


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
        raise ValueError(f"{expected}, which has no unit; the units are {UNIT_LISTS[kind]}")
    match = _QUANTITY.fullmatch(stripped)
    if match is None:
        raise ValueError(f"{expected}; write one number, with a decimal point, and one unit")
    number = float(match.group(1).replace("_", ""))
    written = match.group(2).replace("\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}")
    unit = parse_unit(written)
    if unit is None:
        raise ValueError(f"{expected}, whose unit is unknown; {_suggestion(written, kind)}")
    factor, found = unit
    if found is not kind:
        what = f"is a {found.value}" if found else "has another dimension"
        raise ValueError(f"{expected}, which {what}{_per_time(written, kind)}")
    return _checked(number * factor, kind, expected)


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
    unit = None if parts is None else parse_unit(parts[1])
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
    suffix = match.group(2).replace("K", "k")
    value = float(match.group(1).replace("_", "")) * _COUNT_SUFFIXES.get(suffix, 1.0)
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
    unit = TIMES.get(time.strip())
    wrong = (
        f"expected {what} in a time such as `10M {what}/s`, found `{text[:_MAX_SHOWN]}`; "
        f"the times are {UNIT_LISTS[UnitKind.TIME]}"
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
    if kind is UnitKind.POWER:
        return f"{value:.4g} W"
    if kind is UnitKind.ENERGY:
        return f"{value * 1e12:.4g} pJ"
    if kind is UnitKind.TIME:
        return _scaled(value * 1e9, 1000, ("ns", "us", "ms", "s"))
    if kind is UnitKind.PRICE:
        return f"{dollars(value)} USD/h"
    if kind is UnitKind.DEVICE_PRICE:
        return f"{dollars(value)} USD/GPU/h"
    if kind is UnitKind.MONEY:
        return f"{dollars(value)} USD"
    return f"{100 * value:.3g} %"


def exact_quantity(value: float, kind: UnitKind) -> str:
    """Formats a value in SI units so that :func:`parse_quantity` returns the same float."""
    return repr(value) if kind is UnitKind.FRACTION else f"{value!r} {SI_UNIT[kind]}"


def quantity_parts(text: str) -> tuple[float, str] | None:
    """Splits a quantity into its number and its unit, as written; None for any other text."""
    stripped = text.strip()
    if _BARE_NUMBER.fullmatch(stripped):
        return float(stripped.replace("_", "")), ""
    match = _QUANTITY.fullmatch(stripped)
    if match is None or parse_unit(match.group(2)) is None:
        return None
    return float(match.group(1).replace("_", "")), match.group(2)


def readable_quantity(text: str) -> str:
    """Formats a quantity as :func:`format_quantity` does; returns other text unchanged."""
    number, written = quantity_parts(text) or (0.0, "")
    factor, kind = parse_unit(written) or (1.0, None)
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
    low, high = FIGURES[kind]
    if value and not low <= value <= high:
        raise ValueError(f"{expected}; it must be from {low:g} to {high:g} {SI_UNIT[kind]}")
    return value


def _suggestion(written: str, kind: UnitKind) -> str:
    """Returns the units that were probably meant, or else the list of units."""
    same_letters = [name for name in SPELLINGS[kind] if name.casefold() == written.casefold()]
    near = None if same_letters else nearest(written, SPELLINGS[kind])
    meant = same_letters or ([near] if near else [])
    if meant:
        return f"did you mean {' or '.join(f'`{name}`' for name in meant)}?"
    return f"the units are {UNIT_LISTS[kind]}"


def _per_time(written: str, kind: UnitKind) -> str:
    """Returns a hint if only the time is missing, as in `25 GB` for a bandwidth."""
    rates = [f"{written}/{time}" for time in ("s", "h") if f"{written}/{time}" in SPELLINGS[kind]]
    return f"; did you mean `{rates[-1]}`?" if rates else ""


def quantity_pattern(*kinds: UnitKind) -> str:
    """Returns a regular expression of all quantities of some kinds, as JSON Schemas have them."""
    # Zero has no digit but 0 in front of its exponent.
    positive = "" if MAY_BE_ZERO.issuperset(kinds) else "(?=[0-9_.]*[1-9])"
    units = "|".join(map(unit_pattern, kinds))
    number = _NUMBER.removeprefix("[+-]?")
    return rf"^\s*\+?{positive}{number}\s*(?:{units})\s*$"
