"""Dense part of a live module: the layers of a DLRM, or an MLP of as many parameters.

A module with TorchRec's `dense_arch`, `inter_arch` and `over_arch` has the MLPs and the
interaction of its model. Any other is described by an MLP on the concatenated vectors with as
many linear layers, all of one width, and as many parameters: the same arithmetic, and the same
gradients to reduce, in products of another shape. Attention over sequences is not recognized in a
module; what is known of it comes from the caller, and the MLP stands for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, Any

from dse.model.dlrm import Interaction, InteractionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.model.torchrec._tables import LiveTable


@dataclass(frozen=True, slots=True)
class Attention:
    """What the attention over a sequence has of a module.

    Attributes:
        hidden: Width of the vector that it yields.
        parameters: Its parameters.
        layers: Linear layers that it may have.
    """

    hidden: int = 0
    parameters: int = 0
    layers: int = 0


@dataclass(frozen=True, slots=True)
class DensePart:
    """Dense part of a model.

    Attributes:
        dense_features: Width of the dense input.
        bottom_mlp: Output widths of the bottom MLP's layers.
        top_mlp: Output widths of the top MLP's layers.
        interaction: Interaction of dense and sparse features.
        parameters: Parameters that the live module has outside of its tables.
        equivalent: Whether it is the MLP of as many parameters.
    """

    dense_features: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    interaction: Interaction
    parameters: int
    equivalent: bool


def dense_part(
    module: Any,
    tables: Sequence[LiveTable],
    sparse: frozenset[int],
    dense_features: int,
    attention: Attention,
) -> DensePart:
    """Reads the dense part.

    Args:
        module: The live module.
        tables: Its tables.
        sparse: Identities of the parameters of tables.
        dense_features: Width of the dense input, where batches have one.
        attention: Attention over sequences.
    """
    own = [parameter for parameter in module.parameters() if id(parameter) not in sparse]
    parameters = sum(parameter.numel() for parameter in own)
    for one in module.modules():
        bottom, over = (_linear(getattr(one, name, None)) for name in ("dense_arch", "over_arch"))
        interaction = _interaction(getattr(one, "inter_arch", None))
        if bottom and over and interaction is not None:
            return DensePart(
                bottom[0][0],
                tuple(outputs for _, outputs in bottom),
                tuple(outputs for _, outputs in over),
                interaction,
                parameters,
                equivalent=False,
            )
    layers = max(1, len(_linear(module)) - attention.layers)
    pooled = sum(table.dim * len(table.features) for table in tables if table.pooled)
    return DensePart(
        dense_features,
        (),
        _equivalent(
            dense_features + pooled + attention.hidden, layers, parameters - attention.parameters
        ),
        Interaction(InteractionKind.CONCAT),
        parameters,
        equivalent=True,
    )


def _linear(module: Any) -> list[tuple[int, int]]:
    """Inputs and outputs of the linear layers of a module, in order."""
    if module is None:
        return []
    return [
        (int(one.in_features), int(one.out_features))
        for one in module.modules()
        if hasattr(one, "in_features") and hasattr(one, "out_features")
    ]


def _interaction(module: Any) -> Interaction | None:
    """The interaction of TorchRec's DLRM and DLRM-DCN; None for others."""
    cross = getattr(module, "crossnet", None)
    if cross is not None:
        layers = getattr(cross, "_num_layers", 0)
        if hasattr(cross, "_low_rank") and not hasattr(cross, "_num_experts"):
            return Interaction(InteractionKind.DCNV2_LOW_RANK, layers, cross._low_rank)
        if type(cross).__name__ == "CrossNet":
            return Interaction(InteractionKind.DCNV2, layers)
        return None
    if type(module).__name__ == "InteractionArch":
        return Interaction(InteractionKind.DOT)
    return None


def _equivalent(inputs: int, layers: int, parameters: int) -> tuple[int, ...]:
    """Widths of an MLP from `inputs` to one output with about that many parameters.

    With hidden layers of one width `w` and biases they are
    `inputs · w + (layers − 2) w² + w + layers' biases`.
    """
    if layers == 1 or parameters <= inputs:
        return (1,)
    squares, linear = layers - 2, inputs + layers
    if not squares:
        return (max(1, round(parameters / linear)), 1)
    root = math.sqrt(linear**2 + 4 * squares * parameters)
    width = max(1, round((root - linear) / (2 * squares)))
    return (*(width,) * (layers - 1), 1)
