"""Figures of hand-made traces; times are in µs."""

from __future__ import annotations

import pytest

from dse.simulate import critical_path, simulate
from dse.trace import (
    compare_with_measured,
    link,
    match_collectives,
    read_kineto,
    summarise,
    summarise_path,
    trace_graph,
)
from tests.trace.helpers import call, kernel, operator, span, write

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def two_ranks(tmp_path):
    """Rank 1 arrives 30 µs later at an all-reduce that then takes 20 µs on both."""
    for rank, (start, duration) in enumerate(((40, 50), (70, 20))):
        write(
            tmp_path / f"rank{rank}.json",
            [
                operator("aten::mm", 0, 20, **{"External id": 5}),
                call(5, 5, 5),
                kernel("gemm", 12, 8, 5),
                kernel("gemm", 22, 4, 5, stream=8),
                call(30, 5, 6),
                kernel(NCCL, start, duration, 6, stream=20),
            ],
            rank=rank,
            world_size=2,
        )
    return read_kineto(tmp_path)


def sized(elements):
    """Arguments by which newer traces describe an all-reduce of two ranks."""
    return {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }


def test_totals_by_hand(tmp_path):
    first, second = summarise(two_ranks(tmp_path)).ranks
    gemm = next(total for total in first.top_kernels if total.name == "gemm")
    assert (gemm.count, gemm.total_s) == (2, pytest.approx(12e-6))
    # 8 and 4 of the products, 50 and 20 of the collective; nothing overlaps.
    assert first.device_busy_s == pytest.approx(62e-6)
    assert second.device_busy_s == pytest.approx(32e-6)
    assert (first.events, first.device_events) == (6, 3)
    assert first.span_s == pytest.approx(90e-6)
    assert first.top_kernels[0].name == NCCL
    assert {total.name for total in first.top_operators} == {"aten::mm"}
    assert (first.calls, first.calls_s) == (2, pytest.approx(10e-6))
    assert first.world_size == 2


def test_waiting_is_told_from_transfer(tmp_path):
    (collective,) = summarise(two_ranks(tmp_path)).collectives
    assert (collective.operation, collective.ranks) == ("all_reduce", (0, 1))
    assert collective.transfer_s == pytest.approx(20e-6)
    assert collective.longest_wait_s == pytest.approx(30e-6)
    assert collective.waits_s == pytest.approx((30e-6, 0))
    assert collective.last_rank == 1
    assert collective.whole
    # The traces do not tell the size.
    assert collective.algorithm_bandwidth_bytes_per_s is None


def test_overlap_counts_once(tmp_path):
    write(tmp_path / "t.json", [kernel("a", 0, 10, 1), kernel("b", 5, 10, 2, stream=8)])
    (rank,) = summarise(read_kineto(tmp_path / "t.json")).ranks
    assert rank.device_busy_s == pytest.approx(15e-6)
    assert rank.unlaunched_events == 2


def test_the_last_step_is_split_by_what_ran(tmp_path):
    """A step from 100 to 200: a copy until 110, a transfer from 120 to 170, a product from 160."""
    write(
        tmp_path / "t.json",
        [
            span("user_annotation", "ProfilerStep#3", 0, 100),
            span("user_annotation", "ProfilerStep#4", 100, 100),
            operator("aten::mm", 5, 20),
            call(10, 5, 1),
            kernel("gemm", 30, 20, 1),
            call(90, 5, 2, name="cudaMemcpyAsync"),
            kernel("Memcpy HtoD", 95, 15, 2, cat="gpu_memcpy"),
            call(110, 5, 3),
            kernel(NCCL, 120, 50, 3, stream=20),
            call(130, 5, 4),
            kernel("gemm", 160, 30, 4),
        ],
    )
    (rank,) = summarise(read_kineto(tmp_path / "t.json")).ranks
    assert [(step.number, step.measured_s) for step in rank.steps] == [
        (3, pytest.approx(100e-6)),
        (4, pytest.approx(100e-6)),
    ]
    last = rank.last_step
    assert last.cut_by == "profiler step 4"
    assert last.measured_s == pytest.approx(100e-6)
    # 10 of the copy lie in the step, 30 of the product; the transfer shares 10 with it.
    assert last.compute_s == pytest.approx(40e-6)
    assert last.communication_s == pytest.approx(50e-6)
    assert last.exposed_communication_s == pytest.approx(40e-6)
    assert last.idle_s == pytest.approx(20e-6)


