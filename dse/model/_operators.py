"""Operators: what one rank computes, without saying where or how fast."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OperatorKind(StrEnum):
    """Families of operators that the kernel models know."""

    GEMM = "gemm"
    BATCHED_GEMM = "batched_gemm"
    ELEMENTWISE = "elementwise"
    CONCAT = "concat"
    OPTIMIZER_STEP = "optimizer_step"
    COPY_TO_DEVICE = "memcpy_h2d"


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
        traffic_bytes: Bytes read and written (all kinds but GEMM).
        sizes: Names and values of the kernel model's sizes (concat and optimizer step).
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
