"""Duration of a collective: both levels of the machine, measured where there are curves.

All-reduces and exchanges over several scale-up domains (nodes, or pods) are hierarchical: every
domain reduces or exchanges inside while the domains exchange through their network cards. Chunks
of one level overlap chunks of the other, so the slower level decides and a tenth of the other
stays visible:

    t = max(inside, between) + 0.1 · min(inside, between)

All-gather, reduce-scatter and broadcast are one ring, which passes all ranks one after the other:
nothing is done twice, so its slower part decides alone.

What is passed from rank to rank inside domains is passed by the ranks of all domains. Where
switches give every number of ranks the same rate, that takes as long as in one domain of so many
ranks. So the same ranks are never slower in a larger domain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine._hardware import LinkKind
from dse.machine.collectives._between import between_time_s, exchange_time_s
from dse.machine.collectives._fabric import forwarded_share
from dse.machine.collectives._groups import CollectiveOp, Group
from dse.machine.collectives._inside import inside_time_s
from dse.machine.collectives._measured import Measured, measured
from dse.machine.collectives._network_models import network_spread
from dse.machine.fits import Estimate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dse.machine import Cluster, LinkSpec

#: Standard deviation of the logarithm of actual over analytical time. Inside a node the formulas
#: miss published nccl-tests of A100, H100 and H200 by 0.16; wider, because a link without curves
#: is another one than those.
_ANALYTICAL_SPREAD = 0.25

#: Share of the faster level's time that the slower one does not hide, where both do work of
#: their own. All-gathers on 2–128 nodes (aliyun/SimAI) and on 2–64 p5 are met within 14 % and 11 %
#: with it, within 9 % and 10 % without.
_VISIBLE_SHARES = {CollectiveOp.ALL_REDUCE: 0.1, CollectiveOp.ALL_TO_ALL: 0.1}


def collective_estimate(
    cluster: Cluster, op: CollectiveOp | str, nbytes: ArrayLike, group: Group | None = None
) -> Estimate:
    """Returns the duration of one collective after its last rank has arrived, with its spread.

    Args:
        cluster: The cluster.
        op: The operation.
        nbytes: Message size as nccl-tests counts it: for all-gather and reduce-scatter the total
            over ranks, otherwise the buffer of one rank. Any shape.
        group: Taking part; all ranks by default, of a part of a larger cluster those of the part,
            while the other parts do the same.

    Returns:
        Seconds and standard deviation of their logarithm, in the shape of `nbytes`; both zero for
        an empty message or a group of one.
    """
    operation = CollectiveOp(op)
    members, cluster = group or Group.world(cluster), cluster.whole
    size = np.asarray(nbytes, dtype=np.float64)
    inside_s = inside_level_s(cluster, operation, size, members)
    between_s = between_level_s(cluster, operation, size, members)
    inside_decides = inside_s >= between_s
    visible = _VISIBLE_SHARES.get(operation, 0.0)
    inside_part_s = np.where(inside_decides, inside_s, visible * inside_s)
    between_part_s = np.where(inside_decides, visible * between_s, between_s)
    time_s = inside_part_s + between_part_s
    # The levels' errors are independent of each other.
    deviation_s = np.hypot(
        inside_part_s * _inside_spread(cluster, operation, size, members),
        between_part_s * network_spread(cluster.network, operation, size, members.domains),
    )
    spread = np.divide(deviation_s, time_s, out=np.zeros_like(time_s), where=time_s > 0)
    return Estimate(time_s, spread)


def collective_time_s(
    cluster: Cluster, op: CollectiveOp | str, nbytes: ArrayLike, group: Group | None = None
) -> NDArray[np.float64]:
    """Returns the time of :func:`collective_estimate`, without its spread.

    Args:
        cluster: The cluster.
        op: The operation.
        nbytes: Message size as nccl-tests counts it, any shape.
        group: Taking part; all ranks by default.

    Returns:
        Seconds, in the shape of `nbytes`; zero for an empty message or a group of one.
    """
    members, cluster = group or Group.world(cluster), cluster.whole
    size = np.asarray(nbytes, dtype=np.float64)
    operation = CollectiveOp(op)
    inside_s = inside_level_s(cluster, operation, size, members)
    between_s = between_level_s(cluster, operation, size, members)
    return both_levels_s(operation, inside_s, between_s)


def deciding_bytes(
    link: LinkSpec, held_bytes: NDArray[np.float64], ranks: int
) -> NDArray[np.float64]:
    """Returns what decides how long an all-to-all with unequal parts takes inside domains.

    A link carries both directions at once, so it is the most that any rank sends to, or receives
    from, the others of its domain. In shared memory the core of a rank copies what it sends as
    well as what it receives, so there it is half of both together
    (`benchmarks/uneven_exchanges.py`).

    Args:
        link: The link inside the domains.
        held_bytes: Bytes that each rank distributes evenly; shape `(domains, ranks of a domain,
            candidates)`.
        ranks: Ranks to which it sends them, those of other domains and its own among them.

    Returns:
        Shape `(candidates,)`.
    """
    local = held_bytes.shape[1]
    of_domain = held_bytes.sum(axis=1)
    if link.kind is LinkKind.SHARED_MEMORY:
        both = (local - 2) * held_bytes.max(axis=1) + of_domain
        return np.asarray(both.max(axis=0) / (2 * ranks))
    sent = held_bytes.max(axis=(0, 1)) * ((local - 1) / ranks)
    received = (of_domain - held_bytes.min(axis=1)).max(axis=0) / ranks
    return np.asarray(np.maximum(sent, received))


def all_to_all_v_time_s(
    cluster: Cluster,
    local_bytes: ArrayLike,
    remote_bytes: ArrayLike,
    domain_remote_bytes: ArrayLike,
    group: Group | None = None,
) -> NDArray[np.float64]:
    """Returns the duration of an all-to-all with unequal parts.

    Between devices the size that matters is the largest that any rank sends or receives (TPDS'24:
    5.4 % error against 6.7 % with totals), here separately for the link, the rank's card and the
    domain's cards. Inside a domain of `n` ranks it takes the time of an all-to-all with equal
    parts in which a rank sends as much to the others: of a message of `local_bytes · n / (n − 1)`.

    Args:
        cluster: The cluster.
        local_bytes: What decides inside the domains (:func:`deciding_bytes`).
        remote_bytes: Largest send or receive of any rank to or from other domains.
        domain_remote_bytes: The same summed over the ranks of a domain, largest over domains; each
            of the groups that share the domain's cards has as much.
        group: Taking part; all ranks by default.

    Returns:
        Seconds, in the broadcast shape.
    """
    members, cluster = group or Group.world(cluster), cluster.whole
    local, remote, domain_remote = (
        np.asarray(size, dtype=np.float64)
        for size in (local_bytes, remote_bytes, domain_remote_bytes)
    )
    peers = members.ranks_per_domain - 1
    local = local + forwarded_share(cluster, members) * remote
    message = local * (members.ranks_per_domain / peers) if peers else np.zeros_like(local)
    operation = CollectiveOp.ALL_TO_ALL
    inside_s = _inside_s(cluster, operation, message, members)
    if members.domains == 1:
        return np.asarray(inside_s + np.zeros_like(remote + domain_remote))
    by_all = domain_remote * members.card_sharers
    return both_levels_s(operation, inside_s, exchange_time_s(cluster, remote, by_all, members))


def inside_level_s(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], group: Group
) -> NDArray[np.float64]:
    """Returns the seconds that a collective takes inside the domains, as if alone.

    Args:
        cluster: The cluster.
        op: The operation.
        size: Message sizes as nccl-tests counts them, any shape; empty messages take no time.
        group: Taking part.
    """
    return _inside_s(cluster, op, _bytes_inside(cluster, op, size, group), group)


def between_level_s(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], group: Group
) -> NDArray[np.float64]:
    """Returns the seconds that a collective takes between the domains, as if alone.

    Args:
        cluster: The cluster.
        op: The operation.
        size: Message sizes as nccl-tests counts them, any shape; empty messages take no time.
        group: Taking part.
    """
    if group.domains == 1:
        return np.zeros_like(size)
    if op is CollectiveOp.ALL_TO_ALL:
        remote = size * ((group.size - group.ranks_per_domain) / group.size)
        domain_remote = remote * (group.ranks_per_domain * group.card_sharers)
        return exchange_time_s(cluster, remote, domain_remote, group)
    return np.where(size > 0, between_time_s(cluster, op, size, group), 0.0)


def both_levels_s(
    op: CollectiveOp, inside_s: NDArray[np.float64], between_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the seconds of a collective from those of its parts inside and between domains.

    The longer part decides; where both do work of their own, a share of the shorter one is added.
    """
    visible = _VISIBLE_SHARES.get(op, 0.0)
    return np.maximum(inside_s, between_s) + visible * np.minimum(inside_s, between_s)


