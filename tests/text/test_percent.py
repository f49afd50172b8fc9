"""Relative differences in words."""

from __future__ import annotations

import pytest

from dse._text.percent import difference, signed_percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.198, "+19.8 %"),
        (-0.963, "-96.3 %"),
        (2.0, "+200.0 %"),
        (2.4, "×3.40"),
        (21.05, "×22.1"),
        (21894449.0, "×21,900,000"),
        (-0.0004, "0.0 %"),
        (0.0, "0.0 %"),
    ],
)
def test_large_differences_are_factors(share, text):
    assert signed_percent(share) == text


def test_sizes_have_no_sign():
    assert difference(0.5) == "50 %"
    assert difference(-0.125, 1) == "12.5 %"
    assert difference(21.05) == "a factor of 22.1"
