"""Tables and lines on terminals of any width: nothing but names is ever cut."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse._text.terminal import Console
from dse.report.console import Table, facts, figures, line, names, texts

WORDS = st.lists(st.text("abcdef_-", min_size=1, max_size=24), max_size=8).map(" ".join)
NUMBERS = st.integers(0, 10**9).map("{:,}".format)


def printed(show, width: int, *, terminal: bool = True) -> list[str]:
    file = io.StringIO()
    show(Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue().splitlines()


def words_of(lines) -> list[str]:
    return sorted(" ".join(lines).split())


@given(st.lists(st.tuples(NUMBERS, WORDS, WORDS), min_size=1, max_size=4), st.integers(42, 120))
def test_tables_keep_words_and_figures_and_the_width(rows, width):
    table = Table("", figures("tokens a second"), texts("what", "why"))
    for row in rows:
        table.add(*row)
    lines = printed(table.print, width)
    assert max(map(len, lines)) <= width
    assert all(text == text.rstrip() for text in lines)
    wanted = words_of(cell for row in rows for cell in row)
    found = words_of(lines)
    assert all(found.count(word) >= wanted.count(word) for word in wanted)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4), st.integers(26, 120))
def test_facts_keep_words_and_the_width(rows, width):
    lines = printed(lambda console: facts(console, rows), width)
    assert max(map(len, lines), default=0) <= width
    # A word that is longer than the line is folded.
    assert "".join(sorted("".join(lines).replace(" ", ""))) == "".join(
        sorted("".join(word for row in rows for word in row).replace(" ", ""))
    )


def test_a_value_stands_below_a_name_that_is_as_wide_as_the_console():
    rows = [("  price (capacity block, efa)", "39.33 USD/h"), ("  host", "10 us")]
    assert printed(lambda console: facts(console, rows), 34) == [
        "  price (capacity block, efa)",
        "    39.33 USD/h",
        "  host",
        "    10 us",
    ]


def test_rows_become_blocks_where_a_table_does_not_fit():
    table = Table("", figures("time, ms"), texts("plan", "why"))
    table.add("1.5", "a" * 30, "b" * 30)
    table.add("2.5", "c" * 30, "")
    assert printed(table.print, 50) == [
        f"plan      {'a' * 30}",
        f"why       {'b' * 30}",
        "time, ms  1.5",
        "",
        f"plan      {'c' * 30}",
        "time, ms  2.5",
    ]


def test_names_are_shortened_before_rows_become_blocks():
    table = Table("", names("kernel"), figures("time"))
    table.add("k" * 60, "1.25")
    _, row = printed(table.print, 40)
    assert row == f"{'k' * 33}…  1.25"


def test_lines_break_between_words_on_a_terminal_only():
    text = "one two a/path/that/is/longer/than/the/terminal three"
    path = "a/path/that/is/longer/than/the/terminal"
    assert printed(lambda console: line(console, text), 20) == ["one two", path, "three"]
    assert printed(lambda console: line(console, text), 20, terminal=False) == [text]
    command = f"  try: dse trace info {path}"
    assert printed(lambda console: line(console, command), 20) == [command]


def test_output_does_not_begin_with_an_empty_line():
    out = io.StringIO()
    console = Console(file=out, width=60)
    for title in ("first", "second"):
        table = Table(title, texts("name"))
        table.add("a")
        table.print(console)
    assert out.getvalue().splitlines() == ["first", "name", "a", "", "second", "name", "a"]


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("1", 20), ("40", 40)])
def test_a_width_at_which_nothing_can_be_read_is_not_taken(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    file = io.StringIO()
    console = Console(file=file)
    assert console.width == width
    facts(console, [("take", "8 × h100_sxm")])
    assert file.getvalue().split() == ["take", "8", "×", "h100_sxm"]
