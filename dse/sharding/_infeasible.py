"""Explanation of infeasible requests: what does not fit, by how much, and what would help.

It states only what can be proved: bytes of weights and optimizer state against the memory that
ranks and their hosts have for them. Remedies are computed by the same rules.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.sharding._plan import ComputeKernel, ShardingType
from dse.sharding._planners import largest_shard_bytes
from dse.sharding._shards import shard_storage, stored_bytes
from dse.sharding.constraints import TableConstraints, placements_allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dse.model import EmbeddingTable, Optimizer
    from dse.sharding.constraints import AllowedPlacement, PlanningRequest

#: Most ranks considered as a remedy.
_MAX_RANKS = 4096

#: Tables named individually.
_MAX_TABLES = 3

_UVM = (ComputeKernel.FUSED_UVM_CACHING, ComputeKernel.FUSED_UVM)


@dataclass(frozen=True, slots=True)
class _Smallest:
    """The placement whose largest shard is the smallest."""

    placement: AllowedPlacement
    shards: int
    size_bytes: float

    def __str__(self) -> str:
        kind = self.placement.sharding_type.value
        words = kind + (f", {self.shards} column shards" if self.shards > 1 else "")
        if self.placement.compute_kernel.on_host:
            words += f", {self.placement.compute_kernel.value}"
        return words


def explain_infeasible(
    request: PlanningRequest,
    free_bytes: float,
    memory_at: Callable[[int], float | None],
    host_at: Callable[[int], float] = lambda world_size: math.inf,
) -> str:
    """Explains which tables cannot fit in any plan, and what would help.

    Args:
        request: Tables and limits. Remedies are checked against its `embedding_memory_bytes`,
            which leave room for indices and buffers.
        free_bytes: Most memory of a rank for weights and optimizer state.
        memory_at: The same limit as `embedding_memory_bytes` on another number of ranks; None
            where the job cannot run on so many.
        host_at: Host memory of all nodes that so many ranks occupy; infinite where it is not
            known.

    Returns:
        A line for each of the largest tables that fit nowhere, or a line about all tables
        together; empty if neither can be proved.
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
            _describe_table(index, request, smallest, free_bytes, memory_at)
            for _, index, smallest in too_large[:_MAX_TABLES]
        ]
        if len(too_large) > _MAX_TABLES:
            more = len(too_large) - _MAX_TABLES
            lines.append(f"{more} more table{'s fit' if more > 1 else ' fits'} nowhere either")
        return "\n".join(lines)
    return _together(request, free_bytes, memory_at) or _with_hosts(
        request, free_bytes, memory_at, host_at
    )


def total_device_bytes(request: PlanningRequest) -> float:
    """Returns the least device memory that all tables take on all ranks together."""
    return sum(_least_total(index, request) for index in range(len(request.tables)))


def total_bytes(tables: Iterable[EmbeddingTable], optimizer: Optimizer) -> float:
    """Returns the bytes of all tables with their optimizer state; cuts only add to them."""
    return sum(stored_bytes(table, optimizer, table.rows, table.dim) for table in tables)


def _smallest(table_index: int, request: PlanningRequest) -> _Smallest:
    return min(_ways(table_index, request), key=lambda way: way.size_bytes)


def _ways(table_index: int, request: PlanningRequest) -> Iterator[_Smallest]:
    table = request.tables[table_index]
    for placement in placements_allowed(table_index, request):
        for shards in placement.column_shards:
            size_bytes = largest_shard_bytes(table, placement, shards, request)
            yield _Smallest(placement, shards, size_bytes)


def _describe_table(
    table_index: int,
    request: PlanningRequest,
    smallest: _Smallest,
    free_bytes: float,
    memory_at: Callable[[int], float | None],
) -> str:
    table = request.tables[table_index]
    remedies = [
        *_other_types(table_index, request, smallest),
        *_uvm(table_index, request),
        *_more_ranks(table_index, request, memory_at),
        *_dropped(table_index, request),
    ]
    helps = (
        "it would fit with " + ", or with ".join(remedies)
        if remedies
        else f"no other sharding type, no UVM and no {_MAX_RANKS:,} ranks would make it fit"
    )
    return (
        f"table `{table.name}` fits nowhere: its largest shard takes at least "
        f"{format_size(smallest.size_bytes)} ({smallest}), a rank has {format_size(free_bytes)} "
        f"for tables, {format_size(smallest.size_bytes - free_bytes)} are missing; {helps}"
    )


