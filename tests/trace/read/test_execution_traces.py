"""Execution traces of both schemas, and their links to Kineto traces."""

from __future__ import annotations

import json

from hypothesis import given, strategies
import numpy as np
import pytest

from dse.trace import (
    ProcessGroup,
    link_execution_trace,
    read_execution_trace,
    read_kineto,
)
from dse.trace.links._align import align
from tests.trace.helpers import call, execution_trace, kernel, new_node, node, operator, write

TENSOR = [5, 6, 0, 112, 4, "cuda:0"]


def read(path, *args, **options):
    (trace,) = read_execution_trace(execution_trace(path / "et.json", *args, **options))
    return trace


def test_the_first_schema(tmp_path):
    nodes = [
        node(8, "aten::as_strided", 7, rf=4, inputs=[TENSOR, [48], 0], shapes=[[112], [[]], []]),
        node(7, "aten::slice", 2, rf=3, seq=440, inputs=[[TENSOR, [9, *TENSOR[1:]]]]),
        node(20, "SliceBackward0", 2, rf=5, seq=440, tid=2, fw=7),
        node(
            30,
            "record_param_comms",
            2,
            inputs=[[[1, 2, 0, 16, 8, "cuda:1"]], 3, 0, "all_to_all", [1, 3], [2, 2]],
        ),
        node(2, "thread", 1),
    ]
    trace = read(tmp_path, nodes)
    assert trace.schema == "1.0.1"
    assert trace.process_id == 10
    assert trace.node_id.tolist() == [2, 7, 8, 20, 30]
    assert [trace.name_of(at) for at in range(3)] == ["thread", "aten::slice", "aten::as_strided"]
    assert trace.parent.tolist() == [-1, 0, 1, 0, 0]
    assert trace.forward.tolist() == [-1, -1, -1, 1, -1]
    assert trace.sequence.tolist() == [-1, 440, -1, 440, -1]
    assert trace.record_function.tolist() == [0, 3, 4, 5, 0]
    assert trace.thread.tolist() == [1, 1, 1, 2, 1]
    assert trace.tensors.node.tolist() == [1, 1, 2, 4]
    assert trace.tensors.tensor.tolist() == [5, 9, 5, 1]
    assert trace.tensors.storage.tolist() == [6, 6, 6, 2]
    assert not trace.tensors.is_output.any()
    assert [trace.devices[at] for at in trace.tensors.device] == ["cuda:0"] * 3 + ["cuda:1"]
    info = trace.collectives[trace.collective[4]]
    assert (info.operation, info.message_bytes, info.input_elements) == ("all_to_all", 128, 16)
    assert (info.input_splits, info.output_splits) == ((1, 3), (2, 2))


@pytest.mark.parametrize("schema", ["1.1.0-chakra.0.0.4", "1.1.1-chakra.0.0.4"])
def test_the_newer_schema(tmp_path, schema):
    groups = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}])
    described = {
        "collective_name": "broadcast",
        "dtype": "Float",
        "in_msg_nelems": 100,
        "out_msg_nelems": 100,
        "pg_size": 2,
        "pg_name": "0",
        "global_rank_start": 0,
        "global_rank_stride": 1,
        "in_split_size": "[]",
    }
    nodes = [
        new_node(3, "## process_group:init ##", 2, inputs=[groups]),
        new_node(4, "aten::mm", 2, inputs=[TENSOR], rf_id=9, seq_id=3, op_schema="mm(Tensor)"),
        new_node(6, "record_param_comms", 4, **described),
    ]
    nodes[1]["outputs"] = {"values": [TENSOR], "shapes": [[112]], "types": ["Tensor(float)"]}
    nodes[1]["inputs"]["strides"] = [[1]]
    trace = read(tmp_path, nodes, schema)
    assert trace.process_groups == (ProcessGroup("0", "default_pg", (), 2),)
    assert trace.parent.tolist() == [-1, -1, 1]
    assert trace.record_function.tolist() == [0, 9, 0]
    assert trace.op_schemas[trace.op_schema[1]] == "mm(Tensor)"
    assert trace.tensors.is_output.tolist() == [False, True]
    info = trace.collectives[trace.collective[2]]
    assert (info.operation, info.message_bytes, info.ranks) == ("broadcast", 400, (0, 1))
    assert trace.notes == ("2 nodes have no parent in the file",)


def kineto(tmp_path, events):
    (trace,) = read_kineto(write(tmp_path / "kineto.json", events))
    return trace


