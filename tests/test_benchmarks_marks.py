"""benchmarks/marks.py and pages.py: how figures read beside their aims, and tables."""

from __future__ import annotations

import importlib
import math

import pytest

from tests.conftest import ROOT


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_a_mark_reads_alike_when_printed_and_on_a_page(benchmark):
    percent, marks = benchmark("pages").percent, benchmark("marks")
    met = marks.Mark.of("error", 0.1, "≤", 0.1, percent)
    missed = marks.Mark.of("rate", 0.5, "≥", 0.9, percent)
    unknown = marks.Mark.of("nothing", math.nan, "≤", 0.1, percent)
    unsaid = marks.Mark("one front", "so far", "", None)
    assert [one.line for one in (met, missed, unknown, unsaid)] == [
        "met     error: 10.0 % (≤ 10.0 %)",
        "MISSED  rate: 50.0 % (≥ 90.0 %)",
        "open    nothing: – (≤ 10.0 %)",
        "open    one front: so far",
    ]
    assert marks.mark_table([met, missed]) == (
        "| target | reached | |\n"
        "|---|---:|---|\n"
        "| error | 10.0 % (≤ 10.0 %) | met |\n"
        "| rate | 50.0 % (≥ 90.0 %) | **missed** |\n"
    )


def test_the_last_side_of_a_table_lasts(benchmark):
    lines = list(benchmark("pages").table(("a", "b", "c"), "lr", [(1, 2.5, "")]))
    assert lines == ["| a | b | c |", "|---|---:|---:|", "| 1 | 2.5 | |"]


def test_what_is_not_known_is_null(benchmark):
    known = benchmark("pages").without_nan({"a": math.nan, "b": [{"c": math.nan, "d": 1.5}]})
    assert known == {"a": None, "b": [{"c": None, "d": 1.5}]}


def test_words_of_a_picture_are_no_svg(benchmark):
    drawing = benchmark("drawing")
    svg = drawing.picture("a < b", (10, 20), [drawing.text("c & d", x=1)])
    assert "<title>a &lt; b</title>" in svg
    assert '<text x="1">c &amp; d</text>' in svg