def _other_types(table_index: int, request: PlanningRequest, smallest: _Smallest) -> Iterator[str]:
    """Yields types that are not allowed yet, with the same kernel."""
    used = {way.placement.sharding_type for way in _ways(table_index, request)}
    kernel = smallest.placement.compute_kernel
    if kernel is ComputeKernel.DENSE:
        kernel = ComputeKernel.FUSED
    for kind in (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE, ShardingType.COLUMN_WISE):
        if kind not in used:
            found = _fitting(table_index, _only(request, frozenset({kind}), kernel))
            if found:
                shards = f"{found.shards} column shards, " if found.shards > 1 else ""
                yield f"{kind.value} ({shards}{format_size(found.size_bytes)} a rank)"


def _uvm(table_index: int, request: PlanningRequest) -> Iterator[str]:
    """Yields the first kernel for rows in host memory that helps, unless one is allowed."""
    used = {way.placement.compute_kernel for way in _ways(table_index, request)}
    for kernel in _UVM:
        if kernel in used:
            continue
        found = _fitting(table_index, _on_host(request, kernel))
        if found:
            name = request.tables[table_index].name
            named = any(
                rule.allowed_kernels and rule.matches(name) for rule in request.constraints
            )
            how = "where kernels are named" if named else "--allow-uvm"
            kind = found.placement.sharding_type.value
            size = format_size(found.size_bytes)
            yield f"{kernel.value} ({how}; {kind}, {size} of device memory a rank)"
            return


def _more_ranks(
    table_index: int, request: PlanningRequest, memory_at: Callable[[int], float | None]
) -> Iterator[str]:
    larger = _fewest_ranks(
        request, memory_at, lambda more: _fitting(table_index, more) is not None
    )
    found = None if larger is None else _fitting(table_index, larger)
    if larger and found:
        yield f"{larger.world_size:,} ranks ({found}, {format_size(found.size_bytes)} a rank)"


def _dropped(table_index: int, request: PlanningRequest) -> Iterator[str]:
    """Yields constraints without which the table fits."""
    name = request.tables[table_index].name
    for constraint in request.constraints:
        if constraint.matches(name):
            rest = tuple(rule for rule in request.constraints if rule is not constraint)
            found = _fitting(table_index, replace(request, constraints=rest))
            if found:
                origin = constraint.origin or f"the constraint on `{constraint.tables}`"
                yield f"{found} ({format_size(found.size_bytes)} a rank) without {origin}"


