"""Parts of a recommendation model beside its tables and MLPs: towers, experts, tasks."""

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
