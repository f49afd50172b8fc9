"""Names of the resources of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.explanation._resources import Resource
from dse.machine import LinkKind

if TYPE_CHECKING:
    from dse.machine import Cluster, Precision

_LINKS = {
    LinkKind.NVSWITCH: "NVSwitch",
    LinkKind.NVLINK_MESH: "NVLink",
    LinkKind.NVLINK_PAIRS: "NVLink and PCIe",
    LinkKind.FULL_MESH: "device mesh",
    LinkKind.PCIE: "PCIe",
    LinkKind.SHARED_MEMORY: "shared memory",
}
_NETWORKS = {
    "infiniband": "InfiniBand",
    "ethernet": "Ethernet",
    "efa": "EFA",
    "roce": "RoCE",
    "tcpx": "GPUDirect-TCPX",
    "tcpxo": "GPUDirect-TCPXO",
}


def resource_names(cluster: Cluster, precision: Precision) -> dict[Resource, str]:
    """Returns the names of a cluster's resources where they say more than the general ones.

    Args:
        cluster: The cluster.
        precision: Arithmetic, which decides what multiplies matrices.
    """
    peak, kind = cluster.device.peak, cluster.network.kind
    tensor = peak.of(precision) > peak.fp32_flops_per_s
    return {
        Resource.MEMORY: "memory bandwidth",
        Resource.CACHE: "L2 bandwidth",
        Resource.ARITHMETIC: "tensor cores" if tensor else "FLOP rate",
        Resource.LINK: _LINKS.get(cluster.link.kind, cluster.link.name),
        Resource.NETWORK: f"{_NETWORKS.get(kind.lower(), kind)} network",
    }
