"""Studies by name: created, run, loaded, compared and validated."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse._text.html import rows_html
from dse._text.suggest import hint
from dse.api._inputs import overrides_with
from dse.errors import ConfigError, OptionalDependencyError, StudyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

    from dse.api._inputs import AnyHostProfile, AnySpace
    from dse.search import Progress, RunOptions, StudyResult, TrialRecord, Validation
    from dse.search import Study as RunStudy
    from dse.search.analyse import Decision
    from dse.search.compare import StudyComparison
    from dse.search.evaluate import ObjectiveFunction
    from dse.search.revise import Revision, RevisionProgress
    from dse.search.space import SearchSpace


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
        objective: ObjectiveFunction | None = None,
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
        """Shows the front in a notebook: a picture, what to take, and a table."""
        from html import escape

        from dse.report import front_table
        from dse.report.picture import front_svg

        if self._study is None:
            return f"<p>{escape(repr(self))}</p>"
        table = rows_html(*front_table(self.result))
        taken = self.decision
        words = f"<p>take #{taken.take.number}: {escape(taken.rule)}</p>" if taken else ""
        return f"{front_svg(self.result)}{words}{table}"

    def optimize(self, n_trials: int, *, progress: Progress | None = None) -> Study:
        """Evaluates more configurations; returns the study.

        Args:
            n_trials: Configurations to evaluate in addition to those that there are.
            progress: Called after every finished trial.

        Raises:
            ConfigError: The number is not at least 1.
            StudyError: The folder cannot be written.
            WorkerError: Workers died repeatedly.
        """
        from dataclasses import replace

        from dse.search import run as run_study

        if n_trials < 1:
            raise ConfigError(f"n_trials {n_trials}: expected at least 1")
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
        """The study directory.

        Raises:
            StudyError: `optimize` was not called yet.
        """
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
        """The trial that :attr:`decision` takes; None if nothing is feasible."""
        from dse.search.analyse import recommended_trial

        return recommended_trial(self.result)

    @property
    def decision(self) -> Decision | None:
        """What to take and why, the fastest, the cheapest; None if nothing is feasible."""
        from dse.search.analyse import decide

        return decide(self.result)

    def to_dataframe(self) -> pd.DataFrame:
        """Returns the trials as a table, with the columns of `trials.csv`.

        Raises:
            OptionalDependencyError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise OptionalDependencyError(
                "DataFrames need pandas, which is not installed: pip install '.[tables]' in the "
                "project's folder, or read `trials.csv` of the study"
            ) from error
        from dse.search import trial_table

        found = self.result
        names = [parameter.name for parameter in found.parameters]
        frame = pd.DataFrame(trial_table(found.records, names, kind=found.kind))
        # A column without any value would have no type of its own.
        unknown = [name for name in frame if frame[name].isna().all()]
        return frame.astype(dict.fromkeys(unknown, "float64"))

    def report(self, out: str | PathLike[str] | None = None) -> Path:
        """Writes the page; returns its path.

        Args:
            out: The file; `report.html` in the study's folder by default.
        """
        from dse.report import write_report

        path = Path(out) if out is not None else self.folder / "report.html"
        write_report(self.result, path)
        return path

    def export(self, number: int, kind: str = "json") -> str:
        """Returns one candidate as text that can be deployed; what `dse export` prints.

        Args:
            number: The candidate.
            kind: ``json`` for the plan, or for the configuration of models without one; ``yaml``
                for the configuration; or the format of a training framework: ``torchrec`` for
                plans, ``megatron``, ``torchtitan`` or ``fsdp`` for transformers.

        Raises:
            ConfigError: There is no such candidate, it has no plan, or there is no such format.
        """
        from dse.search import export_text

        return export_text(self.result, number, kind)

    def whatif(
        self,
        *overrides: str,
        replan: int = 0,
        jobs: int = 1,
        progress: RevisionProgress | None = None,
    ) -> Revision:
        """Scores the study again under other prices, links or memories; plans are kept.

        Args:
            overrides: What `--set` takes, as ``PATH=VALUE``.
            replan: Search new plans for this many of the best candidates.
            jobs: Workers.
            progress: Called after every candidate.

        Raises:
            ConfigError: A change is wrong, or changes nothing.

        Example:
            >>> study.whatif("price=+20%").after.front  # doctest: +SKIP
        """
        from dse.search.revise import revise_study
        from dse.search.space import SearchSpace

        # One that was made in Python is in none of the study's files.
        space = self._space if isinstance(self._space, SearchSpace) else None
        return revise_study(
            self.result,
            overrides_with(overrides, None),
            replan=replan,
            jobs=jobs,
            space=space,
            progress=progress,
        )


