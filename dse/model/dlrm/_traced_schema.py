"""YAML of a dense part that is given operator by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dse.config import Count, NonNegativeFloat, OneOrMany, StrictModel, WholeNumber
from dse.model._common import Name, OperatorKind, Width
from dse.model.dlrm._architecture_schema import problem
from dse.model.dlrm._traced import TracedDense, TracedOperator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic_core import InitErrorDetails

    from dse.model.dlrm._traced import Amount

_MAX_OPERATORS = 10_000

#: One number, or the coefficients of powers of the number of samples.
AmountField = Annotated[
    list[Annotated[NonNegativeFloat, Field(le=10**12)]],
    Field(min_length=1, max_length=3),
    OneOrMany(),
]


class _OperatorBlock(StrictModel):
    """What every operator has.

    Attributes:
        kind: Family of the operator.
    """

    described_by: ClassVar = TracedOperator

    name: Name
    kind: str
    launches: Annotated[Count, Field(le=_MAX_OPERATORS)] = 1
    parameters: Annotated[WholeNumber, Field(ge=0, le=10**12)] = 0

    def to_operator(self) -> TracedOperator:
        """Returns the operator."""
        sizes = self.model_dump(exclude={"name", "kind", "launches", "parameters"})
        return TracedOperator(
            self.name,
            OperatorKind(self.kind),
            tuple((name, amount(size)) for name, size in sizes.items()),
            self.launches,
            self.parameters,
        )


class ProductBlock(_OperatorBlock):
    """A product of an `(m, k)` with a `(k, n)` matrix.

    Attributes:
        kind: The operator.
        m: Rows of the output.
        n: Columns of the output.
        k: Contracted length.
    """

    kind: Literal["gemm"]
    m: AmountField
    n: AmountField
    k: AmountField


class BatchedProductBlock(_OperatorBlock):
    """Products of the same sizes.

    Attributes:
        kind: The operator.
        batch: How many.
        m: Rows of an output.
        n: Columns of an output.
        k: Contracted length.
    """

    kind: Literal["batched_gemm"]
    batch: AmountField
    m: AmountField
    n: AmountField
    k: AmountField


class StreamBlock(_OperatorBlock):
    """Kernels that read and write values.

    Attributes:
        kind: The operator.
        values: Values that they read and write.
    """

    kind: Literal["elementwise"]
    values: AmountField


class AttentionBlock(_OperatorBlock):
    """Attention in one kernel.

    Attributes:
        kind: The operator.
        sequences: Sequences.
        positions: Mean positions of one.
        squared_positions: Mean of their square, or of queries times keys.
        heads: Heads.
        dim: Columns of a query and of a key of one head.
        value_dim: Columns of a value of one head.
        causal: Whether a position sees those up to its own only.
        backward: Whether it is the backward pass.
    """

    kind: Literal["sequence_attention"]
    sequences: AmountField
    positions: AmountField
    squared_positions: AmountField
    heads: AmountField
    dim: Width
    value_dim: Width
    causal: bool = False
    backward: bool = False


OperatorBlock = Annotated[
    ProductBlock | BatchedProductBlock | StreamBlock | AttentionBlock, Field(discriminator="kind")
]
Operators = Annotated[list[OperatorBlock], Field(max_length=_MAX_OPERATORS)]


class TracedBlock(StrictModel):
    """The dense part operator by operator, in place of all fields that describe it by layers."""

    described_by: ClassVar = TracedDense

    before: Operators = []
    forward: Operators = []
    backward: Operators = []
    after: Operators = []
    kept_values: AmountField = [0.0]
    outputs: Annotated[WholeNumber, Field(ge=0, le=2**24)] = 0

    def to_traced(self) -> TracedDense:
        """Returns the dense part."""
        before, forward, backward, after = (
            tuple(one.to_operator() for one in operators)
            for operators in (self.before, self.forward, self.backward, self.after)
        )
        return TracedDense(before, forward, backward, after, tuple(self.kept_values), self.outputs)


def wrong_traced(traced: TracedBlock, described: Iterable[str]) -> Iterator[InitErrorDetails]:
    """Yields what is wrong with operators, and with what stands beside them.

    Args:
        traced: The operators.
        described: Fields of the model that describe its dense part, too.
    """
    for name in described:
        yield problem((name,), "the dense part is given by `traced`; leave one of them out")
    seen: set[str] = set()
    for phase in ("before", "forward", "backward", "after"):
        for index, one in enumerate(getattr(traced, phase)):
            if one.name in seen:
                yield problem(
                    ("traced", phase, index, "name"),
                    f"expected different names of operators; `{one.name}` is given twice",
                )
            seen.add(one.name)
            if one.parameters and phase in ("before", "forward"):
                yield problem(
                    ("traced", phase, index, "parameters"),
                    "gradients are complete after operators of the backward pass",
                )


def amount(value: list[float] | float) -> Amount:
    """Returns coefficients of one number or of several."""
    return tuple(map(float, value)) if isinstance(value, list) else (float(value),)
