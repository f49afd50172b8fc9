"""Kernels of a step as values: what each multiplies or moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Product(NamedTuple):
    """`batch` products of an `(m, k)` with a `(k, n)` matrix.

    Attributes:
        m: Rows of the result.
        n: Columns of the result.
        k: Contracted length.
        batch: Independent products in one call.
        low: In the job's precision even if that is below two bytes; else in `bf16` then.
        experts: Of a grouped product: experts whose rows make up `m`, each with its own matrix.
        routed: Its rows depend on which experts the tokens visit.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    low: bool = False
    experts: int = 1
    routed: bool = False

    @property
    def flops(self) -> float:
        """Arithmetic."""
        return 2.0 * self.m * self.n * self.k * self.batch


class OperatorCall(NamedTuple):
    """An operator of the framework that a device may have been measured with.

    Attributes:
        op: A key of :data:`dse.machine.kernels.STREAMING_OPERATORS`.
        sizes: Names and values of its sizes.
        share: Calls, or the part of one.
    """

    op: str
    sizes: tuple[tuple[str, float], ...]
    share: float = 1.0

    @staticmethod
    def of(op: str, share: float = 1.0, **sizes: float) -> OperatorCall:
        """Returns a call with its sizes by name."""
        return OperatorCall(op, tuple(sizes.items()), share)


class Elementwise(NamedTuple):
    """Kernels that move bytes.

    Attributes:
        traffic_bytes: Bytes read and written by all of them.
        launches: Their number.
        separate: PyTorch's kernels, one an operator, whatever the program fuses elsewhere.
        copies: Copies, casts and rotations, which are streams whatever the program fuses.
        routed: What they move depends on which experts the tokens visit.
        calls: The same as operators of PyTorch, for programs that do not fuse them, on devices
            that were measured with all of these; empty where only the bytes are known.
    """

    traffic_bytes: float
    launches: int = 1
    separate: bool = False
    copies: bool = False
    routed: bool = False
    calls: tuple[OperatorCall, ...] = ()

    @property
    def flops(self) -> float:
        """Arithmetic: none that counts."""
        return 0.0


class Attention(NamedTuple):
    """A fused attention kernel.

    Attributes:
        batch: Sequences.
        heads: Heads of queries of a rank.
        kv_heads: Heads of keys and values of a rank.
        queries: Queries of a sequence on a rank.
        keys: Keys of a sequence.
        dim: Columns of a head's queries and keys.
        value_dim: Columns of a head's values.
        window: Keys up to its own position that a query sees at most.
        causal: Whether a query sees only keys up to its own position.
        backward: Whether it makes gradients, with the scores computed again.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    window: int
    causal: bool
    backward: bool

    @property
    def routed(self) -> bool:
        """No: all tokens take part."""
        return False

    @property
    def flops(self) -> float:
        """Arithmetic of a forward pass, or twice that backward.

        Scores count whatever the causal mask, but none outside a sliding window.
        """
        keys = min(self.window, self.keys) if self.causal else self.keys
        scores = float(self.batch * self.heads * self.queries * keys)
        return (4.0 if self.backward else 2.0) * scores * (self.dim + self.value_dim)


Kernel = Product | Elementwise | Attention


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels of a part of the model in both directions.

    Attributes:
        forward: Of the forward pass.
        backward: Of the backward pass, recomputation included.
    """

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