def test_own_host_time_leaves_out_operators_inside(tmp_path):
    write(
        tmp_path / "t.json",
        [
            operator("outer", 0, 100),
            operator("inner", 10, 30),
            operator("innermost", 15, 5),
            operator("inner", 50, 20),
        ],
    )
    summary = summarise(read_kineto(tmp_path / "t.json"))
    (rank,) = summary.ranks
    assert [(total.name, total.count) for total in rank.top_host_operators] == [
        ("outer", 1),
        ("inner", 2),
        ("innermost", 1),
    ]
    assert [total.total_s for total in rank.top_host_operators] == pytest.approx(
        [50e-6, 45e-6, 5e-6]
    )
    # Nothing ran on a device: the CPU is the device, alone, and nobody waited.
    assert rank.last_step is not None
    assert (rank.last_step.compute_s, rank.last_step.idle_s) == pytest.approx((100e-6, 0))
    assert (rank.device_busy_s, rank.top_kernels, rank.top_operators) == (0, (), ())
    assert (summary.collectives, summary.stragglers, summary.compute_imbalance) == ((), (), None)


def test_info_and_simulation_agree_on_when_a_cpu_computes(tmp_path):
    events = [
        # It computes: 60 of its 100 µs are its own.
        operator("aten::outer", 0, 100),
        # It only calls, with 4 of 40 µs of its own, which are no computing time of the outer one.
        operator("aten::caller", 20, 40),
        operator("aten::leaf", 22, 36),
        operator("aten::last", 150, 50),
    ]
    traces = read_kineto(write(tmp_path / "rank0.json", events, rank=0))
    step = summarise(traces).ranks[0].last_step
    assert step is not None
    assert step.compute_s == pytest.approx(146e-6)
    assert step.idle_s == pytest.approx(54e-6)
    links = [link(trace) for trace in traces]
    made = trace_graph(traces, links, match_collectives(traces, links))
    (simulated,) = compare_with_measured(made, simulate(made.graph))
    assert simulated.compute_s == pytest.approx(step.compute_s)
    assert simulated.idle_s == pytest.approx(step.idle_s)


def test_the_last_step_of_a_cpu_is_split_by_when_it_computes(tmp_path):
    """Two steps of 200 µs, which compute for 80 and for 150 of them."""
    events = [
        span("user_annotation", "ProfilerStep#3", 1000, 200, pid=10, tid=11),
        operator("aten::mm", 1010, 80),
        span("user_annotation", "ProfilerStep#4", 1200, 200, pid=10, tid=11),
        operator("aten::mm", 1210, 100),
        operator("aten::add", 1330, 50),
    ]
    (rank,) = summarise(read_kineto(write(tmp_path / "t.json", events))).ranks
    assert rank.last_step.cut_by == "profiler step 4"
    assert (rank.last_step.compute_s, rank.last_step.idle_s) == pytest.approx((150e-6, 50e-6))


def test_nested_calls_count_once(tmp_path):
    write(
        tmp_path / "t.json",
        [
            call(0, 10, 1),
            span("cuda_driver", "cuLaunchKernel", 2, 5, pid=10, tid=11),
            call(0, 10, 2, tid=12),
        ],
    )
    (rank,) = summarise(read_kineto(tmp_path / "t.json")).ranks
    assert (rank.calls, rank.calls_s) == (3, pytest.approx(20e-6))


def test_bandwidth_of_algorithm_and_bus(tmp_path):
    """250,000 values of 4 bytes in 20 µs: 50 GB/s; two ranks send as much as they have."""
    for rank, (start, duration) in enumerate(((40, 50), (70, 20))):
        write(
            tmp_path / f"rank{rank}.json",
            [call(30, 5, 6), kernel(NCCL, start, duration, 6, stream=20, **sized(250_000))],
            rank=rank,
        )
    (collective,) = summarise(read_kineto(tmp_path)).collectives
    assert collective.message_bytes == 1_000_000
    assert collective.algorithm_bandwidth_bytes_per_s == pytest.approx(50e9)
    assert collective.bus_bandwidth_bytes_per_s == pytest.approx(50e9)


def test_a_collective_without_all_ranks_has_no_bandwidth_and_blames_nobody(tmp_path):
    write(
        tmp_path / "t.json",
        [call(30, 5, 6), kernel(NCCL, 40, 50, 6, stream=20, **sized(250_000))],
        rank=0,
    )
    summary = summarise(read_kineto(tmp_path / "t.json"))
    (collective,) = summary.collectives
    assert not collective.whole
    assert collective.algorithm_bandwidth_bytes_per_s is None
    assert collective.bus_bandwidth_bytes_per_s is None
    assert summary.stragglers == ()


