"""Jobs and studies by name: what `import dse` offers.

Names, paths and objects are accepted everywhere. Everything heavy is imported when it is first
used.
"""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse._suggest import hint
from dse.errors import ConfigError, StudyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pandas as pd

    from dse.explanation import Explanation
    from dse.machine.host import HostProfile
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.search import RunOptions, StudyComparison, StudyResult, TrialRecord, Validation
    from dse.search import Study as RunStudy
    from dse.search._options import Progress
    from dse.search.evaluate._objective import Objective
    from dse.search.recommend import Recommendation
    from dse.search.space import SearchSpace
    from dse.sharding import ShardingPlan, TableConstraints
    from dse.workload import AttributedGraph, MemoryAccount, ParameterValue, Prediction, Workload
    from dse.workload import Job as WorkloadJob
    from dse.workload.dlrm.solver import ShardingSolution

    AnySpace = str | PathLike[str] | Mapping[str, object] | SearchSpace
    AnyWorkload = str | PathLike[str] | DlrmModel | TransformerModel | Workload
    AnyPlatform = str | PathLike[str] | Platform
    AnyPlan = str | PathLike[str] | ShardingPlan


class Job:
    """A workload on a machine under one choice of parameters.

    Args:
        workload: Built-in name, path of a model file, or a model or workload.
        platform: Built-in name, path of a platform file, or a platform.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        program: Name of the training program; the ideal one, a bound that no program reaches, if
            it is left out.
        link: Interconnect inside a node; the platform's default if empty.
        network: Network between nodes; the platform's default if empty.
        precision: Arithmetic of the dense part; the model's own if empty.
        host_profile: Host overheads measured from traces, in place of the platform's.
        parameters: Further parameters of this kind of workload, by the names of search spaces:
            ``tensor=8, pipeline=4`` for a transformer, ``launch="cuda_graphs"`` for a
            recommendation model.

    Raises:
        UnknownNameError: A name does not exist.
        ConfigError: A file is wrong, or the job is impossible.

    Example:
        >>> job = Job("dlrm_tiny", "h100_sxm", world_size=8, global_batch_size=65536)
        >>> job.predict().feasible
        True
    """

    def __init__(
        self,
        workload: AnyWorkload,
        platform: AnyPlatform,
        *,
        world_size: int,
        global_batch_size: int,
        program: str = "",
        link: str = "",
        network: str = "",
        precision: str = "",
        host_profile: HostProfile | None = None,
        **parameters: ParameterValue,
    ) -> None:
        from dse.machine.platforms import Platform, load_platform
        from dse.workload import load_workload

        self.workload: Workload = load_workload(workload)
        self.platform: Platform = (
            platform if isinstance(platform, Platform) else load_platform(str(platform))
        )
        chosen: dict[str, ParameterValue] = {
            "platform": self.platform.name,
            "world_size": world_size,
            "global_batch_size": global_batch_size,
            **parameters,
        }
        named = {"program": program, "link": link, "network": network, "precision": precision}
        chosen |= {name: value for name, value in named.items() if value}
        _check(chosen, self.workload)
        self.parameters = chosen
        self._job: WorkloadJob = self.workload.job(
            self.platform, chosen, host_profile=host_profile
        )

    def __repr__(self) -> str:
        chosen = ", ".join(
            f"{name}={value}" for name, value in self.parameters.items() if name != "platform"
        )
        return f"Job({self.workload.name} on {self.platform.name}, {chosen})"

    def check(self) -> None:
        """Checks that the job is possible.

        Raises:
            ConfigError: It is not; the message gives value, limit and what to change.
        """
        self._complete.check()

    def shard(
        self,
        *,
        allowed_types: Iterable[str] | None = None,
        constraints: Sequence[TableConstraints] = (),
        allow_uvm: bool = False,
        time_limit_s: float | None = None,
        seed: int = 0,
    ) -> ShardingSolution:
        """Finds a sharding plan, with a bound that no plan beats.

        Args:
            allowed_types: Names of sharding types that may be used; all by default.
            constraints: What is demanded of single tables.
            allow_uvm: Whether tables may live in host memory.
            time_limit_s: Stop looking for better plans after this many seconds.
            seed: Seed of everything that is drawn.

        Raises:
            ConfigError: This workload has no sharding plan, or constraints exclude each other.
            InfeasibleError: No plan fits; says what is missing and what would help.
        """
        return self._job.solve(
            allowed_types=allowed_types,
            constraints=constraints,
            allow_uvm=allow_uvm,
            time_limit_s=time_limit_s,
            seed=seed,
        )

    def predict(self, plan: AnyPlan | None = None) -> Prediction:
        """Predicts the job without running it.

        Args:
            plan: A sharding plan or the path of one; searched if it is left out.

        Raises:
            ConfigError: The job is impossible.
            PlanError: The plan is for another model or another number of ranks.
        """
        from dse.workload import predict_job

        quote = self.platform.quote(int(self.parameters["world_size"]))
        return predict_job(self._with(plan), quote)

    def explain(self, plan: AnyPlan | None = None) -> Explanation:
        """Explains why the predicted step takes as long as it does; arguments as `predict`."""
        from dse.workload import explain_job

        return explain_job(self._with(plan))

    def memory(self, plan: AnyPlan | None = None) -> tuple[MemoryAccount, ...]:
        """Returns what each rank's memory holds; arguments as `predict`."""
        return self._with(plan).memory()

    def graph(self, plan: AnyPlan | None = None) -> AttributedGraph:
        """Returns the graph of the step with what each task is for; arguments as `predict`."""
        return self._with(plan).attributed()

    @cached_property
    def _complete(self) -> WorkloadJob:
        """The job with everything decided that the parameters leave open."""
        from dse.workload import PlanEffort

        return self._job.planned(PlanEffort())

    def _with(self, plan: AnyPlan | None) -> WorkloadJob:
        if plan is None:
            return self._complete
        from dse.sharding import ShardingPlan

        found = plan if isinstance(plan, ShardingPlan) else self._job.read_plan(plan)
        return self._job.with_plan(found)


