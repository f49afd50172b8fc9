from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.calibration.microbench import (
    OPERATORS,
    Purpose,
    default_local_ranks,
    default_threads,
    make_plan,
)
from dse.calibration.microbench.plan import (
    COLLECTIVES,
    CPU_LIMITS,
    CUDA_LIMITS,
    Axis,
    KernelPoint,
    Limits,
)
from dse.errors import CalibrationError
from dse.machine import Precision

#: FBGEMM is measured where it is installed.
MEASURED = {name: spec for name, spec in OPERATORS.items() if spec.measured_on("cpu")}


@cache
def standard():
    """The plan of four ranks; not made by processes that only collect these tests."""
    return make_plan(local_ranks=4, threads=1)


def of(op: str, purpose: Purpose | None = None, plan=None) -> list[KernelPoint]:
    plan = plan or standard()
    return [point for point in plan.kernels if point.op == op and purpose in (None, point.purpose)]


@given(st.sampled_from(sorted(OPERATORS)), st.floats(0, 1, exclude_max=True))
def test_sizes_are_sensible(op, share):
    for axis in OPERATORS[op].axes:
        value = axis.value(share)
        if axis.choices:
            assert value in axis.choices
        else:
            assert isinstance(value, int)
            assert axis.low <= value <= axis.high
            assert value in (axis.low, axis.high) or value % axis.multiple == 0


def test_sizes_have_five_significant_bits_and_reach_both_ends():
    axis = Axis("m", 1, 16_384)
    values = [axis.value(share) for share in np.linspace(0, 1, 500)]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (1, 16_384)
    for value in values:
        assert value % 2 ** max(0, math.floor(math.log2(value)) - 4) == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_point_is_beyond_the_limits(device):
    limits = CPU_LIMITS if device == "cpu" else CUDA_LIMITS
    plan = make_plan(device, local_ranks=1, threads=1, points=16)
    for point in plan.kernels:
        work = OPERATORS[point.op].work(dict(point.sizes))
        assert limits.allow(work), point
        assert min(work.flops, work.traffic_bytes, work.accesses, work.memory_bytes) >= 0


def test_limits_are_parameters():
    tight = Limits(
        2.0**26, 0.001, CPU_LIMITS.flops_per_s, CPU_LIMITS.bytes_per_s, CPU_LIMITS.accesses_per_s
    )
    plan = make_plan(local_ranks=1, threads=1, points=4, limits=tight)
    assert {point.op for point in plan.kernels} == set(MEASURED)
    for point in plan.kernels:
        assert OPERATORS[point.op].work(dict(point.sizes)).memory_bytes <= 2**26
    with pytest.raises(CalibrationError, match="`embedding_forward` is within"):
        make_plan(local_ranks=1, threads=1, points=4, limits=replace(tight, memory_bytes=2.0**20))


def test_fit_and_fresh_points_are_disjoint_and_without_duplicates():
    for op in MEASURED:
        fit = [point.sizes for point in of(op, Purpose.FIT)]
        fresh = [point.sizes for point in of(op, Purpose.HELD_OUT)]
        assert len(set(fit)) == len(fit)
        assert len(set(fresh)) == len(fresh)
        assert not set(fit) & set(fresh)
        assert len(fresh) == pytest.approx(len(fit) / 3, abs=1)


def test_operators_have_their_share_and_their_sizes():
    counts = Counter(point.op for point in standard().kernels)
    assert counts == {op: 64 * spec.weight for op, spec in MEASURED.items()}
    for point in standard().kernels:
        assert [name for name, _ in point.sizes] == [a.name for a in OPERATORS[point.op].axes]
        assert point.precision == "fp32"


def test_any_prefix_covers_all_operators():
    weight = sum(spec.weight for spec in MEASURED.values())
    for rounds in (1, 3, 7):
        begun = Counter(point.op for point in standard().kernels[: rounds * weight])
        assert begun == {op: rounds * spec.weight for op, spec in MEASURED.items()}


