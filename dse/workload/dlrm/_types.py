"""Configuration of a recommendation model: one point of a search space."""

from __future__ import annotations

from dataclasses import dataclass

from dse.machine import Precision
from dse.sharding import ShardingPlan
from dse.workload.dlrm._software import DEFAULT_RUNTIME, DlrmRuntime


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
    software: DlrmRuntime = DEFAULT_RUNTIME