def _check(parameters: dict[str, ParameterValue], workload: Workload) -> None:
    known = tuple(workload.parameters.model_fields)
    for name in parameters:
        if name not in known:
            raise ConfigError(f"a {workload.title} has no parameter `{name}`; {hint(name, known)}")
    problems = [f"{name}: {wrong}" for name, wrong in workload.wrong_values(parameters)]
    if problems:
        raise ConfigError("\n".join(problems))


class Study:
    """A search over a space: proposals, evaluations, front and files in one handle.

    Make one with :func:`create_study` or :func:`load_study`.

    Args:
        space: Built-in name, path, mapping or search space.
        options: Settings of each run.
        objective: Cost model in place of the performance model of this package.
        study: What there is already; None before the first run.
    """

    def __init__(
        self,
        space: SearchSpace | Mapping[str, object] | str,
        options: RunOptions,
        *,
        objective: Objective | None = None,
        study: RunStudy | None = None,
    ) -> None:
        self._space = space
        self._options = options
        self._objective = objective
        self._study = study

    def __repr__(self) -> str:
        if self._study is None:
            return "Study(no trial yet)"
        found = self.result
        return (
            f"Study({found.name}: {len(found.records)} configurations, "
            f"{len(found.front)} on the front, {self.folder})"
        )

    def _repr_html_(self) -> str:
        """Shows the front in a notebook."""
        if self._study is None:
            return repr(self)
        frame = self.to_dataframe()
        html: str = frame[frame["on_front"]].to_html(index=False)
        return html

    def optimize(self, n_trials: int, *, progress: Progress | None = None) -> Study:
        """Evaluates more configurations; returns the study.

        Args:
            n_trials: Configurations to evaluate in addition to those that there are.
            progress: Called after every finished trial.

        Raises:
            StudyError: The folder cannot be written.
            WorkerError: Workers died repeatedly.
        """
        from dataclasses import replace

        from dse.search import run as run_study

        done = 0 if self._study is None else sum(r.evaluated for r in self.result.records)
        options = replace(self._options, trials=done + n_trials)
        if self._study is not None:
            options = replace(options, out=self.folder, resume=True)
        self._study = run_study(self._space, options, progress=progress, objective=self._objective)
        return self

    @property
    def result(self) -> StudyResult:
        """All that the study looked at.

        Raises:
            StudyError: It has not looked at anything yet.
        """
        if self._study is None:
            raise StudyError("the study has no trial yet; call `optimize` first")
        return self._study.result

    @property
    def folder(self) -> Path:
        """The study directory."""
        if self._study is None:
            raise StudyError("the study has no folder yet; call `optimize` first")
        return self._study.directory.root

    @property
    def interrupted(self) -> bool:
        """Whether the last run was stopped before its end."""
        return self._study is not None and self._study.interrupted

    @property
    def trials(self) -> tuple[TrialRecord, ...]:
        """Every configuration that was proposed, by number."""
        return self.result.records

    @property
    def best_trials(self) -> tuple[TrialRecord, ...]:
        """The Pareto front, best in the first objective first."""
        return self.result.front

    @property
    def recommended(self) -> TrialRecord | None:
        """The knee of the front: where gaining in one objective starts to cost much in another.

        The best in the first objective if the front has fewer than three points; None if nothing
        is feasible.
        """
        from dse.search import recommended_trial

        return recommended_trial(self.result.objectives, self.result.records)

    def to_dataframe(self) -> pd.DataFrame:
        """Returns the trials as a table, with the columns of `trials.csv`."""
        from dse.search import trial_table

        found = self.result
        names = [name for name, _ in found.records[0].parameters] if found.records else []
        return trial_table(found.records, names, kind=found.kind)

    def report(self, out: str | PathLike[str] | None = None) -> Path:
        """Writes the page; returns its path.

        Args:
            out: The file; `report.html` in the study's folder by default.
        """
        from dse.report import write_report

        path = Path(out) if out is not None else self.folder / "report.html"
        write_report(self.result, path)
        return path


