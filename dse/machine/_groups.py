"""Groups of ranks of a cluster as clusters of their own.

A job may divide its ranks into equal groups that do the same side by side: replicas of a sharding
group. To a plan, such a group is a cluster with fewer ranks. Its nodes and domains hold the ranks
of the group only, and of what the ranks of a node share it has its part: host memory, storage, and
the path to host memory while all groups use theirs alike. Link and network stay those of the whole
cluster, which collectives see (`Cluster.whole`), so that groups share network cards where they
share nodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.machine._cluster import Cluster


def rank_group(cluster: Cluster, ranks: int, stride: int) -> Cluster:
    """Returns the cluster that one of several equal groups of ranks is.

    Args:
        cluster: All ranks.
        ranks: Ranks of a group; a divisor of all.
        stride: Distance of the numbers of neighbouring ranks of a group: 1 for groups of
            neighbours, the number of groups for groups that are spread over all nodes.

    Raises:
        ConfigError: The groups have unequal parts of nodes or pods.
    """
    local = _part(cluster.local_size, ranks, stride)
    domain = _part(cluster.domain_size, ranks, stride)
    if cluster.world_size % ranks or not local or not domain:
        inside = sorted({cluster.local_size, cluster.domain_size})
        raise ConfigError(
            f"{cluster.world_size} ranks do not divide into groups of {ranks} with equal parts of "
            f"each node and pod ({cluster.name}); choose a number of groups that divides "
            f"{' and '.join(map(str, inside))}, or a multiple of it"
        )
    share = local / cluster.local_size
    link, memory = cluster.host_link, cluster.host_memory_bandwidth_bytes_per_s
    together = min(link.devices, cluster.local_size)
    own = min(together, ranks) if stride == 1 else max(1, together // stride)
    return replace(
        cluster,
        devices_per_node=local,
        nodes_per_pod=domain // local,
        world_size=ranks,
        host_link=replace(
            link, devices=own, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * own / together
        ),
        host_memory_bytes=_times(cluster.host_memory_bytes, share),
        host_memory_bandwidth_bytes_per_s=_times(memory, share),
        storage_bandwidth_bytes_per_s=_times(cluster.storage_bandwidth_bytes_per_s, share),
        part_of=cluster,
        rank_stride=stride,
    )


def changed_cluster(cluster: Cluster, **changes: Any) -> Cluster:
    """Returns a cluster with other values of some fields, in the whole cluster too.

    Args:
        cluster: A whole cluster, or a group of the ranks of one.
        changes: New values, by the names of fields that the ranks of all groups share, such as
            link and network.
    """
    part_of = None if cluster.part_of is None else replace(cluster.part_of, **changes)
    return replace(cluster, part_of=part_of, **changes)


def _part(size: int, ranks: int, stride: int) -> int:
    """Returns how many of `size` neighbouring ranks are in a group; 0 where parts are unequal."""
    if stride == 1:
        return min(size, ranks) if size % ranks == 0 or ranks % size == 0 else 0
    return max(1, size // stride) if size % stride == 0 or stride % size == 0 else 0


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
