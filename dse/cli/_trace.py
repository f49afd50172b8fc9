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
from dse.cli._traces import StepOption, chosen_step, progress, read_traces
from dse.errors import ConfigError, DseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.simulate import CriticalPath, Timeline
    from dse.trace import RankReplay, RankTrace, TraceGraph


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
def info_command(
    traces: TracesArgument,
    lanes: Annotated[
        bool, typer.Option("--lanes", help="Streams and threads of the last step.")
    ] = False,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Sizes of dimensions in the last step, by their time.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show ranks, steps, top kernels, collectives, who was waited for, and the critical path."""
    import json

    from dse._terminal import Console
    from dse.report import render_lanes, render_sizes, render_trace_summary
    from dse.simulate import simulate
    from dse.trace import (
        lanes_of_step,
        link,
        match_collectives,
        sizes_of_step,
        summarise,
        summarise_path,
        task_facts,
        trace_graph,
    )

    made, notes, more, path = None, [], {}, None
    with progress(quiet=as_json) as tell:
        loaded = read_traces(traces)
        tell("adding up what the traces hold")
        links = [link(trace) for trace in loaded]
        meetings = match_collectives(loaded, links)
        summary = summarise(loaded, links, meetings)
        tell("making the graph of the last step")
        try:
            made = trace_graph(loaded, links, meetings)
        except DseError as error:
            notes.append(f"no critical path: {error}")
        if made is not None:
            path, notes = (
                summarise_path(made, _critical(made, simulate(made.graph))),
                [*made.notes],
            )
    found_lanes = lanes_of_step(made) if made is not None and lanes else ()
    found_sizes = (
        sizes_of_step(made, task_facts(made, loaded, links)) if made is not None and shapes else ()
    )
    if as_json:
        if lanes:
            more["lanes"] = [asdict(one) for one in found_lanes]
        if shapes:
            more["sizes"] = [asdict(one) for one in found_sizes]
        document = {
            **asdict(summary),
            "critical_path": None if path is None else asdict(path),
            **more,
            "notes": notes,
        }
        typer.echo(json.dumps(document, indent=1))
        return
    console = Console()
    render_trace_summary(summary, console, path, notes)
    if lanes:
        render_lanes(found_lanes, console)
    if shapes:
        render_sizes(found_sizes, console)


@app.command("simulate")
def simulate_command(
    traces: TracesArgument,
    step: StepOption = None,
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

    from dse._terminal import Console
    from dse.report import render_replay
    from dse.simulate import simulate
    from dse.trace import compare

    with progress(quiet=as_json):
        loaded = read_traces(traces)
    if timeline is not None and alone and len(loaded) > 1:
        raise ConfigError(
            f"--timeline with --alone: {len(loaded)} ranks by themselves have no common time "
            "line; leave out --alone or give one trace"
        )
    ranks: list[RankReplay] = []
    notes: list[str] = []
    for made in _graphs(loaded, chosen_step(step), together=not alone):
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
    loaded: Sequence[RankTrace], step: int | str | None, *, together: bool
) -> Iterator[TraceGraph]:
    """Yields one graph of all ranks, or one of each."""
    from dse.trace import link, match_collectives, trace_graph

    links = [link(trace) for trace in loaded]
    if together:
        yield trace_graph(loaded, links, match_collectives(loaded, links), step)
        return
    for trace, linked in zip(loaded, links, strict=True):
        yield trace_graph([trace], [linked], (), step)


def _critical(made: TraceGraph, simulated: Timeline) -> CriticalPath:
    from dse.simulate import critical_path

    return critical_path(simulated, [task for tasks in made.end_tasks for task in tasks])


def _write_timeline(path: Path, made: TraceGraph, simulated: Timeline) -> None:
    from dse.report import write_timeline

    title = f"{made.steps[0].cut_by} of {len(made.steps)} ranks, simulated"
    write_timeline(simulated, path, critical=_critical(made, simulated), title=title)
