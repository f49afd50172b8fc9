"""Dense part of a recommendation model as a list of operators of one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.model._common import Operator, OperatorKind
from dse.model.dlrm._bags import shared_bags_block
from dse.model.dlrm._blocks import Block, Layers, ParameterGroup, chain
from dse.model.dlrm._heads import top_block
from dse.model.dlrm._interactions import interaction_block, interaction_width
from dse.model.dlrm._sequence import sequence_block
from dse.model.dlrm._traced import traced_blocks

if TYPE_CHECKING:
    from dse.machine import Precision
    from dse.model.dlrm._model import DlrmModel

#: Layers that are kept, a few kilobytes each: configurations of a study share them.
_BLOCKS_KEPT = 256


@dataclass(frozen=True, slots=True)
class DenseOperators:
    """Operators of one rank by phase, each in order of execution.

    Attributes:
        input_copy: Dense features and labels from the host.
        bottom_forward: Bottom MLP.
        interaction_forward: Interaction of dense and sparse features.
        top_forward: Top MLP and loss.
        top_backward: Loss and top MLP, backward.
        interaction_backward: Interaction, backward.
        bottom_backward: Bottom MLP, backward.
        optimizer: Update of the dense parameters.
        parameter_groups: In the order in which gradients become ready.
    """

    input_copy: tuple[Operator, ...]
    bottom_forward: tuple[Operator, ...]
    interaction_forward: tuple[Operator, ...]
    top_forward: tuple[Operator, ...]
    top_backward: tuple[Operator, ...]
    interaction_backward: tuple[Operator, ...]
    bottom_backward: tuple[Operator, ...]
    optimizer: tuple[Operator, ...]
    parameter_groups: tuple[ParameterGroup, ...]


def dense_operators(
    model: DlrmModel, local_batch_size: int, precision: Precision, ranks: int = 1
) -> DenseOperators:
    """Returns the dense operators of one rank.

    Args:
        model: The model.
        local_batch_size: Samples of the rank.
        precision: Decides the bytes of activations and gradients.
        ranks: Number of ranks; where histories differ in length, the operators are those of the
            rank with most positions.
    """
    bottom, interaction, top = _blocks(model, local_batch_size, precision.value_bytes, ranks)
    whole = chain(bottom, interaction, top)
    return DenseOperators(
        input_copy=(
            Operator(
                "copy dense input",
                OperatorKind.COPY_TO_DEVICE,
                traffic_bytes=4.0 * local_batch_size * (model.dense_features + model.outputs),
            ),
        ),
        bottom_forward=bottom.forward,
        interaction_forward=interaction.forward,
        top_forward=top.forward,
        top_backward=top.backward,
        interaction_backward=interaction.backward,
        bottom_backward=bottom.backward,
        optimizer=(_optimizer(model, whole.parameters),),
        parameter_groups=whole.groups,
    )


def dense_parameter_count(model: DlrmModel) -> int:
    """Returns the number of parameters of everything but the tables."""
    return sum(block.parameters for block in _blocks(model, 1, 1, 1))


def model_flops(model: DlrmModel, samples: int) -> float:
    """Returns the arithmetic of all products and of attention in one step over some samples.

    Without what is computed again; of attention half of the matrix counts, backward five products
    to two forward, as in published utilizations.

    Args:
        model: The model.
        samples: Samples of the step.
    """
    blocks = _blocks(model, samples, 1, 1)
    return sum(
        _flops(operator)
        for block in blocks
        for operator in (*block.forward, *block.backward)
        if ".recomputed" not in operator.name
    )


def _flops(operator: Operator) -> float:
    if operator.kind is OperatorKind.SEQUENCE_ATTENTION:
        sizes = dict(operator.sizes)
        seen = 0.5 if sizes["causal"] else 1.0
        pairs = seen * sizes["sequences"] * sizes["squared_positions"] * sizes["heads"]
        back = 3.0 * sizes["dim"] + 2.0 * sizes["value_dim"]
        return 2.0 * pairs * (back if sizes["backward"] else sizes["dim"] + sizes["value_dim"])
    return 2.0 * operator.m * operator.n * operator.k * operator.batch


def activation_bytes(
    model: DlrmModel, local_batch_size: int, precision: Precision, ranks: int = 1
) -> int:
    """Returns the bytes that the backward pass keeps of one rank's forward pass.

    Inputs of every layer and of every activation function, and the interaction's inputs.
    """
    blocks = _blocks(model, local_batch_size, precision.value_bytes, ranks)
    values = model.dense_features + sum(block.kept_values for block in blocks)
    return local_batch_size * values * precision.value_bytes


@lru_cache(maxsize=_BLOCKS_KEPT)
def _blocks(
    model: DlrmModel, samples: int, value_bytes: int, ranks: int
) -> tuple[Block, Block, Block]:
    """Returns bottom MLP, interaction with what comes before it, and all that comes behind it.

    Values that they keep are those of a sample.
    """
    if model.traced is not None:
        layers = Layers(samples, value_bytes)
        before, rest = traced_blocks(model.traced, layers)
        return before, shared_bags_block(model, layers), rest
    bottom = Block()
    if model.bottom_mlp:
        widths = (model.dense_features, *model.bottom_mlp)
        bottom = Layers(samples, value_bytes).mlp("bottom_mlp", widths, input_gradient=False)
    times = model.predicted_positions
    layers = Layers(samples * times, value_bytes)
    interaction = interaction_block(model, layers)
    top = top_block(model, layers, interaction_width(model))
    return (
        bottom,
        chain(
            sequence_block(model, samples, value_bytes, ranks),
            shared_bags_block(model, layers),
            replace(interaction, kept_values=times * interaction.kept_values),
        ),
        replace(top, kept_values=times * top.kept_values),
    )


def _optimizer(model: DlrmModel, parameters: int) -> Operator:
    """One fused multi-tensor step: read gradient, read and write weights and state."""
    state = model.dense_optimizer.state_values_per_parameter
    return Operator(
        "dense optimizer",
        OperatorKind.OPTIMIZER_STEP,
        traffic_bytes=4.0 * parameters * (3 + 2 * state),
        sizes=(("parameters", parameters), ("state_values", state)),
    )
