"""Optimizers, operators and field types that models of all kinds share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from dse.config import Count

#: Fields of model files.
Name = Annotated[str, Field(min_length=1, max_length=200)]
Width = Annotated[Count, Field(le=2**24)]


class Optimizer(StrEnum):
    """Update rule, which determines the state kept with the weights.

    Those from ``partial_rowwise_adam`` on are of embedding tables only. Rules that scale a row's
    step by norms (``lamb``, ``lars_sgd``) read its weights twice; the second time they are in the
    cache.
    """

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAGRAD = "adagrad"
    ADAM = "adam"
    PARTIAL_ROWWISE_ADAM = "partial_rowwise_adam"
    LAMB = "lamb"
    PARTIAL_ROWWISE_LAMB = "partial_rowwise_lamb"
    LARS_SGD = "lars_sgd"

    @property
    def of_tables_only(self) -> bool:
        """Whether only embedding tables can have this rule."""
        return self in _OF_TABLES_ONLY

    @property
    def state_values_by_row(self) -> int:
        """Four-byte state values of an embedding row that do not depend on its columns."""
        return _STATE[self][0]

    @property
    def state_values_by_column(self) -> int:
        """Four-byte state values of an embedding row for each of its columns."""
        return _STATE[self][1]

    def state_values_per_row(self, dim: int) -> int:
        """Returns how many 4-byte state values one embedding row of `dim` columns needs."""
        return self.state_values_by_row + dim * self.state_values_by_column

    @property
    def state_values_per_parameter(self) -> int:
        """Four-byte state values of one dense parameter (a value by row counts as one of each)."""
        return self.state_values_by_row + self.state_values_by_column


#: Values of state: for the row, and for each of its columns.
_STATE = {
    Optimizer.SGD: (0, 0),
    Optimizer.ROWWISE_ADAGRAD: (1, 0),
    Optimizer.ADAGRAD: (0, 1),
    Optimizer.ADAM: (0, 2),
    Optimizer.PARTIAL_ROWWISE_ADAM: (1, 1),
    Optimizer.LAMB: (0, 2),
    Optimizer.PARTIAL_ROWWISE_LAMB: (1, 1),
    Optimizer.LARS_SGD: (0, 1),
}

_OF_TABLES_ONLY = frozenset(
    (
        Optimizer.PARTIAL_ROWWISE_ADAM,
        Optimizer.LAMB,
        Optimizer.PARTIAL_ROWWISE_LAMB,
        Optimizer.LARS_SGD,
    )
)


class OperatorKind(StrEnum):
    """Families of operators that the kernel models know."""

    GEMM = "gemm"
    BATCHED_GEMM = "batched_gemm"
    ELEMENTWISE = "elementwise"
    CONCAT = "concat"
    OPTIMIZER_STEP = "optimizer_step"
    COPY_TO_DEVICE = "memcpy_h2d"
    SEQUENCE_ATTENTION = "sequence_attention"

    @property
    def is_product(self) -> bool:
        """Whether it is one product of matrices, or a batch of them."""
        return self in (OperatorKind.GEMM, OperatorKind.BATCHED_GEMM)


@dataclass(frozen=True, slots=True)
class Operator:
    """One dense operator of one rank.

    Attributes:
        name: Short name for time lines, for example ``top_mlp.2.forward``.
        kind: Family.
        m: Rows of the output (GEMM kinds).
        n: Columns of the output (GEMM kinds).
        k: Contracted length (GEMM kinds).
        batch: Number of independent products (batched GEMM).
        traffic_bytes: Bytes read and written (all kinds but products and attention).
        sizes: Names and values of the kernel model's sizes (concat, optimizer step, attention).
        launches: Kernel launches the host issues for it.
    """

    name: str
    kind: OperatorKind
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    traffic_bytes: float = 0.0
    sizes: tuple[tuple[str, float], ...] = ()
    launches: int = 1
