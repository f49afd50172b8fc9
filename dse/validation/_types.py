"""What is run for real, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.model import DataType
from dse.sharding import check_plan
from dse.workload.dlrm import LaunchMode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dse.model import DlrmModel
    from dse.workload.dlrm import Configuration


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration that is to be run.

    Attributes:
        name: Name in results; different ones in one run.
        model: What is trained.
        configuration: How, the sharding plan included. Platform, link and network are not looked
            at: the run is where it is.
        devices_per_node: Ranks that count as one node for the hierarchical sharding types; all
            ranks when None.
    """

    name: str
    model: DlrmModel
    configuration: Configuration
    devices_per_node: int | None = None

    @property
    def node_size(self) -> int:
        """Ranks of a full node."""
        return self.devices_per_node or self.configuration.world_size

    @property
    def local_batch_size(self) -> int:
        """Samples of one rank in one iteration."""
        return self.configuration.global_batch_size // self.configuration.world_size

    def checked(self) -> Candidate:
        """Returns the candidate with its tables in the model's order.

        Raises:
            ConfigError: The batch or the nodes do not divide over the ranks, or the trainer has
                no such launch mode, compute kernel or storage type.
            PlanError: The plan is not for this model and these ranks.
        """
        configuration, where = self.configuration, f"candidate `{self.name}`"
        world_size = configuration.world_size
        if configuration.global_batch_size % world_size:
            raise ConfigError(
                f"{where}: a global batch of {configuration.global_batch_size} does not divide "
                f"over {world_size} ranks; choose a multiple of {world_size}"
            )
        if world_size > self.node_size and world_size % self.node_size:
            raise ConfigError(
                f"{where}: {world_size} ranks leave a node of {self.node_size} half empty; choose "
                f"a multiple of {self.node_size}"
            )
        if configuration.software.launch is not LaunchMode.EAGER:
            raise ConfigError(f"{where}: real runs launch eagerly; choose `launch: eager`")
        plan = check_plan(configuration.plan, self.model.tables, world_size, self.node_size)
        for placement, table in zip(plan.tables, self.model.tables, strict=True):
            if placement.compute_kernel.on_host:
                raise ConfigError(
                    f"{where}, table `{table.name}`: real runs keep tables in device memory, not "
                    f"by `{placement.compute_kernel.value}`; plan without UVM"
                )
            if table.data_type is DataType.INT8:
                raise ConfigError(
                    f"{where}, table `{table.name}`: int8 rows cannot be trained; use fp16"
                )
        return replace(self, configuration=replace(configuration, plan=plan))


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """What a run needs beside its configuration.

    Attributes:
        seed: Decides initial weights and batches; they are the same under every sharding plan.
        dense_learning_rate: Of MLPs and interaction.
        sparse_learning_rate: Of the tables.
        batches: Different batches that take turns.
        double: All arithmetic and storage in double precision, for comparisons of results.
    """

    seed: int = 0
    dense_learning_rate: float = 0.05
    sparse_learning_rate: float = 0.05
    batches: int = 8
    double: bool = False


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What some steps of training made of a model.

    Attributes:
        losses: Mean loss of the global batch before each step; shape `(steps,)`.
        tables: Weights of each table after the last step, shape `(rows, dim)`.
        dense: Dense parameters after the last step, in the module's order.
    """

    losses: tuple[float, ...]
    tables: tuple[NDArray[np.float64], ...]
    dense: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The iteration time of one candidate.

    A sample is the mean of some iterations between two points at which all ranks meet, from the
    moment the last rank begins until the last one ends. `iteration_time_s` is the median over the
    rounds; its interval assumes nothing of the noise (see :func:`dse.validation.median_interval`).

    Attributes:
        name: The candidate's.
        iteration_time_s: Median of the samples.
        low_s: Lower end of its 95 % interval.
        high_s: Upper end.
        samples: Mean seconds of an iteration, one of each round; rounds are the same for all
            candidates of a run.
        iterations_per_sample: Iterations of a sample.
        rank_times_s: For each rank the median of its own time of an iteration, waiting included.
        rank_processor_times_s: The same of the processor time of all its threads. On CPUs a rank
            that is disturbed takes longer than it computes and waits; its processor time tells.
        settled: Whether the interval is as narrow as was asked for.
    """

    name: str
    iteration_time_s: float
    low_s: float
    high_s: float
    samples: tuple[float, ...]
    iterations_per_sample: int
    rank_times_s: tuple[float, ...]
    rank_processor_times_s: tuple[float, ...]
    settled: bool

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the iteration time; infinite without one."""
        half_s = 0.5 * (self.high_s - self.low_s)
        return half_s / self.iteration_time_s if math.isfinite(half_s) else math.inf
