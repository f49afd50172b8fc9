"""Links within one trace, with answers worked out by hand."""

from __future__ import annotations

from hypothesis import given, strategies
import numpy as np

from dse.trace import link, read_kineto
from dse.trace.links._nesting import innermost, parents
from tests.trace.helpers import call, kernel, operator, span, write


def read(tmp_path, events, **top):
    (trace,) = read_kineto(write(tmp_path / "trace.json", events, **top))
    return trace


def named(trace, links_column):
    """Names of what each event is linked to, by the event's name."""
    return {
        trace.name_of(event): trace.name_of(other) if other >= 0 else None
        for event, other in enumerate(links_column.tolist())
    }


def test_operator_call_and_kernel(tmp_path):
    trace = read(
        tmp_path,
        [
            span("user_annotation", "ProfilerStep#1", 0, 100),
            operator("aten::linear", 10, 30),
            operator("aten::addmm", 12, 20),
            call(15, 4, 5, name="launch 1"),
            call(35, 2, 6, name="launch 2"),
            call(60, 2, 7, name="launch 3"),
            operator("aten::other", 12, 20, tid=12),
            call(14, 1, 8, name="launch 4", tid=12),
            call(14, 1, 9, name="launch 5", tid=13),
            kernel("kernel 1", 20, 5, 5),
            kernel("kernel 2", 40, 5, 6),
            kernel("kernel 3", 65, 5, 7),
            kernel("kernel 4", 35, 5, 8),
            kernel("copy 4", 46, 5, 8, cat="gpu_memcpy"),
            kernel("kernel 6", 72, 5, 99),
            span("python_function", "train.py(3): step", 11, 40),
        ],
    )
    links = link(trace)
    launch = named(trace, links.launch)
    assert {name: launch[name] for name in launch if launch[name]} == {
        "kernel 1": "launch 1",
        "kernel 2": "launch 2",
        "kernel 3": "launch 3",
        "kernel 4": "launch 4",
        "copy 4": "launch 4",
    }
    operators = named(trace, links.operator)
    assert {name: operators[name] for name in operators if operators[name]} == {
        "aten::addmm": "aten::linear",
        "launch 1": "aten::addmm",
        "launch 2": "aten::linear",
        "launch 4": "aten::other",
        "kernel 1": "aten::addmm",
        "kernel 2": "aten::linear",
        "kernel 4": "aten::other",
        "copy 4": "aten::other",
    }
    parent = named(trace, links.parent)
    assert {name: parent[name] for name in parent if parent[name]} == {
        "aten::linear": "ProfilerStep#1",
        "aten::addmm": "aten::linear",
        "launch 1": "aten::addmm",
        "launch 2": "aten::linear",
        "launch 3": "ProfilerStep#1",
        "launch 4": "aten::other",
        "train.py(3): step": "ProfilerStep#1",
    }
    assert links.notes == (
        "1 of 6 device events have no launching call in the trace, the last starts at 72 µs",
    )


def test_equal_times_follow_the_order_of_recording(tmp_path):
    trace = read(
        tmp_path,
        [
            operator("inner", 5, 0, **{"Ev Idx": 3}),
            operator("outer", 5, 0, **{"Ev Idx": 2}),
            operator("first", 0, 5, **{"Ev Idx": 0}),
        ],
    )
    assert named(trace, link(trace).parent) == {"first": None, "outer": "first", "inner": "outer"}


def test_external_ids_name_operators(tmp_path):
    """Since PyTorch 2.1 calls carry the id of their operator, which decides ties in time."""
    trace = read(
        tmp_path,
        [
            operator("outer", 5, 9, **{"External id": 101}),
            operator("late", 7, 4, **{"External id": 102}),
            call(7, 0, 5, name="launch 1", **{"External id": 101}),
            call(8, 1, 6, name="launch 2", **{"External id": 102}),
            call(30, 1, 7, name="launch 3", **{"External id": 102}),
            kernel("kernel 1", 9, 1, 5, **{"External id": 101}),
            kernel("kernel 4", 12, 1, 50, **{"External id": 102}),
        ],
    )
    operators = named(trace, link(trace).operator)
    assert operators["launch 1"] == "outer"
    assert operators["launch 2"] == "late"
    assert operators["launch 3"] is None
    assert operators["kernel 1"] == "outer"
    assert operators["kernel 4"] == "late"


def test_a_kernel_before_its_launch_is_noted(tmp_path):
    trace = read(tmp_path, [call(5, 1, 5), kernel("k", 3, 1, 5), call(9, 1, 5)])
    assert link(trace).notes == (
        "1 calls repeat the correlation of an earlier one",
        "1 device events start before their launch, by up to 2.0 µs",
    )