def create_study(
    space: AnySpace,
    objective: Objective | None = None,
    *,
    sampler: str = "",
    seed: int | None = None,
    jobs: int = 1,
    executor: str = "process",
    address: str = "",
    storage: str = "",
    study_name: str = "",
    out: str | PathLike[str] | None = None,
) -> Study:
    """Returns a study that has not evaluated anything yet; call `optimize`.

    Args:
        space: Built-in name, path, a mapping with the content of a YAML, or a search space.
        objective: Cost model to search instead of the performance model of this package: a
            function of the parameters that returns the iteration time in seconds, figures by
            name, or a prediction. With several jobs it has to be importable from a module.
        sampler: ``nsga2``, ``tpe``, ``gp``, ``random`` or ``grid``; the space's own if empty.
        seed: Seed of all randomness; the space's own if None.
        jobs: Workers.
        executor: ``process``, ``serial`` or ``ray``.
        address: Ray cluster, as ``host:port``; empty for a local Ray.
        storage: URL of a database that several runs share; empty for none.
        study_name: Name of the study in the database; empty for the space's name.
        out: Study folder; a new one under `results/` by default.

    Raises:
        ConfigError: The space or a setting is wrong.

    Example:
        >>> study = create_study("dlrm_sharding", seed=0)  # doctest: +SKIP
        >>> study.optimize(60).best_trials[0].metrics  # doctest: +SKIP
    """
    options = _run_options(
        trials=None,
        seed=seed,
        sampler=sampler,
        jobs=jobs,
        executor=executor,
        address=address,
        out=out,
        resume=False,
        storage=storage,
        study_name=study_name,
        debug=False,
    )
    return Study(_space(space), options, objective=objective)


def load_study(root: str | PathLike[str]) -> Study:
    """Returns a study from its folder.

    Raises:
        StudyError: The folder is not a study, or its journal is damaged.
        ConfigError: `study.yaml` is damaged; every problem with its place.
    """
    from dse.search import RunOptions, stored_source
    from dse.search import load_study as load

    found = load(Path(root))
    space = stored_source(found.result)
    return Study(space, RunOptions(out=Path(root), resume=True), study=found)


def run(
    space: AnySpace,
    *,
    trials: int | None = None,
    seed: int | None = None,
    sampler: str = "",
    jobs: int = 1,
    executor: str = "process",
    address: str = "",
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    storage: str = "",
    study_name: str = "",
    debug: bool = False,
    progress: Progress | None = None,
) -> Study:
    """Searches a space and writes a study directory; what `dse run` does, without the page.

    Args:
        space: Built-in name, path, a mapping with the content of a YAML, or a search space.
        trials: Configurations to evaluate; the space's own number if None.
        seed: Seed of all randomness; the space's own if None.
        sampler: ``nsga2``, ``tpe``, ``gp``, ``random`` or ``grid``; the space's own if empty.
        jobs: Workers.
        executor: ``process``, ``serial`` or ``ray``.
        address: Ray cluster, as ``host:port``; empty for a local Ray.
        out: Study folder; a new one under `results/` by default.
        resume: Continue the study in `out`.
        storage: URL of a database that several runs share; empty for none.
        study_name: Name of the study in the database; empty for the space's name.
        debug: Whether the first failed evaluation ends the run, with its traceback.
        progress: Called after every finished trial.

    Returns:
        The study. Interrupting with Ctrl-C returns what there is, marked as interrupted.

    Raises:
        ConfigError: The space, its model or a platform is wrong.
        StudyError: The folder cannot be written, or does not fit what is resumed.
        WorkerError: Workers died repeatedly.
    """
    from dse.search import run as run_study

    options = _run_options(
        trials=trials,
        seed=seed,
        sampler=sampler,
        jobs=jobs,
        executor=executor,
        address=address,
        out=out,
        resume=resume,
        storage=storage,
        study_name=study_name,
        debug=debug,
    )
    chosen = _space(space)
    return Study(chosen, options, study=run_study(chosen, options, progress=progress))


