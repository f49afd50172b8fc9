"""Greedy placement of the shards of many plans: largest first, each where it costs least."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType
from dse.workload.dlrm.solver._options import PlacementScope
from dse.workload.dlrm.solver.moves import PlanArrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._options import Cut, ShardingOptions

#: Weight of all loads against the largest: decides between ranks that do not become the largest.
_SPREAD_WEIGHT = 1e-3

#: Loads of ranks that are looked at together, so that they stay in the processor's cache.
_TOGETHER = 2**16

#: More than any load costs.
_NO_ROOM = 1e200


def place_shards(
    options: ShardingOptions,
    cuts: NDArray[np.int64],
    weights: NDArray[np.float64],
    memory_bytes: float,
    *,
    by_bytes: bool = False,
) -> PlanArrays:
    """Places all shards of all plans.

    The shards of a table cost about the same, so they go to the best ranks in one step.

    Args:
        options: The cuts.
        cuts: Numbers of cuts; shape `(plans, tables)`.
        weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        by_bytes: Whether to look at memory only.
    """
    counts = options.arrays.place_counts[cuts]
    ends = np.cumsum(counts).reshape(counts.shape)
    places = np.empty(int(ends[-1, -1]), dtype=np.int64)
    # Different blocks of rows make nodes different, which are alike in all other plans.
    uneven = options.arrays.uneven[cuts].any(axis=1)
    each = max(1, _TOGETHER // (len(weights) * options.request.world_size))
    for alike in (np.flatnonzero(uneven), np.flatnonzero(~uneven)):
        for start in range(0, len(alike), each):
            chosen = alike[start : start + each]
            begins = (ends - counts)[chosen]
            _place(options, cuts[chosen], weights, memory_bytes, by_bytes, begins, places)
    return PlanArrays(cuts, counts, places)


def _place(
    options: ShardingOptions,
    cuts: NDArray[np.int64],
    weights: NDArray[np.float64],
    memory_bytes: float,
    by_bytes: bool,
    begins: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """Places the shards of plans at once, with the arguments of :func:`place_shards`.

    Args:
        options: See there, and so are the others.
        cuts: Of these plans.
        weights: See there.
        memory_bytes: See there.
        by_bytes: See there.
        begins: Where the places of each table begin in `places`; shape `(plans, tables)`.
        places: Ranks and nodes of all shards, to fill.
    """
    request = options.request
    known, at = np.unique(cuts, return_inverse=True)
    at = at.reshape(cuts.shape)
    used = [options.cuts[number] for number in known.tolist()]
    shards = options.arrays.place_counts[known]
    moves = np.array([cut.scope is PlacementScope.RANK for cut in used])
    # Those with most to place come first, so that others end before them.
    most_first = np.argsort(-moves[at].sum(axis=1), kind="stable")
    at, begins = at[most_first], begins[most_first]
    left = moves[at].sum(axis=1)
    stays = np.array([cut.key.kind is ShardingType.TABLE_COLUMN_WISE for cut in used])
    nodes = _enough_nodes(options, used, int(shards[at].sum(axis=1).max()))
    ranks = (nodes[:, None] * request.devices_per_node + np.arange(request.local_size)).ravel()
    total = np.zeros((len(cuts), len(weights) + 1, len(ranks)))
    total[:, -1] = options.scorer.memory_bytes_without_tables
    # What orders shards and nodes: seconds, or bytes.
    measure = np.append(weights, float(by_bytes))
    _place_on_nodes(options, at, used, nodes, total, measure, begins, places)
    # Of equally good ranks neighbours are on different nodes: what a node sends counts, too.
    in_turn = np.argsort(ranks % request.devices_per_node, kind="stable")
    ranks, held_bytes = ranks[in_turn], total[:, -1, in_turn]
    allowed = np.ones((len(used), len(ranks)), dtype=bool)
    for row in np.flatnonzero(moves).tolist():
        allowed[row] = used[row].allowed[ranks]
    any_pinned, any_stays = not allowed.all(), bool(stays.any())
    costs = np.where(moves[:, None], largest_shards(used), 0.0)
    costs_bytes, node_of = costs[:, -1], ranks // request.devices_per_node
    # Seconds of the loads that cost any, from here on.
    counted = np.flatnonzero(weights > 0)
    costs_s = costs[:, counted] * weights[counted]
    total_s = total[:, counted][:, :, in_turn] * weights[counted, None]
    shards = np.where(moves, shards, 0)
    order = np.argsort(np.where(moves, -(costs @ measure), np.inf)[at], axis=1, kind="stable")
    largest_s = total_s.max(axis=2, keepdims=True)
    spread_s = _SPREAD_WEIGHT * total_s.sum(axis=1)
    loads = np.arange(len(counted))[:, None]
    # Of many ranks it takes longer to get memory than to compute what is in it.
    room = np.empty_like(total_s)
    for step in range(int(left.max(initial=0))):
        plans = np.arange(int(np.count_nonzero(left > step)))
        table = order[plans, step]
        cut = at[plans, table]
        cost_s, cost_bytes = costs_s[cut], costs_bytes[cut, None]
        held = held_bytes[: len(plans)]
        # Ranks without room come last, those that hold the fewest bytes first.
        full = _NO_ROOM * (1.0 + held / memory_bytes)
        if by_bytes:
            value = full
        else:
            after_s = np.add(total_s[: len(plans)], cost_s[:, :, None], out=room[: len(plans)])
            value = np.maximum(after_s, largest_s[: len(plans)], out=after_s).sum(axis=1)
            value += spread_s[: len(plans)]
            value = np.where(held + cost_bytes <= memory_bytes, value, full)
        if any_pinned:
            value[~allowed[cut]] = np.inf
        if any_stays:
            home = node_of[value.argmin(axis=1)]
            value[stays[cut, None] & (node_of != home[:, None])] = np.inf
        count = shards[cut]
        most = int(count.max())
        best = value.argmin(axis=1)[:, None]
        if most > 1:
            best = np.repeat(best, most, axis=1)
            several = np.flatnonzero(count > 1)
            best[several] = np.argsort(value[several], axis=1, kind="stable")[:, :most]
        plan, shard = np.nonzero(np.arange(most) < count[:, None])
        rank = best[plan, shard]
        places[begins[plan, table[plan]] + shard] = ranks[rank]
        held_bytes[plan, rank] += cost_bytes[plan, 0]
        spread_s[plan, rank] += _SPREAD_WEIGHT * cost_s.sum(axis=1)[plan]
        total_s[plan, :, rank] += cost_s[plan]
        highest = total_s[plans[:, None, None], loads, best[:, None, :]].max(axis=2, keepdims=True)
        np.maximum(largest_s[: len(plans)], highest, out=largest_s[: len(plans)])


def _enough_nodes(options: ShardingOptions, used: Sequence[Cut], shards: int) -> NDArray[np.int64]:
    """Returns nodes that suffice to place some shards, ascending.

    Of nodes that are alike, and hold no shard yet, the first one is taken, so that as many of each
    kind as there are shards are enough.

    Args:
        options: The cuts.
        used: Cuts.
        shards: The most shards of any plan that are not on all ranks.
    """
    count = options.request.node_count
    kinds = [np.zeros((count, 1), dtype=np.int64)]
    for cut in used:
        if cut.scope is not PlacementScope.ALL:
            unlike = None if cut.anywhere else cut.allowed
        else:
            unlike = None if cut.even else cut.rows[0]
        if unlike is not None:
            kinds.append(unlike.reshape(count, -1).astype(np.int64))
    _, kind = np.unique(np.concatenate(kinds, axis=1), axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    by_kind = np.argsort(kind, kind="stable")
    sizes = np.bincount(kind)
    before = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(by_kind[before < max(1, shards)])


def _place_on_nodes(
    options: ShardingOptions,
    at: NDArray[np.int64],
    used: Sequence[Cut],
    nodes: NDArray[np.int64],
    total: NDArray[np.float64],
    measure: NDArray[np.float64],
    begins: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """Places shards that fill nodes on the least loaded ones, and adds those on all ranks.

    Args:
        options: The cuts.
        at: Number in `used` of the cut of each table; shape `(plans, tables)`.
        used: Cuts.
        nodes: The nodes that are looked at.
        total: Loads and bytes of their ranks, to add to; shape `(plans, loads + 1, ranks)`.
        measure: What a unit of each load and a byte counts; shape `(loads + 1,)`.
        begins: Where the places of each table begin in `places`; shape `(plans, tables)`.
        places: Ranks and nodes of all shards, to fill.
    """
    request = options.request
    scopes = np.array([cut.scope for cut in used])
    alone = np.array([cut.costs[0] for cut in used]) * (scopes == PlacementScope.ALL)[:, None]
    for row, cut in enumerate(used):
        if cut.hot >= 0:
            alone[row] += options.shard_costs[cut.hot]
    total += alone[at].sum(axis=1)[:, :, None]
    for row in np.flatnonzero(scopes == PlacementScope.ALL).tolist():
        if not used[row].even:
            # Each rank has its own block of rows.
            blocks = used[row].rows[0].reshape(request.node_count, -1)[nodes]
            on_ranks = options.shard_costs[blocks.ravel()].T
            chosen = at[:, used[row].key.table] == row
            total[chosen] += on_ranks - used[row].costs[0][:, None]
    fills = scopes == PlacementScope.NODE
    if not fills[at].any():
        return
    most = max(cut.key.shards for cut, node in zip(used, fills.tolist(), strict=True) if node)
    costs = np.zeros((len(used), most, total.shape[1]))
    allowed = np.ones((len(used), len(nodes)), dtype=bool)
    for row in np.flatnonzero(fills).tolist():
        costs[row, : len(used[row].costs)] = used[row].costs
        allowed[row] = used[row].allowed[nodes]
    seconds = costs @ measure
    shards = np.array([cut.key.shards for cut in used])
    held = np.zeros((len(at), len(nodes), total.shape[1]))
    busy = np.zeros((len(at), len(nodes)))
    for table in range(at.shape[1]):
        plans = np.flatnonzero(fills[at[:, table]])
        if not len(plans):
            continue
        cut = at[plans, table]
        order = np.where(allowed[cut], busy[plans], np.inf).argsort(axis=1, kind="stable")
        for offset in range(int(shards[cut].max())):
            more = np.flatnonzero(offset < shards[cut])
            where = order[more, offset]
            held[plans[more], where] += costs[cut[more], offset]
            busy[plans[more], where] += seconds[cut[more], offset]
        taken = np.arange(most) < shards[cut, None]
        where = (begins[plans, table][:, None] + np.arange(most))[taken]
        places[where] = nodes[order[:, :most][taken]]
    total += np.repeat(held.transpose(0, 2, 1), request.local_size, axis=2)


def largest_shards(cuts: Sequence[Cut]) -> NDArray[np.float64]:
    """Returns the loads and bytes of each cut's largest shard; shape `(cuts, loads + 1)`."""
    # Most cuts have one shard.
    return np.array(
        [cut.costs[0] if len(cut.costs) == 1 else cut.costs.max(axis=0) for cut in cuts]
    )
