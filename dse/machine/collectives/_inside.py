"""Collectives inside a node, or pod, from volume and topology, for want of measurements.

Each device moves `volume(op, n)` bytes through its link for every byte of the message
(nccl-tests' definition of bus bandwidth). Over NVSwitch and inside an NVLink pair the message also
makes a pass through the device's own buffers, a part of which nothing hides; wires of other kinds
are slow enough to hide it:

    seconds per byte = (volume + exposed) / bandwidth       NVSwitch, inside a pair
    seconds per byte = volume / (share · bandwidth)         others

The exposed part gives two devices less bus bandwidth than eight, as measured.

Where the switches add (NVLS), the message of an all-reduce crosses a device's link about once
instead of twice. How fast differs between generations of switches, so it is a figure of the link:

    seconds per byte = 1 / (in-switch share · bandwidth)

It has the latency of the ring's full-bandwidth protocol: published times of 8 H100 and B200 and of
72 GB200 agree with that, which no constant latency does. Small messages stay with the others.
"""

from __future__ import annotations

from functools import lru_cache
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.machine import LinkKind, LinkSpec
from dse.machine.collectives._groups import CollectiveOp
from dse.machine.collectives._protocols import faster_protocol_s, full_bandwidth_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Latency of an empty collective in hops: fixed part, and part per step of the algorithm. From
#: the smallest messages of published nccl-tests on 2, 4 and 8 A100 and H100 (2.2 and 0.30 hops of
#: 3.5 µs on A100; 1.8 and 0.32 hops of 2.5 µs on H100).
_FIXED_HOPS = 2.0
_HOPS_PER_STEP = 0.31

#: Part of the pass through the device's buffers that stays visible, as a share of the message:
#: from the same nccl-tests at 512 MiB, where links then run at their full rate on 2, 4 and 8
#: devices (within 8 % on A100, H100 and H200). A reduction passes once more than a copy.
_EXPOSED_REDUCTION = 0.50
_EXPOSED_COPY = 0.37

#: Fewest devices whose all-reduce the library gives to the switches: published tables of four
#: H100 and H200 have the rate of a ring, those of eight (in types that switches can add) that of
#: the switches.
IN_SWITCH_RANKS = 5

#: Links of a device that rings of so many neighbours use in a cube mesh of eight with six links
#: each, and the share of their rate: from published nccl-tests on 2 to 8 V100 at 1 GiB, which
#: these figures meet within 4 %. Rings of five share links.
_MESH_LINKS = {2: 1.0, 3: 2.0, 4: 4.0, 5: 1.65, 6: 2.0, 7: 4.0, 8: 6.0}
_MESH_SHARE = 0.90

#: Share of the link rate among ranks in one host's memory; assumed.
_SHARED_MEMORY_SHARE = 0.80

#: Share of the line rate that collectives reach where every device has a link of its own to every
#: other: published rccl-tests on eight MI300X from 1 GiB on, 315-319 of 448 GB/s of bus bandwidth.
#: Check bits and packet headers take a quarter (45-48 of the 64 GB/s of one link).
_FULL_MESH_SHARE = 0.71

#: What `n` streams through host bridges leave of a PCIe link: `0.97 / (1 + (n - 2) / 7.5)`. Two
#: streams from published all-reduces over two bridged pairs (15.8 GB/s of algorithm bandwidth, so
#: 23.7 of 24 GB/s). 0.54 for eight, on two sockets, from two steps of recommendation models on
#: eight cards each: fitted on either, the other is met within 8 %. 0.77 for four follows.
_BRIDGE_SHARE = 0.97
_BRIDGE_STREAMS_TO_HALVE = 7.5


