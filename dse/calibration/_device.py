"""Device figures from measurements: peak rates, bandwidths, launch floor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.calibration.microbench import Purpose
from dse.errors import CalibrationError
from dse.machine import DeviceSpec, HostLinkSpec, HostSpec, LinkKind, LinkSpec, PeakRates
from dse.machine.collectives import link_from_measurement
from dse.machine.kernels import HOST_COPY_EFFICIENCY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.calibration.microbench import CollectiveMeasurement, KernelMeasurement, SessionResult

#: Traffic beyond this multiple of the last cache streams from memory.
_BEYOND_CACHE = 4.0

#: Share of the last cache that a stream may fill to be called a cache stream.
_INSIDE_CACHE = 0.5

#: Algorithm bandwidth of an all-reduce of two that no PCIe link of today reaches.
_FASTEST_PCIE_BYTES_PER_S = 60e9

#: Most of a short call's time that may be the time of its bytes for the rest to be a fixed time;
#: up to the smaller share all of it is, since few bytes are in faster caches.
_MOST_BYTES_SHARE = 0.5
_FEW_BYTES_SHARE = 0.2

#: Most of a long copy's time that may be fixed for the rest to tell a rate.
_MOST_FIXED_SHARE = 0.5

#: Rate and fixed time of copies to a GPU that were not measured: half of PCIe 4.0 with 16 lanes.
_ASSUMED_PCIE_BYTES_PER_S, _ASSUMED_PCIE_LATENCY_S = 16e9, 10e-6

#: Share of the memory that a job cannot have.
_RESERVED_SHARE = 0.1

#: Warps (threads, on a CPU) in flight on one compute unit.
_RESIDENT = {"cpu": 1, "cuda": 64}

#: What a platform needs, with the operator that measures it.
_BASIC = {"elementwise": "elementwise", "copies from the host": "memcpy_h2d"}


def check_measured(result: SessionResult) -> None:
    """Refuses a session that ended before the figures that every platform has.

    Raises:
        CalibrationError: It did; all that is missing is named.
    """
    points = fit_points(result.kernels)
    measured = {point.op for point in points}
    missing = [name for name, op in _BASIC.items() if op not in measured]
    if not _gemm_rates(points, "fp32"):
        missing.insert(0, "GEMM in fp32")
    if missing:
        raise CalibrationError(
            f"the session ended before {', '.join(missing)} were measured; raise --budget"
        )


def device_spec(result: SessionResult, ranks: int) -> DeviceSpec:
    """Returns the device that one rank has.

    Peak rates and bandwidths are the best that any point reached: calibrations are ratios to
    them, so what counts is that they do not change between fits.

    Args:
        result: Measurements.
        ranks: Ranks that share a CPU; on GPUs each rank has its own device.

    Raises:
        CalibrationError: No stream is so small that the fixed time of a kernel shows.
    """
    machine = result.machine
    # Fresh points check the fits; nothing of theirs may enter what the fits are ratios to.
    kernels = fit_points(result.kernels)
    sharers = ranks if machine.device == "cpu" else 1
    rates = {
        precision: max(reached)
        for precision in ("fp32", "tf32", "fp16", "bf16", "fp8")
        if (reached := _gemm_rates(kernels, precision))
    }
    streams = [
        (dict(point.sizes)["traffic_bytes"], point.time_s)
        for point in kernels
        if point.op == "elementwise"
    ]
    elementwise = tuple(streams)
    cache_bytes = machine.last_level_cache_bytes or 32 * 2**20
    # A copy within the device reads and writes every byte, like any stream.
    streams += [
        (2 * dict(point.sizes)["size_bytes"], point.time_s)
        for point in kernels
        if point.op == "memcpy_d2d"
    ]
    far = [size / time_s for size, time_s in streams if size > _BEYOND_CACHE * cache_bytes]
    largest = max(streams)
    bandwidth = max(far, default=largest[0] / largest[1])
    floor_s = _fixed_s(elementwise, bandwidth)
    if floor_s is None:
        smallest = min(elementwise)
        raise CalibrationError(
            f"the fixed time of a kernel is not known: the smallest stream, of "
            f"{smallest[0]:.3g} B in {1e6 * smallest[1]:.3g} us, takes the time of its bytes; "
            "raise --budget"
        )
    near = [size / time_s for size, time_s in streams if size < _INSIDE_CACHE * cache_bytes]
    memory_bytes = machine.memory_bytes / sharers
    return DeviceSpec(
        name=machine.device_name,
        kind="gpu" if machine.device == "cuda" else "cpu",
        compute_units=machine.compute_units if machine.device == "cuda" else result.threads,
        peak=PeakRates(
            rates["fp32"],
            rates.get("tf32"),
            rates.get("fp16"),
            rates.get("bf16"),
            rates.get("fp8"),
        ),
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=bandwidth,
        l2_bytes=cache_bytes / sharers,
        l2_bandwidth_bytes_per_s=max(bandwidth, max(near, default=0.0)),
        reserved_memory_bytes=_RESERVED_SHARE * memory_bytes,
        kernel_floor_s=floor_s,
        resident_warps_per_unit=_RESIDENT[machine.device],
    )


def fit_points(kernels: Iterable[KernelMeasurement]) -> tuple[KernelMeasurement, ...]:
    """Returns the points that may be fitted."""
    return tuple(point for point in kernels if point.purpose is Purpose.FIT)


def host_link_spec(result: SessionResult, device: DeviceSpec) -> tuple[HostLinkSpec, str]:
    """Returns the path from host memory to the device, and why it is assumed.

    The bandwidth is that of the largest copies: on a CPU smaller ones stay in the cache. No copy
    is faster than the memory that it fills. Copies that do not tell their fixed time from their
    rate give neither.

    Args:
        result: Measurements.
        device: The device.

    Returns:
        The path, and the reason why its figures are assumed; empty where they are measured.
    """
    copies = sorted(
        (dict(point.sizes)["size_bytes"], point.time_s)
        for point in fit_points(result.kernels)
        if point.op == "memcpy_h2d"
    )
    memory = device.memory_bandwidth_bytes_per_s
    beyond = _BEYOND_CACHE * result.machine.last_level_cache_bytes
    large = [copy for copy in copies if copy[0] > beyond] or copies[-1:]
    latency_s = _fixed_s(copies, max(size / time_s for size, time_s in large))
    # A model of latency and bandwidth should reproduce the best of them.
    rates = [
        size / (time_s - latency_s)
        for size, time_s in large
        if latency_s is not None and latency_s <= _MOST_FIXED_SHARE * time_s
    ]
    if latency_s is not None and rates:
        rate = min(max(rates), memory)
        return HostLinkSpec(rate / HOST_COPY_EFFICIENCY, latency_s), ""
    reason = (
        f"copies of {copies[0][0]:.3g} to {copies[-1][0]:.3g} B do not tell fixed time from rate"
    )
    if device.kind == "cpu":
        # A copy within a memory reads and writes every byte.
        return HostLinkSpec(0.5 * memory / HOST_COPY_EFFICIENCY, device.kernel_floor_s), reason
    return HostLinkSpec(_ASSUMED_PCIE_BYTES_PER_S, _ASSUMED_PCIE_LATENCY_S), reason


def _fixed_s(calls: Sequence[tuple[float, float]], bytes_per_s: float) -> float | None:
    """Returns the fixed time of calls, or None if even the smallest takes the time of its bytes.

    Args:
        calls: Bytes and time of each.
        bytes_per_s: Rate of large ones.
    """
    size_bytes, time_s = min(calls)
    bytes_s = size_bytes / bytes_per_s
    if bytes_s > _MOST_BYTES_SHARE * time_s:
        return None
    few = bytes_s <= _FEW_BYTES_SHARE * time_s
    return min(other_s for _, other_s in calls) if few else time_s - bytes_s


def link_spec(collectives: Iterable[CollectiveMeasurement], device: str) -> LinkSpec | None:
    """Returns the interconnect between the ranks; None when no all-reduce was measured.

    With its figures the formulas reproduce the shortest all-reduce of two ranks and
    the best rate of a large one. The wiring is shared memory on a CPU; on GPUs it is taken for
    PCIe or NVSwitch by what the largest messages reach.

    Args:
        collectives: Measurements.
        device: ``cpu`` or ``cuda``.
    """
    reduces = [
        point for point in collectives if point.op == "all_reduce" and point.purpose is Purpose.FIT
    ]
    if not reduces:
        return None
    ranks = min(point.ranks for point in reduces)
    pairs = [point for point in reduces if point.ranks == ranks]
    seconds_per_byte = min(point.time_s / point.size_bytes for point in pairs)
    kind = LinkKind.SHARED_MEMORY
    if device == "cuda":
        fast = 1 / seconds_per_byte > _FASTEST_PCIE_BYTES_PER_S
        kind = LinkKind.NVSWITCH if fast else LinkKind.PCIE
    shortest_s = min(point.time_s for point in pairs)
    return link_from_measurement(kind.value, kind, ranks, shortest_s, seconds_per_byte)


def host_spec(result: SessionResult) -> HostSpec:
    """Returns the host overheads.

    On a CPU the times of operators contain their dispatch, which only counts once: what is left to
    the host there is the time between operators.

    Raises:
        CalibrationError: They were not measured.
    """
    host = result.host
    if host is None:
        reasons = [skipped.reason for skipped in result.skipped if skipped.point is None]
        raise CalibrationError(
            "the host overheads were not measured"
            + (f": {reasons[0]}" if reasons else "; raise --budget")
        )
    if result.machine.device == "cpu":
        return HostSpec(
            between_operators_s=host.between_operators_s,
            before_launch_s=0.0,
            after_launch_s=0.0,
            launch_s=0.0,
            between_launches_s=0.0,
            graph_launch_s=host.between_operators_s,
        )
    total_s = host.between_operators_s + host.before_launch_s + host.launch_s
    return HostSpec(
        between_operators_s=host.between_operators_s,
        before_launch_s=host.before_launch_s,
        after_launch_s=host.after_launch_s,
        launch_s=host.launch_s,
        between_launches_s=host.between_launches_s,
        # Without graphs, replaying one costs as much as an operator.
        graph_launch_s=total_s if host.graph_launch_s is None else host.graph_launch_s,
    )


def _gemm_rates(kernels: Iterable[KernelMeasurement], precision: str) -> list[float]:
    return [
        2.0
        * float(np.prod([value for name, value in point.sizes if name in "mnk"]))
        / point.time_s
        for point in kernels
        if point.op == "gemm" and point.precision == precision
    ]
