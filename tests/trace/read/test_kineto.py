"""Kineto traces as columns: each category, each argument, old and new spelling."""

from __future__ import annotations

from dataclasses import fields
import json

from hypothesis import given, strategies
import numpy as np
import pytest

from dse.errors import ConfigError
from dse.trace import (
    Category,
    FlowKind,
    OperatorInputs,
    ProcessGroup,
    ThreadInfo,
    link,
    read_kineto,
)
from tests.trace.helpers import call, document, kernel, operator, span, write


def read(tmp_path, events, **top):
    (trace,) = read_kineto(write(tmp_path / "trace.json", events, **top))
    return trace


@pytest.mark.parametrize(
    ("written", "category"),
    [
        ("cpu_op", Category.CPU_OP),
        ("Operator", Category.CPU_OP),
        ("cuda_runtime", Category.RUNTIME),
        ("Runtime", Category.RUNTIME),
        ("cuda_driver", Category.DRIVER),
        ("kernel", Category.KERNEL),
        ("Kernel", Category.KERNEL),
        ("gpu_memcpy", Category.MEMCPY),
        ("Memcpy", Category.MEMCPY),
        ("gpu_memset", Category.MEMSET),
        ("cuda_sync", Category.SYNC),
        ("user_annotation", Category.ANNOTATION),
        ("gpu_user_annotation", Category.GPU_ANNOTATION),
        ("python_function", Category.PYTHON),
        ("overhead", Category.OTHER),
    ],
)
def test_categories(tmp_path, written, category):
    trace = read(tmp_path, [span(written, "it", 5, 3, pid=0, tid=7)])
    assert trace.category.tolist() == [category]
    on_device = category in {3, 4, 5, 6, 8}
    assert trace.thread[0] == (-1 if on_device else 0)
    assert trace.device[0] == (0 if on_device else -1)
    stream = 7 if on_device and category != Category.SYNC else -1
    assert trace.stream[0] == stream
    assert trace.has_kernels == (category in {3, 4, 5})
    assert trace.notes == ("times are whole µs",)


def test_every_argument(tmp_path):
    first = operator(
        "aten::mm",
        10,
        20,
        **{
            "External id": 3,
            "Ev Idx": 4,
            "Record function id": 5,
            "Sequence number": 6,
            "Fwd thread id": 2,
            "Input Dims": [[2, 3], [], [[4]]],
            "Input type": ["float", "Scalar", "TensorList"],
            "Concrete Inputs": ["", "1"],
        },
    )
    copy = kernel("Memcpy HtoD", 40, 5, 9, cat="gpu_memcpy", stream=22, device=3, bytes=832)
    wait = kernel(
        "Stream Wait Event",
        50,
        1,
        12,
        cat="cuda_sync",
        wait_on_stream=20,
        wait_on_cuda_event_record_corr_id=10,
        wait_on_cuda_event_id=2,
    )
    trace = read(tmp_path, [first, copy, wait])
    assert [trace.name_of(event) for event in range(3)] == [
        "aten::mm",
        "Memcpy HtoD",
        "Stream Wait Event",
    ]
    assert trace.start_ns.tolist() == [0, 30_000, 40_000]
    assert trace.duration_ns.tolist() == [20_000, 5_000, 1_000]
    assert trace.end_ns.tolist() == [20_000, 35_000, 41_000]
    assert trace.base_time_ns == 10_000
    assert trace.external_id.tolist() == [3, -1, -1]
    assert trace.order.tolist() == [4, -1, -1]
    assert trace.record_function.tolist() == [5, -1, -1]
    assert trace.sequence.tolist() == [6, -1, -1]
    assert trace.forward_thread.tolist() == [2, -1, -1]
    assert trace.input_table == (
        OperatorInputs("[[2,3],[],[[4]]]", '["float","Scalar","TensorList"]'),
    )
    assert trace.inputs.tolist() == [0, -1, -1]
    assert trace.correlation.tolist() == [-1, 9, 12]
    assert trace.device.tolist() == [-1, 3, 0]
    assert trace.stream.tolist() == [-1, 22, 7]
    assert trace.bytes.tolist() == [-1, 832, -1]
    assert trace.wait_stream.tolist() == [-1, -1, 20]
    assert trace.wait_correlation.tolist() == [-1, -1, 10]
    assert trace.threads == (ThreadInfo("10", "11"),)


def test_no_stream_is_written_in_several_ways(tmp_path):
    sync = kernel("Context Sync", 1, 1, 2, cat="cuda_sync", stream=2**32 - 1, wait_on_stream=-1)
    trace = read(tmp_path, [sync, kernel("k", 1, 1, 2**70)])
    assert sorted(trace.stream.tolist()) == [-1, 7]
    assert trace.wait_stream.tolist() == [-1, -1]
    assert trace.correlation.max() == 2


