"""`dse trace simulate`: measured against simulated steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli import _options
from dse.cli._options import (
    ForceOption,
    JsonOption,
    StepOption,
    TimelineOption,
    TracesArgument,
    new_file,
)
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse._text.terminal import Console
    from dse.trace import RankResimulation, RankTrace, TraceGraph


def simulate_command(
    traces: TracesArgument,
    step: StepOption = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Simulate each rank by itself, with measured collectives."),
    ] = False,
    timeline: TimelineOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the graph of a step, simulate it, and compare with the measured step."""
    from dse.cli._output import emit, fields_of
    from dse.cli._progress import progress
    from dse.cli.trace._read import critical_path_of, read_traces
    from dse.report import write_timeline
    from dse.report.console import line
    from dse.report.terminal import print_resimulation
    from dse.simulate import simulate
    from dse.trace import compare_with_measured

    new_file("--timeline", timeline, force=force)
    ranks: list[RankResimulation] = []
    notes: list[str] = []
    with progress("reading traces", quiet=as_json, patience_s=0) as display:
        loaded = read_traces(traces)
        if timeline is not None and alone and len(loaded) > 1:
            raise ConfigError(
                f"--timeline with --alone: {len(loaded)} ranks by themselves have no common time "
                "line; leave out --alone or give one trace"
            )
        display(stage="simulating")
        for made in _graphs(loaded, _options.step(step), together=not alone):
            simulated = simulate(made.graph)
            ranks += compare_with_measured(made, simulated)
            whose = f"rank {made.steps[0].rank} alone: " if len(made.steps) < len(loaded) else ""
            notes += [f"{whose}{note}" for note in made.notes]
            if timeline is not None:
                title = f"{made.steps[0].cut_by} of {len(made.steps)} ranks, simulated"
                path = critical_path_of(made, simulated)
                write_timeline(simulated, timeline, critical=path, title=title)

    def show(console: Console) -> None:
        print_resimulation(ranks, console, notes)
        if timeline is not None:
            line(console, f"time line: {timeline}")

    document = {
        "ranks": [fields_of(rank, "error") for rank in ranks],
        "together": not alone and len(ranks) > 1,
        "notes": notes,
    }
    emit(document, show, as_json=as_json)


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
