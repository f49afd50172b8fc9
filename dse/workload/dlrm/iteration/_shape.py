"""Key of the tasks of an iteration and their dependencies, without durations.

A study asks for thousands of problems whose iterations have a few dozen shapes: batch sizes,
platforms and links change durations alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from dse.machine import has_own_engines
from dse.workload.dlrm.iteration._codec import codec_kernels
from dse.workload.dlrm.iteration._operators import (
    bottom_on_first_rank,
    dense_buckets,
    stack_operators,
)
from dse.workload.dlrm.iteration._reading import read_time_s
from dse.workload.dlrm.program._software import HandlingTimes, HostOperators, InputPath
from dse.workload.dlrm.scoring._features import ExchangeGroup

if TYPE_CHECKING:
    from dse.workload._launch import LaunchMode
    from dse.workload.dlrm._problem import DlrmProblem
    from dse.workload.dlrm.iteration._operators import StackOperators
    from dse.workload.dlrm.program._pipelines import TrainPipeline
    from dse.workload.dlrm.scoring._slots import Slot

#: Stands for any number above one.
_SEVERAL = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """Dense operators in a row.

    Attributes:
        operators: Name and kernel launches of each.
        first_cost: Number of the first one's cost, of those of
            `dse.workload.dlrm.iteration._costs`.
    """

    operators: tuple[tuple[str, int], ...]
    first_cost: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Equal for problems and layouts whose graphs differ in durations alone.

    Attributes:
        ranks: Ranks whose tasks there are.
        alone: Whether there are no other ranks.
        node_count: Nodes; of the tasks of one rank only whether there are several.
        local_size: Ranks of a node; the same.
        own_engines: Whether exchanges overlap with computation.
        groups: Exchange groups in use.
        first_rank_bottom: Whether the bottom MLP of the first rank is part of the graph.
        launch: How the host launches.
        overlap_dense_all_reduce: Whether buckets are reduced during the backward pass.
        overlap_gradient_exchange: Whether gradients of pooled vectors are exchanged meanwhile.
        pipeline: Which work belongs to later batches.
        handles_features: Whether the host handles features and groups besides the operators.
        input_path: How a batch reaches the devices.
        host_step: Whether the devices wait for something on the host at the beginning.
        loads_batches: Whether the host loads the next batch.
        reads_samples: Whether samples of later batches are read from storage meanwhile.
        forward_only: Only the forward pass, as in an evaluation.
        mirrored: Whether the gradients' exchanges last as long as those of the outputs.
        codecs: Conversions for the wire, and the kernels of each.
        copies: Copies from the host, by name; the first one has cost 1.
        bottom_forward: Bottom MLP of every rank.
        first_bottom_forward: Bottom MLP of the first rank.
        forward: Interaction, top MLP and loss.
        backward: All of the backward pass of every rank.
        top_operators: How many operators of the latter come before the bottom MLP's.
        first_bottom_backward: Backward pass of the first rank's bottom MLP.
        optimizer: Update of the dense parameters.
        key_search: What finds a rank's keys in the global batch.
        buckets: The operator of the backward pass that completes each bucket of gradients.
        first_bucket_cost: Number of the cost of the first one's reduction.
        reading_cost: Number of the cost of reading samples.
        averages_weights: Whether there are replicas of sharded tables, which are averaged.
    """

    ranks: int
    alone: bool
    node_count: int
    local_size: int
    own_engines: bool
    groups: tuple[ExchangeGroup, ...]
    first_rank_bottom: bool
    launch: LaunchMode
    overlap_dense_all_reduce: bool
    overlap_gradient_exchange: bool
    pipeline: TrainPipeline
    handles_features: bool
    input_path: InputPath
    host_step: bool
    loads_batches: bool
    reads_samples: bool
    forward_only: bool
    mirrored: bool
    codecs: tuple[tuple[Slot, int], ...]
    copies: tuple[str, ...]
    bottom_forward: Phase
    first_bottom_forward: Phase
    forward: Phase
    backward: Phase
    top_operators: int
    first_bottom_backward: Phase
    optimizer: Phase
    key_search: Phase
    buckets: tuple[int, ...]
    first_bucket_cost: int
    reading_cost: int
    averages_weights: bool


def make_shape(
    problem: DlrmProblem, layout: int, *, one_rank: bool = False, forward_only: bool = False
) -> Shape:
    """Returns the shape of an iteration; for the arguments see `build_layout`."""
    software, cluster = problem.software, problem.cluster
    dense = stack_operators(problem)
    on_first = bottom_on_first_rank(problem)
    sharded = [
        layout >> group & 1 for group in ExchangeGroup if group is not ExchangeGroup.REPLICATED
    ]
    if on_first:
        # The bottom MLP's output takes part in the exchange of pooled vectors.
        layout |= 1 << ExchangeGroup.POOLED
    node_count, local_size = cluster.domain_count, cluster.domain_size
    if one_rank:
        node_count, local_size = min(node_count, _SEVERAL), min(local_size, _SEVERAL)
    handling = software.handling != HandlingTimes()
    copies: tuple[str, ...] = ()
    if software.input_path is not InputPath.ON_DEVICE:
        copies = ("copy indices", *(operator.name for operator in dense.input_copy))
    phases, end = _phases(dense, 1 + len(copies))
    buckets = dense_buckets(problem)
    bottom, first_bottom, forward, backward, first_backward, optimizer, search = phases
    return Shape(
        ranks=1 if one_rank else cluster.world_size,
        alone=cluster.world_size == 1,
        node_count=node_count,
        local_size=local_size,
        own_engines=has_own_engines(cluster.device),
        groups=tuple(group for group in ExchangeGroup if layout >> group & 1),
        first_rank_bottom=on_first and not one_rank,
        launch=software.launch,
        overlap_dense_all_reduce=software.overlap_dense_all_reduce,
        overlap_gradient_exchange=software.overlap_gradient_exchange,
        pipeline=software.pipeline,
        handles_features=software.host_operators != HostOperators() or handling,
        input_path=software.input_path,
        host_step=software.step_host_s > 0 or handling,
        loads_batches=software.loader_s_per_sample > 0,
        reads_samples=read_time_s(problem) > 0 and not forward_only,
        forward_only=forward_only,
        mirrored=software.wire.mirrored,
        codecs=tuple(
            (slot, len(kernels)) for slot, kernels in codec_kernels(problem, layout).items()
        ),
        copies=copies,
        bottom_forward=bottom,
        first_bottom_forward=first_bottom,
        forward=forward,
        backward=backward,
        top_operators=len(dense.backward),
        first_bottom_backward=first_backward,
        optimizer=optimizer,
        key_search=search,
        buckets=tuple(last for _, last in buckets),
        first_bucket_cost=end,
        reading_cost=end + len(buckets),
        averages_weights=problem.sync is not None and any(sharded),
    )


def _phases(dense: StackOperators, first_cost: int) -> tuple[list[Phase], int]:
    """Returns all phases, and the number of the cost behind their last."""
    names = [tuple((op.name, op.launches) for op in phase) for phase in dense.phases]
    starts = list(accumulate(map(len, names), initial=first_cost))
    phases = [Phase(name, start) for name, start in zip(names, starts, strict=False)]
    return phases, starts[-1]
