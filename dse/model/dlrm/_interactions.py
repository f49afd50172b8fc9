"""Interaction of dense and sparse features as operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model._common import Operator, OperatorKind
from dse.model.dlrm._blocks import Block, Layers, ParameterGroup, chain
from dse.model.dlrm._model import InteractionKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.model.dlrm._architecture import Tower
    from dse.model.dlrm._model import DlrmModel

#: Kernels of the second-order term of a factorization machine, each way: sum of the vectors, its
#: square, the squares, their sum, the difference, and the sum over columns.
_FM_LAUNCHES = 6


def interaction_inputs(model: DlrmModel) -> tuple[int, ...]:
    """Returns the widths of the vectors of a sample that the interaction reads.

    Vectors of tables, or of the towers and the sequence in their place; without the bottom MLP's
    output.
    """
    in_towers = {name for tower in model.towers for name in tower.tables}
    of_tables = [
        table.dim
        for table in model.tables
        if table.pooled and table.name not in in_towers
        for _ in range(table.feature_count)
    ]
    of_sequence = (model.sequence.hidden,) if model.sequence else ()
    return (*of_tables, *(tower.mlp[-1] for tower in model.towers), *of_sequence)


def interaction_width(model: DlrmModel) -> int:
    """Returns the width of the top MLP's input."""
    inputs, kind = interaction_inputs(model), model.interaction.kind
    dense = _dense_width(model)
    if kind is InteractionKind.DOT:
        vectors = len(inputs) + bool(model.bottom_mlp)
        return dense + vectors * (vectors - 1) // 2
    if kind is InteractionKind.CONCAT:
        return -(-sum(inputs) // model.interaction.stride) + dense
    if kind is InteractionKind.FM:
        return sum(width for width in inputs if width > 1) + dense
    return sum(inputs) + dense


def interaction_block(model: DlrmModel, layers: Layers) -> Block:
    """Returns the towers and the interaction of what they and the other tables yield."""
    widths = {table.name: table.feature_count * table.dim for table in model.tables}
    towers = [_tower(tower, widths, layers) for tower in model.towers]
    return chain(*towers, _interaction(model, layers))


def _dense_width(model: DlrmModel) -> int:
    return model.bottom_mlp[-1] if model.bottom_mlp else model.dense_features


def _tower(tower: Tower, widths: Mapping[str, int], layers: Layers) -> Block:
    """Vectors of a tower's tables side by side, and its MLP."""
    width = sum(widths[name] for name in tower.tables)
    name = f"tower.{tower.name}"
    together = Block(
        (layers.concat(f"{name}.concat", width),),
        (layers.elementwise(f"{name}.concat.backward", 2 * width),),
        kept_values=width,
    )
    return chain(together, layers.mlp(name, (width, *tower.mlp)))


def _interaction(model: DlrmModel, layers: Layers) -> Block:
    inputs, width = interaction_inputs(model), interaction_width(model)
    kept = sum(inputs) + width
    kind = model.interaction.kind
    if kind is InteractionKind.DOT:
        return _dot(model, layers, len(inputs) + bool(model.bottom_mlp), kept)
    together = sum(inputs) + _dense_width(model)
    concat = layers.concat("interaction.concat", together)
    split = layers.elementwise("interaction.concat.backward", 2 * together)
    first = Block((concat,), (split,), kept_values=kept)
    if kind is InteractionKind.FM:
        return chain(first, _factorization_machine(model, layers))
    if kind is InteractionKind.CONCAT:
        if model.interaction.stride == 1:
            return first
        pooled = sum(inputs) + width
        pool = Block(
            (layers.elementwise("interaction.pool", pooled),),
            (layers.elementwise("interaction.pool.backward", pooled),),
        )
        return chain(first, pool)
    cross = _low_rank_cross if kind is InteractionKind.DCNV2_LOW_RANK else _full_cross
    crosses = [
        cross(layers, f"interaction.{layer}", width, model.interaction.low_rank)
        for layer in range(model.interaction.layers)
    ]
    return chain(first, *crosses)


def _dot(model: DlrmModel, layers: Layers, count: int, kept: int) -> Block:
    """Products of all pairs of `count` vectors, the lower triangle of `x xᵀ`."""
    dim = model.bottom_mlp[-1] if model.bottom_mlp else interaction_inputs(model)[0]
    width, batch = interaction_width(model), layers.rows
    product = Operator(
        "interaction.dot", OperatorKind.BATCHED_GEMM, m=count, n=count, k=dim, batch=batch
    )
    gradient = Operator(
        "interaction.dot.backward",
        OperatorKind.BATCHED_GEMM,
        m=count,
        n=dim,
        k=count,
        batch=2 * batch,
        launches=2,
    )
    triangle = count * count + width
    return Block(
        (
            layers.concat("interaction.concat", count * dim),
            product,
            layers.elementwise("interaction.triangle", triangle),
        ),
        (
            layers.elementwise("interaction.triangle.backward", triangle),
            gradient,
            layers.elementwise("interaction.concat.backward", 3 * count * dim),
        ),
        kept_values=kept,
    )


def _low_rank_cross(layers: Layers, name: str, width: int, rank: int) -> Block:
    """A low-rank cross layer: x0 ⊙ (W (V x) + b) + x."""
    rows = layers.rows
    return Block(
        (
            layers.gemm(f"{name}.v.forward", rows, rank, width),
            layers.gemm(f"{name}.w.forward", rows, width, rank),
            layers.elementwise(f"{name}.cross", 4 * width),
        ),
        (
            layers.elementwise(f"{name}.cross.backward", 6 * width),
            layers.gemm(f"{name}.w.input_gradient", rows, rank, width),
            layers.gemm(f"{name}.w.weight_gradient", width, rank, rows),
            layers.gemm(f"{name}.v.input_gradient", rows, width, rank),
            layers.gemm(f"{name}.v.weight_gradient", rank, width, rows),
        ),
        (ParameterGroup(name, 2 * width * rank + width, 4),),
        2 * width + rank,
    )


def _full_cross(layers: Layers, name: str, width: int, _rank: int) -> Block:
    """A cross layer with a full matrix: x0 ⊙ (W x + b) + x (Wang et al., DCN V2, WWW 2021)."""
    rows = layers.rows
    return Block(
        (
            layers.gemm(f"{name}.w.forward", rows, width, width),
            layers.elementwise(f"{name}.cross", 4 * width),
        ),
        (
            layers.elementwise(f"{name}.cross.backward", 6 * width),
            layers.gemm(f"{name}.w.input_gradient", rows, width, width),
            layers.gemm(f"{name}.w.weight_gradient", width, width, rows),
        ),
        (ParameterGroup(name, width * width + width, 2),),
        2 * width,
    )


def _factorization_machine(model: DlrmModel, layers: Layers) -> Block:
    """½ ((Σ v)² − Σ v²) beside the top MLP, and the first-order weights (Guo et al., DeepFM).

    Forward the vectors are read to be summed, read and written to be squared, and their squares
    read to be summed; backward the gradient of each is written once by the sum and once by the
    square, which reads the vector, and both are added. Of the sums there is one value a column.
    """
    inputs = interaction_inputs(model)
    vectors = [*(width for width in inputs if width > 1), *model.bottom_mlp[-1:]]
    values, columns, weights = sum(vectors), max(vectors, default=0), inputs.count(1)
    forward = 4 * values + 6 * columns + weights
    backward = 7 * values + 4 * columns + weights
    return Block(
        (layers.elementwise("interaction.fm", forward, _FM_LAUNCHES),),
        (layers.elementwise("interaction.fm.backward", backward, _FM_LAUNCHES),),
        kept_values=columns,
    )
