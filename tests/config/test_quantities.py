from __future__ import annotations

import re

import pytest
import yaml

from dse.config import (
    UnitKind,
    exact_quantity,
    format_quantity,
    parse_count,
    parse_quantity,
    parse_rate,
    parse_rental_price,
)
from tests.conftest import ROOT

SIZE, BANDWIDTH, TIME = UnitKind.SIZE, UnitKind.BANDWIDTH, UnitKind.TIME
RATE, PRICE, SHARE = UnitKind.COMPUTE_RATE, UnitKind.PRICE, UnitKind.FRACTION
MONEY = UnitKind.MONEY

GOOD = [
    ("80 GiB", SIZE, 80 * 2**30),
    ("80GiB", SIZE, 80 * 2**30),
    ("  80\tGiB \n", SIZE, 80 * 2**30),
    ("+1_000 B", SIZE, 1000),
    ("1.5e3 byte", SIZE, 1500),
    ("24 bytes", SIZE, 24),
    ("8 b", SIZE, 1),
    ("8 bit", SIZE, 1),
    ("16 bits", SIZE, 2),
    ("1 kB", SIZE, 1e3),
    ("50 MB", SIZE, 50e6),
    ("1 GB", SIZE, 1e9),
    ("1 TB", SIZE, 1e12),
    ("1 PB", SIZE, 1e15),
    ("1 EB", SIZE, 1e18),
    ("1 KiB", SIZE, 2**10),
    ("1 MiB", SIZE, 2**20),
    ("1 TiB", SIZE, 2**40),
    ("1 PiB", SIZE, 2**50),
    ("1 Gb", SIZE, 125e6),
    ("1 Gib", SIZE, 2**27),
    ("1 Mibit", SIZE, 2**17),
    ("2 gigabytes", SIZE, 2e9),
    ("2 gibibyte", SIZE, 2**31),
    ("1 Mbyte", SIZE, 1e6),
    ("3.35 TB/s", BANDWIDTH, 3.35e12),
    ("1 GiB/s", BANDWIDTH, 2**30),
    ("200 Gbit/s", BANDWIDTH, 25e9),
    ("400 Gb/s", BANDWIDTH, 50e9),
    ("400 Gbps", BANDWIDTH, 50e9),
    ("400 GBps", BANDWIDTH, 400e9),
    ("3600 GB/h", BANDWIDTH, 1e9),
    ("8 megabit/second", BANDWIDTH, 1e6),
    ("5 s", TIME, 5),
    ("5 sec", TIME, 5),
    ("5 seconds", TIME, 5),
    ("20 ms", TIME, 20e-3),
    ("5 us", TIME, 5e-6),
    ("5 \N{MICRO SIGN}s", TIME, 5e-6),
    ("5 \N{GREEK SMALL LETTER MU}s", TIME, 5e-6),
    ("5 ns", TIME, 5e-9),
    ("5 microseconds", TIME, 5e-6),
    ("2 min", TIME, 120),
    ("2 h", TIME, 7200),
    ("2 hours", TIME, 7200),
    ("1 day", TIME, 86400),
    ("0 s", TIME, 0),
    ("989.4 TFLOP/s", RATE, 989.4e12),
    ("989.4 TFLOPS", RATE, 989.4e12),
    ("989.4 TFLOPs/s", RATE, 989.4e12),
    ("1 PFLOP/s", RATE, 1e15),
    ("1 EFLOP/s", RATE, 1e18),
    ("60 GFLOP/min", RATE, 1e9),
    ("1 kFLOP/s", RATE, 1e3),
    ("3 FLOP/s", RATE, 3),
    ("55.04 USD/h", PRICE, 55.04),
    ("48 USD/day", PRICE, 2),
    ("1 USD/s", PRICE, 3600),
    ("0 USD/h", PRICE, 0),
    ("8 %", SHARE, 0.08),
    ("8%", SHARE, 0.08),
    ("8 percent", SHARE, 0.08),
    ("0.08", SHARE, 0.08),
    ("0", SHARE, 0),
]

