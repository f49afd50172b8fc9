"""Relative differences in words: percents, and factors where percents say little."""

from __future__ import annotations

import math

from dse._text.digits import significant

#: Relative differences from here on are factors.
_FACTOR_FROM = 2.0


def signed_percent(share: float, digits: int = 1) -> str:
    """Formats a relative difference with its sign; beyond +200 % as a factor: ``×22.1``.

    What rounds to nothing has no sign.
    """
    if not _FACTOR_FROM < share < math.inf:
        percents = round(100 * share, digits) or 0.0
        return f"{percents:{'+' if percents else ''}.{digits}f} %"
    factor = 1 + share
    return f"×{float(f'{factor:.3g}'):,.0f}" if factor >= 100 else f"×{significant(factor)}"


def difference(share: float, digits: int = 0) -> str:
    """Formats the size of a relative difference: ``50 %``, or ``a factor of 22.1``."""
    text = signed_percent(abs(share), digits)
    return text.removeprefix("+").replace("×", "a factor of ")
