"""Dense part given operator by operator, as traced from a live module.

Sizes are polynomials in the samples of a rank, given by their coefficients: `(0, 1)` is one a
sample, `(512,)` is 512 whatever the batch, `(0, 0, 1)` one for each pair of samples, as the scores
of negatives within a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.model._common import Operator, OperatorKind
from dse.model.dlrm._blocks import Block, ParameterGroup, chain
from dse.model.dlrm._heads import loss_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.model.dlrm._blocks import Layers

#: Coefficients of powers of the number of samples, from the zeroth on.
Amount = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """One kernel, or several streaming ones in a row.

    Attributes:
        name: Unique in its dense part.
        kind: Family of the operator.
        sizes: Sizes by name: `m`, `n` and `k` of products, with `batch` if there are several;
            `values` that streaming kernels read and write; those of the kernel model of attention.
        launches: Kernels that it stands for.
        parameters: Parameters whose gradients are complete after it.
    """

    name: str
    kind: OperatorKind
    sizes: tuple[tuple[str, Amount], ...]
    launches: int = 1
    parameters: int = 0

    def operator(self, layers: Layers) -> Operator:
        """Returns it over a number of samples."""
        sizes = {name: amount_of(amount, layers.rows) for name, amount in self.sizes}
        if self.kind is OperatorKind.ELEMENTWISE:
            return Operator(
                self.name,
                self.kind,
                traffic_bytes=sizes["values"] * layers.value_bytes,
                launches=self.launches,
            )
        if self.kind is OperatorKind.SEQUENCE_ATTENTION:
            return Operator(
                self.name, self.kind, sizes=tuple(sizes.items()), launches=self.launches
            )
        whole = {name: max(1, round(size)) for name, size in sizes.items()}
        m, n, k = (whole[name] for name in ("m", "n", "k"))
        return Operator(self.name, self.kind, m=m, n=n, k=k, batch=whole.get("batch", 1))


@dataclass(frozen=True, slots=True)
class TracedDense:
    """Everything but the tables, in the order in which the module computes it.

    Attributes:
        before: Forward, before the first vector of a table is read.
        forward: Forward from there on.
        backward: Backward until the gradients of all vectors of tables are complete.
        after: Backward from there on.
        kept_values: Values that the backward pass keeps of the forward pass.
        outputs: Predictions a sample, each with a label; 0 if the module computes its loss.
    """

    before: tuple[TracedOperator, ...]
    forward: tuple[TracedOperator, ...]
    backward: tuple[TracedOperator, ...]
    after: tuple[TracedOperator, ...]
    kept_values: Amount = (0.0,)
    outputs: int = 0


def amount_of(amount: Amount, samples: int) -> float:
    """Returns an amount for a number of samples."""
    return sum(factor * float(samples) ** power for power, factor in enumerate(amount))


def traced_blocks(dense: TracedDense, layers: Layers) -> tuple[Block, Block]:
    """Returns what does not need the vectors of tables, and everything else, with the loss.

    Args:
        dense: The dense part.
        layers: Makes operators over the samples.
    """
    kept = round(amount_of(dense.kept_values, layers.rows) / layers.rows)
    rest = _block(dense.forward, dense.backward, layers, kept)
    if dense.outputs:
        rest = chain(rest, loss_block(layers, "loss", dense.outputs))
    return _block(dense.before, dense.after, layers, 0), rest


def _block(
    forward: Sequence[TracedOperator],
    backward: Sequence[TracedOperator],
    layers: Layers,
    kept_values: int,
) -> Block:
    return Block(
        tuple(one.operator(layers) for one in forward),
        tuple(one.operator(layers) for one in backward),
        tuple(
            ParameterGroup(one.name, one.parameters, index)
            for index, one in enumerate(backward)
            if one.parameters
        ),
        kept_values,
    )
