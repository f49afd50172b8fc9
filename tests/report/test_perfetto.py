"""Time lines in the trace-event format, event by event."""

from __future__ import annotations

import gzip
from itertools import pairwise
import json

from hypothesis import given
import numpy as np
import pytest

from dse.errors import StudyError
from dse.graph import GraphBuilder, TaskKind
from dse.report import write_timeline
from dse.simulate import critical_path, simulate
from tests.simulate.random_graphs import graphs


def two_ranks():
    """Rank 1 arrives at 3 µs, rank 0 at 1 µs; the transfer takes 2 and 0.5 µs."""
    builder = GraphBuilder()
    streams = [builder.add_stream(rank, name) for rank in (0, 1) for name in ("host", "stream 7")]
    early = builder.add_task("early", TaskKind.HOST, streams[0], 1e-6)
    late = builder.add_task("late", TaskKind.HOST, streams[2], 3e-6)
    on_0 = builder.add_task("all_reduce", TaskKind.COLLECTIVE, streams[1], 2e-6, (early,))
    on_1 = builder.add_task("all_reduce", TaskKind.COLLECTIVE, streams[3], 0.5e-6, (late,))
    builder.add_collective([on_0, on_1])
    builder.add_task("product", TaskKind.COMPUTE, streams[1], 4e-6)
    return simulate(builder.build())


def written(path, timeline, **options):
    write_timeline(timeline, path, **options)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def slices(document, process=None):
    return [
        event
        for event in document["traceEvents"]
        if event["ph"] == "X" and process in (None, event["pid"])
    ]


def check(document):
    """Asserts what viewers rely on."""
    assert isinstance(document["traceEvents"], list)
    named, used, ends = set(), set(), {}
    for event in document["traceEvents"]:
        assert event["ph"] in "MXsf"
        assert isinstance(event["name"], str)
        place = (event["pid"], event["tid"])
        assert all(isinstance(part, int) for part in place)
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                named.add(place)
            assert event["args"]
            continue
        used.add(place)
        assert event["ts"] >= 0
        assert isinstance(event["cat"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        else:
            ends.setdefault(event["id"], []).append(event)
    assert used <= named
    assert len({thread for _, thread in named}) == len(named)
    for place in used:
        row = [event for event in slices(document) if (event["pid"], event["tid"]) == place]
        for before, after in pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    for source, target in ends.values():
        assert (source["ph"], target["ph"], target["bp"]) == ("s", "f", "e")
        assert source["ts"] <= target["ts"]


def test_ranks_are_processes_and_streams_threads(tmp_path):
    document = written(tmp_path / "t.json", two_ranks(), title="hand-made")
    check(document)
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]
        for event in document["traceEvents"]
        if event["ph"] == "M"
    }
    assert names["process_name", 0, 0] == {"name": "rank 0"}
    assert names["process_sort_index", 1, 0] == {"sort_index": 1}
    assert names["thread_name", 1, 4] == {"name": "stream 7"}
    assert names["thread_sort_index", 1, 4] == {"sort_index": 3}
    assert document["otherData"]["title"] == "hand-made"
    assert document["otherData"]["makespan_us"] == pytest.approx(9)


def test_waiting_is_a_slice_before_the_transfer(tmp_path):
    document = written(tmp_path / "t.json", two_ranks())
    shown = [(event["name"], event["ts"], event["dur"]) for event in slices(document, 0)]
    assert shown == [
        ("early", 0, 1),
        ("wait: all_reduce", 1, 2),
        ("all_reduce", 3, 2),
        ("product", 5, 4),
    ]
    transfer = slices(document, 0)[2]
    assert transfer["cat"] == "collective"
    assert transfer["args"] == {"task": 2, "kind": "collective", "collective": 0, "waited_us": 2}
    assert [event["name"] for event in slices(document, 1)] == ["late", "all_reduce"]


def test_the_critical_path_is_marked_drawn_and_repeated(tmp_path):
    timeline = two_ranks()
    document = written(tmp_path / "t.json.gz", timeline, critical=critical_path(timeline))
    check(document)
    marked = [event["name"] for event in slices(document) if "critical" in event["args"]]
    # In order of index: `late`, the transfer on rank 0, what follows it.
    assert marked == ["late", "all_reduce", "product"]
    assert [(event["name"], event["ts"], event["dur"]) for event in slices(document, 2)] == [
        ("late", 0, 3),
        ("all_reduce", 3, 2),
        ("product", 5, 4),
    ]
    arrows = [event for event in document["traceEvents"] if event["ph"] in "sf"]
    # From rank 1's host to rank 0's stream; the rest of the path stays there.
    assert [(event["ph"], event["pid"], event["tid"], event["ts"]) for event in arrows] == [
        ("s", 1, 3, 2.999),
        ("f", 0, 2, 3),
    ]


def test_equal_time_lines_are_equal_files(tmp_path):
    first, second = tmp_path / "a.json.gz", tmp_path / "b.json.gz"
    write_timeline(two_ranks(), first)
    write_timeline(two_ranks(), second)
    assert first.read_bytes() == second.read_bytes()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="cannot write"):
        write_timeline(two_ranks(), tmp_path / "file" / "t.json")


@given(graphs())
def test_any_time_line_keeps_the_rules_and_every_task(tmp_path_factory, graph):
    timeline = simulate(graph)
    path = tmp_path_factory.mktemp("timeline") / "t.json"
    document = written(path, timeline, critical=critical_path(timeline))
    check(document)
    tasks = [event for event in slices(document) if "kind" in event["args"]]
    assert [event["args"]["task"] for event in tasks] == list(range(graph.task_count))
    starts = np.array([event["ts"] for event in tasks])
    lasts = np.array([event["dur"] for event in tasks])
    np.testing.assert_allclose(starts, 1e6 * timeline.start_s, atol=1e-3)
    np.testing.assert_allclose(lasts, 1e6 * graph.duration_s, atol=2e-3)
