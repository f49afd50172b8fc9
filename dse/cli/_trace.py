"""`dse trace`: what captured traces hold, and how well they replay."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption
from dse.cli._trace_capture import COMMAND_LINE, capture_command
from dse.cli._trace_overheads import overheads_command
from dse.cli._trace_whatif import whatif_command
from dse.cli._traces import read_traces
from dse.errors import ConfigError, DseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.simulate import CriticalPath, Timeline
    from dse.traces import (
        CollectiveMeeting,
        Links,
        PathSummary,
        RankReplay,
        RankTrace,
        TraceGraph,
    )


app = typer.Typer(no_args_is_help=True, help="Look into captured traces and replay them.")
app.command("capture", context_settings=COMMAND_LINE)(capture_command)
app.command("whatif")(whatif_command)
app.command("overheads")(overheads_command)

TracesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help="Kineto traces: .json, .json.gz, .tar.gz, or folders with one file a rank.",
    ),
]


@app.command("info")
def info_command(traces: TracesArgument, as_json: JsonOption = False) -> None:
    """Show ranks, steps, top kernels, collectives, who was waited for, and the critical path."""
    import json

    from rich.console import Console

    from dse.report import render_trace_summary
    from dse.traces import link, match_collectives, summarise

    loaded = read_traces(traces)
    links = [link(trace) for trace in loaded]
    meetings = match_collectives(loaded, links)
    summary = summarise(loaded, links, meetings)
    path, notes = _path(loaded, links, meetings)
    if as_json:
        document = {
            **asdict(summary),
            "critical_path": None if path is None else asdict(path),
            "notes": notes,
        }
        typer.echo(json.dumps(document, indent=1))
    else:
        render_trace_summary(summary, Console(), path, notes)


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
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="FILE",
            help="Write the simulated time line with its critical path, for ui.perfetto.dev or "
            "chrome://tracing; compressed if the name ends in .gz.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the graph of a step, simulate it, and compare with what was measured."""
    import json

    from rich.console import Console

    from dse.report import render_replay
    from dse.simulate import simulate
    from dse.traces import compare

    loaded = read_traces(traces)
    if timeline is not None and alone and len(loaded) > 1:
        raise ConfigError(
            f"--timeline with --alone: {len(loaded)} ranks by themselves have no common time "
            "line; leave out --alone or give one trace"
        )
    ranks: list[RankReplay] = []
    notes: list[str] = []
    for made in _graphs(loaded, step, together=not alone):
        simulated = simulate(made.graph)
        ranks += compare(made, simulated)
        whose = f"rank {made.steps[0].rank} alone: " if len(made.steps) < len(loaded) else ""
        notes += [f"{whose}{note}" for note in made.notes]
        if timeline is not None:
            _write_timeline(timeline, made, simulated)
    if as_json:
        document = {
            "ranks": [{**asdict(rank), "error": rank.error} for rank in ranks],
            "together": not alone and len(ranks) > 1,
            "notes": notes,
        }
        typer.echo(json.dumps(document, indent=1))
    else:
        render_replay(ranks, Console(), notes)
        if timeline is not None:
            typer.echo(f"time line: {timeline}")


def _graphs(
    loaded: Sequence[RankTrace], step: int | None, *, together: bool
) -> Iterator[TraceGraph]:
    """Yields one graph of all ranks, or one of each."""
    from dse.traces import link, match_collectives, trace_graph

    links = [link(trace) for trace in loaded]
    if together:
        yield trace_graph(loaded, links, match_collectives(loaded, links), step)
        return
    for trace, linked in zip(loaded, links, strict=True):
        yield trace_graph([trace], [linked], (), step)


def _path(
    loaded: Sequence[RankTrace], links: Sequence[Links], meetings: Sequence[CollectiveMeeting]
) -> tuple[PathSummary | None, list[str]]:
    """Returns the critical path of the last step if its graph can be made, and notes."""
    from dse.simulate import simulate
    from dse.traces import summarise_path, trace_graph

    try:
        made = trace_graph(loaded, links, meetings)
    except DseError as error:
        return None, [f"no critical path: {error}"]
    return summarise_path(made, _critical(made, simulate(made.graph))), list(made.notes)


def _critical(made: TraceGraph, simulated: Timeline) -> CriticalPath:
    from dse.simulate import critical_path

    return critical_path(simulated, [task for tasks in made.end_tasks for task in tasks])


def _write_timeline(path: Path, made: TraceGraph, simulated: Timeline) -> None:
    from dse.report import write_timeline

    title = f"{made.steps[0].cut_by} of {len(made.steps)} ranks, simulated"
    write_timeline(simulated, path, critical=_critical(made, simulated), title=title)
