"""`dse run`: search a space and write a study."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._complete import spaces
from dse.cli._exit import ExitCode
from dse.cli._options import (
    HostProfileOption,
    JobsOption,
    JsonOption,
    SetOption,
    folder_of,
    with_host_profile,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse._text.terminal import Console
    from dse.cli._progress import Display
    from dse.search import Study, TrialRecord

_INTERRUPTED_AT_THE_END = (
    "interrupted before all files were written; if the study's folder has a journal.log, --resume "
    "continues, otherwise start again"
)


def run_command(
    ctx: typer.Context,
    space: Annotated[
        str,
        typer.Argument(metavar="SPACE", help="Search space: name or file.", autocompletion=spaces),
    ],
    trials: Annotated[
        int | None,
        typer.Option("--trials", metavar="N", min=1, help="Configurations to evaluate at most."),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="Seconds of search; at least one round is evaluated.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", min=0, help="Random seed; that of the space by default."
        ),
    ] = None,
    jobs: JobsOption = 1,
    executor: Annotated[
        Literal["process", "serial", "ray"],
        typer.Option("--executor", metavar="KIND", help="process, serial or ray."),
    ] = "process",
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Ray cluster, host:port; a local Ray by default.",
        ),
    ] = "",
    sampler: Annotated[
        Literal["auto", "nsga2", "tpe", "gp", "random", "grid"] | None,
        typer.Option("--sampler", metavar="NAME", help="auto, nsga2, tpe, gp, random or grid."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=folder_of,
            metavar="DIR",
            help="Study folder; results/<name> by default.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the study in the folder.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="With --resume: drop damaged trials of journal.log and evaluate them again.",
        ),
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
        typer.Option(
            "--study-name",
            metavar="NAME",
            help="Name of the study in the database; the space's by default.",
        ),
    ] = "",
    changes: SetOption = None,
    host_profile: HostProfileOption = "",
    as_json: JsonOption = False,
) -> None:
    """Search a space for the best configurations and write a study folder with a report."""
    from contextlib import redirect_stdout
    from shlex import quote
    import sys

    from dse._text.terminal import Console
    from dse.cli._output import emit
    from dse.cli._progress import progress
    from dse.report import write_report
    from dse.search import RunOptions, run
    from dse.search.space import SamplerName

    options = RunOptions(
        trials=trials,
        time_limit_s=time_limit,
        seed=seed,
        sampler=None if sampler is None else SamplerName(sampler),
        jobs=jobs,
        executor=executor,
        address=address,
        out=out,
        resume=resume,
        repair=repair,
        storage=storage,
        study_name=study_name,
        debug=bool(ctx.find_root().params.get("debug")),
        overrides=with_host_profile(changes, host_profile),
    )
    messages = Console(stderr=True)
    # Standard output is for the result; Ray would print there which of its workers died.
    try:
        with (
            redirect_stdout(sys.stderr),
            progress("looking for candidates", quiet=as_json) as display,
        ):
            study = run(space, options, progress=_Listener(display))
        write_report(study.result, study.directory.report)
    except KeyboardInterrupt as interrupt:
        interrupt.args = (_INTERRUPTED_AT_THE_END,)
        raise
    for damage in study.dropped:
        messages.print(f"dropped from {study.directory.journal}: {damage}")
    emit(_document(study), lambda console: _print(study, console, messages), as_json=as_json)
    if study.interrupted:
        shared = "" if study.storage is None else f" --storage {quote(study.storage.url)}"
        messages.print(
            f"interrupted; continue with: dse run {quote(str(space))}{shared} --out "
            f"{quote(str(study.directory.root))} --resume",
            markup=False,
            soft_wrap=True,  # a command to copy
        )
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not study.result.front:
        raise typer.Exit(ExitCode.FAILED)


class _Listener:
    """Shows done, feasible and best while a study runs."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._feasible = 0
        self._done = 0
        self._best: float | None = None
        self._remark = ""

    def __call__(self, records: Sequence[TrialRecord], total: int) -> None:
        from dse.search import TrialStatus
        from dse.workload import workload_kind

        latest = records[-1]
        if latest.status is TrialStatus.FEASIBLE and latest.configuration is not None:
            self._feasible += 1
            metrics = latest.metrics
            name = "speedup" if "speedup" in metrics else "throughput_samples_per_s"
            metric = workload_kind(latest.configuration.kind).metric(name)
            self._best = max(self._best or 0.0, metrics[name])
            self._remark = f", best {metric.text(self._best)} {metric.unit}"
        self._done += latest.evaluated
        remark = f"{self._feasible} feasible{self._remark}"
        self._display(self._done, total, stage="evaluating", remark=remark)


def _print(study: Study, console: Console, messages: Console) -> None:
    from dse.report.console import plural
    from dse.report.terminal.studies import print_study
    from dse.search import TrialStatus

    directory = study.directory
    files = [
        ("report", str(directory.report)),
        ("front", str(directory.pareto)),
        ("all trials", str(directory.trials)),
    ]
    plans = directory.root / "plans"
    if study.result.trace is None and plans.is_dir():
        files.append(("plans", str(plans)))
    print_study(study.result, console, files)
    failed = sum(record.status is TrialStatus.FAILED for record in study.result.records)
    if failed:
        messages.print(
            f"{plural(failed, 'evaluation')} failed: see {directory.failures}",
            markup=False,
        )


def _program(record: TrialRecord) -> dict[str, object]:
    prediction = record.prediction
    if prediction is None:
        return {}
    return {
        "program": prediction.program or None,
        "is_bound": prediction.is_bound,
        "bound_by": prediction.bound_text,
    }


def _document(study: Study) -> dict[str, object]:
    from dse.search.analyse import conclude, decide, front_outcomes

    result = study.result
    decision = decide(result)
    front = [
        {
            "number": outcome.record.number,
            "parameters": dict(outcome.record.parameters),
            "objectives": {
                axis.metric: value
                for axis, value in zip(result.objectives, outcome.record.values, strict=True)
            },
            "equal_configurations": outcome.equal,
            **_program(outcome.record),
        }
        for outcome in front_outcomes(result)
    ]
    return {
        "study": study.directory.root,
        "evaluated": sum(record.evaluated for record in result.records),
        "counts": Counter(record.status.value for record in result.records),
        "recommended": None if decision is None else decision.take.number,
        "decision": decision,
        "front": front,
        "certificate": result.certificate,
        "conclusion": conclude(result),
        "report": study.directory.report,
    }
