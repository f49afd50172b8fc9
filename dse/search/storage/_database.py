"""Optuna's tables of one study in a database.

Optuna keeps values as JSON text; nothing is ever unpickled. It also keeps the heartbeat of each
running trial by the clock of the database, and queues a trial again whose heartbeat has stopped.
Trials are numbered in the order in which they are created, under a lock on their study: a process
that has created a trial sees all trials with lower numbers.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
import warnings

from dse.errors import StudyError
from dse.search.storage._url import database_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, TrialState

    from dse.search.storage._url import StorageUrl

#: Seconds between two heartbeats of a trial.
HEARTBEAT_S = 15

#: Seconds without a heartbeat after which a trial is queued again.
GRACE_PERIOD_S = 60

#: Runs that may die while they evaluate one configuration before it is no longer queued again.
MAX_RETRIES = 3

#: MySQL's TEXT columns hold 65,535 bytes; an escaped quote takes two.
_PIECE_CHARACTERS = 24_000

#: Processes that create the tables of a new database at the same time get in each other's way;
#: the next attempt finds the tables.
_CREATION_ATTEMPTS = 5


class StudyTables:
    """One study of a database; tables and study are created where they are missing.

    Attributes:
        name: Name of the study.
        url: Where the database is.
        created: Whether the study was created just now.

    Args:
        url: Where the database is.
        name: Name of the study.
        directions: Of its objectives, as ``minimize`` or ``maximize``.

    Raises:
        OptionalDependencyError: The driver is not installed.
        StudyError: The database cannot be reached or used, or the study there has objectives with
            other directions.
    """

    def __init__(self, url: StorageUrl, name: str, directions: Sequence[str]) -> None:
        import optuna
        from optuna.exceptions import DuplicatedStudyError
        from optuna.storages import get_storage
        from optuna.study import StudyDirection

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.url = url
        self.name = name
        self._tables = _open_tables(url)
        self._storage = storage = get_storage(self._tables)
        wanted = [StudyDirection[direction.upper()] for direction in directions]
        with database_errors(url, "use"):
            try:
                storage.create_new_study(wanted, name)
                self.created = True
            except DuplicatedStudyError:
                self.created = False
            self._study = optuna.load_study(study_name=name, storage=storage)
        if self._study.directions != wanted:
            raise StudyError(
                f"the study `{name}` in {url.shown} has other objectives; choose another "
                "--study-name"
            )

    def trials(self) -> list[FrozenTrial]:
        """Returns all trials by number; finished trials are read from the database only once."""
        with database_errors(self.url, "read"):
            return self._study.get_trials(deepcopy=False)

    def create(self, template: FrozenTrial) -> int:
        """Creates a trial and returns its id."""
        with database_errors(self.url, "write to"):
            return self._storage.create_new_trial(self._study._study_id, template)

    def start(self, trial_id: int) -> bool:
        """Starts a waiting trial; returns False if another process was faster."""
        from optuna.trial import TrialState

        # A running trial without a heartbeat would never be queued again.
        self.beat(trial_id)
        return self.finish(trial_id, TrialState.RUNNING)

    def finish(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Sets the state of a trial; returns False if it was finished before."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            with database_errors(self.url, "write to"):
                return self._storage.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            return False

    def beat(self, trial_id: int) -> None:
        """Records a heartbeat of a trial."""
        with database_errors(self.url, "write to"):
            self._tables.record_heartbeat(trial_id)

    def requeue_stale(self) -> None:
        """Queues the trials whose heartbeat has stopped again."""
        from optuna.storages import fail_stale_trials

        with database_errors(self.url, "write to"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fail_stale_trials(self._study)

    def set_trial_attribute(self, trial_id: int, key: str, value: object) -> bool:
        """Sets an attribute of a trial; returns False if it was finished before."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            with database_errors(self.url, "write to"):
                for name, piece in pieces(key, value).items():
                    self._storage.set_trial_user_attr(trial_id, name, piece)
        except UpdateFinishedTrialError:
            return False
        return True

    def attributes(self) -> dict[str, Any]:
        """Returns the attributes of the study, long ones in pieces."""
        with database_errors(self.url, "read"):
            return self._study.user_attrs

    def set_attribute(self, key: str, value: object) -> None:
        """Sets an attribute of the study."""
        with database_errors(self.url, "write to"):
            for name, piece in pieces(key, value).items():
                self._study.set_user_attr(name, piece)

    def end_thread(self) -> None:
        """Returns the connection of the calling thread."""
        self._tables.remove_session()

    def close(self) -> None:
        """Closes all connections."""
        self._tables.remove_session()
        self._tables.engine.dispose()


def _open_tables(url: StorageUrl) -> RDBStorage:
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    # Optuna fills in {SCHEMA_VERSION}; other braces are the user's.
    text = url.full.replace("{", "{{").replace("}", "}}")
    settings: dict[str, Any] = {"connect_args": dict(url.connect_settings)}
    once = {**settings, "poolclass": NullPool}
    with database_errors(url, "reach"):
        sqlalchemy.create_engine(url.full, **once).connect().close()
    with database_errors(url, "use"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _create_tables(url, text, once)
        return RDBStorage(
            text,
            # Servers end connections that are idle for long.
            engine_kwargs={**settings, "pool_pre_ping": url.kind != "sqlite"},
            # Both were done just now.
            skip_compatibility_check=True,
            skip_table_creation=True,
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_PERIOD_S,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(MAX_RETRIES),
        )


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
            # The tables are of another version of Optuna; the message says which.
            raise StudyError(f"cannot use {url.shown}: {error}") from None
        else:
            return


def pieces(key: str, value: object, limit: int = _PIECE_CHARACTERS) -> dict[str, object]:
    """Returns the attributes that hold a JSON value: one, or as many as a long value needs.

    Args:
        key: Name of the value.
        value: Any JSON value.
        limit: Characters of JSON that one attribute can hold.
    """
    text = json.dumps(value)
    if len(text) <= limit:
        return {key: value}
    parts = [text[start : start + limit] for start in range(0, len(text), limit)]
    # The count is written last: when it is there, all pieces are.
    held: dict[str, object] = {f"{key}.{index}": part for index, part in enumerate(parts)}
    held[key] = {"pieces": len(parts)}
    return held


def whole(attributes: Mapping[str, Any], key: str) -> Any:
    """Returns a JSON value from its attributes; None if it is missing.

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
