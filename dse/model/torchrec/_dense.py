"""Dense part of a live module: its layers, its operators, or an MLP of as many parameters.

A module with TorchRec's `dense_arch`, `inter_arch` and `over_arch` has the MLPs and the
interaction of its model. Any other is run on a sample batch, and its operators are those of the
model. One that cannot be run is described by an MLP on the concatenated vectors with as many
linear layers, all of one width, and as many parameters: the same gradients to reduce, and as much
arithmetic as if every weight were used once a sample. So is what is left of a module whose
attention over sequences the caller describes.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, Any

from dse.model.dlrm import Interaction, InteractionKind
from dse.model.torchrec._tables import in_collections, outer_collections

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.model.dlrm import TracedDense
    from dse.model.torchrec._batches import MeasuredLookups
    from dse.model.torchrec._tables import LiveTable


_SIDE_BY_SIDE = Interaction(InteractionKind.CONCAT)


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
        traced: Its operators, in place of these; None if they describe it.
        notes: What has been assumed.
    """

    dense_features: int
    bottom_mlp: tuple[int, ...] = ()
    top_mlp: tuple[int, ...] = ()
    interaction: Interaction = _SIDE_BY_SIDE
    traced: TracedDense | None = None
    notes: tuple[str, ...] = ()


def dense_parameters(module: Any) -> int:
    """Returns the parameters that a live module has outside of its tables."""
    sparse = in_collections(module)
    return sum(one.numel() for one in module.parameters() if id(one) not in sparse)


def known_layers(module: Any) -> DensePart | None:
    """Returns the dense part of a module that has TorchRec's DLRM or DLRM-DCN; None for others."""
    for one in module.modules():
        bottom, over = (_linear(getattr(one, name, None)) for name in ("dense_arch", "over_arch"))
        interaction = _interaction(getattr(one, "inter_arch", None))
        if bottom and over and interaction is not None:
            return DensePart(
                bottom[0][0],
                tuple(outputs for _, outputs in bottom),
                tuple(outputs for _, outputs in over),
                interaction,
            )
    return None


def traced_part(
    module: Any, measured: MeasuredLookups, forward: Callable[[Any, Any], Any] | None
) -> DensePart:
    """Returns the dense part as it runs on the first batch.

    Args:
        module: The live module.
        measured: What the batches show.
        forward: Calls the module with a batch; None for the usual way.

    Raises:
        NotTracedError: There is no batch, or the module does not run with it.
    """
    from dse.model.torchrec._trace import NotTracedError, trace_dense

    if measured.first is None:
        raise NotTracedError("there are no sample batches to run it with")
    collections = [collection for _, collection in outer_collections(module)]
    traced, unknown = trace_dense(module, collections, measured.first, measured.samples, forward)
    notes: tuple[str, ...] = ()
    if unknown:
        notes = (
            "dense part: counted by the values that they read and write, without their "
            f"arithmetic: {', '.join(unknown)}",
        )
    return DensePart(measured.dense_features, traced=traced, notes=notes)


def equivalent_mlp(
    module: Any,
    tables: Sequence[LiveTable],
    dense_features: int,
    attention: Attention,
    reason: str,
) -> DensePart:
    """Returns an MLP of as many parameters as a dense part has.

    Args:
        module: The live module.
        tables: Its tables.
        dense_features: Width of the dense input, where batches have one.
        attention: Attention over sequences.
        reason: Why the dense part is not the module's own.
    """
    parameters = dense_parameters(module)
    layers = max(1, len(_linear(module)) - attention.layers)
    pooled = sum(table.dim * len(table.features) for table in tables if table.pooled)
    top_mlp = _equivalent(
        dense_features + pooled + attention.hidden, layers, parameters - attention.parameters
    )
    note = (
        f"dense part: {reason}, so an MLP {' – '.join(map(str, top_mlp))} on the concatenated "
        f"vectors stands for the {parameters:,} parameters of the module"
    )
    return DensePart(dense_features, top_mlp=top_mlp, notes=(note,))


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