def test_old_spellings(tmp_path):
    old = span("Operator", "aten::add", 1, 9, pid=1, tid="22", args={"external id": "7"})
    work = span("Kernel", "k", 5, 2, pid=0, tid="stream 7", args={"stream": "7", "correlation": 3})
    trace = read(tmp_path, [old, work])
    assert trace.external_id.tolist() == [7, -1]
    assert trace.stream.tolist() == [-1, 7]
    assert trace.threads == (ThreadInfo("1", "22"),)


def test_nanoseconds_and_the_base_of_time(tmp_path):
    """Newer traces give fractions of a µs from a base; a double holds these to the ns."""
    events = [operator("a", 4395367650309.173, 55.753), operator("b", 4395367650310.174, 0.001)]
    trace = read(tmp_path, events, baseTimeNanoseconds=1790857026000000000, displayTimeUnit="ms")
    assert trace.base_time_ns == 1790857026000000000 + 4395367650309173
    assert trace.start_ns.tolist() == [0, 1001]
    assert trace.duration_ns.tolist() == [55753, 1]
    assert trace.notes == ()


def test_fractions_of_late_microseconds_are_noted(tmp_path):
    trace = read(tmp_path, [operator("a", 1694128201427784.5, 1)])
    assert trace.base_time_ns == 1694128201427784500
    assert trace.notes == ("the start of the trace is so late that times are 250 ns apart",)


def test_metadata(tmp_path):
    title = {"name": "thread_name", "ph": "M", "ts": 0, "pid": 10, "tid": 11}
    trace = read(
        tmp_path,
        [
            {**title, "args": {"name": "thread 11 (python)"}},
            {"name": "process_labels", "ph": "M", "args": {"labels": "CPU"}},
            {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 9},
            {"ph": "X", "cat": "Trace", "ts": 1, "dur": 9, "pid": "Spans", "tid": "P", "name": ""},
            operator("a", 1, 1),
        ],
        deviceProperties=[{"id": 0, "name": "GPU A"}, {"id": 1, "name": "GPU B"}],
        distributedInfo={
            "rank": 3,
            "world_size": 4,
            "pg_config": [
                {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3], "pg_size": 4}
            ],
        },
    )
    assert len(trace) == 1
    assert (trace.rank, trace.world_size) == (3, 4)
    assert trace.device_names == ("GPU A", "GPU B")
    assert trace.threads == (ThreadInfo("10", "11", "thread 11 (python)"),)
    assert trace.process_groups == (ProcessGroup("0", "default_pg", (0, 1, 2, 3), 4),)


def test_profiler_steps(tmp_path):
    steps = [span("user_annotation", f"ProfilerStep#{n}", 100 * n, 90) for n in (8, 7)]
    gpu = span("gpu_user_annotation", "ProfilerStep#7", 710, 50, pid=0, tid=7)
    trace = read(tmp_path, [*steps, gpu])
    assert [(step.number, step.start_ns, step.end_ns, step.event) for step in trace.steps] == [
        (7, 0, 90_000, 0),
        (8, 100_000, 190_000, 2),
    ]


def test_collectives_of_the_file(tmp_path):
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 8,
        "Out msg nelems": 32,
        "Group size": 4,
        "dtype": "BFloat16",
        "Process Group Name": "1",
        "Process Group Description": "tp",
        "Process Group Ranks": "[0, 2, 4, 6]",
        "In split size": "[]",
        "Seq": 17,
    }
    trace = read(tmp_path, [kernel("ncclDevKernel_AllGather_RING_LL", 1, 9, 3, **args)])
    (info,) = trace.collectives
    assert trace.collective.tolist() == [0]
    assert (info.operation, info.dtype, info.group, info.group_size) == (
        "all_gather",
        "bf16",
        "1",
        4,
    )
    assert (info.input_elements, info.output_elements, info.message_bytes) == (8, 32, 64)
    assert (info.ranks, info.sequence, info.input_splits) == ((0, 2, 4, 6), 17, ())


def test_ranks_of_abridged_groups_come_from_the_description(tmp_path):
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 8,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, ..., 3]",
    }
    config = [{"pg_name": "0", "ranks": [0, 1, 2, 3], "pg_size": 4}]
    info = {"rank": 0, "world_size": 4, "pg_config": config}
    trace = read(tmp_path, [kernel("nccl", 1, 9, 3, **args)], distributedInfo=info)
    assert trace.collectives[0].ranks == (0, 1, 2, 3)
    assert trace.collectives[0].group_size == 4
    assert trace.collectives[0].message_bytes == 32


def arrow(phase, cat, number, ts, pid, tid):
    return {"ph": phase, "cat": cat, "name": cat, "id": number, "ts": ts, "pid": pid, "tid": tid}