UNKNOWN = [
    ("5 dB", SIZE, "did you mean"),
    ("5 dB/s", BANDWIDTH, "did you mean"),
    ("5 GHz", SIZE, "the units are B, kB"),
    ("5 GHz", BANDWIDTH, "the units are B/s, kB/s"),
    ("5 Hz", TIME, "the units are ns, us"),
    ("5 mB", SIZE, "did you mean `MB` or `Mb`?"),
    ("5 mb", SIZE, "did you mean `MB` or `Mb`?"),
    ("5 nbit", SIZE, "did you mean"),
    ("5 KB", SIZE, "did you mean `kB` or `kb`?"),
    ("5 gib", SIZE, "did you mean `GiB` or `Gib`?"),
    ("5 GBs", SIZE, "did you mean `GB`?"),
    ("5 GByte", SIZE, "did you mean `Gbyte`?"),
    ("5 GB/", SIZE, "did you mean `GB`?"),
    ("5 GB/", BANDWIDTH, "did you mean `GB/s`?"),
    ("5 GB//s", BANDWIDTH, "did you mean `GB/s`?"),
    ("5 GB / s", BANDWIDTH, "did you mean `GB/s`?"),
    ("5 GB*s", BANDWIDTH, "did you mean `GBps`?"),
    ("5 GB/S", BANDWIDTH, "did you mean `GB/s` or `Gb/s`?"),
    ("5 mbit/s", BANDWIDTH, "did you mean `Mbit/s`?"),
    ("5 /s", BANDWIDTH, "whose unit is unknown"),
    ("5 /", BANDWIDTH, "whose unit is unknown"),
    ("5 GB 3", SIZE, "whose unit is unknown"),
    ("5 GB\n5 GB", SIZE, "whose unit is unknown"),
    ("5 GB()", SIZE, "whose unit is unknown"),
    ("5 B²", SIZE, "whose unit is unknown"),
    ("0x10 GB", SIZE, "whose unit is unknown"),
    ("1e GB", SIZE, "whose unit is unknown"),
    ("5 is", TIME, "whose unit is unknown"),
    ("5 MS", TIME, "did you mean `ms`?"),
    ("5 ks", TIME, "whose unit is unknown"),
    ("5 Mis", TIME, "whose unit is unknown"),
    ("5 year", TIME, "whose unit is unknown"),
    ("3 parsecs", TIME, "whose unit is unknown"),
    ("3 glorps", TIME, "the units are ns, us, ms, s"),
    ("5 tflop/s", RATE, "did you mean `TFLOP/s`"),
    ("5 mFLOP/s", RATE, "did you mean `MFLOP/s`"),
    ("5 GiFLOP/s", RATE, "did you mean"),
    ("5 usd/h", PRICE, "did you mean `USD/h`?"),
    ("5 $/h", PRICE, "the units are USD/h"),
    ("5 EUR/h", PRICE, "whose unit is unknown"),
    ("5 mUSD/h", PRICE, "did you mean `USD/h`?"),
    ("5 %%", SHARE, "did you mean `%`?"),
    ("5 k%", SHARE, "did you mean `%`?"),
    ("5 ppm", SHARE, "the units are %, or a plain number"),
    ("5 dimensionless", SHARE, "whose unit is unknown"),
]

MALFORMED = [
    "",
    " ",
    "GB",
    "/s",
    "-",
    "--5 GB",
    "5..5 GB",
    "1,5 GB",
    "5, GB",
    "2**9 GB",
    "2*9 GB",
    "5 -GB",
    "(5) GB",
    "nan GB",
    "inf",
    "\0",
]

NO_UNIT = ["80", "-3", "1e5", " 7 "]

OUT_OF_RANGE = [
    ("-1 GB", SIZE, "more than 0"),
    ("0 GB", SIZE, "more than 0"),
    ("0 GB/s", BANDWIDTH, "more than 0"),
    ("0 FLOP/s", RATE, "more than 0"),
    ("-1 us", TIME, "at least 0"),
    ("-1 USD/h", PRICE, "at least 0"),
    ("1e999 GB", SIZE, "must be finite"),
    ("1e308 EB", SIZE, "must be finite"),
    ("9" * 400, SHARE, "must be finite"),
    ("120 %", SHARE, "less than 1"),
    ("-1 %", SHARE, "at least 0"),
    ("1", SHARE, "less than 1"),
]

