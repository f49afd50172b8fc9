"""`dse trace whatif`: a captured step after changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, overload

import typer

from dse.cli import _options
from dse.cli._complete import platforms
from dse.cli._options import (
    TRACES_HELP,
    ForceOption,
    JsonOption,
    StepOption,
    TimelineOption,
    new_file,
)
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse._text.terminal import Console
    from dse.cli._progress import Display
    from dse.trace.whatif import Change, WhatIf

_TIMES = ("compute_s", "exposed_communication_s", "idle_s", "wait_s")


def whatif_command(
    traces: Annotated[
        list[Path] | None, typer.Argument(metavar="TRACE...", help=TRACES_HELP)
    ] = None,
    optimization: Annotated[
        list[str] | None,
        typer.Option(
            "--optimization",
            "-O",
            metavar="NAME[=VALUE]",
            help="A named optimization, such as network=2x, with its options after commas; may be "
            "repeated. See --list.",
        ),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option("--steps", metavar="FILE", help="File of changes, applied first."),
    ] = None,
    platform: Annotated[
        str,
        typer.Option(
            "--platform",
            metavar="NAME",
            help="Platform of the capture; found by its device by default.",
            autocompletion=platforms,
        ),
    ] = "",
    step: StepOption = None,
    timeline: TimelineOption = None,
    force: ForceOption = False,
    aligned: Annotated[
        bool,
        typer.Option("--aligned", help="Start the steps of all ranks together, not as captured."),
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List optimizations and their options.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Change a captured step and simulate it: optimizations by name, or steps from a file.

    To change prices or machines of a finished study, use `dse whatif`.
    """
    from dse._text.terminal import Console
    from dse.cli._output import emit
    from dse.cli._progress import progress
    from dse.cli.trace._read import read_traces
    from dse.report import write_timeline
    from dse.report.console import line
    from dse.report.terminal import print_optimizations, print_what_if
    from dse.simulate import critical_path
    from dse.trace.whatif import (
        captured_step,
        describe_optimizations,
        parse_optimization,
        read_changes,
    )

    if list_all:
        print_optimizations(describe_optimizations(), Console())
        return
    new_file("--timeline", timeline, force=force)
    if not traces:
        raise ConfigError("give at least one trace, or `--list` for the optimizations")
    changes = list(read_changes(steps)) if steps else []
    changes += [parse_optimization(text) for text in optimization or ()]
    if not changes:
        raise ConfigError(
            "nothing to change: give --optimization NAME[=VALUE] (see --list) or --steps FILE"
        )
    with progress("reading traces", quiet=as_json, patience_s=0) as display:
        loaded = read_traces(traces)
        display(stage="building the graph of the step")
        captured = captured_step(
            loaded, step=_options.step(step), platform=platform, aligned=aligned
        )
        answer = captured.what_if(_Reported(changes, display))
    if timeline is not None:
        title = "after " + ", ".join(effect.title for effect in answer.effects)
        path = critical_path(answer.timeline)
        write_timeline(answer.timeline, timeline, critical=path, title=title)

    def show(console: Console) -> None:
        print_what_if(answer, console)
        if timeline is not None:
            line(console, f"time line: {timeline}")

    emit(_document(answer), show, as_json=as_json)


class _Reported(Sequence["Change"]):
    """Changes that are reported as they are applied."""

    def __init__(self, changes: Sequence[Change], display: Display) -> None:
        self._changes, self._display = changes, display

    def __len__(self) -> int:
        return len(self._changes)

    @overload
    def __getitem__(self, place: int) -> Change: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Change]: ...
    def __getitem__(self, place: int | slice) -> Change | Sequence[Change]:
        found = self._changes[place]
        if isinstance(place, int):
            title = self._changes[place].title
            self._display(stage=f"change {place + 1} of {len(self)}: {title}")
        return found


def _document(answer: WhatIf) -> dict[str, object]:
    from dse.trace.whatif import bound_by

    machine = answer.machine
    return {
        "before_s": answer.before_s,
        "after_s": answer.after_s,
        "speedup": answer.speedup,
        "work_factor": answer.work_factor,
        "steps": answer.effects,
        "bound_by": bound_by(answer),
        "ranks": [
            {
                "rank": new.rank,
                "measured_s": new.measured_s,
                "before_s": old.simulated_s,
                "after_s": new.simulated_s,
                **{name: getattr(new, name) for name in _TIMES},
                **{f"{name[:-2]}_before_s": getattr(old, name) for name in _TIMES},
            }
            for old, new in zip(answer.before, answer.after, strict=True)
        ],
        "machine": {
            "platform": machine.platform.name if machine.platform else None,
            "device": machine.device_name or None,
            "kind": machine.kind,
            "world_size": machine.world_size,
        },
        "notes": list(dict.fromkeys((*machine.notes, *answer.notes))),
    }
