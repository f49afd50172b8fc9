"""What a recommendation model holds, as `dse model show` lists it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model import dense_parameter_count, sequence_positions

if TYPE_CHECKING:
    from dse.model import DlrmModel, TracedDense


def model_contents(model: DlrmModel) -> dict[str, object]:
    """Returns tables, memory, lookups, dense part and recipe of a model, by name."""
    return {
        "tables": len(model.tables),
        "features": sum(table.feature_count for table in model.tables),
        "rows": sum(table.rows for table in model.tables),
        "embedding_gib": round(model.embedding_bytes / 2**30, 3),
        "lookups_per_sample": round(sum(table.lookups_per_sample for table in model.tables), 3),
        "dense_features": model.dense_features,
        **(_layers(model) if model.traced is None else _operators(model.traced)),
        "dense_parameters": dense_parameter_count(model),
        "precision": model.precision.value,
        "dense_optimizer": model.dense_optimizer.value,
        "sparse_optimizer": model.sparse_optimizer.value,
        "global_batch_size": model.global_batch_size,
    }


def _operators(dense: TracedDense) -> dict[str, object]:
    operators = (*dense.before, *dense.forward, *dense.backward, *dense.after)
    return {
        "traced_operators": len(operators),
        "traced_products": sum(one.kind.is_product for one in operators),
    }


def _layers(model: DlrmModel) -> dict[str, object]:
    found: dict[str, object] = {
        "bottom_mlp": list(model.bottom_mlp),
        "interaction": model.interaction.kind.value,
        "top_mlp": list(model.top_mlp),
    }
    if model.sequence:
        sequence = model.sequence
        length, _ = sequence_positions(model)
        found["sequence"] = (
            f"{sequence.layers} layers of {sequence.hidden}, {sequence.heads} heads of "
            f"{sequence.head_dim}, {length:,.0f} positions, {sequence.predictions} predicted"
        )
    if model.towers:
        found["towers"] = [
            f"{tower.name}: {len(tower.tables)} tables, {', '.join(map(str, tower.mlp))}"
            for tower in model.towers
        ]
    if model.experts:
        experts = model.experts
        found["experts"] = (
            f"{experts.shared} shared and {experts.per_task} a task, {experts.levels} levels of "
            f"{', '.join(map(str, experts.mlp))}"
        )
    if model.tasks:
        found["tasks"] = [
            f"{task.name}: {', '.join(map(str, task.top_mlp))}" for task in model.tasks
        ]
    return found