def ranks_inside(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], group: Group
) -> NDArray[np.int64]:
    """Returns how many ranks of one domain take as long as the part inside domains.

    Args:
        cluster: The cluster.
        op: The operation.
        size: Message sizes as nccl-tests counts them, any shape.
        group: Taking part.
    """
    local = group.ranks_per_domain
    if local < 2 or not _passes_all(cluster, op, group):
        return np.full(size.shape, local)
    in_domain_s, of_all_s = (_passed_s(cluster, op, size, ranks) for ranks in (local, group.size))
    return np.where(in_domain_s >= of_all_s, local, group.size)


def _bytes_inside(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], group: Group
) -> NDArray[np.float64]:
    """The message that one domain's ranks have alone: an exchange leaves a part of it there."""
    if op is not CollectiveOp.ALL_TO_ALL or group.domains == 1:
        return size
    inside = size / group.domains
    forwarded = forwarded_share(cluster, group)
    if forwarded:
        # As many bytes more as a message among these ranks that sends them to the others.
        peers = group.ranks_per_domain - 1
        inside = inside * (1.0 + forwarded * (group.size - group.ranks_per_domain) / peers)
    return inside


def _inside_s(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], group: Group
) -> NDArray[np.float64]:
    if group.ranks_per_domain < 2:
        return np.zeros_like(size)
    time_s = _passed_s(cluster, op, size, group.ranks_per_domain)
    if _passes_all(cluster, op, group):
        # Few ranks of a domain may lack the sums in switches that all of them would have.
        time_s = np.maximum(time_s, _passed_s(cluster, op, size, group.size))
    return np.where(size > 0, time_s, 0.0)


