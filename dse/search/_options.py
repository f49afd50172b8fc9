"""Settings and result of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dse.machine.platforms import Override
    from dse.search._directory import StudyDirectory
    from dse.search._header import StorageNote
    from dse.search._records import StudyResult, TrialRecord
    from dse.search.space import SamplerName
    from dse.search.storage import JournalDamage


class Progress(Protocol):
    """Called after every finished trial."""

    def __call__(self, records: Sequence[TrialRecord], total: int) -> None:
        """Takes all records so far and the number of configurations to evaluate."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Settings of one run; None takes the search space's own.

    Attributes:
        trials: Configurations to evaluate; in a shared study by all its runs together.
        seed: Seed of all randomness.
        sampler: Proposes outer configurations.
        jobs: Workers.
        executor: `process`, `serial` or `ray`.
        address: Ray cluster, as `host:port`; empty for a local Ray.
        out: Study folder; by default a new one under `results/`.
        resume: Continue the study in `out`.
        repair: With `resume`, drop damaged lines of the journal and evaluate them again; otherwise
            they are refused.
        storage: URL of a database that several runs share, as `postgresql://…`, `mysql://…` or
            `sqlite:///path`; empty for a study of this run alone. Not shown by `repr`, since it
            may hold a password.
        study_name: Name of the study in the database; empty for the space's name.
        debug: Whether the first failed evaluation ends the run, with its traceback.
        overrides: Changes of the platforms' figures, as `PATH=VALUE` texts, see
            :mod:`dse.machine.platforms`; a resumed study keeps those that it was started with.
        time_limit_s: Seconds of search after which no further round begins; None for no limit. If
            nothing is evaluated by then, one round is: a few configurations that look best by what
            is known. Plans on the front are still searched thoroughly. What is found then depends
            on the speed of the machine, and `resume` continues from there.
    """

    trials: int | None = None
    seed: int | None = None
    sampler: SamplerName | None = None
    jobs: int = 1
    executor: str = "process"
    address: str = ""
    out: Path | None = None
    resume: bool = False
    repair: bool = False
    storage: str = field(default="", repr=False)
    study_name: str = ""
    debug: bool = False
    overrides: tuple[str | Override, ...] = ()
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """A finished (or interrupted) run.

    Attributes:
        result: All that it looked at.
        directory: Where its files are.
        interrupted: Whether it was stopped before the end.
        exhausted: Whether the whole space was looked at.
        storage: The database that several runs share; None for a study of one run.
        dropped: Damaged lines of its journal that were dropped at the start.
    """

    result: StudyResult
    directory: StudyDirectory
    interrupted: bool
    exhausted: bool
    storage: StorageNote | None = None
    dropped: tuple[JournalDamage, ...] = ()
