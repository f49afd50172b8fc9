"""Parts of a recommendation model besides tables and MLPs: sequence, towers, experts, tasks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tower:
    """An MLP of its own over the vectors of some tables, whose output takes their place.

    Attributes:
        name: Unique among the model's towers.
        tables: Names of its tables.
        mlp: Output widths of its layers; the last is the width of its vector.
    """

    name: str
    tables: tuple[str, ...]
    mlp: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Experts:
    """MLPs side by side, of which each task mixes some with a gate of its own.

    With shared experts alone it is a multi-gate mixture of experts (MMoE; Ma et al., KDD 2018),
    with experts of single tasks and several levels progressive layered extraction (PLE; Tang et
    al., RecSys 2020).

    Attributes:
        shared: Experts that every task's gate may choose.
        per_task: Further experts of each task, which only its own gate sees.
        mlp: Output widths of one expert's layers.
        levels: Such layers one behind another; between them every task and the shared experts have
            a representation of their own.
    """

    shared: int
    mlp: tuple[int, ...]
    per_task: int = 0
    levels: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """Something that the model predicts, with its own loss.

    Attributes:
        name: Unique among the model's tasks.
        top_mlp: Output widths of its head's layers; the last is its number of outputs.
    """

    name: str
    top_mlp: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SequenceLayers:
    """Attention over a sample's history: the vectors of its tables without pooling.

    Attributes:
        layers: Layers of the transducer (HSTU).
        hidden: Width of a position.
        heads: Heads of the attention.
        head_dim: Columns of a query and of a key of one head.
        value_dim: Columns of a value and of a gate of one head.
        input_mlp: Output widths of the layers that bring the vectors of a position to `hidden`;
            empty for one layer, or none where they have that width.
        length: Mean positions a sample; None for one position a lookup. Vectors of several tables
            may be one position side by side.
        max_length: Positions at which longer histories are cut; None if they are not. The mean is
            that of cut ones.
        predictions: Positions a sample whose outputs go on. With one it is a vector of the
            interaction, with several the layers behind it run for each of them.
        concatenated: Whether a layer's projection reads the gate and the layer's input beside the
            gated attention (`concat_ux` of the reference program).
        recompute: Whether the backward pass computes norm, u, v, q, k and gate again instead of
            keeping them.
    """

    layers: int
    hidden: int
    heads: int
    head_dim: int
    value_dim: int
    input_mlp: tuple[int, ...] = ()
    length: float | None = None
    max_length: float | None = None
    predictions: int = 1
    concatenated: bool = False
    recompute: bool = False
