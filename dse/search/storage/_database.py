"""One study in a database, through Optuna's tables: trials, attributes, errors in our words.

Optuna keeps values as JSON text; nothing is ever unpickled. Numbers of trials are unique and rise
with the order of creation, which the database sees to: a trial is created under a lock on its
study. So whoever has created a trial sees all trials with lower numbers.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from dse.errors import StudyError
from dse.search.storage._url import database_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optuna.trial import FrozenTrial, TrialState

    from dse.search.storage._url import StorageUrl

#: MySQL's TEXT columns hold 65,535 bytes; quotes inside a piece take two.
_PIECE_CHARACTERS = 24_000

#: Two processes that create the tables of a new database at the same time are in each other's
#: way; the second one finds them there.
_CREATION_ATTEMPTS = 5


class Database:
    """A database with Optuna's tables, which are created where they are missing.

    Args:
        url: Where it is.

    Raises:
        OptionalDependencyError: The driver is not installed.
        StudyError: It cannot be reached, or its tables are of another version of Optuna.
    """

    def __init__(self, url: StorageUrl) -> None:
        import optuna
        from optuna.storages import RDBStorage, get_storage
        from sqlalchemy.pool import NullPool

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.url = url
        # Optuna fills in {SCHEMA_VERSION}; other braces are the user's.
        text = url.full.replace("{", "{{").replace("}", "}}")
        settings: dict[str, Any] = {"connect_args": dict(url.connect_settings)}
        with database_errors(url, "reach"):
            _connect(url.full, {**settings, "poolclass": NullPool})
        with database_errors(url, "use"):
            _create_tables(url, text, {**settings, "poolclass": NullPool})
            # Servers end connections that are idle for long.
            settings["pool_pre_ping"] = url.kind != "sqlite"
            self._tables = RDBStorage(text, engine_kwargs=settings, skip_table_creation=True)
            self.storage = get_storage(self._tables)

    def end_thread(self) -> None:
        """Gives back the connection of the calling thread."""
        self._tables.remove_session()

    def close(self) -> None:
        """Closes all connections."""
        self._tables.remove_session()
        self._tables.engine.dispose()


def _connect(text: str, settings: dict[str, Any]) -> None:
    import sqlalchemy

    sqlalchemy.create_engine(text, **settings).connect().close()


def _create_tables(url: StorageUrl, text: str, settings: dict[str, Any]) -> None:
    from optuna.storages import RDBStorage
    from sqlalchemy import exc

    for attempt in range(_CREATION_ATTEMPTS):
        try:
            RDBStorage(text, engine_kwargs=dict(settings)).remove_session()
        except (exc.ProgrammingError, exc.IntegrityError, exc.OperationalError):
            if attempt == _CREATION_ATTEMPTS - 1:
                raise
            time.sleep(0.2 * (attempt + 1))
        except RuntimeError as error:
            # The tables there are of another version of Optuna; it says which.
            raise StudyError(f"cannot use {url.shown}: {error}") from None
        else:
            return


class StudyTables:
    """One study of a database.

    Args:
        database: Where it is.
        name: Of the study.
        directions: Of its objectives, as ``minimize`` or ``maximize``; the study is created when
            it is missing.

    Raises:
        StudyError: It cannot be read or created, or its objectives have other directions.
    """

    def __init__(self, database: Database, name: str, directions: Sequence[str]) -> None:
        from optuna.exceptions import DuplicatedStudyError
        from optuna.study import StudyDirection

        self._storage = storage = database.storage
        self._url = url = database.url
        self.database = database
        self.name = name
        wanted = [StudyDirection[direction.upper()] for direction in directions]
        with database_errors(url, "use"):
            try:
                self._id = storage.create_new_study(wanted, name)
            except DuplicatedStudyError:
                self._id = storage.get_study_id_from_name(name)
            found = storage.get_study_directions(self._id)
        if found != wanted:
            raise StudyError(
                f"the study `{name}` in {url.shown} has other objectives; choose another "
                "--study-name"
            )

    def trials(self) -> list[FrozenTrial]:
        """Returns all trials by number; those that are finished are read only once."""
        with database_errors(self._url, "read"):
            return self._storage.get_all_trials(self._id, deepcopy=False)

    def create(self, template: FrozenTrial) -> int:
        """Creates a trial and returns its id."""
        with database_errors(self._url, "write to"):
            return self._storage.create_new_trial(self._id, template)

    def set_trial_attribute(self, trial_id: int, key: str, value: object) -> bool:
        """Sets an attribute of a trial; returns whether that was still open."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            with database_errors(self._url, "write to"):
                for name, piece in pieces(key, value).items():
                    self._storage.set_trial_user_attr(trial_id, name, piece)
        except UpdateFinishedTrialError:
            return False
        return True

    def finish(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Ends a trial; returns whether it was still open."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            with database_errors(self._url, "write to"):
                return self._storage.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            return False

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes of the study, long ones in pieces."""
        with database_errors(self._url, "read"):
            return self._storage.get_study_user_attrs(self._id)

    def set_attribute(self, key: str, value: object) -> None:
        """Sets an attribute of the study."""
        with database_errors(self._url, "write to"):
            for name, piece in pieces(key, value).items():
                self._storage.set_study_user_attr(self._id, name, piece)


def pieces(key: str, value: object, limit: int = _PIECE_CHARACTERS) -> dict[str, object]:
    """Returns the attributes that hold a JSON value: one, or as many as a long one needs.

    Args:
        key: Name of the value.
        value: Anything that JSON can say.
        limit: Characters of JSON that one attribute can hold.
    """
    text = json.dumps(value)
    if len(text) <= limit:
        return {key: value}
    parts = [text[start : start + limit] for start in range(0, len(text), limit)]
    # The count comes last, so that whoever finds it finds all pieces.
    held: dict[str, object] = {f"{key}.{index}": part for index, part in enumerate(parts)}
    held[key] = {"pieces": len(parts)}
    return held


def whole(attributes: Mapping[str, Any], key: str) -> Any:
    """Returns a JSON value from its attributes; None when it is not there.

    Args:
        attributes: Of a trial or a study.
        key: Name of the value.

    Raises:
        ValueError: A piece is missing or damaged.
    """
    value = attributes.get(key)
    if not isinstance(value, dict) or set(value) != {"pieces"}:
        return value
    try:
        text = "".join(attributes[f"{key}.{index}"] for index in range(int(value["pieces"])))
    except (KeyError, TypeError) as error:
        raise ValueError(f"a piece of `{key}` is missing") from error
    return json.loads(text)