#: One spelling or more of every dimension, and what other kinds say of them.
OF_KIND = {
    SIZE: ("5 GB", "5 KiB", "5 bit", "5 b", "5 Gbit"),
    BANDWIDTH: ("5 GB/s", "5 Gbps", "5 bit/h"),
    TIME: ("5 us", "5 h"),
    RATE: ("5 TFLOP/s", "5 TFLOPS"),
    PRICE: ("5 USD/h", "5 USD/day"),
    MONEY: ("5 USD",),
    SHARE: ("5 %", "5 percent"),
}
OF_NO_KIND = (
    "5 TFLOP",
    "5 FLOPs",
    "5 FLOPS/s",
    "5 GB/s/s",
    "5 Gbps/s",
    "5 USD/GB",
    "5 FLOP/B",
    "5 GB/%",
    "5 %/s",
    # Ratios are plain numbers, not shares.
    "0.5 B/B",
    "0.5 B/bit",
    "0.5 s/h",
    "0.5 %/%",
)


def refusal(text: str, kind: UnitKind) -> str:
    """The message, which always says what was expected, an example, and what was found."""
    with pytest.raises(ValueError, match="expected") as caught:
        parse_quantity(text, kind)
    assert type(caught.value) is ValueError
    message = str(caught.value)
    assert re.match(rf"expected a {kind.value} such as `[^`]+`, found `", message)
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    assert f"found `{shown}`" in message
    return message


@pytest.mark.parametrize(("text", "kind", "value"), GOOD)
def test_good_spellings(text, kind, value):
    assert parse_quantity(text, kind) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("text", "kind", "hint"), UNKNOWN)
def test_unknown_units_come_with_a_hint(text, kind, hint):
    message = refusal(text, kind)
    assert "whose unit is unknown" in message
    assert hint in message
    assert "did you mean" in message or "the units are" in message


@pytest.mark.parametrize("kind", list(UnitKind))
@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_text(text, kind):
    assert "write one number, with a decimal point, and one unit" in refusal(text, kind)


@pytest.mark.parametrize("kind", [kind for kind in UnitKind if kind is not SHARE])
@pytest.mark.parametrize("text", NO_UNIT)
def test_only_shares_go_without_a_unit(text, kind):
    message = refusal(text, kind)
    assert "which has no unit; the units are" in message


@pytest.mark.parametrize(("text", "kind", "words"), OUT_OF_RANGE)
def test_impossible_values(text, kind, words):
    assert words in refusal(text, kind)


@pytest.mark.parametrize("kind", list(UnitKind))
@pytest.mark.parametrize(
    ("text", "own"), [(text, own) for own, texts in OF_KIND.items() for text in texts]
)
def test_wrong_dimensions_are_refused(text, own, kind):
    if own is kind:
        assert parse_quantity(text, kind) > 0
    else:
        assert f"which is a {own.value}" in refusal(text, kind)


@pytest.mark.parametrize("kind", list(UnitKind))
@pytest.mark.parametrize("text", OF_NO_KIND)
def test_other_dimensions_are_refused(text, kind):
    assert "which has another dimension" in refusal(text, kind)


@pytest.mark.parametrize(
    ("text", "kind", "rate"),
    [
        ("25 GB", BANDWIDTH, "GB/s"),
        ("25 Gbit", BANDWIDTH, "Gbit/s"),
        ("25 TFLOP", RATE, "TFLOP/s"),
        ("25 USD", PRICE, "USD/h"),
    ],
)
def test_a_forgotten_time_is_proposed(text, kind, rate):
    message = refusal(text, kind)
    assert message.endswith(f"; did you mean `{rate}`?")
    assert parse_quantity(f"25 {rate}", kind) > 0


@pytest.mark.parametrize("kind", list(UnitKind))
def test_every_proposed_unit_is_taken(kind):
    # The lists in messages: `the units are B, kB, ...`.
    listed = refusal("5 ???", kind).partition("the units are ")[2]
    units = [part for part in listed.split(", ") if " " not in part]
    assert units
    for unit in units:
        assert parse_quantity(f"5 {unit}", kind) > 0