def create_study(
    space: AnySpace,
    objective: ObjectiveFunction | None = None,
    *,
    sampler: str = "",
    seed: int | None = None,
    jobs: int = 1,
    executor: str = "process",
    address: str = "",
    storage: str = "",
    study_name: str = "",
    overrides: Sequence[str] = (),
    host_profile: AnyHostProfile | None = None,
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
        overrides: What `--set` takes: changes of the platforms' figures, as ``PATH=VALUE``.
        host_profile: Host overheads measured from traces, or the path of a file of them, in place
            of those of all platforms.
        out: Study folder; a new one under `results/` by default.

    Raises:
        ConfigError: The space or a setting is wrong.

    Example:
        >>> study = create_study("dlrm_sharding", seed=0)  # doctest: +SKIP
        >>> study.optimize(60).best_trials[0].metrics  # doctest: +SKIP
    """
    options = _run_options(
        seed=seed,
        sampler=sampler,
        jobs=jobs,
        executor=executor,
        address=address,
        out=out,
        storage=storage,
        study_name=study_name,
        overrides=overrides,
        host_profile=host_profile,
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
    repair: bool = False,
    storage: str = "",
    study_name: str = "",
    debug: bool = False,
    overrides: Sequence[str] = (),
    host_profile: AnyHostProfile | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Study:
    """Searches a space and writes a study directory; what `dse run` does, without the page.

    Args:
        space: Built-in name, path, a mapping with the content of a YAML, or a search space.
        trials: Configurations to evaluate at most; the space's own number if None.
        seed: Seed of all randomness; the space's own if None.
        sampler: ``auto``, ``nsga2``, ``tpe``, ``gp``, ``random`` or ``grid``; the space's own if
            empty.
        jobs: Workers.
        executor: ``process``, ``serial`` or ``ray``.
        address: Ray cluster, as ``host:port``; empty for a local Ray.
        out: Study folder; a new one under `results/` by default.
        resume: Continue the study in `out`.
        repair: With `resume`, drop damaged trials of its journal and evaluate them again.
        storage: URL of a database that several runs share; empty for none.
        study_name: Name of the study in the database; empty for the space's name.
        debug: Whether the first failed evaluation ends the run, with its traceback.
        overrides: What `--set` takes: changes of the platforms' figures, as ``PATH=VALUE``.
        host_profile: Host overheads measured from traces, or the path of a file of them, in place
            of those of all platforms.
        time_limit_s: Seconds of search after which no further round begins, except one that
            evaluates something if nothing is yet; None for no limit.
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
        repair=repair,
        storage=storage,
        study_name=study_name,
        debug=debug,
        overrides=overrides,
        host_profile=host_profile,
        time_limit_s=time_limit_s,
    )
    chosen = _space(space)
    return Study(chosen, options, study=run_study(chosen, options, progress=progress))


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
    from dse.search.compare import compare_studies

    before, after = (
        study if isinstance(study, Study) else load_study(study) for study in (first, second)
    )
    return compare_studies(before.result, after.result)


def validate(
    study: Study | str | PathLike[str],
    *,
    top: int = 5,
    trainer: str | None = None,
    device: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Validation:
    """Trains the best candidates of a study for real and compares them with their predictions.

    Args:
        study: A study or its folder.
        top: Candidates to train.
        trainer: What trains them; by default the first trainer of this kind of study.
        device: ``cpu`` or ``cuda``; whichever the study's machines are by default.
        progress: Called with a short text and the share of the time that is used.

    Raises:
        ConfigError: The study has no candidate that this machine can run.
        OptionalDependencyError: torch is not installed.
    """
    from dse.validation import ValidateOptions, validate_study

    found = study if isinstance(study, Study) else load_study(study)
    return validate_study(
        found.result, ValidateOptions(top=top, trainer=trainer, device=device), progress
    )


def _space(space: AnySpace) -> SearchSpace | Mapping[str, object] | str:
    """Returns a search space, its content, or the name or path of one."""
    return str(space) if isinstance(space, PathLike) else space


def _run_options(
    *,
    sampler: str,
    out: str | PathLike[str] | None,
    overrides: Sequence[str],
    host_profile: AnyHostProfile | None,
    **settings: Any,
) -> RunOptions:
    """Returns the options of a run, whose other settings are fields of :class:`RunOptions`."""
    from dse.search import RunOptions
    from dse.search.space import SamplerName

    known = [name.value for name in SamplerName]
    if sampler and sampler not in known:
        raise ConfigError(f"no sampler is called `{sampler}`; {hint(sampler, known)}")
    return RunOptions(
        sampler=SamplerName(sampler) if sampler else None,
        out=None if out is None else Path(out),
        overrides=overrides_with(overrides, host_profile),
        **settings,
    )
