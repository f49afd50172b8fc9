"""`dse model show`: what a model holds."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from dse.cli._options import JsonOption, ModelArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse._text.terminal import Console
    from dse.model import DlrmModel, EmbeddingTable, TransformerModel

#: Largest tables that `dse model show` names.
_SHOWN = 10


def show_command(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Show a model: tables, memory, lookups, dense part, recipe."""
    show_model(model, as_json=as_json)


def show_model(model: str | DlrmModel | TransformerModel, *, as_json: bool) -> None:
    from dse.cli._output import emit
    from dse.workload import load_workload

    workload = load_workload(model)
    largest = _largest(workload.tables)

    def show(console: Console) -> None:
        from dse.report.console import Table, facts, figures, heading, names

        contents = workload.contents.items()
        facts(console, ((heading(key), _text(value)) for key, value in contents))
        if largest:
            titles = [heading(column) for column in largest[0]]
            table = Table("largest tables", names(titles[0]), figures(*titles[1:]))
            for row in largest:
                table.add(*map(_text, row.values()))
            table.print(console)

    document = {**workload.contents, **({"largest_tables": largest} if largest else {})}
    emit(document, show, as_json=as_json)


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


def _largest(tables: Sequence[EmbeddingTable]) -> list[dict[str, object]]:
    largest = sorted(tables, key=lambda table: -table.weight_bytes)[:_SHOWN]
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
