"""`dse trace overheads`: host overheads from captured traces."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dse.cli._options import JsonOption
from dse.cli._traces import chosen_step
from dse.errors import ConfigError


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
            metavar="NUMBER|ANNOTATION",
            help="Number of the profiler's step, or name of an annotation; all steps by default.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the profile, for `--host-profile`.")
    ] = None,
    platform_block: Annotated[
        bool, typer.Option("--platform-block", help="Print the `host:` block of a platform.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what the host spends around launches (T1 to T5), and check it on the traces."""
    import json

    from dse._terminal import Console
    from dse.report import render_overheads
    from dse.trace import link, read_kineto
    from dse.trace.overheads import (
        check_host_time,
        extract_overheads,
        merge_profiles,
        platform_host_block,
        write_host_profile,
    )

    if as_json and platform_block:
        raise ConfigError("--json and --platform-block both say what to print; choose one")
    loaded = [(read, [link(trace) for trace in read]) for read in map(read_kineto, traces)]
    only = chosen_step(step)
    profiles = [extract_overheads(read, links, only) for read, links in loaded]
    profile = profiles[0] if len(profiles) == 1 else merge_profiles(profiles)
    if out is not None:
        write_host_profile(out, profile)
    if platform_block:
        typer.echo(platform_host_block(profile), nl=False)
        return
    every = [
        (trace, one) for read, links in loaded for trace, one in zip(read, links, strict=True)
    ]
    checks = check_host_time(
        [trace for trace, _ in every], [one for _, one in every], profile, only
    )
    if as_json:
        document = {
            "profile": asdict(profile),
            "checks": [
                {**asdict(check), "error": check.error, "usual_error": check.usual_error}
                for check in checks
            ],
        }
        typer.echo(json.dumps(document, indent=1))
        return
    console = Console()
    render_overheads(profile, checks, console)
    if out is not None:
        console.print(f"written to {out}", markup=False, highlight=False)
