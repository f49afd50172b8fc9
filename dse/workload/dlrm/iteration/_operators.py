"""The dense operators of a rank as a particular program runs them.

`dse.model` lists what the model computes, one operator a kernel of an eager framework. A
program may compute several of them in one kernel, or the bottom MLP on one rank only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.model import (
    InteractionKind,
    Operator,
    OperatorKind,
    dense_operators,
    interaction_inputs,
)
from dse.workload.dlrm.iteration._dense import bucket_sizes
from dse.workload.dlrm.program._software import DenseBottom

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.workload.dlrm._problem import DlrmProblem

#: Ends of the names of operators that a product with a fused epilogue does on the way.
_EPILOGUES = (".activation", ".activation.backward")


@dataclass(frozen=True, slots=True)
class StackOperators:
    """Dense operators by phase, each in order of execution.

    Attributes:
        input_copy: Dense features and labels from the host.
        bottom_forward: Bottom MLP on every rank; empty where the first rank has it.
        first_bottom_forward: Bottom MLP of the first rank with the global batch.
        forward: Interaction, top MLP and loss.
        backward: Loss, top MLP and interaction, backward.
        bottom_backward: Bottom MLP on every rank, backward.
        first_bottom_backward: The same on the first rank with the global batch.
        optimizer: Update of the dense parameters.
        key_search: What finds a rank's keys in the global batch.
        gradients: `(parameters, index)` of each layer whose gradients are reduced, in the order in
            which they become ready: after operator `index` of `backward + bottom_backward`.
    """

    input_copy: tuple[Operator, ...]
    bottom_forward: tuple[Operator, ...]
    first_bottom_forward: tuple[Operator, ...]
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    bottom_backward: tuple[Operator, ...]
    first_bottom_backward: tuple[Operator, ...]
    optimizer: tuple[Operator, ...]
    key_search: tuple[Operator, ...]
    gradients: tuple[tuple[int, int], ...]

    @property
    def phases(self) -> tuple[tuple[Operator, ...], ...]:
        """Kernels by phase; the backward pass of every rank is one."""
        return (
            self.bottom_forward,
            self.first_bottom_forward,
            self.forward,
            (*self.backward, *self.bottom_backward),
            self.first_bottom_backward,
            self.optimizer,
            self.key_search,
        )

    @property
    def backward_phase(self) -> int:
        """Number of the backward pass among the phases."""
        return 3


def bottom_on_first_rank(problem: DlrmProblem) -> bool:
    """Whether the first of several ranks computes the bottom MLP for all of them."""
    return (
        problem.software.dense_bottom is DenseBottom.FIRST_RANK
        and problem.cluster.world_size > 1
        and bool(problem.model.bottom_mlp)
    )


def dense_buckets(problem: DlrmProblem) -> list[tuple[int, int]]:
    """Returns the all-reduces of dense gradients in the order in which they are issued.

    Returns:
        Bytes, and the operator of the backward pass that completes them, of each.
    """
    software = problem.software
    return bucket_sizes(
        stack_operators(problem).gradients,
        software.dense_bucket_bytes,
        software.replicated_gradient_bytes,
    )


@lru_cache(maxsize=256)
def stack_operators(problem: DlrmProblem) -> StackOperators:
    """Returns the dense operators of one rank as the problem's software runs them."""
    ranks = problem.cluster.whole.world_size
    dense = dense_operators(problem.model, problem.local_batch_size, problem.precision, ranks)
    on_first = bottom_on_first_rank(problem)
    whole = dense
    if on_first:
        whole = dense_operators(problem.model, problem.global_batch_size, problem.precision)
    interaction = _interaction(problem, dense.interaction_forward, 1)
    interaction_backward = _interaction(problem, dense.interaction_backward, 2)
    backward = [*dense.top_backward, *dense.interaction_backward, *dense.bottom_backward]
    kept = [*_kept(problem, dense.top_backward), *interaction_backward]
    bottom_backward = () if on_first else _kept(problem, dense.bottom_backward)
    place = {operator.name: index for index, operator in enumerate((*kept, *bottom_backward))}
    # A gradient is complete after a product; products are always kept.
    gradients = tuple(
        (group.parameters, place[name])
        for group in dense.parameter_groups
        if (name := backward[group.ready_after].name) in place
    )
    return StackOperators(
        input_copy=dense.input_copy,
        bottom_forward=() if on_first else _kept(problem, dense.bottom_forward),
        first_bottom_forward=_kept(problem, whole.bottom_forward) if on_first else (),
        forward=(*interaction, *_kept(problem, dense.top_forward)),
        backward=tuple(kept),
        bottom_backward=bottom_backward,
        first_bottom_backward=_kept(problem, whole.bottom_backward) if on_first else (),
        optimizer=dense.optimizer,
        key_search=_key_search(problem),
        gradients=gradients,
    )


def _key_search(problem: DlrmProblem) -> tuple[Operator, ...]:
    """Kernels that go over the keys of the global batch, with equal parts of the bytes."""
    search = problem.software.key_search[problem.cluster.node_count > 1]
    lookups = sum(table.lookups_per_sample for table in problem.model.tables)
    traffic = search.key_bytes * problem.global_batch_size * lookups
    return tuple(
        Operator(
            f"key_search.{number}",
            OperatorKind.ELEMENTWISE,
            traffic_bytes=traffic / search.kernels,
        )
        for number in range(search.kernels)
    )


def _kept(problem: DlrmProblem, operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Operators that are separate kernels."""
    if not problem.software.fused_activations:
        return tuple(operators)
    return tuple(op for op in operators if not op.name.endswith(_EPILOGUES))


def _interaction(
    problem: DlrmProblem, operators: tuple[Operator, ...], directions: int
) -> tuple[Operator, ...]:
    """A dot interaction in one kernel reads vectors and writes products, and back.

    Backward it reads vectors and gradients of products, and writes gradients of vectors.
    """
    model = problem.model
    fused = problem.software.fused_interaction
    if model.interaction.kind is not InteractionKind.DOT:
        return operators
    inputs = interaction_inputs(model)
    vectors = len(inputs) + bool(model.bottom_mlp)
    pairs = vectors * (vectors - 1) // 2
    if not fused:
        indexed = problem.local_batch_size * pairs * problem.software.triangle_gradient_bytes
        return tuple(
            replace(op, traffic_bytes=op.traffic_bytes + indexed)
            if op.name.endswith("triangle.backward")
            else op
            for op in operators
        )
    dim = inputs[0] if inputs else model.bottom_mlp[-1]
    hidden = model.bottom_mlp[-1] if model.bottom_mlp else 0
    values = directions * vectors * dim + hidden + pairs
    traffic = float(problem.local_batch_size) * values * problem.precision.value_bytes
    first = next(op for op in operators if op.kind is OperatorKind.BATCHED_GEMM)
    fused_kernel = Operator(first.name, OperatorKind.ELEMENTWISE, traffic_bytes=traffic)
    # The vectors are brought together by what wrote them. Towers stay: before it, and behind it
    # on the way back.
    others = _kept(problem, (op for op in operators if not op.name.startswith("interaction.")))
    return (*others, fused_kernel) if directions == 1 else (fused_kernel, *others)
