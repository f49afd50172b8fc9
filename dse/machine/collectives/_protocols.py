"""Two protocols that compete, as in NCCL.

One has little latency and a part of the bandwidth, one the full bandwidth and more latency. The
faster is taken, which keeps the time over the size monotone and bends it where measured curves
bend: `t = min(e + c·S / 0.4, 3·e + c·S)` for a message of `S` bytes, `e` seconds of latency and
`c` seconds a byte. Fitted networks have constants of their own in place of 0.4 and 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The low-latency protocol's share of the bandwidth: half of what it sends are flags, less what
#: its shorter pipeline wastes.
_LOW_LATENCY_BANDWIDTH_SHARE = 0.4

#: The full-bandwidth protocol's multiple of the latency; published curves of A100 and H100 bend
#: between 16 KiB and 1 MiB, which this factor gives.
_FULL_BANDWIDTH_LATENCY_FACTOR = 3.0


def faster_protocol_s(
    nbytes: NDArray[np.float64],
    empty_s: float,
    seconds_per_byte: float,
    *,
    low_latency_share: float = _LOW_LATENCY_BANDWIDTH_SHARE,
    full_rate_factor: float = _FULL_BANDWIDTH_LATENCY_FACTOR,
) -> NDArray[np.float64]:
    """Returns seconds of the faster protocol for a message of any size.

    Args:
        nbytes: Message sizes, any shape.
        empty_s: Time of an empty message under the low-latency protocol.
        seconds_per_byte: Inverse of the full bandwidth.
        low_latency_share: Share of the full bandwidth that the low-latency protocol has.
        full_rate_factor: The full-bandwidth protocol's multiple of the latency.
    """
    low_latency_s = empty_s + nbytes * (seconds_per_byte / low_latency_share)
    full_bandwidth_s = full_rate_factor * empty_s + nbytes * seconds_per_byte
    return np.minimum(low_latency_s, full_bandwidth_s)


def full_bandwidth_s(
    nbytes: NDArray[np.float64], empty_s: float, seconds_per_byte: float
) -> NDArray[np.float64]:
    """Returns seconds of the full-bandwidth protocol alone.

    Args:
        nbytes: Message sizes, any shape.
        empty_s: Time of an empty message under the low-latency protocol.
        seconds_per_byte: Inverse of the full bandwidth.
    """
    return _FULL_BANDWIDTH_LATENCY_FACTOR * empty_s + nbytes * seconds_per_byte