def inside_time_s(
    link: LinkSpec, op: CollectiveOp, nbytes: NDArray[np.float64], ranks: int, nodes: int = 1
) -> NDArray[np.float64]:
    """Returns seconds of a collective among `ranks` devices of one domain, by physics alone.

    Args:
        link: The interconnect; its calibrations are ignored.
        op: The operation.
        nbytes: Message sizes as nccl-tests counts them, any shape.
        ranks: Devices taking part, at least two.
        nodes: Nodes of a pod that they sit on.
    """
    time_s = faster_protocol_s(nbytes, *_latency_and_inverse_bandwidth(link, op, ranks, nodes))
    if switches_reduce(link, op, ranks):
        time_s = np.minimum(time_s, in_switch_time_s(link, nbytes, ranks))
    return time_s


def inside_ratio(
    new: LinkSpec,
    old: LinkSpec,
    op: CollectiveOp,
    nbytes: NDArray[np.float64],
    ranks: int,
    nodes: int = 1,
) -> NDArray[np.float64]:
    """Returns the time on one link over that on another, by physics alone.

    Args:
        new: The one.
        old: The other.
        op: The operation.
        nbytes: Message sizes, any shape; they must be positive.
        ranks: Devices taking part, at least two.
        nodes: Nodes of a pod that they sit on.
    """
    new_s, old_s = (inside_time_s(link, op, nbytes, ranks, nodes) for link in (new, old))
    return new_s / old_s


def switches_reduce(link: LinkSpec, op: CollectiveOp, ranks: int) -> bool:
    """Returns whether the link's switches may add for a collective."""
    return (
        link.in_switch_share is not None
        and ranks >= IN_SWITCH_RANKS
        and op is CollectiveOp.ALL_REDUCE
    )


def in_switch_time_s(
    link: LinkSpec, nbytes: NDArray[np.float64], ranks: int
) -> NDArray[np.float64]:
    """Returns seconds of an all-reduce whose sums the link's switches form.

    Args:
        link: An interconnect with an in-switch share.
        nbytes: Message sizes, any shape.
        ranks: Devices taking part.
    """
    assert link.in_switch_share is not None
    empty_s, _ = _latency_and_inverse_bandwidth(link, CollectiveOp.ALL_REDUCE, ranks)
    rate = link.in_switch_share * link.bandwidth_bytes_per_s
    return full_bandwidth_s(nbytes, empty_s, 1.0 / rate)


@lru_cache(maxsize=256)
def _latency_and_inverse_bandwidth(
    link: LinkSpec, op: CollectiveOp, ranks: int, nodes: int = 1
) -> tuple[float, float]:
    """Seconds of an empty message, and seconds a byte."""
    empty_s = link.latency_s * (_FIXED_HOPS + _HOPS_PER_STEP * steps(op, ranks, nodes))
    return empty_s, _seconds_per_byte(link, op, ranks)


def link_from_measurement(
    name: str, kind: LinkKind, ranks: int, shortest_s: float, seconds_per_byte: float
) -> LinkSpec:
    """Returns the link whose all-reduce among `ranks` devices has these limits by the formulas.

    Args:
        name: Name of the link.
        kind: Wiring.
        ranks: Devices that took part.
        shortest_s: Time of the smallest all-reduce.
        seconds_per_byte: Time of a large all-reduce over its message size.
    """
    pair = {LinkKind.NVLINK_PAIRS: 1.0, LinkKind.FULL_MESH: 1.0 / (ranks - 1)}.get(kind)
    unit = LinkSpec(name, kind, 1.0, 1.0, pair)
    hops, seconds = _latency_and_inverse_bandwidth(unit, CollectiveOp.ALL_REDUCE, ranks)
    bandwidth = seconds / seconds_per_byte
    return LinkSpec(
        name, kind, bandwidth, shortest_s / hops, None if pair is None else pair * bandwidth
    )


def steps(op: CollectiveOp, ranks: int, nodes: int = 1) -> float:
    """Returns how many messages an algorithm sends one after the other.

    A ring needs `n - 1`, twice that to reduce and to gather; peers of a direct exchange are
    served several at a time. Over the nodes of a pod an all-reduce is a double binary tree of
    nodes, and a chain on each of them, which moves as many bytes but for an `n`-th.
    """
    if op is CollectiveOp.ALL_REDUCE:
        in_tree = math.ceil(ranks / nodes) - 1 + math.ceil(math.log2(nodes))
        return 2.0 * min(ranks - 1, in_tree)
    if op is CollectiveOp.ALL_TO_ALL:
        return 1.0 + math.log2(ranks)
    if op is CollectiveOp.SEND_RECV:
        return 1.0
    return ranks - 1.0


