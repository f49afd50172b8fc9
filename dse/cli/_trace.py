"""`dse trace`: what captured traces hold, and how well they replay."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.traces import RankTrace

app = typer.Typer(no_args_is_help=True, help="Look into captured traces and replay them.")

TracesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help="Kineto traces: .json, .json.gz, .tar.gz, or folders with one file a rank.",
    ),
]


@app.command("info")
def info_command(traces: TracesArgument, as_json: JsonOption = False) -> None:
    """Show ranks, steps, top kernels and operators, and collectives: waiting and transfer."""
    import json

    from rich.console import Console

    from dse.report import render_trace_summary
    from dse.traces import summarise

    summary = summarise(_read(traces))
    if as_json:
        typer.echo(json.dumps(asdict(summary), indent=1))
    else:
        render_trace_summary(summary, Console())


@app.command("simulate")
def simulate_command(
    traces: TracesArgument,
    step: Annotated[
        int | None, typer.Option("--step", help="Number of the profiler's step; the last one.")
    ] = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Each rank by itself, its collectives as long as measured."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the graph of a step, simulate it, and compare with what was measured."""
    import json

    from rich.console import Console

    from dse.report import render_replay
    from dse.simulate import simulate
    from dse.traces import replay

    loaded = _read(traces)
    idle = [trace.file for trace in loaded if not trace.has_kernels]
    if idle:
        raise ConfigError(
            f"{idle[0]}: nothing ran on a device, so there is no step to rebuild; capture with "
            "the profiler's CUDA activity"
        )
    ranks = replay(loaded, simulate, together=not alone, step=step)
    if as_json:
        document = {
            "ranks": [{**asdict(rank), "error": rank.error} for rank in ranks],
            "together": not alone and len(ranks) > 1,
        }
        typer.echo(json.dumps(document, indent=1))
    else:
        render_replay(ranks, Console())


def _read(paths: Sequence[Path]) -> tuple[RankTrace, ...]:
    from dse.traces import read_kineto

    loaded = [trace for path in paths for trace in read_kineto(path)]
    found: dict[int, str] = {}
    for trace in loaded:
        if trace.rank in found:
            raise ConfigError(
                f"{trace.file}: rank {trace.rank} again, after {found[trace.rank]}; give each "
                "rank's trace once"
            )
        found[trace.rank] = trace.file
    return tuple(sorted(loaded, key=lambda trace: trace.rank))
