"""Progress of commands on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from dse.cli._progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    """Runs a command that shows progress; returns what a terminal got."""
    monkeypatch.setenv("TERM", "xterm")

    def run(work, terminal=True, **options):
        stream = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("first", **options) as display:
            work(display)
        return stream.getvalue()

    return run


def work(display):
    display(3, 12, remark="2 feasible")
    display(stage="second [red]")
    display(0.25, 1.0)


def test_stage_count_and_remark(shown):
    text = shown(lambda display: display(3, 12, remark="2 feasible"), patience_s=0)
    for part in ("first", "3/12", "2 feasible"):
        assert part in text
    assert "second [red]" in shown(work, patience_s=0)
    assert "25 %" in shown(work, patience_s=0)


@pytest.mark.parametrize(
    "options",
    [{"patience_s": 0, "quiet": True}, {"patience_s": 60}, {"patience_s": 0, "terminal": False}],
    ids=["quiet", "soon done", "no terminal"],
)
def test_nothing_is_shown(shown, options):
    assert shown(work, **options) == ""
