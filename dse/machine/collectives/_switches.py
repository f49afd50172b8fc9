"""Message sizes at which NCCL changes its protocol, by its own cost model.

NCCL does not measure which of its protocols is fastest; it compares a latency and a rate of each,

    t = base + steps · hop + S / rate

with constants for kinds of links and generations of devices (`src/graph/tuning.cc`, releases 2.23
to 2.29), and takes the least. LL sends a flag with each word, LL128 one in 128 bytes, Simple fills
buffers; switches that add (NVLS) form sums on the way. Where the model is wrong the time jumps: by
a third where 4 B200 gather 8 MiB. So a curve must be fitted on each side of the size for itself.

A ring takes fewer channels for short messages, so that each has eight bytes a thread for every
rank, and where one channel is left fewer threads, which meet sooner. So the time hardly grows up
to the size that fills one channel, jumps there by up to a quarter, hardly grows again up to the
size that fills all channels, and grows by a rate beyond it.

Exchanges go from LL to Simple above 16 KiB for each of 32 channels and peer, and among two devices
to all channels above eight of their 512 KiB buffers a peer; some ways of starting processes avoid
both, so the measurements have to show them.

No constant is fitted here. The sizes that follow agree with the jumps of published nccl-tests of
A100, H100, H200, B200, GB200 and L40S.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dse.machine import LinkKind
from dse.machine.collectives._groups import CollectiveOp
from dse.machine.collectives._inside import steps, switches_reduce, volume
from dse.machine.fits import Protocols

if TYPE_CHECKING:
    from dse.machine import LinkSpec

#: Seconds of a ring: of an empty message, and of a step over NVLink and over PCIe. LL128 needs
#: NVLink, whose stores arrive in order.
_LL_S = {LinkKind.NVSWITCH: (6.6e-6, 0.6e-6), LinkKind.PCIE: (6.6e-6, 1.0e-6)}
_LL128_S = {LinkKind.NVSWITCH: (14.0e-6, 1.9e-6)}
_SIMPLE_S = {LinkKind.NVSWITCH: (8.4e-6, 3.4e-6), LinkKind.PCIE: (8.4e-6, 5.7e-6)}

#: Seconds of a sum that switches form.
_IN_SWITCH_S = 25e-6

#: Share of a link's rate that NCCL takes a ring to have. NVLink: 20.6 of 25 GB/s a link of Hopper,
#: 20 of 25 of Ampere, 40.1 of 50 of Blackwell, rounded down to whole channels. PCIe: all of what a
#: device reaches.
_RING_SHARE = {LinkKind.NVSWITCH: 0.8, LinkKind.PCIE: 1.0}
_LL128_SHARE = 0.92
_LL_SHARE = 0.5

#: What LL reaches at most, in bytes a second, on links of Volta, Ampere, Hopper and Blackwell.
_LL_LINKS = (150e9, 300e9, 450e9, 900e9)
_LL_MOST = (39e9, 87.7e9, 141e9, 282e9)

#: Channels of a ring over NVSwitch, and with the faster links of Blackwell; threads of a channel,
#: and bytes that each has for every rank before there are fewer channels, or fewer threads.
_CHANNELS, _CHANNELS_OF_BLACKWELL = 16, 32
_LL_THREADS = 512
_LL_THREAD_BYTES = 8

#: An exchange: the largest part for a peer that goes by LL (16 KiB on each of 32 channels), and
#: the largest that two devices send through half of the channels.
_LL_PART_BYTES = 2**19
_HALF_CHANNELS_PART_BYTES = 2**23


def nccl_protocols(link: LinkSpec, op: CollectiveOp, ranks: int) -> Protocols | None:
    """Returns the protocols that NCCL uses, from small messages to large ones.

    Args:
        link: The interconnect; its calibrations are ignored.
        op: The operation.
        ranks: Devices taking part, all on one node.

    Returns:
        None for links and operations whose choice is not known.
    """
    if link.kind not in _RING_SHARE:
        return None
    if op is CollectiveOp.ALL_TO_ALL:
        parts = (_LL_PART_BYTES, _HALF_CHANNELS_PART_BYTES)[: 2 if ranks == 2 else 1]
        rate = link.bandwidth_bytes_per_s / volume(op, ranks)
        switch = tuple(float(ranks * part + 1) for part in parts)
        return Protocols((rate,) * (len(parts) + 1), switch, certain=False)
    if op in (CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER):
        whole = _fastest(_costs(link, op, ranks))
        channel_bytes = float(_LL_THREADS * _LL_THREAD_BYTES * ranks)
        return replace(
            whole,
            bytes_per_s=(whole.bytes_per_s[0], *whole.bytes_per_s),
            switch_bytes=(channel_bytes, *whole.switch_bytes),
            flat_bytes=_channels(link) * channel_bytes,
        )
    return None


def _channels(link: LinkSpec) -> int:
    """Channels of a ring; zero where their number is not known."""
    if link.kind is not LinkKind.NVSWITCH:
        return 0
    blackwell = link.bandwidth_bytes_per_s >= _LL_LINKS[-1]
    return _CHANNELS_OF_BLACKWELL if blackwell else _CHANNELS


def _costs(link: LinkSpec, op: CollectiveOp, ranks: int) -> list[tuple[float, float]]:
    """Seconds of an empty message, and bytes of the message a second, of each protocol."""
    ring = _RING_SHARE[link.kind] * link.bandwidth_bytes_per_s
    log_rate = np.interp(np.log(link.bandwidth_bytes_per_s), np.log(_LL_LINKS), np.log(_LL_MOST))
    protocols = (
        (_LL_S, min(float(np.exp(log_rate)), _LL_SHARE * ring)),
        (_LL128_S, _LL128_SHARE * ring),
        (_SIMPLE_S, ring),
    )
    moved, count = volume(op, ranks), steps(op, ranks)
    costs = [
        (seconds[link.kind][0] + count * seconds[link.kind][1], rate / moved)
        for seconds, rate in protocols
        if link.kind in seconds
    ]
    if switches_reduce(link, op, ranks):
        assert link.in_switch_share is not None
        costs.append((_IN_SWITCH_S, link.in_switch_share * link.bandwidth_bytes_per_s))
    return costs


def _fastest(costs: list[tuple[float, float]]) -> Protocols:
    """The protocols that are fastest at some size, and the sizes where they meet."""
    empty_s, rate = min(costs)
    rates, switch_bytes = [rate], []
    while faster := [cost for cost in costs if cost[1] > rate]:
        meets = [(other[0] - empty_s) / (1 / rate - 1 / other[1]) for other in faster]
        first = int(np.argmin(meets))
        switch_bytes.append(meets[first])
        empty_s, rate = faster[first]
        rates.append(rate)
    return Protocols(tuple(rates), tuple(switch_bytes))