def _passes_all(cluster: Cluster, op: CollectiveOp, group: Group) -> bool:
    """Whether links pass on what comes from the ranks of other domains, as in one domain."""
    switched = cluster.link.kind is LinkKind.NVSWITCH
    return group.domains > 1 and switched and op is not CollectiveOp.ALL_TO_ALL


def _passed_s(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], ranks: int
) -> NDArray[np.float64]:
    """Seconds among so many ranks of one domain."""
    known = _measured(cluster, op, ranks)
    if known is None:
        return inside_time_s(cluster.link, op, size, ranks, _nodes_of(cluster, ranks))
    return known.time_s(size)


def _measured(cluster: Cluster, op: CollectiveOp, ranks: int) -> Measured | None:
    return measured(cluster.link, op, ranks, _nodes_of(cluster, ranks))


def _nodes_of(cluster: Cluster, ranks: int) -> int:
    """Nodes that so many ranks of a domain sit on, as few as hold them."""
    return -(-ranks // cluster.devices_per_node)


def _inside_spread(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], group: Group
) -> NDArray[np.float64] | float:
    if group.ranks_per_domain < 2:
        return _ANALYTICAL_SPREAD
    inside = _bytes_inside(cluster, op, size, group)
    spread = _passed_spread(cluster, op, inside, group.ranks_per_domain)
    if not _passes_all(cluster, op, group):
        return spread
    of_all = _passed_spread(cluster, op, inside, group.size)
    return np.where(ranks_inside(cluster, op, inside, group) < group.size, spread, of_all)


def _passed_spread(
    cluster: Cluster, op: CollectiveOp, size: NDArray[np.float64], ranks: int
) -> NDArray[np.float64] | float:
    known = _measured(cluster, op, ranks)
    if known is None:
        return _ANALYTICAL_SPREAD
    return known.spread(np.where(size > 0, size, known.curve.size_bytes[0]))
