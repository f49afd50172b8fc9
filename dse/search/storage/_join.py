"""Joining a study in a database: the first run writes what it is, the others check it."""

from __future__ import annotations

from contextlib import ExitStack
import secrets
import time
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError, StudyError
from dse.search._header import StorageNote
from dse.search._start import StudyIdentity, resumed_header
from dse.search.space import SamplerName
from dse.search.storage._database import StudyTables, whole
from dse.search.storage._shared import TOTAL_KEY
from dse.search.storage._url import parse_storage_url

if TYPE_CHECKING:
    from dse.search._header import StudyHeader
    from dse.search._options import RunOptions

#: Attribute of the study: what it was started with.
_IDENTITY_KEY = "study"

#: Version of what is stored; raised when an older dse could not read it.
_FORM = 2

#: Seconds that the first run has for writing what the study is.
_START_S = 15.0

#: Longest name of a study in Optuna's tables.
_LONGEST_NAME = 512


def join_study(
    header: StudyHeader, former: StudyHeader | None, options: RunOptions
) -> tuple[StudyTables, StudyHeader]:
    """Joins the study of that name in a database, or starts it.

    Args:
        header: What this run was started with.
        former: The study in the folder that is resumed; None for a new folder.
        options: Settings of the run.

    Returns:
        The study's tables, which the caller closes, and what the study was started with.

    Raises:
        ConfigError: The URL or the name is not valid.
        OptionalDependencyError: The driver of the database is not installed.
        StudyError: The database cannot be reached, or holds another study under that name.
    """
    url = parse_storage_url(options.storage)
    name = options.study_name or header.name
    if former is not None:
        name = _name_in_folder(former, options)
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"--study-name: expected 1 to {_LONGEST_NAME} characters, found {len(name)}"
        )
    directions = ["maximize" if axis.maximize else "minimize" for axis in header.objectives]
    with ExitStack() as undo:
        tables = StudyTables(url, name, directions)
        undo.callback(tables.close)
        agreed = _agreed(tables, header, former, options)
        undo.pop_all()
    # Runs that joined with one stream would make the same proposals.
    stream = 0 if agreed is header else secrets.randbits(31)
    return tables, agreed.with_changes(storage=StorageNote(url.shown, name, stream))


def _name_in_folder(former: StudyHeader, options: RunOptions) -> str:
    """Returns the name of the shared study that a folder holds."""
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
    return note.study


def _agreed(
    tables: StudyTables, header: StudyHeader, former: StudyHeader | None, options: RunOptions
) -> StudyHeader:
    """Returns what the study was started with; `header` itself if it is new and now written."""
    place = f"the study `{tables.name}` in {tables.url.shown}"
    deadline_s = time.monotonic() + _START_S
    while True:
        # In this order: the first run writes what the study is before its first trial.
        trials = tables.trials()
        attributes = tables.attributes()
        stored = whole(attributes, _IDENTITY_KEY)
        if stored is not None:
            break
        if former is not None:
            raise StudyError(f"{place} does not exist; start a new one with another --out")
        if trials:
            raise StudyError(
                f"{place} contains trials that dse did not make; choose another --study-name"
            )
        # A run that was killed before it wrote the identity leaves that to the next one.
        if tables.created or time.monotonic() > deadline_s:
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
    header = resumed_header(place, identity, header, options)
    total = int(attributes.get(TOTAL_KEY, header.trials))
    if options.trials is not None and options.trials != total:
        total = options.trials
        tables.set_attribute(TOTAL_KEY, total)
    return header.with_changes(trials=total)


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
        f"{place} was written by another version of dse; use that version, or another --study-name"
    )
