"""Everything about a configuration but its sharding plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.machine import Cluster, Precision
    from dse.machine.host import HostProfile
    from dse.model import DlrmModel
    from dse.workload.dlrm._software import DlrmRuntime


@dataclass(frozen=True, slots=True)
class DlrmProblem:
    """What stays fixed while sharding plans vary.

    Attributes:
        model: What is trained.
        cluster: Where.
        global_batch_size: Samples of one iteration over all ranks; a multiple of the ranks.
        precision: Arithmetic of the dense part.
        software: How the training program is written.
        host_profile: Host overheads by operator, as measured from traces. Use
            :func:`make_problem`, which also replaces the cluster's host by its shared figures.

    Raises:
        ConfigError: The batch does not divide evenly over the ranks.
    """

    model: DlrmModel
    cluster: Cluster
    global_batch_size: int
    precision: Precision
    software: DlrmRuntime
    host_profile: HostProfile | None = None

    def __post_init__(self) -> None:
        world_size = self.cluster.world_size
        if self.global_batch_size < world_size or self.global_batch_size % world_size:
            below = self.global_batch_size // world_size * world_size
            raise ConfigError(
                f"global batch size {self.global_batch_size} does not divide over {world_size} "
                f"ranks; use {below or world_size} or {below + world_size}"
            )

    @property
    def local_batch_size(self) -> int:
        """Samples of one rank."""
        return self.global_batch_size // self.cluster.world_size


def make_problem(
    model: DlrmModel,
    cluster: Cluster,
    global_batch_size: int,
    precision: Precision,
    software: DlrmRuntime,
    host_profile: HostProfile | None = None,
) -> DlrmProblem:
    """Returns a problem; host overheads measured from traces replace those of the cluster.

    Raises:
        ConfigError: The batch does not divide evenly over the ranks.
    """
    if host_profile is not None:
        cluster = replace(cluster, host=host_profile.host_spec(cluster.host))
    return DlrmProblem(model, cluster, global_batch_size, precision, software, host_profile)
