"""Memory-bound kernels: a launch floor plus bytes over a fraction of the memory bandwidth.

METHOD: HiPC'22 section on element-wise kernels; the floor makes the efficiency grow with size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dse.hardware import DeviceSpec, HostLinkSpec

#: Share of the peak bandwidth that large streaming kernels reach (0.75-0.92 in the literature).
STREAMING_EFFICIENCY = 0.85

#: Share of the PCIe line rate that pinned copies reach after packet headers.
HOST_COPY_EFFICIENCY = 0.85


def elementwise_time_s(device: DeviceSpec, traffic_bytes: ArrayLike) -> NDArray[np.float64]:
    """Returns the duration of a streaming kernel.

    Args:
        device: The device.
        traffic_bytes: Bytes read plus bytes written, any shape; no bytes take no time.
    """
    traffic = np.asarray(traffic_bytes, dtype=np.float64)
    streaming_s = traffic / (STREAMING_EFFICIENCY * device.memory_bandwidth_bytes_per_s)
    return np.where(traffic > 0, device.kernel_floor_s + streaming_s, 0.0)


def host_copy_time_s(host_link: HostLinkSpec, size_bytes: ArrayLike) -> NDArray[np.float64]:
    """Returns the duration of one pinned copy between host and device, any shape."""
    size = np.asarray(size_bytes, dtype=np.float64)
    copy_s = size / (HOST_COPY_EFFICIENCY * host_link.bandwidth_bytes_per_s)
    return np.where(size > 0, host_link.latency_s + copy_s, 0.0)