def test_links_by_record_function(tmp_path):
    et = read(tmp_path, [node(2, "a", 1, rf=7), node(3, "b", 2, rf=8), node(4, "c", 2, rf=9)])
    trace = kineto(
        tmp_path,
        [
            operator("b", 1, 5, **{"Record function id": 8}),
            operator("a", 10, 5, **{"Record function id": 7}),
            operator("x", 20, 5, **{"Record function id": 9}),
            call(2, 1, 4),
            kernel("k", 4, 1, 4),
        ],
    )
    links = link_execution_trace(et, trace)
    assert links.method == "record function"
    assert [trace.name_of(event) if event >= 0 else "" for event in links.event] == ["a", "b", ""]
    assert links.node[links.event[:2]].tolist() == [0, 1]
    assert (links.share, links.launching) == (1.0, 1)


def test_links_by_order(tmp_path):
    """An execution trace of the second of three equal steps, told by sequence numbers."""
    names = ["linear", "mm", "relu"]
    et = read(
        tmp_path,
        [node(2, "thread", 1)]
        + [node(3 + at, name, 2, rf=at, seq=20 + at) for at, name in enumerate(names)],
        pid=99,
    )
    events = []
    for step in range(3):
        for at, name in enumerate(names):
            ts, number = 100 * step + 10 * at, 10 * (step + 1) + at
            events += [
                operator(name, ts, 8, **{"Sequence number": number}),
                call(ts + 1, 1, number),
                kernel("k", ts + 3, 1, number),
            ]
    trace = kineto(tmp_path, events)
    links = link_execution_trace(et, trace)
    assert links.method == "order"
    assert links.event[0] == -1
    assert trace.sequence[links.event[1:]].tolist() == [20, 21, 22]
    assert (links.share, links.launching) == (1.0, 3)
    assert "different runs" in links.notes[0]


def test_nothing_in_common(tmp_path):
    et = read(tmp_path, [node(2, "a", 1)])
    links = link_execution_trace(et, kineto(tmp_path, [operator("b", 1, 1)]))
    assert links.event.tolist() == [-1]
    assert links.share == 0
    assert links.notes == (
        "no node could be linked; the traces probably belong to different runs",
    )


@pytest.mark.parametrize("new", [False, True])
def test_arguments_are_kept_on_demand_in_the_order_of_the_nodes(tmp_path, new):
    tensor = [5, 6, 0, 8, 4, "cpu"]
    given = {"inputs": [tensor, 2, "<None>"], "types": ["Tensor(float)", "Int", "None"]}
    given["shapes"] = [[2, 4], [], []]
    make = new_node if new else node
    nodes = [make(3, "aten::b", 1), make(2, "aten::a", 1, **given)]
    if new:
        nodes[1]["inputs"]["strides"] = [[1, 2], [], []]
    path = execution_trace(tmp_path / "et.json", nodes, "1.1.1-chakra.0.0.4" if new else "1.0.1")
    (trace,) = read_execution_trace(path)
    assert trace.arguments == ()
    (trace,) = read_execution_trace(path, arguments=True)
    first, second = trace.arguments
    assert first.inputs == (tensor, 2, "<None>")
    assert first.input_shapes == ([2, 4], [], [])
    assert first.input_types == ("Tensor(float)", "Int", "None")
    assert first.input_strides == (([1, 2], [], []) if new else ())
    assert second.inputs == first.outputs == ()


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("abc", "abc", [0, 1, 2]),
        ("abc", "xabyc", [1, 2, 4]),
        ("abcd", "acd", [0, -1, 1, 2]),
        ("aab", "xaabaab", [1, 2, 3]),
        ("aa", "bb", [-1, -1]),
        ("", "abc", []),
        ("aabbaabb", "aabbaabb", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("xaay", "xaazy", [0, 1, 2, 4]),
        ("xaay", "xzaay", [0, 2, 3, 4]),
    ],
)
def test_alignment(left, right, expected):
    found = align([ord(sign) for sign in left], [ord(sign) for sign in right])
    assert found.tolist() == expected


@given(
    strategies.lists(strategies.integers(0, 5), max_size=30),
    strategies.lists(strategies.integers(0, 5), max_size=60),
)
def test_alignment_keeps_order_and_names(left, right):
    found = align(left, right)
    hits = np.flatnonzero(found >= 0)
    assert all(left[at] == right[found[at]] for at in hits)
    assert np.all(np.diff(found[hits]) > 0)
