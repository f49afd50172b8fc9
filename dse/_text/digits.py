"""Digits of figures: computed ones have a fixed number of significant digits, zeros included.

So figures of one column say how exact they are alike: ``1.20`` beside ``1.25``. What a user gave
keeps the digits that it was given with.
"""

from __future__ import annotations

import math

#: US dollars below which cents do not show enough of an amount.
_LEAST_IN_CENTS = 0.1


def decimals(value: float, digits: int = 3) -> int:
    """Returns the decimal places that show so many significant digits of a figure."""
    if not (value and math.isfinite(value)):
        return 0
    # Rounding may bring one more digit before the point: 9.996 is 10.0.
    rounded = float(f"{value:.{digits - 1}e}")
    return max(0, digits - 1 - math.floor(math.log10(abs(rounded))))


def significant(value: float, digits: int = 3) -> str:
    """Formats a figure with so many significant digits, a large one with all of its digits."""
    return f"{value:,.{decimals(value, digits)}f}"


def dollars(usd: float, *, grouped: bool = False) -> str:
    """Formats a price or a budget to the cent, and one of a few cents with three digits.

    Args:
        usd: US dollars.
        grouped: Whether commas separate thousands.
    """
    if 0.0 < abs(usd) < _LEAST_IN_CENTS:
        return f"{usd:.3g}"
    return f"{usd:,.2f}" if grouped else f"{usd:.2f}"
