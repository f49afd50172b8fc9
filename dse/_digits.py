"""Digits of figures: computed ones have a fixed number of significant digits, zeros included.

So figures of one column say how exact they are alike: ``1.20`` beside ``1.25``. What a user gave
keeps the digits that it was given with.
"""

from __future__ import annotations

import math


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