def test_forward_and_backward(tmp_path):
    back = {"Fwd thread id": 1}
    trace = read(
        tmp_path,
        [
            operator("aten::linear", 1, 8, **{"Sequence number": 7}),
            operator("aten::t", 2, 1, **{"Sequence number": 7}),
            operator("aten::addmm", 4, 1, **{"Sequence number": 8, "Fwd thread id": 0}),
            operator("evaluate AddmmBackward0", 20, 9, tid=12, **{"Sequence number": 8, **back}),
            operator("AddmmBackward0", 21, 5, tid=12, **{"Sequence number": 8, **back}),
            operator("TBackward0", 40, 5, tid=12, **{"Sequence number": 7, **back}),
            operator("LostBackward0", 50, 5, tid=12, **{"Sequence number": 9, **back}),
            operator("aten::later", 60, 1, **{"Sequence number": 8}),
        ],
    )
    forward = named(trace, link(trace).forward)
    assert {name: forward[name] for name in forward if forward[name]} == {
        "evaluate AddmmBackward0": "aten::addmm",
        "AddmmBackward0": "aten::addmm",
        "TBackward0": "aten::t",
    }


def test_a_trace_without_anything_to_link(tmp_path):
    links = link(read(tmp_path, [kernel("k", 1, 1, 3)]))
    assert links.launch.tolist() == links.operator.tolist() == links.parent.tolist() == [-1]
    links = link(read(tmp_path, [operator("a", 1, 1)]))
    assert links.launch.tolist() == links.operator.tolist() == [-1]


def test_what_nccl_kernels_do_is_derived_from_what_is_around(tmp_path):
    shapes = {"Input Dims": [[4], [12], [], [], [], []], "Input type": ["int", "int", "", ""]}
    trace = read(
        tmp_path,
        [
            operator("c10d::alltoall_base_", 1, 9, **shapes),
            operator("record_param_comms", 2, 7, **{"Input Dims": [[12]]}),
            span(
                "user_annotation",
                "nccl:all_to_all",
                3,
                5,
                args={"Input Dims": [[12]], "Input type": ["int"]},
            ),
            call(4, 1, 5),
            kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 9, 2, 5),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 12, 2, 6),
            kernel("vectorized", 15, 2, 7),
        ],
        rank=0,
        world_size=4,
    )
    links = link(trace)
    first, second = links.collectives
    assert links.collective.tolist()[-3:] == [0, 1, -1]
    assert (first.operation, first.message_bytes, first.dtype) == ("all_to_all", 48, "int32")
    assert (first.input_elements, first.output_elements, first.group_size) == (12, 4, 4)
    assert (second.operation, second.message_bytes) == ("all_reduce", -1)


def test_an_operator_says_what_its_annotation_leaves_out(tmp_path):
    shapes = {"Input Dims": [[4], [12], []], "Input type": ["int", "int", ""]}
    trace = read(
        tmp_path,
        [
            operator("c10d::alltoall_base_", 1, 9, **shapes),
            span("user_annotation", "nccl:all_to_all", 3, 5),
            call(4, 1, 5),
            kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", 9, 2, 5),
        ],
        rank=0,
        world_size=4,
    )
    (found,) = link(trace).collectives
    assert (found.input_elements, found.output_elements) == (12, 4)
    assert (found.dtype, found.message_bytes) == ("int32", 48)


def slow_parent(thread, start, end, at):
    for before in range(at - 1, -1, -1):
        if thread[before] == thread[at] and end[before] >= end[at]:
            return before
    return -1


@given(
    strategies.lists(
        strategies.tuples(
            strategies.integers(0, 2), strategies.integers(0, 30), strategies.integers(0, 12)
        ),
        max_size=40,
    )
)
def test_nesting_equals_the_plain_search(spans):
    spans = sorted(spans, key=lambda item: (item[0], item[1], -item[2]))
    thread = np.array([item[0] for item in spans], dtype=np.int32)
    start = np.array([item[1] for item in spans], dtype=np.int64)
    end = start + np.array([item[2] for item in spans], dtype=np.int64)
    found = parents(thread, start, end)
    assert found.tolist() == [slow_parent(thread, start, end, at) for at in range(len(spans))]
    if len(spans):
        middle = (start + end) // 2
        inner = innermost(thread, start, end, found, thread, middle, middle)
        for at, hit in enumerate(inner.tolist()):
            assert thread[hit] == thread[at]
            assert start[hit] <= middle[at] <= end[hit]
