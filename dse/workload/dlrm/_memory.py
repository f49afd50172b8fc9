"""Memory account of a rank; decides feasibility.

All parts that depend on the plan are linear in the placement features, so a batch of plans costs
one expression. Counted: weights, optimizer state, dense parameters with gradients and state,
activations kept for the backward pass, indices (as many batches as the pipeline holds), pooled
embeddings and their gradients, and the buffers of collectives: what is *allocated*. Under a
framework whose allocator *reserves* more than it gives out, that is counted as well, because the
device has to have it. The platform's reserved share (driver context, communicator) is subtracted
from the capacity instead.

Tables in host memory count against the memory of their node, as far as it is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dse.model import activation_bytes, dense_parameter_count
from dse.workload._prediction import RESERVED, MemoryAccount
from dse.workload.dlrm.program._pipelines import held_batches
from dse.workload.dlrm.scoring._bag_lengths import largest_input
from dse.workload.dlrm.scoring._features import (
    HOST_STORED_COLUMN,
    LENGTH_BYTES,
    RankFeature,
    has_host_columns,
    rank_column,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import Cluster
    from dse.model import DlrmModel
    from dse.workload.dlrm._problem import DlrmProblem

#: Bytes of a master weight, a gradient and a value of optimizer state.
_MASTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Memory of a rank as constants plus linear terms in its placement features.

    Attributes:
        dense_parameters_bytes: Dense weights, gradients and optimizer state.
        activations_bytes: Activations of the local batch.
        input_copies: Batches of indices held at once.
        largest_input: Indices of the largest batch, relative to those of a usual one.
        fixed_io_bytes: Pooled embeddings of the local batch and their gradients, and batches as
            copied from the host.
        fixed_buffers_bytes: Buckets of the dense all-reduce.
        buffer_bytes: Bytes of a pooled value and its gradient in buffers of collectives; of the
            larger one where the first is given back before the second.
        allocator_ratio: Bytes reserved for each one allocated, of all but tables and parameters.
    """

    dense_parameters_bytes: float
    activations_bytes: float
    input_copies: int
    largest_input: float
    fixed_io_bytes: float
    fixed_buffers_bytes: float
    buffer_bytes: float
    allocator_ratio: float

    @staticmethod
    def of(problem: DlrmProblem) -> MemoryModel:
        """Returns the memory model of a problem."""
        model, software = problem.model, problem.software
        parameters = dense_parameter_count(model)
        state_values = model.dense_optimizer.state_values_per_parameter
        copies = 2 + state_values
        # Mixed precision keeps a working copy of the weights next to the master copy.
        working_bytes = problem.precision.value_bytes if problem.precision.value_bytes < 4 else 0
        pooled_bytes = sum(
            table.vectors_per_sample * table.dim * table.output_data_type.value_bytes
            for table in model.tables
        )
        distributed = problem.cluster.world_size > 1
        held = held_batches(software.pipeline)
        io_bytes = (2.0 + held.pooled) * pooled_bytes
        if software.pytorch_memory:
            io_bytes += held.own * input_bytes(model)
        return MemoryModel(
            dense_parameters_bytes=float(parameters * (copies * _MASTER_BYTES + working_bytes)),
            activations_bytes=float(
                activation_bytes(
                    model,
                    problem.local_batch_size,
                    problem.precision,
                    problem.cluster.whole.world_size,
                )
            ),
            input_copies=held.received,
            largest_input=largest_input(
                model.tables, problem.global_batch_size, problem.cluster.world_size
            ),
            fixed_io_bytes=problem.local_batch_size * io_bytes,
            fixed_buffers_bytes=float(
                min(parameters * software.replicated_gradient_bytes, software.dense_bucket_bytes)
                if distributed
                else 0
            ),
            buffer_bytes=software.wire.buffer_bytes / (2.0 if software.pytorch_memory else 1.0),
            allocator_ratio=held.reserved if software.pytorch_memory else 1.0,
        )

    @property
    def fixed_bytes(self) -> float:
        """Bytes of a rank that no plan changes."""
        transient_bytes = self.activations_bytes + self.fixed_io_bytes + self.fixed_buffers_bytes
        return self.dense_parameters_bytes + self.allocator_ratio * transient_bytes

    def total_bytes(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the bytes of every rank.

        Args:
            features: Shape `(features, ranks, candidates)`.

        Returns:
            Shape `(ranks, candidates)`.
        """
        return np.asarray(
            self.fixed_bytes
            + features[rank_column(RankFeature.WEIGHTS)]
            + features[rank_column(RankFeature.STATE)]
            + self.allocator_ratio
            * (self.input_copies * self.largest_input)
            * features[rank_column(RankFeature.INPUT)]
            + self.allocator_ratio
            * self.buffer_bytes
            * features[rank_column(RankFeature.POOLED_OUTPUT)]
        )

    def peak_and_fit(
        self, features: NDArray[np.float64], cluster: Cluster
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns the fullest rank's bytes, and whether all devices and nodes hold their shares.

        Args:
            features: Shape `(features, ranks, candidates)`.
            cluster: Gives the limits; host memory that is not known limits nothing.

        Returns:
            Two arrays of shape `(candidates,)`.
        """
        peaks = self.total_bytes(features).max(axis=0)
        fits = peaks <= cluster.device.usable_memory_bytes
        if has_host_columns(features):
            # The host memory of a node holds what its ranks keep there.
            fits &= self.host_overflow(features, cluster) == 0.0
        return peaks, fits

    def host_overflow(
        self, features: NDArray[np.float64], cluster: Cluster
    ) -> NDArray[np.float64]:
        """Returns by how much of its host memory the fullest node's tables exceed it.

        Args:
            features: Shape `(features, ranks, candidates)`.
            cluster: Gives the limit; host memory that is not known is never exceeded.

        Returns:
            Shape `(candidates,)`; 0 where tables fit, 1 where they need twice the memory.
        """
        candidates = features.shape[2]
        if cluster.host_memory_bytes is None or not has_host_columns(features):
            return np.zeros(candidates)
        held = features[HOST_STORED_COLUMN].reshape(
            cluster.node_count, cluster.local_size, candidates
        )
        fullest = held.sum(axis=1).max(axis=0)
        return np.asarray(np.maximum(0.0, fullest / cluster.host_memory_bytes - 1.0))

    def by_purpose(self, features: NDArray[np.float64], rank: int) -> MemoryAccount:
        """Returns one rank's bytes by purpose, of the first candidate in `features`."""

        def of(feature: RankFeature) -> float:
            return float(features[rank_column(feature), rank, 0])

        inputs = self.input_copies * self.largest_input
        io_bytes = self.fixed_io_bytes + inputs * of(RankFeature.INPUT)
        buffers_bytes = self.fixed_buffers_bytes
        buffers_bytes += self.buffer_bytes * of(RankFeature.POOLED_OUTPUT)
        parts = [
            ("embedding weights", of(RankFeature.WEIGHTS)),
            ("embedding optimizer state", of(RankFeature.STATE)),
            ("dense parameters", self.dense_parameters_bytes),
            ("activations", self.activations_bytes),
            ("indices and pooled embeddings", io_bytes),
            ("communication buffers", buffers_bytes),
        ]
        if self.allocator_ratio > 1.0:
            allocated_bytes = self.activations_bytes + io_bytes + buffers_bytes
            parts.append((RESERVED, (self.allocator_ratio - 1.0) * allocated_bytes))
        on_host = has_host_columns(features)
        host_bytes = float(features[HOST_STORED_COLUMN, rank, 0]) if on_host else 0.0
        return MemoryAccount(tuple(parts), host_bytes)


def input_bytes(model: DlrmModel) -> float:
    """Returns the bytes of one sample's indices and lengths, as copied from the host."""
    indices = sum(table.lookup_bytes * table.lookups_per_sample for table in model.tables)
    lengths = LENGTH_BYTES * sum(table.bag_count for table in model.tables)
    return float(indices + lengths)
