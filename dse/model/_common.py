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
    """Update rule, which determines the state kept with the weights."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAGRAD = "adagrad"
    ADAM = "adam"

    def state_values_per_row(self, dim: int) -> int:
        """Returns how many 4-byte state values one embedding row of `dim` columns needs."""
        return {"sgd": 0, "rowwise_adagrad": 1, "adagrad": dim, "adam": 2 * dim}[self.value]

    @property
    def keeps_state_by_row(self) -> bool:
        """Whether a row has one state value, not one for each of its columns."""
        return self is Optimizer.ROWWISE_ADAGRAD

    @property
    def state_values_per_parameter(self) -> int:
        """Four-byte state values of one dense parameter (row-wise Adagrad counts as Adagrad)."""
        return {"sgd": 0, "rowwise_adagrad": 1, "adagrad": 1, "adam": 2}[self.value]


class OperatorKind(StrEnum):
    """Families of operators that the kernel models know."""

    GEMM = "gemm"
    BATCHED_GEMM = "batched_gemm"
    ELEMENTWISE = "elementwise"
    CONCAT = "concat"
    OPTIMIZER_STEP = "optimizer_step"
    COPY_TO_DEVICE = "memcpy_h2d"
    SEQUENCE_ATTENTION = "sequence_attention"


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

    @property
    def is_gemm(self) -> bool:
        """Whether it is one product or a batch of them."""
        return self.kind in (OperatorKind.GEMM, OperatorKind.BATCHED_GEMM)
