"""Why tables do not fit, how much is missing, and what would make them fit.

Only what can be proved is said: bytes of weights and optimizer state against what a rank has left
for them, each remedy computed with the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.sharding._constraints import TableConstraints, placements_allowed
from dse.sharding._plan import ComputeKernel, ShardingType
from dse.sharding._planners import largest_piece_bytes
from dse.sharding._storage import piece_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.sharding._constraints import AllowedPlacement
    from dse.sharding._request import PlanningRequest

#: Most ranks that are considered as a remedy.
_MAX_RANKS = 4096

#: Tables that are named one by one.
_MAX_TABLES = 3

_UVM = (ComputeKernel.FUSED_UVM_CACHING, ComputeKernel.FUSED_UVM)


@dataclass(frozen=True, slots=True)
class _Smallest:
    """The placement whose largest piece is the smallest."""

    placement: AllowedPlacement
    pieces: int
    size_bytes: float

    def __str__(self) -> str:
        kind = self.placement.sharding_type.value
        words = kind + (f", {self.pieces} column pieces" if self.pieces > 1 else "")
        if self.placement.compute_kernel.on_host:
            words += f", {self.placement.compute_kernel.value}"
        return words


def explain_infeasible(
    request: PlanningRequest, free_bytes: float, memory_at: Callable[[int], float | None]
) -> str:
    """Says which tables cannot fit whatever the plan, and what would help.

    Args:
        request: What is to be placed, and within which limits. Remedies are held against its
            `embedding_memory_bytes`, which leave room for indices and buffers.
        free_bytes: What a rank has at most for weights and optimizer state.
        memory_at: The same limit as `embedding_memory_bytes` on another number of ranks; None
            where the job cannot run on so many.

    Returns:
        A line for each table that fits nowhere (the largest few), or a line about all tables
        together; empty when neither can be shown.
    """
    if free_bytes <= 0:
        return (
            "nothing of a rank's memory is left for tables once the dense part and the batch are "
            "stored; use a smaller batch or more ranks"
        )
    too_large = []
    for index in range(len(request.tables)):
        smallest = _smallest(index, request)
        if smallest.size_bytes > free_bytes:
            too_large.append((smallest.size_bytes, index, smallest))
    if too_large:
        too_large.sort(key=lambda entry: (-entry[0], entry[1]))
        lines = [
            _table_words(index, request, smallest, free_bytes, memory_at)
            for _, index, smallest in too_large[:_MAX_TABLES]
        ]
        if len(too_large) > _MAX_TABLES:
            more = len(too_large) - _MAX_TABLES
            lines.append(f"{more} more table{'s fit' if more > 1 else ' fits'} nowhere either")
        return "\n".join(lines)
    return _together(request, free_bytes, memory_at)


def total_device_bytes(request: PlanningRequest) -> float:
    """Returns the least device memory that all tables take on all ranks together."""
    return sum(_least_total(index, request) for index in range(len(request.tables)))


def _smallest(table_index: int, request: PlanningRequest) -> _Smallest:
    return min(_ways(table_index, request), key=lambda way: way.size_bytes)


def _ways(table_index: int, request: PlanningRequest) -> Iterator[_Smallest]:
    table = request.tables[table_index]
    for placement in placements_allowed(table_index, request):
        for pieces in placement.column_pieces:
            size_bytes = largest_piece_bytes(table, placement, pieces, request)
            yield _Smallest(placement, pieces, size_bytes)


def _table_words(
    table_index: int,
    request: PlanningRequest,
    smallest: _Smallest,
    free_bytes: float,
    memory_at: Callable[[int], float | None],
) -> str:
    table = request.tables[table_index]
    remedies = [
        *_other_types(table_index, request, smallest),
        *_uvm(table_index, request, smallest),
        *_more_ranks(table_index, request, memory_at),
        *_dropped(table_index, request),
    ]
    helps = (
        "it would fit with " + ", or with ".join(remedies)
        if remedies
        else f"no other sharding type, no UVM and no {_MAX_RANKS:,} ranks would make it fit"
    )
    return (
        f"table `{table.name}` fits nowhere: its largest piece takes at least "
        f"{size_words(smallest.size_bytes)} ({smallest}), a rank has {size_words(free_bytes)} for "
        f"tables, {size_words(smallest.size_bytes - free_bytes)} are missing; {helps}"
    )


def _other_types(table_index: int, request: PlanningRequest, smallest: _Smallest) -> Iterator[str]:
    """Yields types that are not allowed at present, with the same kernel."""
    used = {way.placement.sharding_type for way in _ways(table_index, request)}
    kernel = smallest.placement.compute_kernel
    if kernel is ComputeKernel.DENSE:
        kernel = ComputeKernel.FUSED
    for kind in (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.COLUMN_WISE):
        if kind not in used:
            found = _fitting(table_index, _only(request, frozenset({kind}), kernel))
            if found:
                pieces = f"{found.pieces} column pieces, " if found.pieces > 1 else ""
                yield f"{kind.value} ({pieces}{size_words(found.size_bytes)} a rank)"


def _uvm(table_index: int, request: PlanningRequest, smallest: _Smallest) -> Iterator[str]:
    """Yields the first kernel for rows in host memory that helps, unless there is one already."""
    used = {way.placement.compute_kernel for way in _ways(table_index, request)}
    for kernel in _UVM:
        if kernel in used:
            continue
        found = _fitting(table_index, _on_host(request, kernel))
        if found:
            name = request.tables[table_index].name
            named = any(one.allowed_kernels and one.matches(name) for one in request.constraints)
            how = "where kernels are named" if named else "--allow-uvm"
            kind = found.placement.sharding_type.value
            size = size_words(found.size_bytes)
            yield f"{kernel.value} ({how}; {kind}, {size} of device memory a rank)"
            return


def _more_ranks(
    table_index: int, request: PlanningRequest, memory_at: Callable[[int], float | None]
) -> Iterator[str]:
    for larger in _larger(request, memory_at):
        found = _fitting(table_index, larger)
        if found:
            yield f"{larger.world_size:,} ranks ({found}, {size_words(found.size_bytes)} a rank)"
            return


def _dropped(table_index: int, request: PlanningRequest) -> Iterator[str]:
    """Yields constraints without which the table fits."""
    name = request.tables[table_index].name
    for constraint in request.constraints:
        if constraint.matches(name):
            rest = tuple(one for one in request.constraints if one is not constraint)
            found = _fitting(table_index, replace(request, constraints=rest))
            if found:
                origin = constraint.origin or f"the constraint on `{constraint.tables}`"
                yield f"{found} ({size_words(found.size_bytes)} a rank) without {origin}"


def _larger(
    request: PlanningRequest, memory_at: Callable[[int], float | None]
) -> Iterator[PlanningRequest]:
    """Yields the same request on more ranks: more of one node, then whole nodes."""
    node = request.devices_per_node
    sizes = list(range(request.world_size + 1, node + 1))
    first = request.world_size // node + 1
    sizes += [count * node for count in range(max(2, first), _MAX_RANKS // node + 1)]
    for size in sizes:
        memory_bytes = memory_at(size)
        if memory_bytes is not None:
            yield replace(request, world_size=size, embedding_memory_bytes=memory_bytes)


def _fitting(table_index: int, request: PlanningRequest) -> _Smallest | None:
    """Returns the placement with the smallest pieces when a rank holds one."""
    try:
        smallest = _smallest(table_index, request)
    except ConfigError:
        return None
    return smallest if smallest.size_bytes <= request.embedding_memory_bytes else None


def _only(
    request: PlanningRequest, kinds: frozenset[ShardingType], kernel: ComputeKernel
) -> PlanningRequest:
    """Returns a request in which only these types and this kernel are allowed; pins stay."""
    others = tuple(
        replace(one, allowed_types=None, allowed_kernels=None) for one in request.constraints
    )
    wanted = TableConstraints(allowed_kernels=frozenset({kernel}))
    return replace(request, allowed_types=kinds, constraints=(*others, wanted))


def _on_host(request: PlanningRequest, kernel: ComputeKernel) -> PlanningRequest:
    """Returns a request in which all tables have that kernel; types and pins stay."""
    others = tuple(replace(one, allowed_kernels=None) for one in request.constraints)
    wanted = TableConstraints(allowed_kernels=frozenset({kernel}))
    return replace(request, constraints=(*others, wanted))


def _together(
    request: PlanningRequest, free_bytes: float, memory_at: Callable[[int], float | None]
) -> str:
    needed = total_device_bytes(request)
    available = request.world_size * free_bytes
    if needed <= available:
        return ""
    remedies = [*_relaxed(request, needed)]
    for larger in _larger(request, memory_at):
        if total_device_bytes(larger) <= larger.world_size * larger.embedding_memory_bytes:
            remedies.append(f"{larger.world_size:,} ranks")
            break
    for kernel in _UVM:
        left = _room_for_all(_on_host(request, kernel), needed)
        if left is not None:
            remedies.append(
                f"{kernel.value} (--allow-uvm; {size_words(left)} of device memory for all)"
            )
            break
    ranks_have = "1 rank has" if request.world_size == 1 else f"{request.world_size} ranks have"
    helps = f"; there would be room with {', or with '.join(remedies)}" if remedies else ""
    return (
        f"all tables together take at least {size_words(needed)} of device memory, "
        f"{ranks_have} {size_words(available)} for tables, "
        f"{size_words(needed - available)} are missing{helps}"
    )


def _relaxed(request: PlanningRequest, needed: float) -> Iterator[str]:
    """Yields other sharding types, and constraints without which all tables have room."""
    everything = replace(request, allowed_types=frozenset(ShardingType))
    left = _room_for_all(everything, needed)
    if left is not None:
        yield f"all sharding types ({size_words(left)} for all)"
    for constraint in request.constraints:
        rest = tuple(one for one in request.constraints if one is not constraint)
        left = _room_for_all(replace(request, constraints=rest), needed)
        if left is not None:
            origin = constraint.origin or f"the constraint on `{constraint.tables}`"
            yield f"what is allowed without {origin} ({size_words(left)} for all)"


def _room_for_all(request: PlanningRequest, needed: float) -> float | None:
    """Returns what all tables take where that is less than before and there is room for it."""
    try:
        left = total_device_bytes(request)
    except ConfigError:
        return None
    room = request.world_size * request.embedding_memory_bytes
    return left if left < needed and left <= room else None


def _least_total(table_index: int, request: PlanningRequest) -> float:
    table = request.tables[table_index]
    totals = []
    for placement in placements_allowed(table_index, request):
        storage = piece_storage(
            table, request.optimizer, table.rows, table.dim, placement.cached_share
        )
        copies = request.world_size if placement.sharding_type is ShardingType.DATA_PARALLEL else 1
        totals.append(copies * storage.device_bytes)
    return min(totals)


def size_words(size_bytes: float) -> str:
    """Returns a size for messages, in the unit that suits it."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:,.1f} {unit}"
    return f"{size_bytes:.0f} bytes"