def _fewest_ranks(
    request: PlanningRequest,
    memory_at: Callable[[int], float | None],
    enough: Callable[[PlanningRequest], bool],
) -> PlanningRequest | None:
    """Returns the request on the fewest additional ranks that are enough, if any are.

    Shards never grow with the number of ranks, nor does the memory of a rank shrink, so a binary
    search finds it. Sizes are those within a node, then whole nodes.
    """
    node = request.devices_per_node
    first = max(2, request.world_size // node + 1)
    sizes = [
        *range(request.world_size + 1, node + 1),
        *(count * node for count in range(first, _MAX_RANKS // node + 1)),
    ]
    larger = [
        replace(request, world_size=size, embedding_memory_bytes=memory_bytes)
        for size in sizes
        if (memory_bytes := memory_at(size)) is not None
    ]
    place = bisect_left(larger, True, key=enough)
    return larger[place] if place < len(larger) else None


def _fitting(table_index: int, request: PlanningRequest) -> _Smallest | None:
    """Returns the placement with the smallest shards, if a rank can hold one."""
    try:
        smallest = _smallest(table_index, request)
    except ConfigError:
        return None
    return smallest if smallest.size_bytes <= request.embedding_memory_bytes else None


def _only(
    request: PlanningRequest, kinds: frozenset[ShardingType], kernel: ComputeKernel
) -> PlanningRequest:
    """Returns a request that allows these types and this kernel only; pins stay."""
    others = tuple(
        replace(rule, allowed_types=None, allowed_kernels=None) for rule in request.constraints
    )
    wanted = TableConstraints(allowed_kernels=frozenset({kernel}))
    return replace(request, allowed_types=kinds, constraints=(*others, wanted))


def _on_host(request: PlanningRequest, kernel: ComputeKernel) -> PlanningRequest:
    """Returns a request in which all tables use a kernel; types and pins stay."""
    others = tuple(replace(rule, allowed_kernels=None) for rule in request.constraints)
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
    larger = _fewest_ranks(
        request,
        memory_at,
        lambda more: total_device_bytes(more) <= more.world_size * more.embedding_memory_bytes,
    )
    remedies += [f"{larger.world_size:,} ranks"] if larger else []
    for kernel in _UVM:
        left = _room_for_all(_on_host(request, kernel), needed)
        if left is not None:
            remedies.append(
                f"{kernel.value} (--allow-uvm; {format_size(left)} of device memory for all)"
            )
            break
    helps = f"; there would be room with {', or with '.join(remedies)}" if remedies else ""
    return (
        f"all tables together take at least {format_size(needed)} of device memory, "
        f"{_ranks_have(request)} {format_size(available)} for tables, "
        f"{format_size(needed - available)} are missing{helps}"
    )


def _with_hosts(
    request: PlanningRequest,
    free_bytes: float,
    memory_at: Callable[[int], float | None],
    host_at: Callable[[int], float],
) -> str:
    if not request.may_use_host:
        return ""
    needed = total_bytes(request.tables, request.optimizer)
    device_bytes, host_bytes = request.world_size * free_bytes, host_at(request.world_size)
    missing = needed - device_bytes - host_bytes
    if missing <= 0:
        return ""

    def enough(more: PlanningRequest) -> bool:
        ranks = more.world_size
        return needed <= ranks * more.embedding_memory_bytes + host_at(ranks)

    larger = _fewest_ranks(request, memory_at, enough)
    helps = f"; there would be room with {larger.world_size:,} ranks" if larger else ""
    return (
        f"all tables together take at least {format_size(needed)}, {_ranks_have(request)} "
        f"{format_size(device_bytes)} of device memory for tables and {format_size(host_bytes)} "
        f"of host memory, {format_size(missing)} are missing{helps}"
    )


def _ranks_have(request: PlanningRequest) -> str:
    return "1 rank has" if request.world_size == 1 else f"{request.world_size} ranks have"


def _relaxed(request: PlanningRequest, needed: float) -> Iterator[str]:
    """Yields other sharding types, and constraints without which all tables have room."""
    everything = replace(request, allowed_types=frozenset(ShardingType))
    left = _room_for_all(everything, needed)
    if left is not None:
        yield f"all sharding types ({format_size(left)} for all)"
    for constraint in request.constraints:
        rest = tuple(rule for rule in request.constraints if rule is not constraint)
        left = _room_for_all(replace(request, constraints=rest), needed)
        if left is not None:
            origin = constraint.origin or f"the constraint on `{constraint.tables}`"
            yield f"what is allowed without {origin} ({format_size(left)} for all)"


def _room_for_all(request: PlanningRequest, needed: float) -> float | None:
    """Returns what all tables take, if that is less than before and there is room for it."""
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
        storage = shard_storage(
            table, request.optimizer, table.rows, table.dim, placement.cached_share
        )
        copies = request.world_size if placement.sharding_type is ShardingType.DATA_PARALLEL else 1
        totals.append(copies * storage.device_bytes)
    return min(totals)


def format_size(size_bytes: float) -> str:
    """Formats a size in bytes, with a suitable unit."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:,.1f} {unit}"
    return f"{size_bytes:.0f} bytes"
