"""A recommendation model under a plan, to be run; and what no real run trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.model import DataType, IndexType
from dse.sharding import ShardingType, stored_bytes
from dse.workload.dlrm import DlrmJob

if TYPE_CHECKING:
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
    def global_batch_size(self) -> int:
        """Samples of an iteration on all ranks."""
        return self.problem.global_batch_size

    @property
    def local_batch_size(self) -> int:
        """Samples per rank and iteration."""
        return self.problem.local_batch_size

    @property
    def resident_bytes(self) -> float:
        """Bytes of tables and optimizer state on all ranks, replicas included."""
        model = self.model
        return sum(
            stored_bytes(table, model.sparse_optimizer, table.rows, table.dim)
            * (self.world_size if plan.sharding_type is ShardingType.DATA_PARALLEL else 1)
            for table, plan in zip(model.tables, self.plan.tables, strict=True)
        )

    def job(self) -> DlrmJob:
        """Returns the candidate as a job that can be predicted.

        Raises:
            PlanError: The plan does not match the model and ranks.
        """
        return DlrmJob(self.problem).with_plan(self.plan)


def untrained_parts(model: DlrmModel) -> list[str]:
    """Returns the fields of a model that real runs have no network for."""
    parts = {
        "sequence": model.sequence,
        "towers": model.towers,
        "experts": model.experts,
        "tasks": model.tasks,
        "traced": model.traced,
    }
    return [name for name, part in parts.items() if part]


def untrained_lookups(table: EmbeddingTable) -> str:
    """Returns the first property of a table's lookups that real runs do not have; "" for none."""
    found = {
        "weighted lookups (`weighted`)": table.weighted,
        "bags of several samples (`bags_per_sample`)": table.bags_per_sample != 1,
        "narrow outputs (`output_data_type`)": table.output_data_type is not DataType.FP32,
        "int32 indices (`index_type`)": table.index_type is not IndexType.INT64,
    }
    return next((name for name, given in found.items() if given), "")
