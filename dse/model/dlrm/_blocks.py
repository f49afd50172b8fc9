"""Blocks of layers: their operators forward and backward, and their parameters.

GEMM shapes follow PyTorch's linear layer: forward `(b, in) · (in, out)`; backward one product for
the gradient of the input and one for the gradient of the weights. Bias and activation are one
fused elementwise operator, as are activation gradient and bias gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from dse.model._common import Operator, OperatorKind

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters whose gradient is complete after one backward operator.

    Attributes:
        name: Layer.
        parameters: Number of parameters.
        ready_after: Index of the operator in the backward operators of the block, or of the whole
            backward pass (top, interaction, bottom), after which the gradient is complete.
    """

    name: str
    parameters: int
    ready_after: int


@dataclass(frozen=True, slots=True)
class Block:
    """Layers that run one after another.

    Attributes:
        forward: In order of execution.
        backward: In order of execution.
        groups: In the order in which gradients become ready.
        kept_values: Values a row that the backward pass keeps of the forward pass.
    """

    forward: tuple[Operator, ...] = ()
    backward: tuple[Operator, ...] = ()
    groups: tuple[ParameterGroup, ...] = ()
    kept_values: int = 0

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(group.parameters for group in self.groups)


def chain(*blocks: Block) -> Block:
    """Returns blocks of which each reads the output of the one before it."""
    backward: list[Operator] = []
    groups: list[ParameterGroup] = []
    for block in reversed(blocks):
        start = len(backward)
        groups += [replace(group, ready_after=start + group.ready_after) for group in block.groups]
        backward += block.backward
    return Block(
        tuple(operator for block in blocks for operator in block.forward),
        tuple(backward),
        tuple(groups),
        sum(block.kept_values for block in blocks),
    )


@dataclass(frozen=True, slots=True)
class Layers:
    """Makes operators over a number of rows.

    Attributes:
        rows: Rows of the input: samples, or positions of sequences.
        value_bytes: Bytes of an activation and of a gradient.
    """

    rows: int
    value_bytes: int

    def gemm(self, name: str, m: int, n: int, k: int) -> Operator:
        """Returns a product of an `(m, k)` with a `(k, n)` matrix."""
        return Operator(name, OperatorKind.GEMM, m=m, n=n, k=k)

    def elementwise(self, name: str, values_per_row: float, launches: int = 1) -> Operator:
        """Returns a streaming operator that reads and writes so many values a row."""
        traffic = float(self.rows) * values_per_row * self.value_bytes
        return Operator(name, OperatorKind.ELEMENTWISE, traffic_bytes=traffic, launches=launches)

    def concat(self, name: str, columns: int) -> Operator:
        """Returns the bringing together of vectors of so many values a row in all."""
        sizes = (("rows", self.rows), ("columns", columns), ("value_bytes", self.value_bytes))
        return Operator(
            name,
            OperatorKind.CONCAT,
            traffic_bytes=2.0 * self.rows * columns * self.value_bytes,
            sizes=sizes,
        )

    def mlp(self, name: str, widths: Sequence[int], *, input_gradient: bool = True) -> Block:
        """Returns linear layers, each with an activation.

        Args:
            name: Prefix of the operators' names.
            widths: Of the input, then of each layer's output.
            input_gradient: Whether the gradient of the input is needed.
        """
        forward: list[Operator] = []
        for layer, (inputs, outputs) in enumerate(pairwise(widths)):
            forward.append(self.gemm(f"{name}.{layer}.forward", self.rows, outputs, inputs))
            forward.append(self.elementwise(f"{name}.{layer}.activation", 2 * outputs))
        backward: list[Operator] = []
        groups = []
        for layer in reversed(range(max(0, len(widths) - 1))):
            inputs, outputs = widths[layer], widths[layer + 1]
            prefix = f"{name}.{layer}"
            backward.append(self.elementwise(f"{prefix}.activation.backward", 3 * outputs))
            if layer > 0 or input_gradient:
                backward.append(self.gemm(f"{prefix}.input_gradient", self.rows, inputs, outputs))
            backward.append(self.gemm(f"{prefix}.weight_gradient", outputs, inputs, self.rows))
            groups.append(ParameterGroup(prefix, (inputs + 1) * outputs, len(backward) - 1))
        return Block(tuple(forward), tuple(backward), tuple(groups), 2 * sum(widths[1:]))
