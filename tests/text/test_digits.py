"""Figures with a fixed number of significant digits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse._text.digits import decimals, dollars, significant


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.2, 3, "1.20"),
        (1.25, 3, "1.25"),
        (17.7, 4, "17.70"),
        (9.996, 3, "10.0"),
        (99.96, 3, "100"),
        (0.000123, 2, "0.00012"),
        (123456.7, 3, "123,457"),
        (-0.5, 3, "-0.500"),
        (0.0, 3, "0"),
        (float("nan"), 3, "nan"),
        (float("inf"), 3, "inf"),
    ],
)
def test_by_hand(value, digits, text):
    assert significant(value, digits) == text


@given(st.floats(1e-6, 1e9), st.integers(2, 6))
def test_they_say_what_rounding_gives(value, digits):
    text = significant(value, digits).replace(",", "")
    assert float(text) == pytest.approx(value, rel=0.5001 * 10.0 ** (1 - digits))
    shown = text.replace(".", "").lstrip("0")
    assert len(shown) == digits or (len(shown) > digits and decimals(value, digits) == 0)


@given(st.floats(1e-9, 1e9))
def test_no_amount_of_money_looks_like_nothing(usd):
    shown = float(dollars(usd, grouped=True).replace(",", ""))
    assert shown == pytest.approx(usd, rel=0.05001)
    assert float(dollars(usd)) == shown


def test_amounts_of_money_by_hand():
    assert [dollars(usd) for usd in (0.0, 2.1, 1234.5, 0.001, 0.0524)] == [
        *("0.00", "2.10", "1234.50"),
        *("0.001", "0.0524"),
    ]
