"""Everything about a configuration but its sharding plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.model import DataType
from dse.workload.dlrm.program._wire import WireFormat

if TYPE_CHECKING:
    from dse.machine import Cluster, Precision
    from dse.model import DlrmModel
    from dse.workload.dlrm.program._software import DlrmRuntime


@dataclass(frozen=True, slots=True)
class WeightSync:
    """How replicas of the tables are kept alike: averaged by an all-reduce every few iterations.

    Attributes:
        interval: Iterations from one all-reduce to the next.
        optimizer_state: Whether the state of the tables' optimizer is averaged as well.
    """

    interval: int = 1
    optimizer_state: bool = True


@dataclass(frozen=True, slots=True)
class DlrmProblem:
    """What stays fixed while sharding plans vary.

    Under 2D parallelism that is one sharding group: all groups do the same at the same time, so
    the plan of one is the plan of all.

    Attributes:
        model: What is trained.
        cluster: Where; the ranks of one sharding group, which may be a part of a larger cluster.
        global_batch_size: Samples of one iteration over these ranks; a multiple of them.
        precision: Arithmetic of the dense part.
        software: How the training program is written.
        sync: How the groups' tables are kept alike; None where there is only one group.

    Raises:
        ConfigError: The batch does not divide evenly over the ranks.
    """

    model: DlrmModel
    cluster: Cluster
    global_batch_size: int
    precision: Precision
    software: DlrmRuntime
    sync: WeightSync | None = None

    def __post_init__(self) -> None:
        _check_batch(self.global_batch_size, self.cluster.world_size)

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
    sync: WeightSync | None = None,
) -> DlrmProblem:
    """Returns the problem of one sharding group.

    Args:
        model: What is trained.
        cluster: Where; one sharding group of a larger cluster under 2D parallelism.
        global_batch_size: Samples of one iteration over all ranks, those of all groups.
        precision: Arithmetic of the dense part.
        software: How the training program is written, for lookups that write FP32.
        sync: How the tables of several groups are kept alike; without effect for one group.

    Raises:
        ConfigError: The batch does not divide evenly over the ranks.
    """
    _check_batch(global_batch_size, cluster.whole.world_size)
    copies = cluster.replicas
    kept_alike = (sync or WeightSync()) if copies > 1 else None
    batch = global_batch_size // copies
    if model.output_data_type is not DataType.FP32:
        pooled = WireFormat(model.output_data_type.value)
        software = replace(software, wire=software.wire.of_outputs(pooled))
    return DlrmProblem(model, cluster, batch, precision, software, kept_alike)


def _check_batch(samples: int, ranks: int) -> None:
    if samples < ranks or samples % ranks:
        below = samples // ranks * ranks
        near = f"{below} or {below + ranks}" if below else str(ranks)
        raise ConfigError(
            f"global batch size {samples} does not divide over {ranks} ranks; use {near}"
        )