def test_who_was_waited_for(tmp_path):
    """Three ranks, three collectives: rank 2 is last by 20 and by 5, rank 0 by 1; once a tie."""
    arrivals = ((10, 30, 50), (200, 202, 207), (303, 302, 302), (400, 400, 400))
    for rank in range(3):
        events = []
        for number, starts in enumerate(arrivals):
            end = max(starts) + 40
            events.append(call(starts[rank] - 5, 2, number + 1))
            events.append(kernel(NCCL, starts[rank], end - starts[rank], number + 1, stream=20))
        write(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=3)
    found = summarise(read_kineto(tmp_path)).stragglers
    assert [one.rank for one in found] == [2, 0, 1]
    two, zero, one = found
    assert (two.times_last, zero.times_last, one.times_last) == (2, 1, 0)
    assert two.others_waited_s == pytest.approx((40 + 20 + 7 + 5) * 1e-6)
    assert two.alone_late_s == pytest.approx((20 + 5) * 1e-6)
    assert two.waited_s == pytest.approx(1e-6)
    assert zero.others_waited_s == pytest.approx(2e-6)
    assert zero.waited_s == pytest.approx((40 + 7) * 1e-6)
    assert one.waited_s == pytest.approx((20 + 5 + 1) * 1e-6)


def test_imbalance_of_compute(tmp_path):
    for rank, lasts in enumerate((10, 20, 30)):
        write(
            tmp_path / f"rank{rank}.json",
            [call(0, 5, 1), kernel("gemm", 8, lasts, 1)],
            rank=rank,
            world_size=3,
        )
    assert summarise(read_kineto(tmp_path)).compute_imbalance == pytest.approx(0.5)


def path_of(traces):
    links = [link(trace) for trace in traces]
    made = trace_graph(traces, links, match_collectives(traces, links))
    ends = [task for tasks in made.end_tasks for task in tasks]
    return summarise_path(made, critical_path(simulate(made.graph), ends))


def test_the_critical_path_of_a_step(tmp_path):
    """Rank 1 decides until the transfer; both end together, so rank 0 ends the path."""
    traces = two_ranks(tmp_path)
    path = path_of(traces)
    assert path.length_s == pytest.approx(90e-6)
    assert sum(part.seconds for part in path.parts) == pytest.approx(path.length_s)
    assert sum(part.share for part in path.parts) == pytest.approx(1)
    assert sum(rank.seconds for rank in path.ranks) == pytest.approx(path.length_s)
    seconds = {part.part: part.seconds for part in path.parts}
    assert seconds["collectives"] == pytest.approx(20e-6)
    assert {rank.rank: rank.seconds for rank in path.ranks} == {
        0: pytest.approx(20e-6),
        1: pytest.approx(70e-6),
    }
    assert path.rank_changes == 1
    assert next(one for one in path.contributors if one.name == NCCL).count == 1
    times = [one.seconds for one in path.contributors]
    assert times == sorted(times, reverse=True)


def test_kernels_decide_where_the_host_is_ahead(tmp_path):
    """Two kernels back to back behind quick launches, then a synchronisation."""
    write(
        tmp_path / "t.json",
        [
            call(0, 5, 1),
            kernel("long", 10, 100, 1),
            call(6, 5, 2),
            kernel("long", 110, 60, 2),
            call(12, 163, 3, name="cudaDeviceSynchronize"),
        ],
    )
    path = path_of(read_kineto(tmp_path / "t.json"))
    top = path.contributors[0]
    assert (top.name, top.part, top.count) == ("long", "kernels", 2)
    assert top.seconds == pytest.approx(160e-6)
    assert top.share == pytest.approx(160 / 175)
    assert {part.part for part in path.parts} >= {"kernels", "calls", "launch delays"}


def test_a_rank_that_starts_later_is_told_from_gaps(tmp_path):
    """Rank 1's step starts 40 later and ends last."""
    for rank, late in enumerate((0, 40)):
        write(
            tmp_path / f"rank{rank}.json",
            [
                span("user_annotation", "ProfilerStep#1", late, 100),
                operator("aten::mm", late + 10, 50),
                call(late + 20, 5, 1),
                kernel("gemm", late + 30, 10, 1),
                # Gives both traces the same first moment.
                *([operator("before", 0, 1)] if late else []),
            ],
            rank=rank,
        )
    path = path_of(read_kineto(tmp_path))
    seconds = {part.part: part.seconds for part in path.parts}
    assert seconds["later start"] == pytest.approx(40e-6)
    assert path.length_s == pytest.approx(140e-6)
    assert [rank.rank for rank in path.ranks] == [1]
    assert seconds["host operators"] == pytest.approx(45e-6)
