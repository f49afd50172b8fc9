"""`dse list`: built-in models, platforms, search spaces and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse._text.terminal import Console

#: Headings of columns whose keys are longer than what they hold.
_SHORT = {"devices_per_node": "devices", "usd_per_node_hour": "USD/h", "fitted": "fitted on"}


def list_command(
    what: Annotated[
        Literal["models", "platforms", "search-spaces", "programs", "software-profiles"],
        typer.Argument(
            metavar="KIND",
            help="models, platforms, search-spaces or programs (also called software-profiles).",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """List built-in models, platforms, search spaces or training programs."""
    from dse.cli._output import emit
    from dse.report.console import line

    rows = {
        "models": _models,
        "platforms": _platforms,
        "search-spaces": _spaces,
        "programs": _programs,
        "software-profiles": _programs,
    }[what]()

    def show(console: Console) -> None:
        for title, alike in _by_kind(rows).items():
            _print_table(title, alike, console)
        if what == "platforms":
            line(
                console, "devices and price are those of a node; the price is the cheapest", "dim"
            )

    emit(rows, show, as_json=as_json)


def _models() -> list[dict[str, object]]:
    from dse.model import list_models
    from dse.workload import load_workload

    models = [load_workload(name) for name in list_models()]
    sizes = dict.fromkeys(name for model in models for name in model.sizes)
    return [
        {
            "name": model.name,
            "kind": model.kind,
            **sizes,
            **model.sizes,
            "description": model.description,
        }
        for model in models
    ]


def _platforms() -> list[dict[str, object]]:
    from dse.machine.platforms import list_platforms, load_platform

    platforms = [load_platform(name) for name in list_platforms()]
    rows: list[dict[str, object]] = []
    for platform in platforms:
        quote = platform.quote(platform.devices_per_node)
        current = [offer.provider for offer in platform.offers if not offer.superseded]
        rows.append(
            {
                "name": platform.name,
                "devices_per_node": platform.devices_per_node,
                "device": platform.device.name,
                "usd_per_node_hour": None if quote is None else round(quote.usd_per_hour, 2),
                "providers": ", ".join(sorted(set(current))),
                "networks": ", ".join(network.name for network in platform.networks),
            }
        )
    return rows


def _spaces() -> list[dict[str, object]]:
    from dse.search.space import list_spaces, load_space

    spaces = [load_space(name) for name in list_spaces()]
    return [
        {
            "name": space.name,
            "configurations": space.size,
            "model": space.workload.name,
            "description": space.description,
        }
        for space in spaces
    ]


def _programs() -> list[dict[str, object]]:
    from dse.workload import workload_kinds

    return [
        {
            "name": program.name,
            "kind": kind,
            "description": program.description,
            "fitted": program.fitted,
            "origin": program.origin,
        }
        for kind, workload in workload_kinds().items()
        for program in workload.programs.values()
    ]


def _by_kind(rows: Sequence[dict[str, object]]) -> dict[str, list[dict[str, object]]]:
    """Returns the rows of each kind of workload by its title, or all if they have no kind."""
    from dse.workload import workload_kinds

    if "kind" not in rows[0]:
        return {"": list(rows)}
    found = {
        f"{workload.title}s": [row for row in rows if row["kind"] == kind]
        for kind, workload in workload_kinds().items()
    }
    return {title: alike for title, alike in found.items() if alike}


def _print_table(title: str, rows: Sequence[dict[str, object]], console: Console) -> None:
    """Prints the columns that have something in them; those of one kind have the others empty."""
    from dse.report.console import Table, figures, heading, texts

    filled = [name for name in rows[0] if any(row[name] not in (None, ()) for row in rows)]
    columns = [name for name in filled if name not in ("kind", "origin")]
    headings = (
        (figures if _numbers(row[name] for row in rows) else texts)(
            _SHORT.get(name) or heading(name)
        )
        for name in columns
    )
    table = Table(title, *headings)
    for row in rows:
        table.add(*(_cell(row[name]) for name in columns))
    table.print(console)


def _numbers(values: Iterable[object]) -> bool:
    """Says whether a column has only numbers; some may be missing."""
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, int | float) for value in present)


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return "; ".join(dict.fromkeys(fitted.on for fitted in value)) or "nothing"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
