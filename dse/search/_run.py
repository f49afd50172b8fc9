"""Run of a study, from its first proposal to its files."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
import platform as host_platform
from typing import TYPE_CHECKING

from dse.config import SCHEMA_VERSION
from dse.errors import ConfigError, StudyError
from dse.search._certificate import stronger
from dse.search._directory import StudyDirectory
from dse.search._header import PackageVersion, StudyHeader
from dse.search._inputs import read_inputs
from dse.search._lock import lock_folder
from dse.search._loop import Loop
from dse.search._options import RunOptions, Study
from dse.search._overrides import stored_overrides
from dse.search._records import TrialStatus
from dse.search._result import mark_front, study_result
from dse.search._start import (
    StudyIdentity,
    check_trials,
    check_versions,
    former_header,
    resumed_header,
    study_folder,
)
from dse.search.analyse._decision import recommended_trial
from dse.search.evaluate._objective import objective_context
from dse.search.execute import (
    FailureWatch,
    SerialExecutor,
    check_executor,
    make_executor,
    useful_jobs,
)
from dse.search.propose import trials_wanted
from dse.search.space import PlanSearch, SamplerName
from dse.search.storage import Journal, LocalStorage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dse.search._certificate import Certificate
    from dse.search._inputs import StudyInputs
    from dse.search._options import Progress
    from dse.search.evaluate._evaluator import EvaluationContext
    from dse.search.evaluate._objective import ObjectiveFunction
    from dse.search.execute import Executor
    from dse.search.space import SearchSpace
    from dse.search.storage import StudyStorage

#: Packages whose versions can change a result.
_VERSIONED = ("dse", "numpy", "optuna", "scipy")


def run(
    space: SearchSpace | Mapping[str, object] | str | Path,
    options: RunOptions | None = None,
    *,
    progress: Progress | None = None,
    objective: ObjectiveFunction | None = None,
) -> Study:
    """Searches a space and writes a study directory.

    Args:
        space: A search space, a mapping with the content of a YAML, or the name or path of one.
        options: Settings of the run.
        progress: Called after every finished trial.
        objective: Cost model to use instead of the performance model of this package.

    Returns:
        The study. Interrupting with Ctrl-C returns what there is, marked as interrupted.

    Raises:
        ConfigError: The space, its model or a platform is wrong, or the URL of the storage.
        StudyError: The folder cannot be written, the storage cannot be reached, or one of them
            does not fit what is resumed or shared.
        OptionalDependencyError: What the sampler, the executor or the storage needs is not
            installed.
        WorkerError: Workers died repeatedly, or Ray cannot be reached.
    """
    chosen = options or RunOptions()
    check_executor(chosen.executor, chosen.jobs, chosen.address)
    for name, number, least in (("trials", chosen.trials, 1), ("seed", chosen.seed, 0)):
        if number is not None and not (isinstance(number, int) and number >= least):
            raise ConfigError(f"{name} {number}; expected a whole number from {least}")
    if chosen.time_limit_s is not None and not chosen.time_limit_s > 0:
        raise ConfigError(
            f"time limit {chosen.time_limit_s} s; expected a positive number of seconds, or none "
            "for no limit"
        )
    if chosen.study_name and not chosen.storage:
        raise ConfigError(
            f"--study-name {chosen.study_name}: names a study in a database; add --storage"
        )
    if chosen.repair and not chosen.resume:
        raise ConfigError("--repair: repairs a study that is continued; add --resume")
    inputs = read_inputs(space, chosen.overrides)
    directory = StudyDirectory(study_folder(chosen, inputs.space.name))
    if chosen.resume:
        # Nothing is created where there is nothing to resume.
        directory.check()
    with lock_folder(directory.root):
        return _run(space, chosen, inputs, directory, progress, objective)


def _run(
    space: SearchSpace | Mapping[str, object] | str | Path,
    chosen: RunOptions,
    inputs: StudyInputs,
    directory: StudyDirectory,
    progress: Progress | None,
    objective: ObjectiveFunction | None,
) -> Study:
    """Searches a space in a folder whose lock is held; see :func:`run`."""
    former = former_header(directory, chosen)
    if former is not None and not chosen.overrides:
        kept = stored_overrides(former.inputs)
        inputs = read_inputs(space, kept) if kept else inputs
    header = _header(inputs, chosen, objective)
    if former is not None:
        header = _continued(directory, former, header, chosen)
    validation = directory.read_validation()
    with ExitStack() as open_things:
        tables = None
        if chosen.storage:
            # Databases need packages that most studies do without.
            from dse.search.storage._join import join_study

            tables, header = join_study(header, former, chosen)
            open_things.callback(tables.close)
        context: EvaluationContext = replace(inputs.context, seed=header.seed)
        if objective is not None:
            context = objective_context(inputs.context, header.seed, objective)
        at_once = min(context.space.search.batch, header.trials)
        jobs = useful_jobs(chosen.executor, chosen.jobs, chosen.address, at_once)
        # Workers come first: a cluster that cannot be reached leaves no study behind.
        with make_executor(chosen.executor, context, jobs, chosen.address) as executor:
            if former is None:
                # There is never a journal without it.
                directory.write_header(header)
            directory.remove_leftovers()
            journal = Journal(
                directory.journal,
                header.objectives,
                header.parameters,
                create=True,
                repair=chosen.repair,
            )
            if former is not None:
                check_trials(directory, journal, former, header)
                header = header.with_changes(certificate=_proven(former, journal))
                directory.write_header(header)
            storage: StudyStorage = LocalStorage(journal, header.trials)
            if tables is not None:
                from dse.search.storage._shared import SharedStorage

                shared = SharedStorage(tables, header, journal, retry_failed=former is not None)
                storage = open_things.enter_context(shared)
            failures = FailureWatch(debug=chosen.debug)
            loop = Loop(context, header, storage, progress, failures, chosen.time_limit_s)
            interrupted = loop.run_until_interrupted(executor) or _finished(loop, executor, header)
        if not interrupted:
            # Workers have ended; few bounds are missing, of what other sizes brought to the front.
            with SerialExecutor(context) as here:
                loop.bound_until_interrupted(here)
        marked = mark_front(loop.records(), header.objectives)
        bounds = storage.bounds()
    certificate = stronger(header.certificate, loop.certificate())
    header = header.with_changes(trials=loop.total, certificate=certificate)
    directory.write_header(header)
    result = study_result(header, marked, inputs.facts, bounds)
    result = replace(result, validation=validation)
    directory.write_tables(result, header.parameters)
    exhausted = loop.exhausted or (certificate is not None and certificate.complete)
    return Study(
        result, directory, interrupted, exhausted, header.storage, dropped=journal.dropped
    )


def _continued(
    directory: StudyDirectory, former: StudyHeader, header: StudyHeader, chosen: RunOptions
) -> StudyHeader:
    """Returns the header of a study that is resumed.

    Args:
        directory: Its folder.
        former: What it was started with.
        header: What this run was started with.
        chosen: Settings of the run.

    Raises:
        StudyError: The study cannot be resumed like that.
    """
    check_versions(directory, former, header)
    header = resumed_header(str(directory.root), StudyIdentity.of(former), header, chosen)
    if former.storage is not None and not chosen.storage:
        raise StudyError(
            f"{directory.root} is a part of the study `{former.storage.study}` in "
            f"{former.storage.url}; add --storage with that URL, or choose another --out"
        )
    return header if chosen.trials is not None else header.with_changes(trials=former.trials)


def _proven(former: StudyHeader, journal: Journal) -> Certificate | None:
    """Returns the certificate of earlier runs, which holds as long as no trial is lost."""
    if former.certificate is None or journal.dropped:
        return None
    answers = sum(record.status is not TrialStatus.REJECTED for record in journal.records())
    return former.certificate if answers >= former.certificate.evaluated else None


def _finished(loop: Loop, executor: Executor, header: StudyHeader) -> bool:
    """Improves, bounds and surrounds the front; returns whether Ctrl-C came first."""
    if loop.polish_until_interrupted(executor):
        return True
    taken = recommended_trial(study_result(header, loop.records(), (), {}))
    if loop.bound_until_interrupted(executor, taken):
        return True
    return taken is not None and loop.scale_until_interrupted(executor, taken)


def _header(
    inputs: StudyInputs, options: RunOptions, objective: ObjectiveFunction | None = None
) -> StudyHeader:
    """Returns what a new study of these inputs starts with."""
    search = inputs.space.search
    sampler = search.sampler if options.sampler is None else options.sampler
    bounds_time = objective is None and inputs.context.workload.bounds_time
    most = trials_wanted(inputs.space, sampler, bounds_time=bounds_time)
    header = StudyHeader(
        schema_version=SCHEMA_VERSION,
        name=inputs.space.name,
        model=inputs.workload_name,
        objectives=inputs.space.objectives,
        constraints=inputs.space.constraints,
        description=inputs.space.description,
        parameters=inputs.space.parameters,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=search.seed if options.seed is None else options.seed,
        trials=options.trials or search.trials or most,
        sampler=sampler,
        versions=_versions(),
        inputs=inputs.files,
        trace=inputs.trace,
        kind=inputs.space.workload.kind,
        cost_model=None if objective is None else _name(objective),
    )
    if search.plan is PlanSearch.JOINT and header.sampler is SamplerName.GRID:
        raise ConfigError(
            "--sampler grid: `plan: joint` has too many combinations for a grid; choose `tpe`, "
            "`nsga2` or `random`"
        )
    return header


def _name(objective: ObjectiveFunction) -> str:
    """Returns what a cost model is called, for the reader of the study."""
    named = objective if hasattr(objective, "__qualname__") else type(objective)
    return f"{named.__module__}.{named.__qualname__}"


def _versions() -> tuple[PackageVersion, ...]:
    packages = (PackageVersion(name, metadata.version(name)) for name in _VERSIONED)
    return (PackageVersion("python", host_platform.python_version()), *packages)