def predict(
    workload: AnyWorkload,
    platform: AnyPlatform,
    *,
    world_size: int,
    global_batch_size: int,
    plan: AnyPlan | None = None,
    program: str = "",
    **parameters: ParameterValue,
) -> Prediction:
    """Predicts a job without running it; see :class:`Job` for the arguments.

    Args:
        workload: Built-in name, path, model or workload.
        platform: Built-in name, path or platform.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        plan: A sharding plan or the path of one; searched if it is left out.
        program: Name of the training program; the ideal one if it is left out.
        parameters: Further parameters of this kind of workload.

    Raises:
        ConfigError: A name or file is wrong, or the job is impossible.
        PlanError: The plan is for another model or another number of ranks.
    """
    job = _job(workload, platform, world_size, global_batch_size, program, parameters)
    return job.predict(plan)


def shard(
    workload: AnyWorkload,
    platform: AnyPlatform,
    *,
    world_size: int,
    global_batch_size: int,
    program: str = "",
    allowed_types: Iterable[str] | None = None,
    constraints: Sequence[TableConstraints] = (),
    allow_uvm: bool = False,
    time_limit_s: float | None = None,
    seed: int = 0,
    **parameters: ParameterValue,
) -> ShardingSolution:
    """Finds a sharding plan, with a bound that no plan beats; see :meth:`Job.shard`.

    Args:
        workload: Built-in name, path, model or workload.
        platform: Built-in name, path or platform.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        program: Name of the training program; the ideal one if it is left out.
        allowed_types: Names of sharding types that may be used; all by default.
        constraints: What is demanded of single tables.
        allow_uvm: Whether tables may live in host memory.
        time_limit_s: Stop looking for better plans after this many seconds.
        seed: Seed of everything that is drawn.
        parameters: Further parameters of this kind of workload.

    Raises:
        ConfigError: A name or file is wrong, or constraints exclude each other.
        InfeasibleError: No plan fits; says what is missing and what would help.
    """
    job = _job(workload, platform, world_size, global_batch_size, program, parameters)
    return job.shard(
        allowed_types=allowed_types,
        constraints=constraints,
        allow_uvm=allow_uvm,
        time_limit_s=time_limit_s,
        seed=seed,
    )


def rank(
    plans: Sequence[str | PathLike[str]],
    workload: AnyWorkload,
    platform: AnyPlatform,
    *,
    global_batch_size: int,
    program: str = "",
    **parameters: ParameterValue,
) -> list[tuple[Path, Prediction]]:
    """Orders sharding plans by predicted iteration time; plans that do not fit come last.

    Args:
        plans: Plan files, in our own form or TorchRec's.
        workload: Built-in name, path, model or workload.
        platform: Built-in name, path or platform.
        global_batch_size: Samples of one iteration over all ranks.
        program: Name of the training program; the ideal one if it is left out.
        parameters: Further parameters of this kind of workload.

    Raises:
        ConfigError: A file is missing or wrong.
        PlanError: A plan is for another model.
    """
    from dse.sharding import read_plan

    found = []
    for path in plans:
        plan = read_plan(Path(path))
        prediction = predict(
            workload,
            platform,
            world_size=plan.world_size,
            global_batch_size=global_batch_size,
            plan=path,
            program=program,
            **parameters,
        )
        found.append((Path(path), prediction))
    return sorted(found, key=lambda row: (not row[1].feasible, row[1].iteration_time_s))


