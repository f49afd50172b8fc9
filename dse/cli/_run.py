"""`dse run`: search a space and write a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._signals import terminable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from dse._terminal import Console
    from dse.search import Study, TrialRecord
    from dse.search.space import SamplerName

_EXIT_NOTHING_FEASIBLE = 1
_INTERRUPTED_AT_THE_END = (
    "interrupted before all files were written; where there is a journal.log, --resume goes on"
)


def run_command(
    ctx: typer.Context,
    space: Annotated[str, typer.Argument(metavar="SPACE", help="Search space: name or file.")],
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Configurations to evaluate.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of all randomness.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Workers.")] = 1,
    executor: Annotated[
        str, typer.Option("--executor", help="process, serial or ray.")
    ] = "process",
    address: Annotated[
        str, typer.Option("--address", help="Ray cluster, host:port; a local Ray by default.")
    ] = "",
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="nsga2, tpe, gp, random or grid.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Study folder; results/<name> by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the study in the folder.")
    ] = False,
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            metavar="URL",
            help="Database that several runs share: postgresql://…, mysql://… or sqlite:///file.",
        ),
    ] = "",
    study_name: Annotated[
        str,
        typer.Option("--study-name", help="Its name in the database; the space's by default."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Search a space for the best configurations and write a study folder with a report."""
    from contextlib import redirect_stdout
    from shlex import quote
    import sys

    from dse._terminal import Console
    from dse.report import write_report
    from dse.search import RunOptions, run

    options = RunOptions(
        trials=trials,
        seed=seed,
        sampler=_sampler(sampler),
        jobs=jobs,
        executor=executor,
        address=address,
        out=out,
        resume=resume,
        storage=storage,
        study_name=study_name,
        debug=bool(ctx.find_root().params.get("debug")),
    )
    messages = Console(stderr=True)
    # Standard output is for the result; Ray would print there which of its workers died.
    with terminable() as ending:
        try:
            with redirect_stdout(sys.stderr), _progress(messages, quiet=as_json) as progress:
                study = run(space, options, progress=_Listener(progress))
            write_report(study.result, study.directory.report)
        except KeyboardInterrupt as interrupt:
            interrupt.args = (_INTERRUPTED_AT_THE_END,)
            raise
    if as_json:
        typer.echo(_as_json(study))
    else:
        _print(study, Console(), messages)
    if study.interrupted:
        shared = "" if study.storage is None else f" --storage {quote(study.storage.url)}"
        messages.print(
            f"interrupted; continue with: dse run {space}{shared} --out {study.directory.root} "
            "--resume",
            markup=False,
        )
        raise typer.Exit(ending.exit_code)
    if not study.result.front:
        raise typer.Exit(_EXIT_NOTHING_FEASIBLE)


def _sampler(name: str | None) -> SamplerName | None:
    from dse.errors import ConfigError
    from dse.search.space import SamplerName

    if name is None:
        return None
    try:
        return SamplerName(name)
    except ValueError:
        known = ", ".join(member.value for member in SamplerName)
        raise ConfigError(f"--sampler: expected one of {known}; found `{name}`") from None


def _progress(console: Console, *, quiet: bool) -> Progress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("evaluated"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[found]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


class _Listener:
    """Shows done, feasible and best while a study runs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, found="")
        self._feasible = 0
        self._done = 0
        self._best: float | None = None
        self._unit = ""

    def __call__(self, records: Sequence[TrialRecord], total: int) -> None:
        from dse.search import TrialStatus
        from dse.search.space import Metric

        latest = records[-1]
        if latest.status is TrialStatus.FEASIBLE:
            self._feasible += 1
            metrics = latest.metrics
            of_trace = Metric.SPEEDUP in metrics
            figure = metrics[Metric.SPEEDUP] if of_trace else metrics[Metric.THROUGHPUT] / 1e6
            self._unit = "times the captured throughput" if of_trace else "M samples/s"
            self._best = max(self._best or 0.0, figure)
        self._done += latest.evaluated
        best = "" if self._best is None else f", best {self._best:.2f} {self._unit}"
        self._progress.update(
            self._task, total=total, completed=self._done, found=f"{self._feasible} feasible{best}"
        )


def _print(study: Study, console: Console, messages: Console) -> None:
    from dse.report import print_study
    from dse.search import TrialStatus

    directory = study.directory
    files = [
        ("report", str(directory.report)),
        ("front", str(directory.pareto)),
        ("all trials", str(directory.trials)),
    ]
    if study.result.trace is None:
        files.append(("plans", str(directory.root / "plans")))
    print_study(study.result, console, files)
    failed = sum(record.status is TrialStatus.FAILED for record in study.result.records)
    if failed:
        messages.print(
            f"{failed} {'evaluation' if failed == 1 else 'evaluations'} failed: reasons and "
            f"tracebacks in {directory.failures}",
            markup=False,
        )
    if study.exhausted:
        messages.print("the whole space was evaluated", markup=False)


def _as_json(study: Study) -> str:
    import json

    result = study.result
    counts: dict[str, int] = {}
    for record in result.records:
        counts[record.status.value] = counts.get(record.status.value, 0) + 1
    front = [
        {
            "number": record.number,
            "parameters": dict(record.parameters),
            "objectives": {
                axis.metric.value: value
                for axis, value in zip(result.objectives, record.values, strict=True)
            },
        }
        for record in result.front
    ]
    return json.dumps(
        {
            "study": str(study.directory.root),
            "evaluated": sum(record.evaluated for record in result.records),
            "counts": counts,
            "front": front,
            "conclusion": result.conclusion,
            "report": str(study.directory.report),
        },
        indent=1,
    )
