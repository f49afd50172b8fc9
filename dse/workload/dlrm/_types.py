"""What is asked of the performance model and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from dse.machine import Precision
from dse.sharding import ShardingPlan
from dse.simulate import RankBreakdown
from dse.workload.dlrm._software import DEFAULT_SOFTWARE, Software


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of the search space, complete enough to be simulated or run.

    Attributes:
        platform: Platform name.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        plan: The sharding plan.
        precision: Arithmetic of the dense part.
        link: Name of the interconnect inside a node; empty for the platform's default.
        network: Name of the network between nodes; empty for the platform's default.
        software: How the training program is written.
    """

    platform: str
    world_size: int
    global_batch_size: int
    plan: ShardingPlan
    precision: Precision
    link: str = ""
    network: str = ""
    software: Software = DEFAULT_SOFTWARE


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes one rank needs, by purpose.

    Attributes:
        embedding_weights_bytes: Table shards.
        embedding_optimizer_bytes: Optimizer state of the shards.
        dense_parameters_bytes: Dense weights, gradients and optimizer state.
        activations_bytes: Activations of the dense part kept for the backward pass.
        embedding_io_bytes: Input indices, pooled outputs and their gradients.
        communication_buffers_bytes: Send and receive buffers of collectives.
        embedding_host_bytes: Table shards and their state in host memory; not in the total.
    """

    embedding_weights_bytes: float
    embedding_optimizer_bytes: float
    dense_parameters_bytes: float
    activations_bytes: float
    embedding_io_bytes: float
    communication_buffers_bytes: float
    embedding_host_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Sum of all purposes in device memory."""
        return (
            self.embedding_weights_bytes
            + self.embedding_optimizer_bytes
            + self.dense_parameters_bytes
            + self.activations_bytes
            + self.embedding_io_bytes
            + self.communication_buffers_bytes
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the performance model says of one configuration.

    Attributes:
        iteration_time_s: Expected time of one iteration.
        iteration_time_p5_s: Lower end of the 90 % interval.
        iteration_time_p95_s: Upper end of the 90 % interval.
        throughput_samples_per_s: Global batch over iteration time.
        price_usd_per_hour: Price of all nodes, or None when the platform has no price.
        cost_usd_per_million_samples: Price of a million samples, or None without a price.
        breakdown: Where each rank's time goes.
        memory: What each rank's memory holds.
        usable_memory_bytes: Device memory that a job can have.
        feasible: Whether every rank fits.
        infeasible_reason: Why not, in words; empty when feasible.
    """

    iteration_time_s: float
    iteration_time_p5_s: float
    iteration_time_p95_s: float
    throughput_samples_per_s: float
    price_usd_per_hour: float | None
    cost_usd_per_million_samples: float | None
    breakdown: tuple[RankBreakdown, ...]
    memory: tuple[RankMemory, ...]
    usable_memory_bytes: float
    feasible: bool
    infeasible_reason: str

    @property
    def memory_bytes_per_rank(self) -> tuple[float, ...]:
        """Total bytes of each rank."""
        return tuple(memory.total_bytes for memory in self.memory)

    @property
    def memory_headroom_fraction(self) -> float:
        """Free share of the usable memory on the fullest rank; negative when it does not fit."""
        return 1.0 - max(self.memory_bytes_per_rank) / self.usable_memory_bytes
