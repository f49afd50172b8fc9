"""Running a study from its first proposal to its files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
import platform as host_platform
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dse.errors import ConfigError, StudyError
from dse.search._bounds import missing_bounds, with_bounds
from dse.search._directory import StudyDirectory, StudyHeader
from dse.search._executors import check_executor, make_executor
from dse.search._inputs import read_inputs
from dse.search._journal import Journal
from dse.search._pareto import pareto_mask
from dse.search._proposer import Proposer
from dse.search._records import StudyResult, TrialRecord, TrialStatus
from dse.space import PlanSearch, SamplerName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search._evaluate import EvaluationContext
    from dse.search._executors import Executor
    from dse.search._proposer import Rejection
    from dse.search._records import Fact, OuterChoice
    from dse.space import Objective, SearchSpace

#: Packages whose versions can change a result.
_VERSIONED = ("dse", "numpy", "optuna", "scipy")

#: Name of a study's folder under this one unless the user names another.
DEFAULT_RESULTS = Path("results")


class Progress(Protocol):
    """Told of every finished trial."""

    def __call__(self, records: Sequence[TrialRecord], total: int) -> None:
        """Takes all records so far and the number of configurations to evaluate."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Settings of one run; None takes the search space's own.

    Attributes:
        trials: Configurations to evaluate.
        seed: Seed of all randomness.
        sampler: Proposes outer configurations.
        jobs: Workers.
        executor: `process`, `serial` or `ray`.
        address: Ray cluster, as `host:port`; empty for a local Ray.
        out: Study folder; by default a new one under `results/`.
        resume: Continue the study in `out`.
    """

    trials: int | None = None
    seed: int | None = None
    sampler: SamplerName | None = None
    jobs: int = 1
    executor: str = "process"
    address: str = ""
    out: Path | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Study:
    """A finished (or interrupted) run.

    Attributes:
        result: All that it looked at.
        directory: Where its files are.
        interrupted: Whether it was stopped before the end.
        exhausted: Whether the whole space was looked at.
    """

    result: StudyResult
    directory: StudyDirectory
    interrupted: bool
    exhausted: bool


def run(
    space: SearchSpace | str | Path,
    options: RunOptions | None = None,
    *,
    progress: Progress | None = None,
    **settings: object,
) -> Study:
    """Searches a space and writes a study directory.

    Args:
        space: A search space, or the name or path of one.
        options: Settings of the run.
        progress: Told of every finished trial.
        **settings: Fields of `RunOptions`, instead of `options`.

    Returns:
        The study. Interrupting with Ctrl-C returns what there is, marked as interrupted.

    Raises:
        ConfigError: The space, its model or a platform is wrong.
        StudyError: The folder cannot be written, or does not fit what is resumed.
        OptionalDependencyError: What the sampler or the executor needs is not installed.
        WorkerError: Workers died repeatedly, or Ray cannot be reached.
    """
    chosen = options or RunOptions(**settings)  # type: ignore[arg-type]
    check_executor(chosen.executor, chosen.jobs, chosen.address)
    inputs = read_inputs(space)
    search = inputs.space.search
    header = StudyHeader(
        name=inputs.space.name,
        model=inputs.workload_name,
        objectives=inputs.space.objectives,
        parameters=inputs.space.parameters,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=search.seed if chosen.seed is None else chosen.seed,
        trials=search.trials if chosen.trials is None else chosen.trials,
        sampler=search.sampler if chosen.sampler is None else chosen.sampler,
        versions=_versions(),
        inputs=inputs.files,
        trace=inputs.trace,
        kind=inputs.space.workload.kind,
    )
    if search.plan is PlanSearch.JOINT and header.sampler is SamplerName.GRID:
        raise ConfigError(
            "--sampler grid: `plan: joint` has too many combinations for a grid; choose `tpe`, "
            "`nsga2` or `random`"
        )
    directory = StudyDirectory(_folder(chosen, inputs.space.name))
    if chosen.resume:
        header = _continue(directory, header, chosen)
    validation = directory.read_validation()
    context = replace(inputs.context, seed=header.seed)
    # Workers come first: a cluster that cannot be reached leaves no study behind.
    with make_executor(chosen.executor, context, chosen.jobs, chosen.address) as executor:
        directory.write_header(header)
        journal = Journal(directory.journal, header.objectives, header.parameters, create=True)
        loop = _Loop(context, header, journal, progress)
        interrupted = loop.run_until_interrupted(executor)
    marked = mark_front(loop.records(), header.objectives)
    journal.add_bounds(missing_bounds(marked, journal.bounds(), context.make_evaluator()))
    result = study_result(header, marked, inputs.facts, journal.bounds())
    result = replace(result, validation=validation)
    directory.write_tables(result, header.parameters)
    return Study(result, directory, interrupted, loop.exhausted)


def study_result(
    header: StudyHeader,
    records: Sequence[TrialRecord],
    facts: tuple[Fact, ...],
    bounds: Mapping[OuterChoice, float],
) -> StudyResult:
    """Marks the front among records and puts everything of a study together."""
    from dse.search._conclusion import conclude

    marked = with_bounds(mark_front(records, header.objectives), bounds)
    return StudyResult(
        name=header.name,
        model_name=header.model,
        objectives=header.objectives,
        records=marked,
        inputs=header.inputs,
        facts=facts,
        versions=header.versions,
        seed=header.seed,
        sampler=header.sampler.value,
        created=header.created,
        conclusion=conclude(header.objectives, marked),
        trace=header.trace,
        kind=header.kind,
    )


def mark_front(
    records: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> tuple[TrialRecord, ...]:
    """Returns the records by number, those on the Pareto front of the feasible ones marked."""
    ordered = sorted(records, key=lambda record: record.number)
    feasible = [record for record in ordered if record.status is TrialStatus.FEASIBLE]
    values = np.array([record.values for record in feasible], dtype=np.float64)
    mask = pareto_mask(values.reshape(-1, len(objectives)), [axis.maximize for axis in objectives])
    front = {record.number for record, marked in zip(feasible, mask, strict=True) if marked}
    return tuple(replace(record, on_front=record.number in front) for record in ordered)


class _Loop:
    """Asks, evaluates, journals and tells until enough configurations are evaluated."""

    def __init__(
        self,
        context: EvaluationContext,
        header: StudyHeader,
        journal: Journal,
        progress: Progress | None,
    ) -> None:
        self._header = header
        self._journal = journal
        self._progress = progress
        self._batch = context.space.search.batch
        self._proposer = Proposer(
            context.space, header.sampler, header.seed, context.make_evaluator().reject
        )
        self._known = _finished(journal.records())
        self._records: list[TrialRecord] = []
        self._evaluated = 0

    @property
    def exhausted(self) -> bool:
        """Whether the whole space has been looked at."""
        return self._proposer.exhausted

    def records(self) -> tuple[TrialRecord, ...]:
        """Returns what there is so far."""
        return tuple(self._records)

    def run_until_interrupted(self, executor: Executor) -> bool:
        """Runs to the end; returns whether Ctrl-C came first."""
        try:
            while self._evaluated < self._header.trials and not self.exhausted:
                self._round(executor)
        except KeyboardInterrupt:
            return True
        return False

    def _round(self, executor: Executor) -> None:
        wanted = min(self._batch, self._header.trials - self._evaluated)
        batch = self._proposer.ask(wanted)
        for rejection in batch.rejections:
            self._note_rejection(rejection)
        answers: list[TrialRecord] = []
        open_proposals = []
        for proposal in batch.proposals:
            known = self._known.get(proposal.parameters)
            if known is None:
                open_proposals.append(proposal)
            else:
                answers.append(self._keep(replace(known, number=proposal.number)))
        for record in executor.run(open_proposals):
            self._journal.add(record)
            answers.append(self._keep(record))
        self._proposer.tell(answers)

    def _keep(self, record: TrialRecord) -> TrialRecord:
        self._records.append(record)
        # A trace may refuse a change only when it is tried; that is no evaluation either.
        self._evaluated += record.status is not TrialStatus.REJECTED
        if self._progress is not None:
            self._progress(self._records, self._header.trials)
        return record

    def _note_rejection(self, rejection: Rejection) -> None:
        record = TrialRecord(
            rejection.number,
            TrialStatus.REJECTED,
            rejection.reason,
            rejection.parameters,
            (),
            None,
            None,
            planner="",
        )
        self._records.append(record)
        if rejection.parameters not in self._known:
            self._known[rejection.parameters] = record
            self._journal.add(record)


def _finished(
    records: Sequence[TrialRecord],
) -> dict[OuterChoice, TrialRecord]:
    """Answers that need not be computed again; failed evaluations get another chance."""
    return {
        record.parameters: record for record in records if record.status is not TrialStatus.FAILED
    }


def _folder(options: RunOptions, name: str) -> Path:
    """Returns the study folder; refuses to mix a new study into an old one."""
    if options.out is not None:
        root = options.out
        if not options.resume and StudyDirectory(root).header.exists():
            raise StudyError(
                f"{root} already holds a study; add --resume to continue it, or choose another "
                "--out"
            )
        if root.exists() and not root.is_dir():
            raise StudyError(f"{root} is a file; --out needs a folder")
        return root
    safe = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name).strip(".")
    root = DEFAULT_RESULTS / (safe or "study")
    if options.resume:
        return root
    suffix = 2
    while root.exists():
        root = DEFAULT_RESULTS / f"{safe or 'study'}-{suffix}"
        suffix += 1
    return root


def _continue(directory: StudyDirectory, header: StudyHeader, options: RunOptions) -> StudyHeader:
    """Returns the header to go on with, after checking that it is the same study."""
    former = directory.read_header()
    digests = {(file.role, file.name): file.sha256 for file in former.inputs}
    present = {(file.role, file.name) for file in header.inputs}
    for file in former.inputs:
        if (file.role, file.name) not in present:
            raise StudyError(
                f"{directory.root}: the {file.role} `{file.name}` that the study was started with "
                "is gone; start a new study, or restore the file"
            )
    for file in header.inputs:
        if digests.get((file.role, file.name)) != file.sha256:
            raise StudyError(
                f"{directory.root}: the {file.role} `{file.name}` has changed since the study was "
                "started; start a new study, or restore the file"
            )
    for name, old, new in (
        ("seed", former.seed, header.seed if options.seed is not None else former.seed),
        (
            "sampler",
            former.sampler,
            header.sampler if options.sampler is not None else former.sampler,
        ),
    ):
        if old != new:
            raise StudyError(
                f"{directory.root} was started with {name} {old}, not {new}; drop the option, or "
                "start a new study"
            )
    return replace(
        former,
        trials=former.trials if options.trials is None else options.trials,
        versions=header.versions,
    )


def _versions() -> tuple[tuple[str, str], ...]:
    found = [("python", host_platform.python_version())]
    found += [(name, metadata.version(name)) for name in _VERSIONED]
    return tuple(found)