@pytest.mark.parametrize("kind", list(UnitKind))
def test_every_near_miss_leads_to_a_unit_of_the_kind(kind):
    for unit in ("gb", "GBB", "gbit/s", "GB/", "usec", "Us", "tflop/s", "usd/h", "%%", "glorps"):
        for proposed in re.findall(r"`([^`]+)`", refusal(f"5 {unit}!", kind).partition("; ")[2]):
            assert parse_quantity(f"5 {proposed}", kind) > 0


@pytest.mark.parametrize("kind", list(UnitKind))
def test_printed_quantities_read_back(kind):
    for value in (0.25,) if kind is SHARE else (1.0, 1234.0, 5.6e9, 7.8e17):
        text = format_quantity(value, kind)
        assert parse_quantity(text, kind) == pytest.approx(value, rel=1e-2), text


def figures(value: object):
    """Yields the text of every figure in a document that starts with a number."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("source", "description", "as_of"):
                yield from figures(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from figures(inner)
    elif isinstance(value, str) and re.fullmatch(r"[\d.]+ ?\D+", value):
        yield value


@pytest.mark.parametrize("folder", ["platforms", "search_spaces", "models"])
def test_every_shipped_figure_is_a_figure_of_one_kind(folder):
    paths = sorted((ROOT / folder).glob("*.yaml"))
    assert paths
    for path in paths:
        for text in figures(yaml.safe_load(path.read_text())):
            kinds = []
            for kind in UnitKind:
                try:
                    parse_quantity(text, kind)
                except ValueError:
                    continue
                kinds.append(kind)
            assert len(kinds) == 1, (path.name, text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4.2G", 4.2e9),
        ("500k samples", 500e3),
        ("500K", 500e3),
        ("10B samples", 10e9),
        ("1e9", 1e9),
        (" 10 M samples ", 10e6),
        ("1 sample", 1.0),
        ("1_000", 1000.0),
    ],
)
def test_counts(text, value):
    assert parse_count(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "0", "-3", "4.2GB", "4.2 tokens", "G", "1e999", "3h", "4g"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError, match="expected"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("10M samples/s", 10e6), ("10M/s", 10e6), ("36G samples/h", 10e6), ("60 samples / min", 1.0)],
)
def test_rates(text, value):
    assert parse_rate(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["10M", "10M samples", "10M samples/GB", "10M apples/s", "/s"])
def test_what_is_no_rate(text):
    with pytest.raises(ValueError, match="such as `10M samples/s`") as caught:
        parse_rate(text)
    assert text in str(caught.value)


def test_other_things_than_samples_are_counted():
    assert parse_rate("2k tokens/s", "tokens") == 2000
    with pytest.raises(ValueError, match="a number of tokens"):
        parse_count("2k samples", "tokens")


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("2.10 USD/GPU/h", (2.10, True)),
        ("2.10USD/h/GPU", (2.10, True)),
        ("50.4 USD/GPU/day", (2.10, True)),
        ("16.80 USD/h", (16.80, False)),
        ("0 USD/GPU/h", (0.0, True)),
    ],
)
def test_machines_cost_for_each_gpu_or_in_all(text, price):
    usd_per_hour, each = parse_rental_price(text)
    assert (pytest.approx(usd_per_hour), each) == price


@pytest.mark.parametrize("text", ["2.10", "2.10 USD", "2 USD/GPU", "-1 USD/GPU/h", "2 EUR/GPU/h"])
def test_what_is_no_price_of_machines(text):
    with pytest.raises(ValueError, match="USD/GPU/h"):
        parse_rental_price(text)


def test_a_limit_is_not_for_each_gpu():
    with pytest.raises(ValueError, match="price per GPU"):
        parse_quantity("2.10 USD/GPU/h", UnitKind.PRICE)
    exact = exact_quantity(2.1, UnitKind.DEVICE_PRICE)
    assert parse_quantity(exact, UnitKind.DEVICE_PRICE) == 2.1
    assert format_quantity(2.1, UnitKind.DEVICE_PRICE) == "2.10 USD/GPU/h"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1e308 USD/h", PRICE),
        ("1e-300 B/s", BANDWIDTH),
        ("1e30 B/s", BANDWIDTH),
        ("1e300 s", TIME),
        ("1e-300 us", TIME),
    ],
)
def test_figures_beyond_any_machine_are_refused(text, kind):
    with pytest.raises(ValueError, match="it must be from"):
        parse_quantity(text, kind)
