"""What a planner is asked."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.model import EmbeddingTable, Optimizer
    from dse.sharding._constraints import TableConstraints
    from dse.sharding._plan import ShardingType


@dataclass(frozen=True, slots=True)
class PlanningRequest:
    """What a planner has to place, and where.

    Attributes:
        tables: The model's tables.
        optimizer: Update rule of the tables; its state takes memory beside the weights.
        world_size: Ranks.
        devices_per_node: Ranks of a full node.
        allowed_types: Sharding types that may be used.
        embedding_memory_bytes: Memory of one rank that weights and state may take.
        seed: For planners that draw.
        constraints: What is demanded of single tables.
        allow_uvm: Whether tables may live in host memory where no constraint says otherwise.
    """

    tables: tuple[EmbeddingTable, ...]
    optimizer: Optimizer
    world_size: int
    devices_per_node: int
    allowed_types: frozenset[ShardingType]
    embedding_memory_bytes: float
    seed: int = 0
    constraints: tuple[TableConstraints, ...] = ()
    allow_uvm: bool = False

    @property
    def local_size(self) -> int:
        """Ranks on one node."""
        return min(self.world_size, self.devices_per_node)

    @property
    def node_count(self) -> int:
        """Nodes that the ranks occupy."""
        return math.ceil(self.world_size / self.devices_per_node)
