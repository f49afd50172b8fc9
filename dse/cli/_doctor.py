"""`dse doctor`: what this machine has, what is calibrated, and what is missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dse._terminal import Console
    from dse.doctor import Checkup, Finding, PlatformFacts
    from dse.machine.platforms import Platform

_EXIT_BROKEN = 1


def doctor_command(
    platform: Annotated[
        str, typer.Option("--platform", help="Only this platform, name or file, in detail.")
    ] = "",
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Also import torch, Ray and TorchRec; takes seconds."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at this machine, packages, calibrations, and what is missing for which command.

    Exit code 1 means that something is broken that every command needs.
    """
    if platform:
        _show_platform(platform, as_json=as_json)
        return
    import json

    from dse._terminal import Console
    from dse.doctor import examine

    with _telling(quiet=as_json) as tell:
        checkup = examine(thorough=thorough, tell=tell)
    if as_json:
        typer.echo(json.dumps(_document(checkup), indent=1))
    else:
        _show(checkup, Console())
    if not checkup.healthy:
        raise typer.Exit(_EXIT_BROKEN)


def _document(checkup: Checkup) -> dict[str, object]:
    from dataclasses import asdict

    return {"healthy": checkup.healthy, **asdict(checkup)}


@contextmanager
def _telling(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    from dse._terminal import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("looking") as status:
        yield status.update


def _show(checkup: Checkup, console: Console) -> None:
    from dse.doctor import Status, Topic

    for topic in Topic:
        console.print(topic.value, style="bold", highlight=False)
        console.print(_table(one for one in checkup.findings if one.topic is topic))
        console.print()
    counts = [
        f"{count} {status.value}"
        for status in Status
        if (count := sum(one.status is status for one in checkup.findings))
    ]
    verdict = (
        "the core works" if checkup.healthy else "the core does not work; mend what is broken"
    )
    console.print(f"{verdict} ({', '.join(counts)})", markup=False, highlight=False)


def _table(findings: Iterable[Finding]) -> object:
    from rich.table import Table
    from rich.text import Text

    from dse.doctor import Status

    styles = {
        Status.OK: "green",
        Status.WARNING: "yellow",
        Status.MISSING: "cyan",
        Status.BROKEN: "bold red",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(min_width=7)
    table.add_column(max_width=34, overflow="fold")
    table.add_column(overflow="fold")
    for one in findings:
        # A figure and its unit stay on one line.
        words = Text(one.text.replace(" %", "\u00a0%"))
        if one.next_step:
            words.append(f"{' ' if one.text else ''}→ {one.next_step}", style="italic")
        table.add_row(Text(one.status.value, style=styles[one.status]), Text(one.subject), words)
    return table


def _show_platform(name: str, *, as_json: bool) -> None:
    from dataclasses import asdict
    import json
    from pathlib import Path

    from dse.doctor import System, machine_facts, platform_facts
    from dse.machine.platforms import load_platform

    platform = load_platform(name)
    (facts,) = platform_facts(machine_facts(System()), Path(), [name])
    if as_json:
        document = asdict(facts) | {"figures": [asdict(fact) for fact in platform.facts]}
        typer.echo(json.dumps(document, indent=1))
        return
    _show_facts(platform, facts)


def _show_facts(platform: Platform, facts: PlatformFacts) -> None:
    from rich.table import Table
    from rich.text import Text

    from dse._terminal import Console

    console = Console()
    heading = Table(box=None, show_header=False, pad_edge=False)
    for key, value in (
        ("platform", facts.name),
        ("device", f"{facts.device}, {platform.devices_per_node} a node"),
        ("this machine's device", "yes" if facts.is_here else "no"),
        ("newest price", facts.price_as_of or "none"),
        ("by formulas", ", ".join(facts.formulas) or "nothing"),
        ("plan of measurements", str(facts.plan_version or "not recorded")),
    ):
        heading.add_row(key, Text(value))
    console.print(heading)
    if facts.families:
        families = Table(box=None, header_style="bold", pad_edge=False)
        for title in ("fitted", "models", "held-out points", "error", "worst", "as of", ""):
            families.add_column(title, justify="left" if title in ("fitted", "") else "right")
        for one in facts.families:
            families.add_row(
                one.family,
                str(one.models),
                f"{one.points:,}",
                f"{100 * one.gmae:.1f} %",
                f"{100 * one.worst_gmae:.1f} %",
                one.as_of,
                "of another device" if one.transferred else "",
            )
        console.print()
        console.print(families)
        console.print("error: geometric mean on points that the fit did not see", style="dim")
    figures = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("figure", "value", "origin", "source", "as of"):
        figures.add_column(title, overflow="fold")
    for fact in platform.facts:
        figures.add_row(
            *map(Text, (fact.quantity, fact.value, fact.origin, fact.source, fact.as_of))
        )
    console.print()
    console.print(figures)
