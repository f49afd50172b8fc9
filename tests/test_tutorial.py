"""The tutorial is true: its commands run in order, and print what the page shows."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.documents_of_users import missing_line, run_page

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.slow
def test_every_block_in_order(tmp_path):
    # One test: its blocks need each other, and workers of pytest-xdist share nothing.
    for line, module in run_page(PAGE, tmp_path):
        print(f"line {line} was not run: it needs {module}")  # noqa: T201


def test_what_needs_a_module_that_is_not_here_is_left_out_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\necho one\n```\n\n```text\none\n```\n<!-- output -->\n\n"
        "```sh\nfalse\n```\n<!-- needs: no_such_module -->\n\n"
        "```text\nnever\n```\n<!-- output -->\n\n"
        "```text\nkept\n```\n<!-- file: kept.txt -->\n\n"
        "```sh\ncat kept.txt; exit 3\n```\n<!-- exit: 3 -->\n\n"
        "```text\nkept\n```\n<!-- output -->\n"
    )
    (tmp_path / "work").mkdir()
    assert run_page(page, tmp_path / "work") == [(10, "no_such_module")]
    page.write_text(page.read_text().replace("exit 3", "exit 4"))
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError, match="exit code 4"):
        run_page(page, tmp_path / "again")


def test_a_command_may_need_several_goes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\necho x >> tries; grep -c x tries | grep 3\n```\n<!-- again: 3 -->\n")
    (tmp_path / "work").mkdir()
    assert run_page(page, tmp_path / "work") == []
    page.write_text(page.read_text().replace("again: 3", "again: 2"))
    (tmp_path / "again").mkdir()
    with pytest.raises(AssertionError, match="exit code 1"):
        run_page(page, tmp_path / "again")


def test_the_parts_of_the_way_are_all_there():
    text = PAGE.read_text()
    for command in (
        *("dse model from-csv", "dse predict", "dse run", "dse export", "dse rank", "dse shard"),
        *("dse doctor", "dse calibrate", "dse validate", "--format torchrec"),
    ):
        assert command in text, command


@pytest.mark.parametrize(
    ("expected", "printed", "tolerance", "missing"),
    [
        ("a 10 ms", "x\na   11.5 ms y", None, None),
        ("a 10 ms", "a 11 ms", 0.25, None),
        ("a 10 ms", "a 20 ms", 0.25, "a 10 ms"),
        ("a 1,000 ms", "a 2 ms, a 1,100 ms", 0.25, None),
        ("7 31.6 … 8 GPUs", "1 7 31.05 (-27 %) 8 GPUs", 0.25, None),
        ("1.05 ms", "31.05 ms", 0.25, "1.05 ms"),
        ("one …\ntwo", "one or another two", None, None),
        ("two\none", "one two", None, "one"),
        ("a (b)", "a b", None, "a (b)"),
        ("− 3 %", "− 4 %", None, None),
    ],
)
def test_outputs_are_compared_as_the_page_means_it(expected, printed, tolerance, missing):
    assert missing_line(expected, printed, tolerance) == missing
