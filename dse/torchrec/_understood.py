"""What TorchRec's planner is given, in terms of dse: topology, constraints, sharders."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
import os
from typing import TYPE_CHECKING, Any

from dse.config import MAX_COUNT
from dse.errors import ConfigError
from dse.sharding import OPTIMIZER_TYPES, ComputeKernel, ShardingType, TableConstraints

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, Optimizer


class NotModelledError(Exception):
    """Something was asked of the planner that is not predicted."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of the job.

    Attributes:
        world_size: Ranks.
        devices_per_node: Ranks of a full node.
        device_kind: `cuda` or `cpu`.
        memory_bytes: Memory of one device; None for that of the platform.
    """

    world_size: int
    devices_per_node: int
    device_kind: str
    memory_bytes: float | None

    def on(self, platform: Platform) -> Platform:
        """Returns a platform with these nodes and this memory."""
        device = platform.device
        if self.memory_bytes:
            device = replace(device, memory_bytes=min(device.memory_bytes, self.memory_bytes))
        return replace(platform, devices_per_node=self.devices_per_node, device=device)


def ranks_of(topology: Any) -> Ranks:
    """Returns the ranks of a `Topology`; of the process group or torchrun without one.

    Raises:
        NotModelledError: Devices differ, or are neither GPUs nor CPUs.
    """
    if topology is None:
        return _ranks_of_environment()
    kind = topology.compute_device
    if kind not in ("cuda", "cpu"):
        raise NotModelledError(f"devices of kind `{kind}`")
    capacities = {int(device.storage.hbm) for device in topology.devices}
    if len(capacities) > 1:
        raise NotModelledError("devices with different amounts of memory")
    return Ranks(
        world_size=topology.world_size,
        devices_per_node=topology.local_world_size,
        device_kind=kind,
        memory_bytes=float(capacities.pop()) if kind == "cuda" else None,
    )


def _ranks_of_environment() -> Ranks:
    import torch

    group = torch.distributed
    started = group.is_available() and group.is_initialized()
    world_size = group.get_world_size() if started else int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or min(world_size, 8)
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    return Ranks(world_size, local, kind, None)


#: Fields of `ParameterConstraints` that are understood, or change nothing that is predicted.
_UNDERSTOOD = frozenset(
    (
        "sharding_types",
        "compute_kernels",
        "min_partition",
        "pooling_factors",
        "is_weighted",
        "cache_params",
        "stochastic_rounding",
        "bounds_check_mode",
        "feature_names",
    )
)


def table_constraints(
    given: Mapping[str, Any], sharders: Sequence[Any], kind: str
) -> tuple[TableConstraints, ...]:
    """Returns what constraints and sharders allow of each table.

    Args:
        given: `ParameterConstraints` by table.
        sharders: Sharders of bag collections among others.
        kind: `cuda` or `cpu`.

    Raises:
        NotModelledError: A constraint, a sharding type or a kernel is not predicted.
    """
    offered = _offered_types(sharders, kind)
    everything = TableConstraints(allowed_types=offered, origin="the sharders")
    return (everything, *(_constraint(table, one) for table, one in given.items()))


def _offered_types(sharders: Sequence[Any], kind: str) -> frozenset[ShardingType]:
    bags = [one for one in sharders if _shards_bags(one)]
    if not bags:
        raise NotModelledError("no sharder of an EmbeddingBagCollection")
    return frozenset(
        ShardingType(name) for name in bags[0].sharding_types(kind) if name in [*ShardingType]
    )


def _shards_bags(sharder: Any) -> bool:
    return str(sharder.module_type.__name__) == "EmbeddingBagCollection"


def _constraint(table: str, given: Any) -> TableConstraints:
    for field in fields(given):
        value = getattr(given, field.name)
        if field.name not in _UNDERSTOOD and value not in (None, False):
            raise NotModelledError(f"`{field.name}` of table `{table}`")
    cache = getattr(given.cache_params, "load_factor", None) if given.cache_params else None
    return TableConstraints(
        tables=_literal(table),
        allowed_types=_members(ShardingType, given.sharding_types, table),
        allowed_kernels=_members(ComputeKernel, given.compute_kernels, table),
        min_partition=given.min_partition,
        cache_load_factor=cache,
        origin=f"constraints of `{table}`",
    )


def _literal(table: str) -> str:
    """A shell pattern that fits this name only."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in table)


def _members(kinds: Any, names: Iterable[str] | None, table: str) -> frozenset[Any] | None:
    if names is None:
        return None
    known = frozenset(kinds(name) for name in names if name in [*kinds])
    if not known:
        raise NotModelledError(f"`{', '.join(map(str, names))}` of table `{table}`")
    return known


def sharder_rule(sharders: Sequence[Any]) -> Optimizer | None:
    """Returns the update rule in the sharders' fused parameters; None if there is none.

    Raises:
        NotModelledError: The rule is not predicted.
    """
    # Older names lack the prefix.
    known = {name.removeprefix("EXACT_"): rule for rule, name in OPTIMIZER_TYPES.items()}
    for sharder in sharders:
        rule = (getattr(sharder, "fused_params", None) or {}).get("optimizer")
        if rule is not None and _shards_bags(sharder):
            name = getattr(rule, "name", str(rule)).removeprefix("EXACT_")
            if name not in known:
                raise NotModelledError(f"update rule `{name}`")
            return known[name]
    return None


def with_pooling(model: DlrmModel, constraints: Mapping[str, Any]) -> DlrmModel:
    """Returns a model with the pooling factors of constraints, where they fit a table.

    Raises:
        ConfigError: More lookups than a bag can have.
    """

    def factors(name: str, own: tuple[float, ...]) -> tuple[float, ...]:
        given = constraints.get(name)
        found = tuple(map(float, given.pooling_factors or ())) if given is not None else ()
        if any(one > MAX_COUNT for one in found):
            raise ConfigError(
                f"constraints of `{name}`: pooling factor {max(found):g}; expected at most "
                f"{MAX_COUNT:g}"
            )
        if len(found) == 1:
            found *= len(own)
        return found if len(found) == len(own) and all(one > 0 for one in found) else own

    tables = tuple(
        replace(table, pooling_factors=factors(table.name, table.pooling_factors))
        for table in model.tables
    )
    return replace(model, tables=tables)