@pytest.mark.parametrize("launch", ["ac2g", "async_gpu"])
@pytest.mark.parametrize("backward", ["fwdbwd", "forward_backward"])
def test_arrows(tmp_path, launch, backward):
    events = [
        operator("aten::mm", 1, 5, **{"Sequence number": 4}),
        operator("MmBackward0", 40, 5, tid=12, **{"Sequence number": 4, "Fwd thread id": 1}),
        call(3, 1, 77),
        kernel("k", 5, 4, 77),
        arrow("s", launch, 77, 3, 10, 11),
        {**arrow("f", launch, 77, 5, 0, 7), "bp": "e"},
        arrow("s", backward, 1, 1, 10, 11),
        arrow("f", backward, 1, 40, 10, 12),
        arrow("f", launch, 99, 3, 10, 11),
        arrow("s", "other", 5, 2, 10, 11),
        arrow("f", "other", 5, 5, 0, 7),
    ]
    trace = read(tmp_path, events)
    assert [trace.name_of(event) for event in trace.flows.source] == [
        "aten::mm",
        "cudaLaunchKernel",
    ]
    assert [trace.name_of(event) for event in trace.flows.target] == ["MmBackward0", "k"]
    assert trace.flows.kind.tolist() == [FlowKind.FORWARD_BACKWARD, FlowKind.LAUNCH]
    assert trace.notes[1:] == (
        "1 ends of flow arrows have no other end",
        "1 flow arrows start or end where no event does",
    )


def test_what_is_unknown_is_kept_and_counted(tmp_path):
    events = [operator("a", 1, 1), span("new_thing", "b", 2, 1), span("new_thing", "c", 3, 1)]
    trace = read(tmp_path, [*events, {"ph": "b", "cat": "x", "name": "y", "ts": 1}])
    assert trace.category.tolist() == [Category.CPU_OP, Category.OTHER, Category.OTHER]
    assert trace.notes[1:] == (
        "2 events of unknown category `new_thing` are kept as OTHER",
        "1 events of phase `b` are left out",
    )


def test_what_is_not_json_but_common_is_mended(tmp_path):
    text = json.dumps(document([operator("a\xe4", 1, 1, **{"Ev Idx": 2})], rank=1))
    text = text.replace('"Ev Idx": 2', '"Ev Idx": 2, "est. achieved occupancy %": nan, "b": -inf')
    path = tmp_path / "trace.json"
    path.write_bytes(text.replace("\\u00e4", "\xff").encode("latin-1"))
    (trace,) = read_kineto(path)
    assert trace.order.tolist() == [2]
    assert trace.name_of(0) == "a\ufffd"
    assert trace.notes[0] == (
        "2 values that are not numbers were taken as missing; "
        "bytes that are not UTF-8 were replaced"
    )


STEP = [
    span("user_annotation", "ProfilerStep#3", 0, 100),
    operator("aten::linear", 0, 9, **{"Ev Idx": 1, "Input Dims": [[2]], "Sequence number": 4}),
    operator("aten::addmm", 0, 9, **{"Ev Idx": 2, "Input Dims": [[3]], "Sequence number": 4}),
    operator("aten::mm", 40, 9, tid=12, **{"Sequence number": 4, "Fwd thread id": 1}),
    call(3, 1, 77),
    call(3, 1, 78),
    call(3, 1, 78, name="cudaOther"),
    kernel("k1", 5, 4, 77),
    kernel("k2", 9, 4, 78),
    kernel("k2", 9, 4, 79, stream=8),
    kernel("nccl", 9, 4, 79, stream=8, **{"Collective name": "allreduce"}),
    span("strange", "s", 9, 4),
    arrow("s", "ac2g", 77, 3, 10, 11),
    arrow("f", "ac2g", 77, 5, 0, 7),
    arrow("s", "ac2g", 77, 1, 10, 11),
]


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


def as_plain(item):
    return {
        one.name: as_plain(value) if one.name == "flows" else plain(value)
        for one in fields(item)
        if (value := getattr(item, one.name)) is not None
    }


@given(strategies.permutations(STEP))
def test_the_order_in_the_file_does_not_matter(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("traces")
    original = read(folder, STEP)
    shuffled = read(folder, events)
    assert as_plain(shuffled) == as_plain(original)
    assert as_plain(link(shuffled)) == as_plain(link(original))


def test_inputs_may_be_nested_deeply(tmp_path):
    # Deeper than all versions of Python follow.
    deep = "[" * 500_000 + "]" * 500_000
    text = json.dumps(document([operator("a", 1, 1, **{"Input Dims": "DEEP"})]))
    path = tmp_path / "trace.json"
    path.write_text(text.replace('"DEEP"', deep))
    with pytest.raises(ConfigError, match=r"nested too deeply|1 of 1 events cannot be used"):
        read_kineto(path)


def test_more_than_one_block_of_events(tmp_path):
    count = 20_000
    events = [operator(f"op{number % 7}", number, 1) for number in range(count)]
    events[10_000]["args"]["Ev Idx"] = "12"
    trace = read(tmp_path, events)
    assert len(trace) == count
    assert len(trace.names) == 7
    assert trace.order[10_000] == 12
    assert np.array_equal(trace.start_ns, 1000 * np.arange(count))
