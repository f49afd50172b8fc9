"""Configurations: one point of a search space, complete enough to be predicted or deployed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.sharding import ShardingPlan
from dse.workload._parameters import ParameterValue

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Configuration:
    """What was chosen for a job.

    Attributes:
        kind: Kind of the workload.
        platform: Platform by the name under which it was loaded; empty if it is not known.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks; 0 if they are not known.
        parameters: Value of every parameter, those with a single choice included.
        program: Name of the training program; empty where none is named.
        plan: The sharding plan, of workloads that have one.
        planner: How the plan was found; empty without a plan.
    """

    kind: str
    platform: str
    world_size: int
    global_batch_size: int
    parameters: tuple[tuple[str, ParameterValue], ...]
    program: str = ""
    plan: ShardingPlan | None = None
    planner: str = ""

    def value(self, name: str) -> ParameterValue | None:
        """Returns the value of a parameter; None if it is not one of this configuration's."""
        return dict(self.parameters).get(name)

    def with_parameters(self, changed: Mapping[str, ParameterValue]) -> Configuration:
        """Returns the configuration with other values of some parameters."""
        return replace(self, parameters=tuple({**dict(self.parameters), **changed}.items()))
