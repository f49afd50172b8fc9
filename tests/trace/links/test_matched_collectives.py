"""The same collective on several ranks, with answers worked out by hand."""

from __future__ import annotations

import pytest

from dse.trace import match_collectives, read_kineto
from dse.trace.read._collectives import dtype_name, operation_of, operation_of_kernel, peers_of
from tests.trace.helpers import call, kernel, operator, span, write


def collective(number, ts, name="allreduce", elements=8, **args):
    described = {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        **args,
    }
    return [call(ts, 1, number), kernel("ncclDevKernel_X", ts + 3, 2, number, **described)]


def match(tmp_path, *ranks, world_size=2):
    for rank, events in enumerate(ranks):
        flat = [operator("aten::any", 9, 1)] + [event for group in events for event in group]
        write(tmp_path / f"rank{rank}.json", flat, rank=rank, world_size=world_size)
    return read_kineto(tmp_path), match_collectives(read_kineto(tmp_path))


def test_by_operation_size_group_and_order(tmp_path):
    first = [collective(1, 10), collective(2, 20, elements=99), collective(3, 30)]
    # The other rank launches the large one earlier, and from another clock.
    second = [collective(5, 110, elements=99), collective(6, 120), collective(7, 130)]
    traces, collectives = match(tmp_path, first, second)
    assert [(collective.message_bytes, collective.ordinal) for collective in collectives] == [
        (32, 0),
        (396, 0),
        (32, 1),
    ]
    assert all(collective.complete and collective.ranks == (0, 1) for collective in collectives)
    correlations = [
        tuple(
            int(traces[rank].correlation[event])
            for rank, event in zip(collective.ranks, collective.events, strict=True)
        )
        for collective in collectives
    ]
    assert correlations == [(1, 6), (2, 5), (3, 7)]


def test_steps_keep_a_cut_start_from_shifting_the_rest(tmp_path):
    def steps(*numbers):
        return [
            [span("user_annotation", f"ProfilerStep#{n}", 100 * n, 90, pid=10, tid=11)]
            for n in numbers
        ]

    first = [*steps(1, 2), collective(1, 110), collective(2, 210)]
    second = [*steps(1, 2), collective(2, 210)]
    _, collectives = match(tmp_path, first, second)
    assert [
        (collective.step, collective.ranks, collective.missing_ranks) for collective in collectives
    ] == [
        (1, (0,), (1,)),
        (2, (0, 1), ()),
    ]
    assert not collectives[0].complete


def test_sequence_numbers_decide_where_there_are_some(tmp_path):
    first = [collective(1, 10, Seq=4), collective(2, 20, Seq=5)]
    second = [collective(1, 10, Seq=5), collective(2, 20, Seq=6)]
    _, collectives = match(tmp_path, first, second)
    assert [(collective.sequence, collective.ranks) for collective in collectives] == [
        (4, (0,)),
        (5, (0, 1)),
        (6, (1,)),
    ]


def test_kernels_of_one_sequence_number_are_counted(tmp_path):
    events = [collective(1, 10, Seq=4), collective(2, 20, Seq=4)]
    _, collectives = match(tmp_path, events, events)
    assert [
        (collective.sequence, collective.ordinal, collective.ranks) for collective in collectives
    ] == [
        (4, 0, (0, 1)),
        (4, 1, (0, 1)),
    ]


def test_a_group_of_unknown_ranks(tmp_path):
    events = [collective(1, 10)]
    _, collectives = match(tmp_path, events, events, [], world_size=3)
    assert [(collective.ranks, collective.complete) for collective in collectives] == [
        ((0, 1), True)
    ]
    _, collectives = match(tmp_path, events, [], [], world_size=3)
    assert [(collective.missing_ranks, collective.complete) for collective in collectives] == [
        ((), False)
    ]


def test_ranks_without_a_trace(tmp_path):
    described = {"Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"}
    events = [collective(1, 10, **described)]
    _, collectives = match(tmp_path, events, events, world_size=4)
    assert collectives[0].complete
    assert collectives[0].untraced_ranks == (2, 3)


def test_groups_are_kept_apart(tmp_path):
    first = [collective(1, 10, **{"Process Group Ranks": "[0]", "Group size": 1})]
    second = [collective(1, 10, **{"Process Group Ranks": "[1]", "Group size": 1})]
    _, collectives = match(tmp_path, first, second)
    assert [collective.ranks for collective in collectives] == [(0,), (1,)]
    assert all(collective.complete for collective in collectives)


def test_all_to_all_may_be_uneven(tmp_path):
    first = [collective(1, 10, "all_to_allv", 8)]
    second = [collective(1, 10, "all_to_allv", 24)]
    _, collectives = match(tmp_path, first, second)
    assert [(collective.ranks, collective.message_bytes) for collective in collectives] == [
        ((0, 1), 96)
    ]


def test_send_meets_receive(tmp_path):
    ends = {"Src Rank": 0, "Dst Rank": 1}
    _, collectives = match(
        tmp_path, [collective(1, 10, "send", **ends)], [collective(1, 10, "recv", **ends)]
    )
    assert [(collective.operation, collective.ranks) for collective in collectives] == [
        ("send_recv", (0, 1))
    ]


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("nccl:all_reduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("gloo:broadcast", "broadcast"),
        ("nccl:send 0->1", "send"),
        ("reduce", "reduce"),
        ("barrier", "barrier"),
        ("wait", "wait"),
    ],
)
def test_names_of_operations(written, ours):
    assert operation_of(written) == ours


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send_recv"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("void ncclDevKernel_AllGather_RING_LL(x)", "all_gather"),
        ("ncclDevKernel_Generic_1(x)", "unknown"),
        ("vectorized_elementwise_kernel", ""),
    ],
)
def test_names_of_kernels(written, ours):
    assert operation_of_kernel(written) == ours


def test_peers_and_types():
    assert peers_of("nccl:send 0->1") == (0, 1)
    assert peers_of("nccl:recv 3<-2") == (2, 3)
    assert peers_of("nccl:all_reduce") == (-1, -1)
    assert [dtype_name(name) for name in ("c10::BFloat16", "Long", "float", "Float8_e4m3fn")] == [
        "bf16",
        "int64",
        "fp32",
        "fp8",
    ]
