"""Figures of hand-made traces; times are in µs."""

from __future__ import annotations

import pytest

from dse.traces import read_kineto, summarise
from tests.traces.helpers import call, kernel, operator, write

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


def test_waiting_is_told_from_transfer(tmp_path):
    (collective,) = summarise(two_ranks(tmp_path)).collectives
    assert (collective.operation, collective.ranks) == ("all_reduce", (0, 1))
    assert collective.transfer_s == pytest.approx(20e-6)
    assert collective.longest_wait_s == pytest.approx(30e-6)
    assert collective.last_rank == 1


def test_overlap_counts_once(tmp_path):
    write(tmp_path / "t.json", [kernel("a", 0, 10, 1), kernel("b", 5, 10, 2, stream=8)])
    (rank,) = summarise(read_kineto(tmp_path / "t.json")).ranks
    assert rank.device_busy_s == pytest.approx(15e-6)
