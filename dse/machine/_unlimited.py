"""Machines on which something takes no time, for what a step would take without it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse.machine._precision import PeakRates

if TYPE_CHECKING:
    from dse.machine._hardware import HostLinkSpec, LinkSpec, NetworkSpec

#: A rate at which nothing takes time; finite, so that no sum or ratio of times is undefined.
UNLIMITED_RATE = 1e40

#: Arithmetic that takes no time, in any precision.
UNLIMITED_PEAK = PeakRates(UNLIMITED_RATE, UNLIMITED_RATE, UNLIMITED_RATE, UNLIMITED_RATE)


def unlimited_link(link: LinkSpec) -> LinkSpec:
    """Returns a link of its latency alone; what was measured of it is left out."""
    return replace(
        link,
        bandwidth_bytes_per_s=UNLIMITED_RATE,
        pair_bandwidth_bytes_per_s=None,
        calibrations=(),
    )


def unlimited_network(network: NetworkSpec) -> NetworkSpec:
    """Returns a network of its latencies alone."""
    return replace(network, nic_bandwidth_bytes_per_s=UNLIMITED_RATE)


def unlimited_host_link(link: HostLinkSpec) -> HostLinkSpec:
    """Returns a path to host memory of its latency alone."""
    return replace(link, bandwidth_bytes_per_s=UNLIMITED_RATE)
