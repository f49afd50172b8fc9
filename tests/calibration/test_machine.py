"""From a session of measurements to a platform."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dse.calibration import fit_machine, write_machine
from dse.calibration.microbench import (
    CollectiveMeasurement,
    HostMeasurement,
    KernelMeasurement,
    MachineInfo,
    Purpose,
    SessionResult,
)
from dse.errors import CalibrationError
from dse.machine import Precision
from dse.machine.collectives import CollectiveOp, inside_time_s
from dse.machine.kernels import gemm_estimate, host_copy_time_s, streaming_reference_s

MACHINE = MachineInfo(
    device="cpu",
    device_name="made-up CPU",
    device_count=1,
    compute_units=2,
    driver="",
    cores=2,
    memory_bytes=16 * 2**30,
    last_level_cache_bytes=32 * 2**20,
    operating_system="Linux",
    libraries=(("torch", "2.13.0"),),
)
HOST = HostMeasurement(1e-6, 2e-6, 0.0, 1e-6, 0.0, None, 1e-8)


def kernel(op: str, sizes: dict[str, float], time_s: float, index: int) -> KernelMeasurement:
    purpose = Purpose.HELD_OUT if index % 4 == 3 else Purpose.FIT
    return KernelMeasurement(
        op, tuple(sizes.items()), "fp32", purpose, float(time_s), time_s / 100, 20
    )


def session(count: int = 60) -> SessionResult:
    """50 GFLOP/s, 20 GB/s, 2 µs a kernel; a copy as fast; 1 GB/s between the ranks."""
    rng = np.random.default_rng(0)
    kernels = []
    for index in range(count):
        m, n, k = np.exp(rng.uniform(2, 7, 3)).round()
        kernels.append(
            kernel("gemm", {"m": m, "n": n, "k": k}, 2e-6 + 2 * m * n * k / 50e9, index)
        )
        traffic = float(np.exp(rng.uniform(9, 20)).round())
        kernels.append(
            kernel("elementwise", {"traffic_bytes": traffic}, 2e-6 + traffic / 20e9, index)
        )
        kernels.append(kernel("memcpy_h2d", {"size_bytes": traffic}, 1e-6 + traffic / 20e9, index))
        sizes = {
            "rows": np.exp(rng.uniform(8, 14)).round(),
            "dim": float(rng.choice([16, 32, 64])),
            "batch": np.exp(rng.uniform(5, 8)).round(),
            "pooling": np.exp(rng.uniform(0, 3)).round(),
            "alpha": 0.0,
            "value_bytes": 4.0,
        }
        looked_up = sizes["batch"] * sizes["pooling"] * sizes["dim"] * 4
        kernels.append(kernel("embedding_forward", sizes, 2e-6 + looked_up / 5e9, index))
    collectives = [
        CollectiveMeasurement(
            "all_reduce",
            2,
            size,
            Purpose.HELD_OUT if size & (size - 1) else Purpose.FIT,
            1e-4 + size / 1e9,
            1e-6,
            20,
        )
        for power in range(10, 24)
        for size in (2**power, 3 * 2 ** (power - 1))
    ]
    return SessionResult(
        MACHINE,
        1,
        "gloo",
        "2026-02-03T04:05:06",
        tuple(kernels),
        tuple(collectives),
        HOST,
        (),
        300,
    )


def test_products_in_eight_bits_have_a_rate_and_a_fit_of_their_own(tmp_path):
    result = session()
    twice_as_fast = tuple(
        replace(point, precision="fp8", time_s=2e-6 + (point.time_s - 2e-6) / 2)
        for point in result.kernels
        if point.op == "gemm"
    )
    machine = fit_machine("here", replace(result, kernels=(*result.kernels, *twice_as_fast)), 2)
    peak = machine.device.peak
    assert peak.fp8_flops_per_s == pytest.approx(2 * peak.fp32_flops_per_s, rel=0.05)
    again = write_machine(machine, tmp_path / "here.yaml").device
    assert again.peak.fp8_flops_per_s == pytest.approx(peak.fp8_flops_per_s, rel=1e-3)
    sizes = np.array([1024.0])
    times = [
        float(gemm_estimate(again, sizes, sizes, sizes, precision).time_s[0])
        for precision in (Precision.FP8, Precision.FP32)
    ]
    assert times[0] == pytest.approx(times[1] / 2, rel=0.15)


def test_figures_of_the_device_are_the_best_that_was_measured():
    machine = fit_machine("here", session(), 2)
    device = machine.device
    assert device.peak.fp32_flops_per_s == pytest.approx(50e9, rel=0.05)
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(20e9, rel=0.1)
    assert device.kernel_floor_s == pytest.approx(2.5e-6, rel=0.5)
    assert device.memory_bytes == 8 * 2**30
    # Line rates are what the formulas need to meet the best that was measured.
    copy_s = float(host_copy_time_s(machine.host_link, 1e8))
    assert copy_s == pytest.approx(1e-6 + 1e8 / 20e9, rel=0.02)
    assert machine.link is not None
    reduce_s = inside_time_s(machine.link, CollectiveOp.ALL_REDUCE, np.array([1.0, 1e9]), 2)
    assert reduce_s == pytest.approx([1e-4, 1.0], rel=0.05)
    assert device.peak.fp8_flops_per_s is None
    # Times of CPU operators hold their dispatch: only the time between operators is left.
    assert (machine.host.between_operators_s, machine.host.launch_s) == (1e-6, 0.0)


def test_laws_are_learned_and_checked_on_held_out_points():
    machine = fit_machine("here", session(), 2)
    fitted = {kernel.op: kernel for kernel in machine.kernels}
    assert set(fitted) == {"gemm", "elementwise", "embedding_forward", "memcpy_h2d"}
    for op, most in (("gemm", 0.1), ("elementwise", 0.03), ("embedding_forward", 0.25)):
        assert fitted[op].held_out.points == 15
        assert fitted[op].held_out.gmae < most, op
        assert "held-out" in fitted[op].held_out.rule
    (reduce,) = machine.collectives
    assert reduce.held_out.points == 14
    assert reduce.held_out.mape < 0.03


def test_fits_that_the_formula_beats_are_left_out():
    usual = session()
    device = fit_machine("here", usual, 2).device
    rng = np.random.default_rng(1)
    points = []
    for index in range(60):
        rows, columns = np.exp(rng.uniform(3, 7, 2)).round()
        sizes = {"rows": rows, "columns": columns}
        formula_s = streaming_reference_s(device, "softmax", {**sizes, "value_bytes": 4})
        noise = 1.0 if index % 4 == 3 else float(np.exp(rng.normal(0, 2)))
        points.append(kernel("softmax", sizes, noise * float(formula_s), index))
    machine = fit_machine("here", replace(usual, kernels=usual.kernels + tuple(points)), 2)
    (reason,) = [line for line in machine.left_out if line.startswith("softmax")]
    assert "the formula is kept" in reason


def test_held_out_points_do_not_enter_the_device():
    usual = session()
    spoiled = tuple(
        replace(point, time_s=point.time_s / 100) if point.purpose is Purpose.HELD_OUT else point
        for point in usual.kernels
    )
    spoiled_device = fit_machine("here", replace(usual, kernels=spoiled), 2).device
    assert spoiled_device == fit_machine("here", usual, 2).device


def test_two_precisions_of_one_operator_stay_apart():
    usual = session()
    doubled = tuple(
        replace(point, precision="bf16", time_s=point.time_s / 2)
        for point in usual.kernels
        if point.op == "elementwise"
    )
    machine = fit_machine("here", replace(usual, kernels=usual.kernels + doubled), 2)
    found = {kernel.precisions for kernel in machine.kernels if kernel.op == "elementwise"}
    assert found == {("fp32",), ("bf16",)}


def test_too_few_points_are_left_out_and_listed():
    few = session(4)
    machine = fit_machine("here", replace(few, collectives=few.collectives[:4]), 2)
    assert not machine.kernels
    assert not machine.collectives
    assert sum("too few" in line for line in machine.left_out) == 5


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"kernels": ()}, "GEMM in fp32, elementwise, copies from the host"),
        ({"kernels": session().kernels[:1]}, "before elementwise, copies from the host"),
        ({"host": None}, "host overheads were not measured"),
    ],
)
def test_without_basic_figures_there_is_no_platform(missing, message):
    with pytest.raises(CalibrationError, match=message):
        fit_machine("here", replace(session(), **missing), 2)


def of_sizes(
    streams: tuple[float, ...], copies: tuple[float, ...], *, device: str = "cpu"
) -> SessionResult:
    """The session with streams and copies of these sizes only, by its laws."""
    usual = session()
    kept = [one for one in usual.kernels if one.op not in ("elementwise", "memcpy_h2d")]
    kept += [
        kernel("elementwise", {"traffic_bytes": size}, 2e-6 + size / 20e9, 0) for size in streams
    ]
    kept += [kernel("memcpy_h2d", {"size_bytes": size}, 1e-6 + size / 8e9, 0) for size in copies]
    machine = replace(MACHINE, device=device)
    return replace(usual, kernels=tuple(kept), machine=machine)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_two_streams_and_two_copies_tell_floors_and_rates(device):
    # The bytes of the short ones take a third of their time.
    result = of_sizes((2e4, 2e8), (4e3, 1e8), device=device)
    machine = fit_machine("here", result, 1)
    assert machine.device.kernel_floor_s == pytest.approx(2e-6, rel=0.01)
    assert machine.device.memory_bandwidth_bytes_per_s == pytest.approx(20e9, rel=0.01)
    assert machine.host_link.latency_s == pytest.approx(1e-6, rel=0.01)
    assert float(host_copy_time_s(machine.host_link, 1e8)) == pytest.approx(1e8 / 8e9, rel=0.01)
    assert machine.host_link_assumed == ""


def test_few_bytes_belong_to_the_fixed_time():
    machine = fit_machine("here", of_sizes((1e3, 2e8), (1e3, 1e8)), 1)
    assert machine.device.kernel_floor_s == pytest.approx(2e-6 + 1e3 / 20e9)
    assert machine.host_link.latency_s == pytest.approx(1e-6 + 1e3 / 8e9)


@pytest.mark.parametrize("streams", [(142e6,), (1e3,), (1e6, 142e6)])
def test_streams_that_do_not_tell_the_floor_make_no_platform(streams):
    with pytest.raises(CalibrationError, match=r"fixed time of a kernel .*raise --budget"):
        fit_machine("here", of_sizes(streams, (2e3, 1e8)), 1)


@pytest.mark.parametrize("copies", [(4e4,), (1e8,), (2e3, 3e3), (1e7, 1e8)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_copies_that_do_not_tell_latency_from_rate_leave_an_assumption(tmp_path, copies, device):
    machine = fit_machine("here", of_sizes((2e3, 2e8), copies, device=device), 1)
    assert machine.left_out[0].startswith("host link: ")
    copy_s = float(host_copy_time_s(machine.host_link, 1e8))
    # On a CPU half of what streams reach: a copy reads and writes.
    assert copy_s == pytest.approx(1e-2 if device == "cpu" else 7.4e-3, rel=0.02)
    platform = write_machine(machine, tmp_path / "here.yaml")
    origins = {fact.origin for fact in platform.facts if "host_link" in fact.quantity}
    assert origins == {"assumed"}


def test_no_copy_is_faster_than_the_memory():
    result = of_sizes((2e3, 2e8), (1e3, 1e5))
    cached = tuple(
        replace(one, time_s=1e-6 + dict(one.sizes)["size_bytes"] / 200e9)
        if one.op == "memcpy_h2d"
        else one
        for one in result.kernels
    )
    machine = fit_machine("here", replace(result, kernels=cached), 1)
    assert float(host_copy_time_s(machine.host_link, 1e9)) >= 1e9 / 20e9


def test_the_written_platform_predicts_what_was_measured(tmp_path):
    platform = write_machine(fit_machine("here", session(), 2), tmp_path / "here.yaml")
    assert (tmp_path / "here.calibration.json").is_file()
    assert platform.devices_per_node == 2
    traffic = np.array([1e4, 1e5, 1e6])
    assert platform.kernel_time("elementwise", traffic_bytes=traffic) == pytest.approx(
        2e-6 + traffic / 20e9, rel=0.05
    )
    seconds = platform.collective_time("all_reduce", 2**20, 2)
    assert float(seconds) == pytest.approx(1e-4 + 2**20 / 1e9, rel=0.02)
    assert {fact.source for fact in platform.facts if fact.origin == "measured"} == {
        "dse calibrate on Linux: torch 2.13.0; 1 threads a rank, gloo"
    }


def test_without_fits_there_is_still_a_platform(tmp_path):
    few = session(4)
    machine = fit_machine("here", replace(few, collectives=()), 2)
    platform = write_machine(machine, tmp_path / "here.yaml")
    assert not platform.calibrations
    assert [path.name for path in tmp_path.iterdir()] == ["here.yaml"]


def test_lookups_of_fbgemm_stand_beside_those_of_torch():
    usual = session()
    # Four tables in a call, each three times as fast as a lookup of torch.
    calls = tuple(
        replace(
            one,
            op="fbgemm_forward",
            sizes=(*one.sizes, ("tables", 4.0)),
            time_s=4.0 * one.time_s / 3.0,
        )
        for one in usual.kernels
        if one.op == "embedding_forward"
    )
    device = fit_machine("here", replace(usual, kernels=(*usual.kernels, *calls)), 2)
    torch, fbgemm = (one for one in device.kernels if one.op == "embedding_forward")
    assert (torch.implementation, fbgemm.implementation) == ("", "fbgemm")
    sizes = {name: np.array([1e4]) for name in (one.name for one in torch.sizes)}
    ratio = float(torch.ratio(sizes).factor[0] / fbgemm.ratio(sizes).factor[0])
    assert ratio == pytest.approx(3.0, rel=0.1)
