"""Streams through device memory, and copies between host and device.

A stream of `b` bytes takes the launch floor plus `b / (efficiency(b) · bandwidth)`. The efficiency
follows from three observations:

* **Bytes in flight.** By Little's law, bandwidth is bytes in flight over latency, so a device of
  bandwidth `W` and latency `L` needs `L · W` bytes at once, and fewer than that take `L` however
  few they are. `L φ(t / L)` with `φ(x) = x / (1 − e^−x)` passes smoothly from the latency to the
  time `t` of a saturated stream. It rises with `t`, so more bytes are never faster.
* **Large streams** reach a share of the data-sheet bandwidth. Published BabelStream-like figures
  for GPUs lie between 0.83 and 0.93, for example 3.31 of 4.0 TB/s for the triad on a GH200
  (BabelStream issue 194) and 2.90 of 3.35 TB/s for copies on an H100.
* **Cache.** What the kernel before has just written is read from the last-level cache where it
  fits, while what this kernel writes has to leave the cache some time. So up to half of the
  traffic is served at the cache's speed; beyond the cache's size that falls with the square of
  the overflow, as a least-recently-used cache is of little use to a stream longer than itself.

METHOD: Lin et al., HiPC 2022 (arXiv 2201.07821), memory-bound kernels; the floor is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine.fits import Estimate
from dse.machine.kernels._calibrated import factor_by_size, ratio_by_sizes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dse.machine import DeviceSpec, HostLinkSpec

#: Standard deviation of the logarithm of measured over modelled time of operators whose model has
#: constants from the literature only; an assumption.
HEURISTIC_SPREAD = 0.25

#: Share of the peak bandwidth that a large stream reaches. CPU figures are measured by streams
#: already, or come from STREAM at about this share.
_PEAK_EFFICIENCY = {"gpu": 0.92, "cpu": 0.85}

#: Time from a load to its value on a busy memory system. Idle GPUs answer after some 470 cycles
#: (A100, H100: Luo et al., arXiv 2402.13499), about 0.3 µs; that queues double it near saturation
#: is an assumption, and so is the figure for CPUs.
_LATENCY_S = {"gpu": 0.7e-6, "cpu": 0.1e-6}

#: Largest share of the traffic that the cache serves: reads, but not what is written.
_CACHED_SHARE = 0.5

#: Share of the cache that a stream can use.
_USABLE_CACHE = 0.9

#: Share of the line rate that pinned copies reach after packet headers.
HOST_COPY_EFFICIENCY = 0.85


def streaming_s(device: DeviceSpec, traffic_bytes: ArrayLike) -> NDArray[np.float64]:
    """Returns the seconds for which a stream keeps the memory busy, without the launch floor.

    Rises with the bytes and falls with either bandwidth.

    Args:
        device: The device.
        traffic_bytes: Bytes read plus bytes written, any shape.
    """
    traffic = np.asarray(traffic_bytes, dtype=np.float64)
    efficiency, latency_s = _PEAK_EFFICIENCY[device.kind], _LATENCY_S[device.kind]
    memory_rate = device.memory_bandwidth_bytes_per_s
    cache_rate = max(device.l2_bandwidth_bytes_per_s, memory_rate)
    usable = _USABLE_CACHE * device.l2_bytes
    overflow = np.maximum(traffic / usable, 1.0)
    cached = _CACHED_SHARE * traffic / (overflow * overflow)
    saturated_s = ((traffic - cached) / memory_rate + cached / cache_rate) / efficiency
    # φ(0) = 1; the bound avoids 0 / 0.
    ratio = np.maximum(saturated_s / latency_s, 1e-12)
    return np.asarray(latency_s * ratio / -np.expm1(-ratio))


def elementwise_time_s(device: DeviceSpec, traffic_bytes: ArrayLike) -> NDArray[np.float64]:
    """Returns the duration of a streaming kernel.

    Args:
        device: The device; its calibration of `elementwise` is used where it has one.
        traffic_bytes: Bytes read plus bytes written, any shape; no bytes take no time.
    """
    traffic = np.asarray(traffic_bytes, dtype=np.float64)
    seconds = device.kernel_floor_s + streaming_s(device, traffic)
    calibration = device.calibration("elementwise")
    if calibration is not None:
        seconds = seconds * factor_by_size(calibration, traffic)
    return np.where(traffic > 0, seconds, 0.0)


def host_copy_time_s(host_link: HostLinkSpec, size_bytes: ArrayLike) -> NDArray[np.float64]:
    """Returns the duration of one pinned copy between host and device, without calibration.

    Args:
        host_link: Path between host memory and the device.
        size_bytes: Bytes that are copied, any shape; none take no time.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    copy_s = size / (HOST_COPY_EFFICIENCY * host_link.bandwidth_bytes_per_s)
    return np.where(size > 0, host_link.latency_s + copy_s, 0.0)


def host_copy_estimate(
    device: DeviceSpec, host_link: HostLinkSpec, op: str, size_bytes: ArrayLike
) -> Estimate:
    """Returns the duration of one pinned copy, calibrated where the device has measurements.

    Args:
        device: The device; only its calibration of `op` matters.
        host_link: Path between host memory and the device.
        op: `memcpy_h2d` or `memcpy_d2h`.
        size_bytes: Bytes that are copied, any shape; none take no time.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    time_s = host_copy_time_s(host_link, size)
    calibration = device.calibration(op)
    if calibration is None:
        return Estimate(time_s, np.full(time_s.shape, HEURISTIC_SPREAD))
    ratio = ratio_by_sizes(calibration, {"size_bytes": size})
    return Estimate(time_s * ratio.factor, ratio.spread)
