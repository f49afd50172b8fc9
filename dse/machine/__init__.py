"""Machines: device, node and network as plain values, and the time that work takes on them.

The types here are shared by all packages: frozen dataclasses in SI units, without unit strings.
Subpackages: :mod:`~dse.machine.platforms` reads machines from YAML,
:mod:`~dse.machine.kernels` and :mod:`~dse.machine.collectives` predict durations, and
:mod:`~dse.machine.fits` holds the functions that were fitted on measurements.
"""

from __future__ import annotations

from dse.machine._cluster import Cluster, devices_per_domain
from dse.machine._contention import (
    COLLECTIVE_SLOWDOWN,
    KERNEL_SLOWDOWN,
    contention_factors,
    has_own_engines,
)
from dse.machine._groups import changed_cluster, rank_group
from dse.machine._hardware import (
    DeviceSpec,
    HostLinkSpec,
    HostSpec,
    LinkKind,
    LinkSpec,
    NetworkSpec,
    PowerSpec,
)
from dse.machine._offers import PRICE_BASES, Offer, Quote
from dse.machine._precision import PeakRates, Precision
from dse.machine._unlimited import (
    UNLIMITED_PEAK,
    UNLIMITED_RATE,
    unlimited_host_link,
    unlimited_link,
    unlimited_network,
)

__all__ = [
    "COLLECTIVE_SLOWDOWN",
    "KERNEL_SLOWDOWN",
    "PRICE_BASES",
    "UNLIMITED_PEAK",
    "UNLIMITED_RATE",
    "Cluster",
    "DeviceSpec",
    "HostLinkSpec",
    "HostSpec",
    "LinkKind",
    "LinkSpec",
    "NetworkSpec",
    "Offer",
    "PeakRates",
    "PowerSpec",
    "Precision",
    "Quote",
    "changed_cluster",
    "contention_factors",
    "devices_per_domain",
    "has_own_engines",
    "rank_group",
    "unlimited_host_link",
    "unlimited_link",
    "unlimited_network",
]
