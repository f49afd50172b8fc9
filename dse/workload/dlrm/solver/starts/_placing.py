"""Greedy placement of the shards of many plans: largest first, each where it costs least."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.sharding import ShardingType
from dse.workload.dlrm.solver._options import PlacementScope
from dse.workload.dlrm.solver.moves import Assignment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.workload.dlrm.solver._options import Cut, ShardingOptions

#: Weight of all loads against the largest: decides between ranks that do not become the largest.
_SPREAD_WEIGHT = 1e-3

#: Loads of ranks that are looked at together, so that they stay in the processor's cache.
_TOGETHER = 2**18

#: More than any load costs.
_NO_ROOM = 1e200


def place_shards(
    options: ShardingOptions,
    cuts: NDArray[np.int64],
    weights: NDArray[np.float64],
    memory_bytes: float,
    *,
    by_bytes: bool = False,
) -> list[Assignment]:
    """Places all shards of all plans.

    The shards of a table cost about the same, so they go to the best ranks in one step.

    Args:
        options: The cuts.
        cuts: Numbers of cuts; shape `(plans, tables)`.
        weights: Seconds that one more unit of each load costs; shape `(loads,)`.
        memory_bytes: What a rank may hold.
        by_bytes: Whether to look at memory only.
    """
    placed: dict[int, Assignment] = {}
    # Different blocks of rows make nodes different, which are alike in all other plans.
    different = [not options.cuts[number].even for number in range(len(options.cuts))]
    uneven = np.array(different)[cuts].any(axis=1)
    each = max(1, _TOGETHER // (len(weights) * options.request.world_size))
    for alike in (np.flatnonzero(uneven), np.flatnonzero(~uneven)):
        for start in range(0, len(alike), each):
            chosen = alike[start : start + each]
            found = _placed(options, cuts[chosen], weights, memory_bytes, by_bytes)
            placed |= zip(chosen.tolist(), found, strict=True)
    return [placed[plan] for plan in range(len(cuts))]


def _placed(
    options: ShardingOptions,
    cuts: NDArray[np.int64],
    weights: NDArray[np.float64],
    memory_bytes: float,
    by_bytes: bool,
) -> list[Assignment]:
    """Does what :func:`place_shards` does, with the same arguments, for plans at once."""
    request = options.request
    plans, tables = cuts.shape
    every = np.arange(plans)
    known, at = np.unique(cuts, return_inverse=True)
    at = at.reshape(cuts.shape)
    used = [options.cuts[number] for number in known.tolist()]
    costs = largest_shards(used)
    shards = np.array([cut.key.shards for cut in used])
    moves = np.array([cut.scope is PlacementScope.RANK for cut in used])
    stays = np.array([cut.key.kind is ShardingType.TABLE_COLUMN_WISE for cut in used])
    on_all = np.array([cut.scope is PlacementScope.ALL for cut in used])
    nodes = _enough_nodes(options, used, int(np.where(on_all, 0, shards)[at].sum(axis=1).max()))
    ranks = (nodes[:, None] * request.devices_per_node + np.arange(request.local_size)).ravel()
    allowed = np.ones((len(used), len(ranks)), dtype=bool)
    for row in np.flatnonzero(moves).tolist():
        allowed[row] = used[row].allowed[ranks]
    any_pinned, any_stays = not allowed.all(), bool(stays.any())
    moved_costs, moved_shards = np.where(moves[:, None], costs, 0.0), np.where(moves, shards, 0)
    total = np.zeros((plans, costs.shape[1], len(ranks)))
    total[:, -1] = options.scorer.memory_bytes_without_tables
    places: list[list[tuple[int, ...]]] = [[()] * tables for _ in range(plans)]
    # What orders shards and nodes: seconds, or bytes.
    measure = np.append(weights, float(by_bytes))
    _place_on_nodes(options, at, used, nodes, total, places, measure)
    size = costs @ measure
    order = np.argsort(np.where(moves, -size, np.inf)[at], axis=1, kind="stable")
    node_of = ranks // request.devices_per_node
    # Of equally good ranks neighbours are on different nodes: what a node sends counts, too.
    nodes_in_turn = np.argsort(ranks % request.devices_per_node, kind="stable")
    # Of many ranks it takes longer to get memory than to compute what is in it.
    after, sums = np.empty_like(total), np.empty_like(total[:, :-1])
    largest = total[:, :-1].max(axis=2, keepdims=True)
    loads = np.arange(total.shape[1])[:, None]
    for step in range(int(moves[at].sum(axis=1).max(initial=0))):
        table = order[:, step]
        cut = at[every, table]
        cost = moved_costs[cut][:, :, None]
        np.add(total, cost, out=after)
        room = after[:, -1] <= memory_bytes
        np.maximum(after[:, :-1], largest, out=sums)
        after *= _SPREAD_WEIGHT
        sums += after[:, :-1]
        value = weights @ sums
        # Ranks without room come last, those that hold the fewest bytes first.
        full = _NO_ROOM * (1.0 + total[:, -1] / memory_bytes)
        value = full if by_bytes else np.where(room, value, full)
        if any_pinned:
            value[~allowed[cut]] = np.inf
        if any_stays:
            home = node_of[value.argmin(axis=1)]
            value[stays[cut, None] & (node_of != home[:, None])] = np.inf
        value = value[:, nodes_in_turn]
        most = int(moved_shards[cut].max())
        if most == 1:
            best = nodes_in_turn[value.argmin(axis=1)[:, None]]
        else:
            best = nodes_in_turn[np.argsort(value, axis=1, kind="stable")[:, :most]]
        at_best = every[:, None, None], loads, best[:, None, :]
        if most > 1:
            taken = np.arange(best.shape[1]) < moved_shards[cut, None]
            cost = cost * taken[:, None, :]
        total[at_best] += cost
        np.maximum(largest, total[at_best][:, :-1].max(axis=2, keepdims=True), out=largest)
        taken_by = zip(
            places, table.tolist(), moved_shards[cut].tolist(), ranks[best].tolist(), strict=True
        )
        for of_plan, number, count, found in taken_by:
            if count:
                of_plan[number] = tuple(found[:count])
    return [
        Assignment(tuple(row), tuple(where))
        for row, where in zip(cuts.tolist(), places, strict=True)
    ]


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
    places: list[list[tuple[int, ...]]],
    measure: NDArray[np.float64],
) -> None:
    """Places shards that fill nodes on the least loaded ones, and adds those on all ranks.

    Args:
        options: The cuts.
        at: Number in `used` of the cut of each table; shape `(plans, tables)`.
        used: Cuts.
        nodes: The nodes that are looked at.
        total: Loads and bytes of their ranks, to add to; shape `(plans, loads + 1, ranks)`.
        places: Places of all tables of all plans, to fill.
        measure: What a unit of each load and a byte counts; shape `(loads + 1,)`.
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
        ranked = nodes[order[:, :most]].tolist()
        for plan, count, first in zip(plans.tolist(), shards[cut].tolist(), ranked, strict=True):
            places[plan][table] = tuple(first[:count])
    total += np.repeat(held.transpose(0, 2, 1), request.local_size, axis=2)


def largest_shards(cuts: Sequence[Cut]) -> NDArray[np.float64]:
    """Returns the loads and bytes of each cut's largest shard; shape `(cuts, loads + 1)`."""
    # Most cuts have one shard.
    return np.array(
        [cut.costs[0] if len(cut.costs) == 1 else cut.costs.max(axis=0) for cut in cuts]
    )
