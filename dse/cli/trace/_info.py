"""`dse trace info`: contents of captured traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._options import JsonOption, TracesArgument
from dse.errors import DseError

if TYPE_CHECKING:
    from dse._text.terminal import Console


def info_command(
    traces: TracesArgument,
    streams: Annotated[
        bool, typer.Option("--streams", help="Streams and threads of the last step.")
    ] = False,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Sizes of dimensions in the last step, by their time.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show ranks, steps, top kernels, collectives, stragglers, and the critical path."""
    from dse.cli._output import emit, fields_of
    from dse.cli._progress import progress
    from dse.cli.trace._read import critical_path_of, read_traces
    from dse.report.terminal import print_sizes, print_streams, print_trace_summary
    from dse.simulate import simulate
    from dse.trace import (
        link,
        match_collectives,
        size_summaries,
        stream_summaries,
        summarise,
        summarise_path,
        task_facts,
        trace_graph,
    )

    made, path, notes = None, None, []
    with progress("reading traces", quiet=as_json, patience_s=0) as display:
        loaded = read_traces(traces)
        display(stage="summarising")
        links = [link(trace) for trace in loaded]
        collectives = match_collectives(loaded, links)
        summary = summarise(loaded, links, collectives)
        display(stage="building the graph of the last step")
        try:
            made = trace_graph(loaded, links, collectives)
        except DseError as error:
            notes.append(f"no critical path: {error}")
        if made is not None:
            path = summarise_path(made, critical_path_of(made, simulate(made.graph)))
            notes.extend(made.notes)
    found_streams = stream_summaries(made) if made is not None and streams else ()
    found_sizes = (
        size_summaries(made, task_facts(made, loaded, links))
        if made is not None and shapes
        else ()
    )

    def show(console: Console) -> None:
        print_trace_summary(summary, console, path, notes)
        if streams:
            print_streams(found_streams, console)
        if shapes:
            print_sizes(found_sizes, console)

    document = {
        **fields_of(summary),
        "critical_path": path,
        **({"lanes": [fields_of(one, stream="lane") for one in found_streams]} if streams else {}),
        **({"sizes": found_sizes} if shapes else {}),
        "notes": notes,
    }
    emit(document, show, as_json=as_json)
