"""Attention over a sample's history as operators: layers of a sequential transducer (HSTU).

A layer computes, over all positions of all sequences side by side without padding, u, v, q, k =
SiLU(W norm(x) + b), attention with SiLU in place of the softmax, and x + P (u ⊙ norm(attention))
(Zhai et al., Actions Speak Louder than Words, arXiv 2402.17152). Kernels are those of the program
whose times are published (NVIDIA/recsys-examples, examples/hstu/ops/fused_hstu_op.py): norm, gate
and SiLU are one each, the sum with the layer's input is a copy and a product that adds to it, and
the gradient of the bias is a sum of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse.model._common import Operator, OperatorKind
from dse.model.dlrm._blocks import Block, Layers, ParameterGroup, chain
from dse.model.dlrm._lengths import busiest_share, length_moment

if TYPE_CHECKING:
    from dse.model.dlrm._architecture import SequenceLayers
    from dse.model.dlrm._model import DlrmModel


def sequence_positions(model: DlrmModel, samples: int = 1, ranks: int = 1) -> tuple[float, float]:
    """Returns positions a sample and their square, on average over the busiest rank's samples.

    The length varies as the bags of the table that gives most positions.

    Args:
        model: A model with a sequence.
        samples: Samples of a rank.
        ranks: Number of ranks; with one the averages are those of all samples.
    """
    tables = [table for table in model.tables if not table.pooled]
    given = model.sequence.length if model.sequence else None
    most = model.sequence.max_length if model.sequence else None
    length = given or sum(table.lookups_per_sample for table in tables)
    longest = max(tables, key=lambda table: table.lookups_per_sample)
    square, fourth = (
        length_moment(longest.pooling_distribution, length, power, most) for power in (2, 4)
    )
    busiest = length * busiest_share(square / length**2 - 1.0, samples, ranks)
    busiest_square = square * busiest_share(fourth / square**2 - 1.0, samples, ranks)
    if most is not None:
        busiest, busiest_square = min(busiest, most), min(busiest_square, most**2)
    return busiest, busiest_square


def sequence_block(model: DlrmModel, samples: int, value_bytes: int, ranks: int) -> Block:
    """Returns everything from the vectors of single lookups to the positions that go on.

    Args:
        model: The model; an empty block is returned for one without a sequence.
        samples: Samples of the rank.
        value_bytes: Bytes of an activation and of a gradient.
        ranks: Number of ranks, of which the busiest one counts: all others wait for it.
    """
    sequence = model.sequence
    if sequence is None:
        return Block()
    length, square = sequence_positions(model, samples, ranks)
    layers = Layers(max(1, round(samples * length)), value_bytes)
    embedded = sum(
        table.vectors_per_sample * table.dim for table in model.tables if not table.pooled
    )
    width = max(1, round(embedded / sequence_positions(model)[0]))
    input_mlp = sequence.input_mlp or ((sequence.hidden,) if width != sequence.hidden else ())
    sizes = (("sequences", samples), ("positions", length), ("squared_positions", square))
    blocks = [
        _together(layers, width),
        layers.mlp("sequence.input", (width, *input_mlp)),
        _encoding(layers, sequence.hidden),
        *(
            _layer(layers, f"sequence.{number}", sequence, sizes)
            for number in range(sequence.layers)
        ),
        _chosen(layers, sequence, length),
    ]
    every = chain(*blocks)
    return replace(every, kept_values=round(every.kept_values * length))


def _together(layers: Layers, width: int) -> Block:
    """Vectors of all tables in the order of positions."""
    return Block(
        (layers.elementwise("sequence.together", 2 * width),),
        (layers.elementwise("sequence.together.backward", 2 * width),),
        kept_values=width,
    )


def _encoding(layers: Layers, hidden: int) -> Block:
    """Learned vectors of position and time, which are added."""
    return Block(
        (layers.elementwise("sequence.encoding", 3 * hidden),),
        (layers.elementwise("sequence.encoding.backward", 2 * hidden),),
    )


def _layer(
    layers: Layers, name: str, sequence: SequenceLayers, sizes: tuple[tuple[str, float], ...]
) -> Block:
    hidden, rows = sequence.hidden, layers.rows
    keys, values = sequence.heads * sequence.head_dim, sequence.heads * sequence.value_dim
    mixed = 2 * (keys + values)
    # Beside the gated attention the projection may read the gate and the layer's input.
    beside = values + hidden if sequence.concatenated else 0
    sizes = (
        *sizes,
        ("heads", sequence.heads),
        ("dim", sequence.head_dim),
        ("value_dim", sequence.value_dim),
        ("causal", 1),
    )

    def attention(end: str, backward: int, launches: int) -> Operator:
        return Operator(
            f"{name}.attention{end}",
            OperatorKind.SEQUENCE_ATTENTION,
            sizes=(*sizes, ("backward", backward)),
            launches=launches,
        )

    def mix(end: str) -> tuple[Operator, ...]:
        return (
            layers.elementwise(f"{name}.norm{end}", 2 * hidden),
            layers.gemm(f"{name}.uvqk{end or '.forward'}", rows, mixed, hidden),
            layers.elementwise(f"{name}.uvqk{end}.activation", 2 * mixed),
        )

    def gate(end: str) -> Operator:
        inputs = 2 * values + (hidden if sequence.concatenated else 0)
        return layers.elementwise(f"{name}.gate{end}", inputs + values + beside)

    again: tuple[Operator, ...] = ()
    if sequence.recompute:
        again = (*mix(".recomputed.backward"), gate(".recomputed.backward"))
    backward = (
        *again,
        layers.gemm(f"{name}.project.input_gradient", rows, values + beside, hidden),
        layers.gemm(f"{name}.project.weight_gradient", hidden, values + beside, rows),
        layers.elementwise(f"{name}.gate.backward", 5 * values + 2 * beside),
        attention(".backward", 1, 3),
        layers.elementwise(f"{name}.uvqk.activation.backward", 3 * mixed),
        layers.elementwise(f"{name}.uvqk.bias.backward", mixed),
        layers.gemm(f"{name}.uvqk.input_gradient", rows, hidden, mixed),
        layers.gemm(f"{name}.uvqk.weight_gradient", mixed, hidden, rows),
        # The gradient of the norm's input, and its sum with that of the layer's output.
        layers.elementwise(f"{name}.norm.backward", 6 * hidden, 2),
    )
    first = len(again)
    # The layer's input and the attention; else also the norm, both sides of the activation, and
    # the projection's input.
    kept = hidden + values
    if not sequence.recompute:
        kept += hidden + 2 * mixed + values + beside
    return Block(
        (
            *mix(""),
            attention("", 0, 1),
            gate(""),
            layers.elementwise(f"{name}.residual", 2 * hidden),
            layers.gemm(f"{name}.project.forward", rows, hidden, values + beside),
        ),
        backward,
        (
            ParameterGroup(f"{name}.project", (values + beside) * hidden + 2 * values, first + 1),
            ParameterGroup(f"{name}.uvqk", (hidden + 1) * mixed + 2 * hidden, first + 7),
        ),
        kept,
    )


def _chosen(layers: Layers, sequence: SequenceLayers, length: float) -> Block:
    """The positions whose outputs go on, normalised; the others have no gradient."""
    share = min(1.0, sequence.predictions / length)
    taken = 4 * share * sequence.hidden
    return Block(
        (layers.elementwise("sequence.output", taken, 2),),
        (layers.elementwise("sequence.output.backward", taken + sequence.hidden, 2),),
    )
