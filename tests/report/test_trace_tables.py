"""What of captured traces reaches a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from dse.report import render_replay, render_trace_summary
from dse.simulate import simulate
from dse.traces import read_kineto, replay, summarise
from tests.traces.helpers import call, kernel, write


def shown(render, *arguments, width=80):
    console = Console(width=width, file=StringIO())
    render(*arguments[:1], console, *arguments[1:])
    return console.file.getvalue()


def traces(tmp_path, name="gemm"):
    for rank in range(2):
        write(
            tmp_path / f"rank{rank}.json",
            [call(0, 5, 1), kernel(name, 8, 1234 + rank, 1)],
            rank=rank,
        )
    return read_kineto(tmp_path)


def test_long_names_leave_room_for_numbers(tmp_path):
    name = "void at::native::[kernel]<" + 200 * "x" + ">"
    text = shown(render_trace_summary, summarise(traces(tmp_path, name)))
    (line,) = [line for line in text.splitlines() if "void at::native" in line]
    assert "void at::native::[kernel]<xxx" in line
    assert "…" in line
    assert "1.234" in line


def test_a_note_of_several_ranks_is_printed_once(tmp_path):
    summary = summarise(traces(tmp_path))
    text = shown(render_trace_summary, summary, None, ["of the whole"], width=200)
    assert text.count("times are whole µs") == 1
    assert "note: rank 0, 1: times are whole µs" in text
    assert "note: of the whole" in text


def test_notes_of_a_replay_are_printed(tmp_path):
    ranks = replay(traces(tmp_path), simulate)
    text = shown(render_replay, ranks, ["one rank is missing"])
    assert "note: one rank is missing" in text
    assert "simulated" in text
