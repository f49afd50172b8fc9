"""What of captured traces reaches a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from dse.report.terminal import (
    print_resimulation,
    print_sizes,
    print_streams,
    print_trace_summary,
)
from dse.simulate import simulate
from dse.trace import (
    SizeSummary,
    StreamSummary,
    compare_with_measured,
    link,
    match_collectives,
    read_kineto,
    summarise,
    trace_graph,
)
from tests.trace.helpers import call, kernel, operator, write


def shown(render, *arguments, width=80):
    console = Console(width=width, file=StringIO())
    render(*arguments[:1], console, *arguments[1:])
    return console.file.getvalue()


def replayed(found):
    links = [link(trace) for trace in found]
    made = trace_graph(found, links, match_collectives(found, links))
    return compare_with_measured(made, simulate(made.graph))


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
    text = shown(print_trace_summary, summarise(traces(tmp_path, name)))
    (line,) = [line for line in text.splitlines() if "void at::native" in line]
    assert "void at::native::[kernel]<xxx" in line
    assert "…" in line
    assert "1.234" in line


def test_a_note_of_several_ranks_is_printed_once(tmp_path):
    summary = summarise(traces(tmp_path))
    text = shown(print_trace_summary, summary, None, ["of the whole"], width=200)
    assert text.count("times are whole µs") == 1
    assert "note: rank 0, 1: times are whole µs" in text
    assert "note: of the whole" in text


def test_notes_of_a_replay_are_printed(tmp_path):
    ranks = replayed(traces(tmp_path))
    text = shown(print_resimulation, ranks, ["one rank is missing"])
    assert "note: one rank is missing" in text
    assert "simulated" in text


@pytest.mark.parametrize("width", [80, 60, 30])
def test_figures_keep_all_digits(tmp_path, width):
    for rank in range(2):
        mark = {
            "cat": "user_annotation",
            "ph": "X",
            "name": "ProfilerStep#1",
            "pid": 10,
            "tid": 11,
        }
        write(
            tmp_path / f"rank{rank}.json",
            [
                {**mark, "ts": 0, "dur": 4733123},
                call(0, 5, 1),
                kernel("a kernel of a long name that leaves no room", 8, 3456789, 1),
            ],
            rank=rank,
            deviceProperties=[{"id": 0, "name": "A device whose name alone is rather long"}],
        )
    found = read_kineto(tmp_path)
    text = shown(print_trace_summary, summarise(found), width=width)
    for figure in ("4733.123", "3456.789", "3456.79", "1276.334"):
        assert figure in text
    text = shown(print_resimulation, replayed(found), width=width)
    assert text.count("4733.123") == 4
    assert "1276.334" in text
    assert text.count(" 0.00 %") == 2


@pytest.mark.parametrize(("group_size", "ranks"), [(2, "2"), (4, "2 of 4")])
def test_a_collective_says_how_many_of_its_ranks_are_there(tmp_path, group_size, ranks):
    described = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
        "dtype": "Float",
        "Group size": group_size,
        "Process Group Name": "0",
    }
    for rank in range(2):
        events = [call(0, 5, 1), kernel("ncclDevKernel_AllReduce", 8, 30, 1, **described)]
        write(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=group_size)
    text = shown(print_trace_summary, summarise(read_kineto(tmp_path)), width=200)
    (row,) = [line for line in text.splitlines() if line.startswith("all_reduce ")]
    assert f"  {ranks}  " in row
    assert (" of " in row) == (group_size > 2)


def test_tables_of_operators_have_titles_of_their_own(tmp_path):
    file = write(
        tmp_path / "t.json",
        [operator("aten::mm", 0, 20), call(5, 5, 1), kernel("gemm", 12, 8, 1)],
    )
    text = shown(print_trace_summary, summarise(read_kineto(file)))
    titles = [line for line in text.splitlines() if line.startswith("operators of rank 0")]
    assert len(titles) == len(set(titles)) == 2


def test_the_cpu_is_named_where_it_is_the_device(tmp_path):
    file = write(tmp_path / "t.json", [operator("aten::mm", 0, 20)])
    text = shown(print_trace_summary, summarise(read_kineto(file)))
    (row,) = [line for line in text.splitlines() if line.split()[:2] == ["0", "CPU"]]
    assert row.split()[3:5] == ["–", "–"]
    assert "so the CPU is the device" in text


def test_names_in_brackets_are_no_markup():
    streams = [StreamSummary(0, "stream [7]", 3, 0.25)]
    assert "stream [7]" in shown(print_streams, streams)
    assert "250.000" in shown(print_streams, streams)


def test_only_the_longest_sizes_are_printed():
    sizes = [SizeSummary(size, 1, 1 / size, ("aten::mm",)) for size in range(1, 31)]
    text = shown(print_sizes, sizes)
    assert "and 10 sizes of less time" in text
    assert "record_shapes=True" in shown(print_sizes, [])
