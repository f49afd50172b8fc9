"""Joining a study in a database: the first run writes what it is, the others check it."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
import time
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, DseError, StudyError
from dse.search._header import StorageNote
from dse.search._start import StudyIdentity, going_on
from dse.search.space import SamplerName
from dse.search.storage._database import Database, StudyTables, whole
from dse.search.storage._runs import Runs
from dse.search.storage._shared import TOTAL_KEY, SharedStorage
from dse.search.storage._url import parse_storage_url

if TYPE_CHECKING:
    from types import TracebackType

    from dse.search._header import StudyHeader
    from dse.search._options import RunOptions
    from dse.search.storage._journal import Journal
    from dse.search.storage._url import StorageUrl

#: Attribute of the study: what it was started with.
_IDENTITY_KEY = "study"

#: Form of what is stored; raised when another version could not read it.
_FORM = 1

#: Seconds that the first run has for writing what the study is.
_START_S = 15.0

#: Optuna's names of studies have 512 characters; the one of the runs needs some more than ours.
_LONGEST_NAME = 480

_RUNS_SUFFIX = " (runs)"


class SharedStudy:
    """A study in a database that this run has joined; a context manager that leaves it.

    Attributes:
        header: What the study was started with, for the folder of this run.

    Args:
        tables: The study.
        url: Where the database is.
        runs: Its runs.
        header: See above.
    """

    def __init__(
        self, tables: StudyTables, url: StorageUrl, runs: Runs, header: StudyHeader
    ) -> None:
        self.header = header
        self._tables = tables
        self._url = url
        self._runs = runs
        self._storage: SharedStorage | None = None

    def storage(self, copy: Journal) -> SharedStorage:
        """Returns where finished trials are kept.

        Args:
            copy: Journal in the study folder that gets everything too.

        Raises:
            StudyError: The database cannot be read.
        """
        self._storage = SharedStorage(self._tables, self._url, self._runs, self.header, copy)
        return self._storage

    def __enter__(self) -> SharedStudy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives up what is claimed and leaves."""
        # Without the database, others take over when the lease is up. An error that is on its way
        # says what is wrong; without one, everything is finished.
        count = 0
        with suppress(DseError):
            if self._storage is not None:
                count = self._storage.finished_count
                self._storage.give_up()
        with suppress(DseError):
            self._runs.leave(count)
        self._tables.database.close()


def join_study(
    header: StudyHeader, former: StudyHeader | None, options: RunOptions
) -> SharedStudy:
    """Joins the study of that name in a database, or starts it.

    Args:
        header: What this run was asked for.
        former: The study in the folder that is continued; None for a new folder.
        options: Settings of the run.

    Raises:
        ConfigError: The URL or the name cannot be.
        OptionalDependencyError: The driver of the database is not installed.
        StudyError: The database cannot be reached, or the study there is another one.
    """
    url = parse_storage_url(options.storage)
    name = options.study_name or header.name
    stream = None
    if former is not None:
        name, stream = _of_folder(former, options)
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"--study-name: expected 1 to {_LONGEST_NAME} characters, found {len(name)}"
        )
    directions = ["maximize" if axis.maximize else "minimize" for axis in header.objectives]
    with ExitStack() as undo:
        database = Database(url)
        undo.callback(database.close)
        tables = StudyTables(database, name, directions)
        runs = Runs(StudyTables(database, name + _RUNS_SUFFIX, ["maximize"]), stream)
        undo.callback(runs.leave, 0)
        header = _agreed(tables, runs, url, header, former, options)
        undo.pop_all()
    note = StorageNote(url.shown, name, runs.stream)
    return SharedStudy(tables, url, runs, replace(header, storage=note))


def _of_folder(former: StudyHeader, options: RunOptions) -> tuple[str, int]:
    """Returns name and stream of the study that a folder holds."""
    note = former.storage
    if note is None:
        raise StudyError(
            f"the study {former.name} was started without --storage, in its folder alone; drop "
            "--storage, or start a new study in the database with another --out"
        )
    if options.study_name and options.study_name != note.study:
        raise StudyError(
            f"the folder holds the study `{note.study}`, not `{options.study_name}`; drop "
            "--study-name, or choose another --out"
        )
    return note.study, note.stream


def _agreed(
    tables: StudyTables,
    runs: Runs,
    url: StorageUrl,
    header: StudyHeader,
    former: StudyHeader | None,
    options: RunOptions,
) -> StudyHeader:
    """Returns the header of the study in the database, which is written there if it is new."""
    place = f"the study `{tables.name}` in {url.shown}"
    deadline_s = time.monotonic() + _START_S
    while True:
        attributes = tables.attributes()
        stored = whole(attributes, _IDENTITY_KEY)
        if stored is not None:
            break
        if former is not None:
            raise StudyError(f"{place} is not there; start a new one with another --out")
        if runs.number == 0 or time.monotonic() > deadline_s:
            if tables.trials():
                raise StudyError(
                    f"{place} holds trials that dse has not made; choose another --study-name"
                )
            tables.set_attribute(TOTAL_KEY, header.trials)
            tables.set_attribute(_IDENTITY_KEY, _identity_to_json(StudyIdentity.of(header)))
            return header
        time.sleep(0.2)
    identity = _identity_from_json(stored, place)
    if former is not None and identity.created != former.created:
        raise StudyError(
            f"{place} is not the one of the folder: it was started at {identity.created}, not at "
            f"{former.created}; choose another --out"
        )
    header = going_on(place, identity, header, options)
    total = int(attributes.get(TOTAL_KEY, header.trials))
    if options.trials is not None and options.trials != total:
        total = options.trials
        tables.set_attribute(TOTAL_KEY, total)
    return replace(header, trials=total)


def _identity_to_json(identity: StudyIdentity) -> dict[str, object]:
    return {
        "form": _FORM,
        "created": identity.created,
        "seed": identity.seed,
        "sampler": identity.sampler.value,
        "digests": [list(digest) for digest in identity.digests],
    }


def _identity_from_json(stored: Any, place: str) -> StudyIdentity:
    try:
        if stored["form"] == _FORM:
            return StudyIdentity(
                created=str(stored["created"]),
                seed=int(stored["seed"]),
                sampler=SamplerName(stored["sampler"]),
                digests=tuple((str(a), str(b), str(c)) for a, b, c in stored["digests"]),
            )
    except (KeyError, TypeError, ValueError):
        pass
    raise StudyError(
        f"{place} is of another version of dse; use that version, or another --study-name"
    )
