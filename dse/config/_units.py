"""Units: their spellings, factors to SI, and the figures that make sense in them."""

from __future__ import annotations

from enum import StrEnum
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class UnitKind(StrEnum):
    """Dimensions of quantities, named as in error messages."""

    SIZE = "size"
    BANDWIDTH = "bandwidth"
    TIME = "time"
    COMPUTE_RATE = "compute rate"
    POWER = "power"
    ENERGY = "energy"
    PRICE = "price"
    DEVICE_PRICE = "price per GPU"
    MONEY = "sum of money"
    FRACTION = "share"


SI_UNIT = {
    UnitKind.SIZE: "byte",
    UnitKind.BANDWIDTH: "byte/second",
    UnitKind.TIME: "second",
    UnitKind.COMPUTE_RATE: "FLOP/second",
    UnitKind.POWER: "watt",
    UnitKind.ENERGY: "joule",
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
    UnitKind.POWER: "700 W",
    UnitKind.ENERGY: "1.09 pJ",
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

#: Least and largest figure in SI units, zero aside: beyond any machine, and what follows from them
#: can still be computed. Linear programs take 1e20 s for infinite.
FIGURES = {
    UnitKind.SIZE: (1e-3, 1e24),
    UnitKind.BANDWIDTH: (1e-6, 1e24),
    UnitKind.TIME: (1e-18, 1e18),
    UnitKind.COMPUTE_RATE: (1e-6, 1e27),
    UnitKind.POWER: (1e-6, 1e18),
    UnitKind.ENERGY: (1e-24, 1e18),
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
_TINY = _SMALL | {"p": 1e-12}
_TINY_NAMES = _SMALL_NAMES | {"pico": 1e-12}

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
TIMES = (
    _spellings("s", 1.0, "s sec", "second seconds", _SMALL, _SMALL_NAMES)
    | _spellings("s", 60.0, "min", "minute minutes", {}, {})
    | _spellings("s", 3600.0, "h hr", "hour hours", {}, {})
    | _spellings("s", 86400.0, "d", "day days", {}, {})
)
_OPERATIONS = _spellings("FLOP", 1.0, "", "FLOP FLOPs", _LARGE, _LARGE_NAMES)
_OPERATION_RATES = _spellings("FLOP/s", 1.0, "", "FLOPS", _LARGE, _LARGE_NAMES)
_POWERS = _spellings(
    "W", 1.0, "W", "watt watts", {"m": 1e-3, "k": 1e3}, {"milli": 1e-3, "kilo": 1e3}
)
_ENERGIES = _spellings("J", 1.0, "J", "joule joules", _TINY, _TINY_NAMES)
_SHARES: dict[str, _Unit] = {"%": (0.01, "share"), "percent": (0.01, "share")}
_MONEY: dict[str, _Unit] = {"USD": (1.0, "USD")}
_DEVICES: dict[str, _Unit] = {"GPU": (1.0, "GPU")}

#: All accepted units; anything else is unknown, even where SI would combine a prefix with it.
_UNITS = (
    _DATA
    | _DATA_RATES
    | TIMES
    | _OPERATIONS
    | _OPERATION_RATES
    | _POWERS
    | _ENERGIES
    | _SHARES
    | _MONEY
    | _DEVICES
)

_KINDS = {
    "byte": UnitKind.SIZE,
    "byte/s": UnitKind.BANDWIDTH,
    "s": UnitKind.TIME,
    "FLOP/s": UnitKind.COMPUTE_RATE,
    "W": UnitKind.POWER,
    "J": UnitKind.ENERGY,
    "USD/s": UnitKind.PRICE,
    "USD/GPU/s": UnitKind.DEVICE_PRICE,
    "USD/s/GPU": UnitKind.DEVICE_PRICE,
    "USD": UnitKind.MONEY,
    "share": UnitKind.FRACTION,
}

#: What `did you mean …?` may propose.
SPELLINGS = {
    UnitKind.SIZE: tuple(_DATA),
    UnitKind.BANDWIDTH: (*(f"{name}/s" for name in _DATA), *_DATA_RATES),
    UnitKind.TIME: tuple(TIMES),
    UnitKind.COMPUTE_RATE: (*(f"{name}/s" for name in _OPERATIONS), *_OPERATION_RATES),
    UnitKind.POWER: tuple(_POWERS),
    UnitKind.ENERGY: tuple(_ENERGIES),
    UnitKind.PRICE: tuple(f"USD/{name}" for name in ("h", "hour", "min", "s", "day")),
    UnitKind.DEVICE_PRICE: tuple(f"USD/GPU/{name}" for name in ("h", "hour", "min", "s", "day")),
    UnitKind.MONEY: tuple(_MONEY),
    UnitKind.FRACTION: tuple(_SHARES),
}

UNIT_LISTS = {
    UnitKind.SIZE: "B, kB, MB, GB, TB, PB, EB, KiB, MiB, GiB, TiB, PiB, and the same with bit",
    UnitKind.BANDWIDTH: "B/s, kB/s, MB/s, GB/s, TB/s, GiB/s, and the same with bit/s",
    UnitKind.TIME: "ns, us, ms, s, min, h, day",
    UnitKind.POWER: "mW, W, kW",
    UnitKind.ENERGY: "pJ, nJ, uJ, mJ, J",
    UnitKind.COMPUTE_RATE: "FLOP/s, kFLOP/s, MFLOP/s, GFLOP/s, TFLOP/s, PFLOP/s, EFLOP/s",
    UnitKind.PRICE: "USD/h, USD/min, USD/s, USD/day",
    UnitKind.DEVICE_PRICE: "USD/GPU/h, USD/GPU/min, USD/GPU/s, USD/GPU/day",
    UnitKind.MONEY: "USD",
    UnitKind.FRACTION: "%, or a plain number",
}


def parse_unit(written: str) -> tuple[float, UnitKind | None] | None:
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


def unit_pattern(kind: UnitKind) -> str:
    """Returns a regular expression of all units of a kind."""

    def either(names: Iterable[str]) -> str:
        return f"(?:{'|'.join(sorted(map(re.escape, names)))})".replace("\N{MICRO SIGN}", "[µμ]")

    times = either(TIMES)
    return {
        UnitKind.SIZE: either(_DATA),
        UnitKind.BANDWIDTH: f"(?:{either(_DATA)}/{times}|{either(_DATA_RATES)})",
        UnitKind.TIME: times,
        UnitKind.COMPUTE_RATE: f"(?:{either(_OPERATIONS)}/{times}|{either(_OPERATION_RATES)})",
        UnitKind.POWER: either(_POWERS),
        UnitKind.ENERGY: either(_ENERGIES),
        UnitKind.PRICE: f"USD/{times}",
        UnitKind.DEVICE_PRICE: f"USD/(?:GPU/{times}|{times}/GPU)",
        UnitKind.MONEY: either(_MONEY),
        UnitKind.FRACTION: either(_SHARES),
    }[kind]
