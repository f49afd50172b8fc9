"""Streams and sizes of hand-made steps; times are in µs."""

from __future__ import annotations

import pytest

from dse.trace import link, read_kineto, size_summaries, stream_summaries, task_facts, trace_graph
from tests.trace.helpers import call, kernel, operator, write


def step(tmp_path, events):
    traces = read_kineto(write(tmp_path / "t.json", events))
    links = [link(trace) for trace in traces]
    made = trace_graph(traces, links, ())
    return made, task_facts(made, traces, links)


def shaped(*shapes):
    return {"Input Dims": [list(one) for one in shapes], "Input type": ["float"] * len(shapes)}


def test_work_of_streams_without_pauses(tmp_path):
    made, _ = step(
        tmp_path,
        [
            operator("aten::mm", 0, 20),
            call(5, 5, 1),
            kernel("gemm", 15, 8, 1),
            operator("aten::mm", 40, 10),
            call(42, 5, 2),
            kernel("gemm", 60, 30, 2, stream=9),
            kernel("gemm", 95, 5, 2, stream=9),
        ],
    )
    streams = {one.stream: one for one in stream_summaries(made)}
    # The thread works from 0 to 20 and from 40 to 50: 5, a call of 5, 10; 2, a call of 5, 3.
    assert streams["thread 11"].busy_s == pytest.approx(30e-6)
    assert streams["thread 11"].tasks == 6
    assert (streams["device 0 stream 9"].tasks, streams["device 0 stream 9"].rank) == (2, 0)
    assert streams["device 0 stream 9"].busy_s == pytest.approx(35e-6)
    assert streams["device 0 stream 7"].busy_s == pytest.approx(8e-6)


def test_time_of_sizes(tmp_path):
    made, facts = step(
        tmp_path,
        [
            operator("aten::mm", 0, 20, **shaped([64, 32], [32, 16])),
            call(5, 5, 1),
            kernel("gemm", 15, 8, 1),
            operator("aten::relu", 40, 10, **shaped([64, 16])),
            call(42, 5, 2),
            kernel("relu", 60, 30, 2),
            operator("aten::unknown", 70, 10),
            call(72, 5, 3),
            kernel("unknown", 90, 50, 3),
        ],
    )
    sizes = size_summaries(made, facts)
    assert [one.size for one in sizes] == [16, 64, 32]
    assert [one.seconds for one in sizes] == pytest.approx([38e-6, 38e-6, 8e-6])
    assert [one.tasks for one in sizes] == [2, 2, 1]
    assert sizes[0].operators == ("aten::relu", "aten::mm")
    assert sizes[2].operators == ("aten::mm",)


def test_no_shapes_no_sizes(tmp_path):
    made, facts = step(tmp_path, [operator("aten::mm", 0, 20)])
    assert size_summaries(made, facts) == ()