def step_time_s(link: LinkSpec) -> float:
    """Returns seconds of one small message between two devices that pass it on."""
    return _HOPS_PER_STEP * link.latency_s


def volume(op: CollectiveOp, ranks: int) -> float:
    """Returns how many bytes pass a device's link for each byte of the message."""
    if op is CollectiveOp.ALL_REDUCE:
        return 2.0 * (ranks - 1) / ranks
    if op in (CollectiveOp.BROADCAST, CollectiveOp.SEND_RECV):
        return 1.0
    return (ranks - 1) / ranks


def _seconds_per_byte(link: LinkSpec, op: CollectiveOp, ranks: int) -> float:
    wire = link.bandwidth_bytes_per_s
    moved = volume(op, ranks)
    exposed = _EXPOSED_REDUCTION if op is CollectiveOp.ALL_REDUCE else _EXPOSED_COPY
    match link.kind:
        case LinkKind.NVSWITCH:
            return (moved + exposed) / wire
        case LinkKind.NVLINK_MESH:
            return moved / (_mesh_share(op, ranks) * wire)
        case LinkKind.NVLINK_PAIRS:
            in_pair_s = (moved + exposed) / (link.pair_bandwidth_bytes_per_s or wire)
            if ranks == 2:
                return in_pair_s
            # A ring enters a pair through one card and leaves it through the other, so half of
            # the cards send over the bridge; in an exchange all do, but for the partner's part.
            if op is CollectiveOp.ALL_TO_ALL:
                over_bridge_s = (ranks - 2) / ranks / (wire * _bridge_share(ranks))
            else:
                over_bridge_s = moved / (wire * _bridge_share(ranks / 2))
            return max(over_bridge_s, in_pair_s)
        case LinkKind.FULL_MESH:
            # Links to devices that take no part lie idle.
            peers = 1 if op is CollectiveOp.SEND_RECV else ranks - 1
            pair = link.pair_bandwidth_bytes_per_s or wire
            return moved / (_FULL_MESH_SHARE * min(wire, peers * pair))
        case LinkKind.PCIE:
            return _over_switches_s(op, ranks, min(link.devices_per_switch, ranks)) / wire
        case LinkKind.SHARED_MEMORY:
            return moved / (wire * _SHARED_MEMORY_SHARE)


def _over_switches_s(op: CollectiveOp, ranks: int, per_switch: int) -> float:
    """Seconds a byte on PCIe of unit bandwidth whose devices sit on switches.

    Devices on one switch reach each other without the host bridge. A ring leaves a switch once, so
    there are as many streams through the bridge as switches; in an exchange all devices of a
    switch send through its one way up.
    """
    switches = math.ceil(ranks / per_switch)
    if switches == 1:
        return volume(op, ranks) / _BRIDGE_SHARE
    up = volume(op, ranks)
    if op is CollectiveOp.ALL_TO_ALL:
        up = per_switch * (ranks - per_switch) / ranks
    return max(up, volume(op, ranks)) / _bridge_share(switches)


def _bridge_share(streams: float) -> float:
    return _BRIDGE_SHARE / (1.0 + max(streams - 2.0, 0.0) / _BRIDGE_STREAMS_TO_HALVE)


def _mesh_share(op: CollectiveOp, ranks: int) -> float:
    """Share of a device's links that is in use in a cube mesh.

    An exchange of four waits for the peers that have one link only; one of eight sends three
    sevenths over two hops.
    """
    share = _MESH_SHARE * _MESH_LINKS.get(ranks, 6.0) / 6.0
    if op is CollectiveOp.ALL_TO_ALL and ranks > 2:
        share *= 0.75 if ranks <= 4 else 0.5
    return share
