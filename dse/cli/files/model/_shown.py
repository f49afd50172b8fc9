"""`dse model show`: what a model holds."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dse.cli._options import JsonOption, ModelArgument, new_file

if TYPE_CHECKING:
    from dse._terminal import Console
    from dse.model import DlrmModel, TransformerModel

#: Largest tables that `dse model show` names.
_SHOWN = 10


def show_command(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Show a model: tables, memory, lookups, dense part, recipe."""
    from dse.model import load_model

    show_model(load_model(model), as_json=as_json)


def check_out(out: Path, *, force: bool) -> None:
    from dse.errors import ConfigError

    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: expected a name that ends in .yaml")
    new_file("--out", out, force=force)


def show_model(model: DlrmModel | TransformerModel, *, as_json: bool) -> None:
    from dse.cli._output import emit
    from dse.model import DlrmModel

    dlrm = isinstance(model, DlrmModel)
    document = _dlrm(model) if isinstance(model, DlrmModel) else _transformer(model)
    largest = _largest_tables(model) if isinstance(model, DlrmModel) else []

    def show(console: Console) -> None:
        from dse.report.console import Table, facts, figures, names

        facts(console, ((key.replace("_", " "), _text(value)) for key, value in document.items()))
        if largest:
            titles = [column.replace("_", " ") for column in largest[0]]
            table = Table("largest tables", names(titles[0]), figures(*titles[1:]))
            for row in largest:
                table.add(*map(_text, row.values()))
            table.print(console)

    emit(document | ({"largest_tables": largest} if dlrm else {}), show, as_json=as_json)


def _text(value: object) -> str:
    if isinstance(value, list):
        return " – ".join(str(item) for item in value) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if is_dataclass(value):
        given = ((one.name, getattr(value, one.name)) for one in fields(value))
        shown = (f"{name.replace('_', ' ')} {_text(part)}" for name, part in given if part)
        return ", ".join(shown)
    return str(value)


def _largest_tables(model: DlrmModel) -> list[dict[str, object]]:
    largest = sorted(model.tables, key=lambda table: -table.weight_bytes)[:_SHOWN]
    return [
        {
            "table": table.name,
            "rows": table.rows,
            "dim": table.dim,
            "pooling": round(table.lookups_per_sample, 3),
            "data_type": table.data_type.value,
            "gib": round(table.weight_bytes / 2**30, 3),
        }
        for table in largest
    ]


def _dlrm(model: DlrmModel) -> dict[str, object]:
    from dse.model import dense_parameter_count

    return {
        "name": model.name,
        "kind": "dlrm",
        "description": model.description,
        "tables": len(model.tables),
        "features": sum(table.feature_count for table in model.tables),
        "rows": sum(table.rows for table in model.tables),
        "embedding_gib": round(model.embedding_bytes / 2**30, 3),
        "lookups_per_sample": round(sum(table.lookups_per_sample for table in model.tables), 3),
        "dense_features": model.dense_features,
        "bottom_mlp": list(model.bottom_mlp),
        "interaction": model.interaction.kind.value,
        "top_mlp": list(model.top_mlp),
        **_architecture(model),
        "dense_parameters": dense_parameter_count(model),
        "precision": model.precision.value,
        "dense_optimizer": model.dense_optimizer.value,
        "sparse_optimizer": model.sparse_optimizer.value,
        "global_batch_size": model.global_batch_size,
    }


def _architecture(model: DlrmModel) -> dict[str, object]:
    """Parts that a model need not have."""
    from dse.model import sequence_positions

    found: dict[str, object] = {}
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


def _transformer(model: TransformerModel) -> dict[str, object]:
    parts = {
        "experts": model.experts,
        "latent_attention": model.latent,
        "sliding_window": model.window,
        "mtp_modules": model.mtp_modules,
    }
    return {
        "name": model.name,
        "kind": "transformer",
        "description": model.description,
        "family": model.family.value,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn_hidden": model.ffn_hidden,
        **{name: part for name, part in parts.items() if part},
        "vocab": model.vocab,
        "parameters": model.parameter_count,
        "active_parameters": model.active_parameter_count,
        "sequence_length": model.sequence_length,
        "precision": model.precision.value,
        "global_batch_size": model.global_batch_size,
    }
