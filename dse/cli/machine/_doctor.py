"""`dse doctor`: a check of machine, packages and calibrations."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._complete import platforms
from dse.cli._exit import ExitCode
from dse.cli._options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse._text.terminal import Console
    from dse.doctor import Finding
    from dse.machine.platforms import FittedFamily, Platform, PlatformFact

_STYLES = {"ok": "green", "warning": "yellow", "missing": "cyan", "broken": "bold red"}


def doctor_command(
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            metavar="NAME",
            help="Only this platform, name or file, in detail.",
            autocompletion=platforms,
        ),
    ] = "",
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="Also import torch, Ray and TorchRec; takes seconds."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine, packages and calibrations, and what is missing for which command.

    Exit code 1 means that something that every command needs is broken.
    """
    if platform:
        _emit_platform(platform, as_json=as_json)
        return
    from dse.cli._output import emit
    from dse.cli._progress import progress
    from dse.doctor import Status, examine

    with progress("checking", quiet=as_json) as display:
        findings = examine(thorough=thorough, on_progress=display.stage)
    healthy = all(finding.status is not Status.BROKEN for finding in findings)
    document = {"healthy": healthy, "findings": findings}
    emit(document, lambda console: _show(findings, healthy, console), as_json=as_json)
    if not healthy:
        raise typer.Exit(ExitCode.FAILED)


def _show(findings: Sequence[Finding], healthy: bool, console: Console) -> None:
    from rich.text import Text

    from dse.doctor import Status, Topic
    from dse.report.console import Table, line, texts

    for topic in Topic:
        table = Table(topic.value, texts("", "", ""))
        for finding in findings:
            if finding.topic is topic:
                # A figure and its unit stay on one line.
                text = Text(finding.text.replace(" %", "\u00a0%"))
                if finding.next_step:
                    text.append(f" → {finding.next_step}", style="italic")
                status = Text(finding.status.value, style=_STYLES[finding.status])
                table.add(status, finding.subject, text)
        table.print(console)
    counts = {status: sum(one.status is status for one in findings) for status in Status}
    listed = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    verdict = "the core works" if healthy else "the core does not work; repair what is broken"
    line(console, f"\n{verdict} ({listed})")


def _emit_platform(name: str, *, as_json: bool) -> None:
    from dse.cli._output import emit
    from dse.doctor import System, is_of
    from dse.machine.platforms import by_formulas, fitted_families, load_platform

    platform = load_platform(name)
    families = fitted_families(platform)
    document = {
        "name": name,
        "device": platform.device.name,
        "kind": platform.device.kind,
        "families": families,
        "formulas": by_formulas(families),
        "is_here": is_of(platform, System().devices()),
        "kernel_floor_s": platform.device.kernel_floor_s,
        "figures": platform.facts,
    }
    summary = (
        ("platform", name),
        ("device", f"{platform.device.name}, {platform.devices_per_node} a node"),
        ("this machine's device", "yes" if document["is_here"] else "no"),
        ("smallest kernel", f"{1e6 * platform.device.kernel_floor_s:.3g} us"),
        ("by formulas", ", ".join(by_formulas(families)) or "nothing"),
    )
    emit(
        document,
        lambda console: _show_platform(platform, families, summary, console),
        as_json=as_json,
    )


def _show_platform(
    platform: Platform,
    families: Sequence[FittedFamily],
    summary: Sequence[tuple[str, str]],
    console: Console,
) -> None:
    from dse.report.console import Table, facts, figures, line, names, percent, texts

    facts(console, summary)
    if families:
        titles = ("models", "held-out points", "error", "worst", "as of")
        table = Table("fitted", names("family"), figures(*titles), texts(""))
        for family in families:
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
    line(console, "\nfigures by their origin and source", "bold")
    for (origin, source, as_of), group in groupby(platform.facts, _whence):
        line(console, f"\n{origin}: {source}{f', as of {as_of}' if as_of else ''}")
        facts(console, ((f"  {fact.quantity}", fact.value) for fact in group))


def _whence(fact: PlatformFact) -> tuple[str, str, str]:
    return (fact.origin, fact.source, fact.as_of)