def test_a_short_session_has_what_a_platform_needs():
    assert {point.op for point in standard().kernels[:6]} >= {"gemm", "elementwise", "memcpy_h2d"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_extremes_of_what_a_platform_needs_are_measured_first(device):
    plan = make_plan(device, local_ranks=1, threads=1, points=8)
    ordered = plan.kernels_in_order()
    assert Counter(ordered) == Counter(plan.kernels)
    # Products in each precision, a stream and a copy: the shortest of all, then the longest.
    count = 3 if device == "cpu" else 7
    for points, extreme in ((ordered[:count], min), (ordered[count : 2 * count], max)):
        assert {point.purpose for point in points} == {Purpose.FIT}
        assert len({(point.op, point.precision) for point in points}) == count
        for op in ("elementwise", "memcpy_h2d"):
            (found,) = [point.sizes for point in points if point.op == op]
            assert found == extreme(point.sizes for point in of(op, Purpose.FIT, plan))
    rest = [point for point in plan.kernels if point not in ordered[: 2 * count]]
    assert list(ordered[2 * count :]) == rest


def test_a_plan_without_basic_operators_keeps_its_order():
    plan = make_plan(local_ranks=1, threads=1, operators=["softmax"], points=4)
    assert plan.kernels_in_order() == plan.kernels


@pytest.mark.parametrize("count", [12, 24, 48, 96])
def test_prefixes_fill_the_space_better_than_random_ones(count):
    # Shares of gemm's sizes below limits nothing cuts off: every half of every axis in balance.
    wide = replace(CPU_LIMITS, memory_bytes=1e18, time_s=1e9)
    plan = make_plan(local_ranks=1, threads=1, operators=["gemm"], limits=wide)
    sizes = np.array([[value for _, value in point.sizes] for point in of("gemm", None, plan)])
    shares = np.log(sizes[:count]) / np.log(16_384)
    for axis in range(3):
        below = np.mean(shares[:, axis] < 0.5)
        assert abs(below - 0.5) <= 0.15
    filled = {tuple(cell) for cell in np.minimum(1, (2 * shares).astype(int))}
    assert len(filled) >= min(8, 7 if count < 24 else 8)


def test_plan_depends_on_the_seed_only():
    assert make_plan(local_ranks=4, threads=1) == standard()
    other = make_plan(local_ranks=4, threads=1, seed=1)
    assert other.kernels_digest() != standard().kernels_digest()
    shared = set(of("gemm")) & set(of("gemm", None, other))
    assert len(shared) < 10


def test_a_plan_keeps_its_options():
    plan = make_plan(local_ranks=4, threads=1, operators=["gemm"], points=3, collectives=False)
    assert (plan.ranks, plan.operators, plan.points) == (4, ("gemm",), 3)
    assert plan.collectives == ()
    with_them = make_plan(local_ranks=4, threads=1, operators=["gemm"], points=3)
    assert with_them.kernels == plan.kernels
    assert with_them.collectives
    assert standard().operators == tuple(MEASURED)


def test_products_in_eight_bits_have_sizes_that_tensor_cores_take():
    plan = make_plan("cuda", local_ranks=1, threads=1, operators=["gemm"])
    sizes = {
        precision: [
            size
            for point in plan.kernels
            if point.precision == precision
            for _, size in point.sizes
        ]
        for precision in ("fp8", "bf16")
    }
    assert all(size % 16 == 0 for size in sizes["fp8"])
    assert any(size % 16 for size in sizes["bf16"])
    assert min(sizes["fp8"]) < 64
    assert max(sizes["fp8"]) > 8192


def test_gpu_plan_has_all_precisions():
    plan = make_plan("cuda", local_ranks=1, threads=1)
    assert {point.precision for point in of("gemm", None, plan)} == {
        "fp32",
        "tf32",
        "fp16",
        "bf16",
        "fp8",
    }
    assert plan.collectives_backend == "nccl"
    assert plan.collectives == ()


def test_collectives_cover_operations_ranks_and_sizes():
    by_ranks = Counter(point.ranks for point in standard().collectives)
    assert list(by_ranks) == [2, 4]
    for ranks in by_ranks:
        points = [point for point in standard().collectives if point.ranks == ranks]
        # All operations at each size, both ends first.
        assert [point.op for point in points[: len(COLLECTIVES)]] == list(COLLECTIVES)
        assert list(dict.fromkeys(point.size_bytes for point in points))[:2] == [512, 2**26]
        for op in COLLECTIVES:
            sizes = {p: [] for p in Purpose}
            for point in points:
                if point.op == op:
                    sizes[point.purpose].append(point.size_bytes)
            assert sorted(sizes[Purpose.FIT]) == [2**power for power in range(9, 27)]
            assert len(sizes[Purpose.HELD_OUT]) == 6
            assert not set(sizes[Purpose.HELD_OUT]) & set(sizes[Purpose.FIT])
            assert all(512 < size < 2**26 for size in sizes[Purpose.HELD_OUT])
        assert all(point.size_bytes % (4 * ranks) == 0 for point in points)


def test_early_collective_sizes_are_spread():
    sizes = list(dict.fromkeys(point.size_bytes for point in standard().collectives))
    for count in (4, 8, 16):
        ordered = sorted(math.log2(size) for size in sizes[:count])
        largest_gap = max(b - a for a, b in pairwise(ordered))
        assert largest_gap <= 2.5 * 17 / (count - 2)


def test_ranks_and_threads_share_the_cores():
    assert default_local_ranks("cpu", 1, 2) == 2
    assert default_local_ranks("cpu", 1, 7) == 4
    assert default_local_ranks("cpu", 1, 96) == 8
    assert default_local_ranks("cuda", 6, 96) == 4
    assert default_threads(96, 8) == 12
    assert default_threads(1, 2) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "unknown device `tpu`"),
        ({"collectives_backend": "mpi"}, "unknown backend `mpi`"),
        ({"collectives_backend": "nccl"}, "nccl needs GPUs"),
        ({"operators": ["gem"]}, "unknown operator `gem`"),
        ({"threads": 0}, "at least 1"),
    ],
)
def test_impossible_plans_are_refused(changes, message):
    with pytest.raises(CalibrationError, match=message):
        make_plan(**({"local_ranks": 1, "threads": 1} | changes))


def test_a_cpu_is_measured_in_other_precisions_when_asked():
    plan = make_plan(
        local_ranks=1, threads=1, precisions=(Precision.FP32, Precision.BF16), operators=["gemm"]
    )
    counts = Counter(point.precision for point in plan.kernels)
    assert counts == {"fp32": 256, "bf16": 256}
    assert (
        plan.kernels_digest()
        != make_plan(local_ranks=1, threads=1, operators=["gemm"]).kernels_digest()
    )
