"""`dse trace overheads`: host overheads from captured traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli import _options
from dse.cli._options import ForceOption, JsonOption, new_file
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse._text.terminal import Console


def overheads_command(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Kineto traces of one model or, for a shared profile, of several.",
        ),
    ],
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="STEP",
            help="Number of the profiler's step, or name of an annotation; all steps by default.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the profile, for `--host-profile`."),
    ] = None,
    force: ForceOption = False,
    platform_block: Annotated[
        bool, typer.Option("--platform-block", help="Print the `host:` block of a platform.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure host time around launches (T1 to T5), and check it on the traces."""
    from dse.cli._output import emit, fields_of
    from dse.machine.host import platform_host_block, write_host_profile
    from dse.report.console import line
    from dse.report.terminal import print_overheads
    from dse.trace import link, read_kineto
    from dse.trace.overheads import check_host_time, extract_overheads, merge_profiles

    if as_json and platform_block:
        raise ConfigError("--json and --platform-block exclude each other; choose one")
    new_file("--out", out, force=force)
    loaded = [(read, [link(trace) for trace in read]) for read in map(read_kineto, traces)]
    only = _options.step(step)
    profiles = [extract_overheads(read, links, only) for read, links in loaded]
    profile = profiles[0] if len(profiles) == 1 else merge_profiles(profiles)
    if out is not None:
        write_host_profile(out, profile)
    if platform_block:
        typer.echo(platform_host_block(profile), nl=False)
        return
    checks = check_host_time(
        [trace for read, _ in loaded for trace in read],
        [linked for _, links in loaded for linked in links],
        profile,
        only,
    )

    def show(console: Console) -> None:
        print_overheads(profile, checks, console)
        if out is not None:
            line(console, f"written to {out}")

    document = {
        "profile": profile,
        "checks": [fields_of(check, "error", "usual_error") for check in checks],
    }
    emit(document, show, as_json=as_json)
