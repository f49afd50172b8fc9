"""`dse trace whatif`: how long a captured step would take after changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, overload

import typer

from dse.cli._options import JsonOption
from dse.cli._traces import StepOption
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.trace.whatif import Change, WhatIf

_TIMES = ("compute_s", "exposed_communication_s", "idle_s", "wait_s")

TracesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="TRACE...",
        help="Kineto traces: .json, .json.gz, .tar.gz, or folders with one file a rank.",
    ),
]


def whatif_command(
    traces: TracesArgument = None,
    optimization: Annotated[
        list[str] | None,
        typer.Option(
            "--optimization",
            "-O",
            metavar="NAME[=VALUE][,OPTION=VALUE…]",
            help="A named optimization, such as network=2x; may be repeated. See --list.",
        ),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option("--steps", metavar="YAML", help="File of changes, applied first."),
    ] = None,
    platform: Annotated[
        str,
        typer.Option("--platform", help="What it was captured on; found by the device's name."),
    ] = "",
    step: StepOption = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", help="Write the changed step for Perfetto.")
    ] = None,
    aligned: Annotated[
        bool,
        typer.Option("--aligned", help="All ranks begin their steps together, not as captured."),
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List optimizations and their options.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Change a captured step and simulate it: optimizations by name, or steps from a YAML.

    For other prices or machines of a finished study there is `dse whatif`.
    """
    import json

    from dse._terminal import Console
    from dse.cli._traces import chosen_step, progress, read_traces
    from dse.report import render_optimizations, render_what_if, write_timeline
    from dse.simulate import critical_path
    from dse.trace.whatif import (
        captured_step,
        describe_optimizations,
        parse_optimization,
        read_changes,
    )

    if list_all:
        render_optimizations(describe_optimizations(), Console())
        return
    if not traces:
        raise ConfigError("give at least one trace; `--list` shows what may be asked")
    changes = list(read_changes(steps)) if steps else []
    changes += [parse_optimization(text) for text in optimization or ()]
    if not changes:
        raise ConfigError(
            "nothing to change: give --optimization NAME[=VALUE] (see --list) or --steps FILE"
        )
    with progress(quiet=as_json) as tell:
        loaded = read_traces(traces)
        tell("making the graph of the step")
        captured = captured_step(
            loaded, step=chosen_step(step), platform=platform, aligned=aligned
        )
        answer = captured.what_if(_Reported(changes, tell))
    if timeline is not None:
        title = "after " + ", ".join(effect.title for effect in answer.effects)
        path = critical_path(answer.timeline)
        write_timeline(answer.timeline, timeline, critical=path, title=title)
    if as_json:
        typer.echo(json.dumps(what_if_json(answer), indent=1))
    else:
        render_what_if(answer, Console())
        if timeline is not None:
            typer.echo(f"time line: {timeline}")


class _Reported(Sequence["Change"]):
    """Changes that are reported as they are applied."""

    def __init__(self, changes: Sequence[Change], tell: Callable[[str], None]) -> None:
        self._changes, self._tell = changes, tell

    def __len__(self) -> int:
        return len(self._changes)

    @overload
    def __getitem__(self, place: int) -> Change: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Change]: ...
    def __getitem__(self, place: int | slice) -> Change | Sequence[Change]:
        found = self._changes[place]
        if isinstance(place, int):
            self._tell(f"change {place + 1} of {len(self)}: {self._changes[place].title}")
        return found


def what_if_json(answer: WhatIf) -> dict[str, object]:
    """Returns the document that `--json` prints."""
    from dse.trace.whatif import bound_by

    machine = answer.machine
    return {
        "before_s": answer.before_s,
        "after_s": answer.after_s,
        "speedup": answer.speedup,
        "work_factor": answer.work_factor,
        "steps": [asdict(effect) for effect in answer.effects],
        "bound_by": [asdict(part) for part in bound_by(answer)],
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
