"""Candidates, options and results of real runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.model import DataType, IndexType
from dse.sharding import check_plan
from dse.workload import LaunchMode
from dse.workload.dlrm import DlrmJob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dse.model import DlrmModel, EmbeddingTable
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm import DlrmProblem


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration to run.

    Attributes:
        name: Name in results, unique within a run.
        problem: Model, batch, precision, program and cluster. A run takes only the number of
            ranks and the size of a node from the cluster; the rest is for predictions.
        plan: The sharding plan.
    """

    name: str
    problem: DlrmProblem
    plan: ShardingPlan

    @property
    def model(self) -> DlrmModel:
        """Model to train."""
        return self.problem.model

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.problem.cluster.world_size

    @property
    def node_size(self) -> int:
        """Ranks of a full node."""
        return self.problem.cluster.domain_size

    @property
    def local_batch_size(self) -> int:
        """Samples per rank and iteration."""
        return self.problem.local_batch_size

    def job(self) -> DlrmJob:
        """Returns the candidate as a job that can be predicted.

        Raises:
            PlanError: The plan does not match the model and ranks.
        """
        return DlrmJob(self.problem).with_plan(self.plan)

    def checked(self) -> Candidate:
        """Returns the candidate with the plan's tables in the model's order.

        Raises:
            ConfigError: The trainer does not support the launch mode, compute kernel or data type,
                or has no network for a part of the model.
            PlanError: The plan does not match the model and ranks.
        """
        where, tables = f"candidate `{self.name}`", self.model.tables
        if parts := _untrained(self.model):
            raise ConfigError(
                f"{where}: real runs train MLPs and an interaction, not the {', '.join(parts)} of "
                f"{self.model.name}; leave them out of a copy of the model to compare its plans"
            )
        rule = self.model.sparse_optimizer
        if rule.of_tables_only:
            raise ConfigError(
                f"{where}: real runs have no `{rule.value}`; use `sgd`, `rowwise_adagrad`, "
                f"`adagrad` or `adam` in a copy of {self.model.name} to compare its plans"
            )
        if self.problem.software.launch is not LaunchMode.EAGER:
            raise ConfigError(f"{where}: real runs launch eagerly; choose `launch: eager`")
        plan = check_plan(self.plan, tables, self.world_size, self.node_size)
        for placement, table in zip(plan.tables, tables, strict=True):
            if placement.compute_kernel.on_host:
                raise ConfigError(
                    f"{where}, table `{table.name}`: real runs keep tables in device memory, not "
                    f"by `{placement.compute_kernel.value}`; plan without UVM"
                )
            if placement.hot_rows:
                raise ConfigError(
                    f"{where}, table `{table.name}`: real runs keep no hot rows on every rank; "
                    "plan without them"
                )
            if special := _untrained_lookups(table):
                raise ConfigError(
                    f"{where}, table `{table.name}`: real runs have no {special}; leave it out of "
                    "a copy of the model to compare its plans"
                )
            if table.data_type.value_bytes < 2:
                raise ConfigError(
                    f"{where}, table `{table.name}`: {table.data_type.value} rows cannot be "
                    "trained; use fp16"
                )
        return replace(self, plan=plan)


def _untrained(model: DlrmModel) -> list[str]:
    """Returns the fields of a model that the trainer has no network for."""
    parts = {
        "sequence": model.sequence,
        "towers": model.towers,
        "experts": model.experts,
        "tasks": model.tasks,
    }
    return [name for name, part in parts.items() if part]


def _untrained_lookups(table: EmbeddingTable) -> str:
    """Returns the first property of a table's lookups that the trainer does not have."""
    found = {
        "weighted lookups (`weighted`)": table.weighted,
        "bags of several samples (`bags_per_sample`)": table.bags_per_sample != 1,
        "narrow outputs (`output_data_type`)": table.output_data_type is not DataType.FP32,
        "int32 indices (`index_type`)": table.index_type is not IndexType.INT64,
    }
    return next((name for name, given in found.items() if given), "")


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """Options of the reference trainer.

    Attributes:
        seed: Seed of initial weights and batches, which do not depend on the sharding plan.
        dense_learning_rate: Learning rate of MLPs and interaction.
        sparse_learning_rate: Learning rate of embedding tables.
        batches: Number of different batches, used in turn.
        double: Compute and store everything in double precision, to compare results.
    """

    seed: int = 0
    dense_learning_rate: float = 0.05
    sparse_learning_rate: float = 0.05
    batches: int = 8
    double: bool = False


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Losses and weights after some training steps.

    Attributes:
        losses: Mean loss of the global batch before each step; shape `(steps,)`.
        tables: Weights of each table after the last step; shape `(rows, dim)`.
        dense: Dense parameters after the last step, in the module's order.
    """

    losses: tuple[float, ...]
    tables: tuple[NDArray[np.float64], ...]
    dense: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Iteration time of one candidate.

    A sample is the mean of some iterations between two barriers, from the start of the last rank
    to the end of the last rank. `iteration_time_s` is the median over the rounds; its interval
    makes no assumption about the noise (see :func:`dse.validation.median_interval`).

    Attributes:
        name: Name of the candidate.
        iteration_time_s: Median of the samples.
        low_s: Lower end of its 95 % interval.
        high_s: Upper end of its 95 % interval.
        samples: Mean seconds per iteration in each round; all candidates of a run share rounds.
        iterations_per_sample: Iterations in a sample.
        rank_times_s: Median time per iteration of each rank, waiting included.
        rank_processor_times_s: Median processor time per iteration of all threads of each rank. On
            a disturbed CPU the clock time is much longer than the processor time.
        converged: Whether the interval is as narrow as the limits demand.
    """

    name: str
    iteration_time_s: float
    low_s: float
    high_s: float
    samples: tuple[float, ...]
    iterations_per_sample: int
    rank_times_s: tuple[float, ...]
    rank_processor_times_s: tuple[float, ...]
    converged: bool

    @property
    def half_width(self) -> float:
        """Half of the interval relative to the iteration time; may be infinite."""
        half_s = 0.5 * (self.high_s - self.low_s)
        return half_s / self.iteration_time_s if math.isfinite(half_s) else math.inf
