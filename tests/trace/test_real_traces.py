"""The readers on published traces."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dse.trace import (
    Category,
    FlowKind,
    link_execution_trace,
    match_collectives,
    read_execution_trace,
)
from tests.trace.published import FOLDER, needs_published_traces, published

pytestmark = needs_published_traces


@pytest.fixture(scope="session")
def dlrm():
    return published("dlrm")[0]


def counted(trace):
    return {
        Category(value).name: count
        for value, count in sorted(Counter(trace.category.tolist()).items())
    }


def test_dlrm_events(dlrm):
    assert [trace.rank for trace in dlrm] == list(range(8))
    assert {trace.world_size for trace in dlrm} == {8}
    assert counted(dlrm[0]) == {
        "CPU_OP": 1633,
        "RUNTIME": 525,
        "KERNEL": 245,
        "MEMCPY": 16,
        "ANNOTATION": 40,
    }
    assert set(dlrm[0].device_names) == {"Tesla V100-SXM2-32GB"}
    assert [[step.number for step in trace.steps] for trace in dlrm] == [[10]] * 8
    assert dlrm[0].base_time_ns == 1694128201426674000
    assert dlrm[0].steps[0].end_ns == 14455_000
    for trace in dlrm:
        work = trace.where(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
        assert set(trace.device[work]) == {trace.rank}
        assert set(trace.stream[work]) == {7, 22, 24, 84}
        assert len(trace.threads) == 2
        assert set(trace.flows.kind) == {FlowKind.LAUNCH}


def test_dlrm_links():
    alone = []
    for trace, links in zip(*published("dlrm"), strict=True):
        work = trace.where(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
        alone.append(int((links.launch[work] < 0).sum()))
        launched = work & (links.launch >= 0)
        assert (links.operator[launched] >= 0).all()
        backward = trace.forward_thread > 0
        assert backward.sum() == 76
        assert (links.forward[backward] >= 0).all()
        # The arrows of the file say the same as the correlations.
        assert np.array_equal(links.launch[trace.flows.target], trace.flows.source)
    # Two ranks still ran kernels that were launched before the profiler began.
    assert alone == [0, 64, 0, 64, 0, 0, 0, 0]


def test_dlrm_collectives_meet(dlrm):
    collectives = match_collectives(*published("dlrm"))
    assert all(collective.complete and len(collective.ranks) == 8 for collective in collectives)
    assert [(collective.operation, collective.message_bytes) for collective in collectives] == [
        ("all_to_all", 24576),
        ("all_to_all", 192),
        ("all_to_all", 1536),
        ("all_to_all", 13568),
        ("all_reduce", 394241 * 4),
        ("all_to_all", 24576),
        ("all_reduce", 112 * 4),
        ("all_reduce", 226960 * 4),
    ]
    for collective in collectives:
        ends = [
            dlrm[rank].base_time_ns + int(dlrm[rank].end_ns[event])
            for rank, event in zip(collective.ranks, collective.events, strict=True)
        ]
        # One host, one clock: all leave together, however long they waited.
        assert max(ends) - min(ends) <= 10_000


def test_dlrm_execution_traces():
    traces = read_execution_trace(FOLDER / "dlrm_pytorch_et.tar.gz")
    assert [trace.rank for trace in traces] == list(range(8))
    assert {trace.schema for trace in traces} == {"1.0.1"}
    right = wrong = 0
    for et, trace, links in zip(traces, *published("dlrm"), strict=True):
        found = link_execution_trace(et, trace, links)
        assert len(et) == 1675
        assert (found.event >= 0).sum() == 1672
        assert (found.method, found.share, found.notes) == ("order", 1.0, ())
        # The tree by times is the tree that the execution trace recorded.
        nodes = np.flatnonzero((found.event >= 0) & (et.parent >= 0))
        nodes = nodes[found.event[et.parent[nodes]] >= 0]
        same = links.parent[found.event[nodes]] == found.event[et.parent[nodes]]
        right, wrong = right + int(same.sum()), wrong + int((~same).sum())
    assert (right, wrong) == (12534, 2)


@pytest.mark.parametrize(
    ("name", "counts", "streams"),
    [
        (
            "linear",
            {
                "CPU_OP": 36998,
                "RUNTIME": 14515,
                "KERNEL": 8716,
                "MEMSET": 1640,
                "ANNOTATION": 80,
            },
            {7},
        ),
        (
            "resnet",
            {
                "CPU_OP": 39416,
                "RUNTIME": 25928,
                "KERNEL": 9628,
                "MEMCPY": 123,
                "MEMSET": 362,
                "ANNOTATION": 90,
            },
            {7, 20, 36},
        ),
    ],
)
def test_single_gpu_traces(name, counts, streams):
    (trace,), (links,) = published(name)
    assert counted(trace) == counts
    work = trace.where(Category.KERNEL, Category.MEMCPY, Category.MEMSET)
    assert set(trace.stream[work]) == streams
    assert (links.launch[work] >= 0).all()
    assert (links.operator[work] >= 0).all()
    assert (links.forward[trace.forward_thread > 0] >= 0).all()
    assert np.array_equal(links.launch[trace.flows.target], trace.flows.source)


def test_linear_execution_trace():
    (trace,), (links,) = published("linear")
    (et,) = read_execution_trace(FOLDER / "linear_et.json.gz")
    found = link_execution_trace(et, trace, links)
    assert (len(et), int((found.event >= 0).sum())) == (931, 928)
    assert (found.share, found.launching) == (1.0, 219)


@pytest.mark.parametrize(("name", "size", "step"), [("resnet", 1, 6), ("resnet_2gpu", 2, 4)])
def test_newer_execution_traces(name, size, step):
    (et,) = read_execution_trace(FOLDER / f"{name}_et.json.gz")
    assert et.schema == "1.1.0-chakra.0.0.4"
    assert len(et) == 14392
    assert f"ProfilerStep#{step}" in et.names
    assert [group.size for group in et.process_groups] == [size]
    operations = Counter(
        et.collectives[number].operation for number in et.collective[et.collective >= 0].tolist()
    )
    assert operations == {"broadcast": 6, "all_reduce": 15, "wait": 6}
    assert {
        et.collectives[number].ranks
        for number in et.collective[et.collective >= 0].tolist()
        if et.collectives[number].operation != "wait"
    } == {tuple(range(size))}


def test_an_execution_trace_of_another_run_is_noted():
    (trace,), (links,) = published("resnet")
    (et,) = read_execution_trace(FOLDER / "resnet_et.json.gz")
    found = link_execution_trace(et, trace, links)
    assert "different runs" in found.notes[0]
    assert found.share < 0.7