def recommend(
    workload: AnyWorkload,
    *,
    target: str = "",
    deadline: str = "",
    budget: str = "",
    samples: str = "",
    program: str = "",
    platforms: Sequence[str] = (),
    world_sizes: Sequence[int] = (),
    batch_sizes: Sequence[int] = (),
    price_provider: str = "",
    confidence: float = 0.5,
    progress: Callable[[int, int], None] | None = None,
) -> Recommendation:
    """Finds the cheapest machines for a goal, or the fastest within a budget.

    Args:
        workload: Built-in name, path, model or workload.
        target: Throughput, such as ``10M samples/s``.
        deadline: Time for `samples`, such as ``3h``.
        budget: Money for `samples`, such as ``500USD``, or for an hour, ``100USD/h``.
        samples: Samples of the whole job, such as ``4.2G``.
        program: Name of the training program; the ideal one if it is left out.
        platforms: Names or files; every platform with a price by default.
        world_sizes: Numbers of ranks; powers of two by default.
        batch_sizes: Global batches; the model's own by default.
        price_provider: Only this provider's prices.
        confidence: Least probability to reach the goal.
        progress: Called with the number of configurations that are judged, and of all.

    Raises:
        ConfigError: A value is wrong, or no platform has a price.
    """
    from dse.search.recommend import RecommendOptions, parse_goal
    from dse.search.recommend import recommend as search

    goal = parse_goal(target=target, deadline=deadline, budget=budget, samples=samples)
    options = RecommendOptions(
        platforms=tuple(platforms),
        world_sizes=tuple(world_sizes),
        batch_sizes=tuple(batch_sizes),
        program=program,
        price_provider=price_provider,
        confidence=confidence,
    )
    return search(workload, goal, options, progress=progress)


def compare(
    first: Study | str | PathLike[str], second: Study | str | PathLike[str]
) -> StudyComparison:
    """Compares two studies: inputs, fronts, hypervolume and common candidates.

    Args:
        first: A study or its folder.
        second: Another one.

    Raises:
        StudyError: A folder is not a study.
    """
    from dse.search import compare_studies

    before, after = (
        study if isinstance(study, Study) else load_study(study) for study in (first, second)
    )
    return compare_studies(before.result, after.result)


def validate(
    study: Study | str | PathLike[str],
    *,
    top: int = 5,
    device: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Validation:
    """Trains the best candidates of a study for real and compares them with their predictions.

    Args:
        study: A study or its folder.
        top: Candidates to train.
        device: ``cpu`` or ``cuda``; whichever the study's machines are by default.
        progress: Called with a short text and the share of the time that is used.

    Raises:
        ConfigError: The study has no candidate that this machine can run.
        OptionalDependencyError: torch is not installed.
    """
    from dse.validation import ValidateOptions, validate_study

    found = study if isinstance(study, Study) else load_study(study)
    return validate_study(found.result, ValidateOptions(top=top, device=device), progress)


def _job(
    workload: AnyWorkload,
    platform: AnyPlatform,
    world_size: int,
    global_batch_size: int,
    program: str,
    parameters: Mapping[str, object],
) -> Job:
    # Names of `Job`'s own arguments may be among the parameters: each has a type of its own.
    given: dict[str, Any] = dict(parameters)
    return Job(
        workload,
        platform,
        world_size=world_size,
        global_batch_size=global_batch_size,
        program=program,
        **given,
    )


def _space(space: AnySpace) -> SearchSpace | Mapping[str, object] | str:
    """Returns a search space, its content, or the name or path of one."""
    return str(space) if isinstance(space, PathLike) else space


def _run_options(
    *,
    sampler: str,
    out: str | PathLike[str] | None,
    trials: int | None,
    seed: int | None,
    jobs: int,
    executor: str,
    address: str,
    resume: bool,
    storage: str,
    study_name: str,
    debug: bool,
) -> RunOptions:
    from dse.search import RunOptions
    from dse.search.space import SamplerName

    chosen = None
    if sampler:
        known = [name.value for name in SamplerName]
        if sampler not in known:
            raise ConfigError(f"no sampler is called `{sampler}`; {hint(sampler, known)}")
        chosen = SamplerName(sampler)
    return RunOptions(
        trials=trials,
        seed=seed,
        sampler=chosen,
        jobs=jobs,
        executor=executor,
        address=address,
        out=None if out is None else Path(out),
        resume=resume,
        storage=storage,
        study_name=study_name,
        debug=debug,
    )
