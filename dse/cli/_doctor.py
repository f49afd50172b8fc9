"""`dse doctor`: a check of machine, packages and calibrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._exit import ExitCode
from dse.cli._options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse._terminal import Console
    from dse.doctor import Checkup, Finding, PlatformFacts
    from dse.machine.platforms import Platform


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
        _emit_platform(platform, as_json=as_json)
        return
    from dse.cli._output import emit, fields_of
    from dse.cli._progress import progress
    from dse.doctor import examine

    with progress("checking", quiet=as_json) as display:
        checkup = examine(thorough=thorough, on_progress=display.stage)
    document = {"healthy": checkup.healthy, **fields_of(checkup)}
    emit(document, lambda console: _show(checkup, console), as_json=as_json)
    if not checkup.healthy:
        raise typer.Exit(ExitCode.FAILED)


def _show(checkup: Checkup, console: Console) -> None:
    from dse.doctor import Status, Topic
    from dse.report.console import line

    for topic in Topic:
        console.print(topic.value, style="bold", highlight=False)
        console.print(_table(finding for finding in checkup.findings if finding.topic is topic))
        console.print()
    counts = [
        f"{count} {status.value}"
        for status in Status
        if (count := sum(finding.status is status for finding in checkup.findings))
    ]
    verdict = (
        "the core works" if checkup.healthy else "the core does not work; repair what is broken"
    )
    line(console, f"{verdict} ({', '.join(counts)})")


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
    for finding in findings:
        # A figure and its unit stay on one line.
        text = Text(finding.text.replace(" %", "\u00a0%"))
        if finding.next_step:
            text.append(f"{' ' if finding.text else ''}→ {finding.next_step}", style="italic")
        status = Text(finding.status.value, style=styles[finding.status])
        table.add_row(status, Text(finding.subject), text)
    return table


def _emit_platform(name: str, *, as_json: bool) -> None:
    from pathlib import Path

    from dse.cli._output import emit, fields_of
    from dse.doctor import machine_facts, platform_facts
    from dse.machine.platforms import load_platform

    platform = load_platform(name)
    (facts,) = platform_facts(machine_facts(), Path(), [name])
    document = {**fields_of(facts), "figures": platform.facts}
    emit(document, lambda console: _show_facts(platform, facts, console), as_json=as_json)


def _show_facts(platform: Platform, found: PlatformFacts, console: Console) -> None:
    from dse.report.console import Table, facts, figures, line, names, percent, texts

    facts(
        console,
        (
            ("platform", found.name),
            ("device", f"{found.device}, {platform.devices_per_node} a node"),
            ("this machine's device", "yes" if found.is_here else "no"),
            ("newest price", found.price_as_of or "none"),
            ("by formulas", ", ".join(found.formulas) or "nothing"),
            ("plan of measurements", str(found.plan_version or "not recorded")),
        ),
    )
    if found.families:
        titles = ("models", "held-out points", "error", "worst", "as of")
        table = Table("fitted", names("family"), figures(*titles), texts(""))
        for family in found.families:
            table.add(
                family.family,
                str(family.models),
                f"{family.points:,}",
                percent(family.gmae),
                percent(family.worst_gmae),
                family.as_of,
                "of another device" if family.transferred else "",
            )
        table.print(console)
        line(console, "error: geometric mean on points that the fit did not see", "dim")
    table = Table("figures", texts("figure", "value", "origin", "source", "as of"))
    for fact in platform.facts:
        table.add(fact.quantity, fact.value, fact.origin, fact.source, fact.as_of)
    table.print(console)
