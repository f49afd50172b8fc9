"""The journal of a study: an Optuna journal file that gains one line block per finished trial.

Each evaluated or rejected configuration is one Optuna trial whose user attribute ``record`` holds
the whole record as JSON, so the file can be opened with any Optuna tool and `--resume` finds
everything again. Trials are added when they are finished; a kill loses at most those in flight.
"""

from __future__ import annotations

from functools import cache
import json
from typing import TYPE_CHECKING

from dse.errors import StudyError
from dse.search._records import OuterChoice, TrialRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pydantic import TypeAdapter

    from dse.space import Objective, Parameter

_STUDY_NAME = "dse"
_RECORD_KEY = "record"
_BOUNDS_KEY = "lower_bounds_s"


class Journal:
    """Finished trials on disk.

    Args:
        path: The journal file.
        objectives: Axes of the front.
        parameters: Outer parameters.
        create: Start the file when it is missing; otherwise it is only read.

    Raises:
        StudyError: The file is damaged or cannot be written. A torn last line, which a kill in the
            middle of a write leaves behind, is cut off instead.
    """

    def __init__(
        self,
        path: Path,
        objectives: Sequence[Objective],
        parameters: Sequence[Parameter],
        *,
        create: bool = False,
    ) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._path = path
        self._objectives = objectives
        self._parameters = parameters
        repair_journal(path)
        if create:
            # One process writes, so a lock that a killed run left behind means nothing.
            path.with_name(path.name + ".lock").unlink(missing_ok=True)
        try:
            storage = JournalStorage(
                JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))
            )
            known = optuna.get_all_study_names(storage)
            if _STUDY_NAME in known:
                self._study = optuna.load_study(study_name=_STUDY_NAME, storage=storage)
            elif create:
                self._study = optuna.create_study(
                    study_name=_STUDY_NAME,
                    storage=storage,
                    directions=[
                        "maximize" if axis.maximize else "minimize" for axis in objectives
                    ],
                )
            else:
                raise StudyError(f"{path}: the journal is empty; continue the run with --resume")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StudyError(
                f"{path}: not a readable study journal ({error}); restore it from a copy or start "
                "again in a new folder"
            ) from error

    def add(self, record: TrialRecord) -> None:
        """Appends a finished record."""
        import optuna

        complete = record.evaluated and len(record.values) == len(self._objectives)
        finite = complete and all(value == value for value in record.values)
        fixed = optuna.distributions.CategoricalDistribution
        try:
            self._study.add_trial(
                optuna.create_trial(
                    state=optuna.trial.TrialState.COMPLETE
                    if finite
                    else optuna.trial.TrialState.FAIL,
                    values=list(record.values) if finite else None,
                    params=dict(record.parameters),
                    distributions={
                        parameter.name: fixed(parameter.choices) for parameter in self._parameters
                    },
                    user_attrs={
                        "status": record.status.value,
                        _RECORD_KEY: _adapter().dump_python(record, mode="json"),
                    },
                )
            )
        except OSError as error:
            raise self._unwritable(error) from error

    def add_bounds(self, bounds: Mapping[OuterChoice, float]) -> None:
        """Keeps lower bounds beside those that are there.

        Args:
            bounds: Seconds by the parameters of the configuration.
        """
        if not bounds:
            return
        kept = list({**self.bounds(), **bounds}.items())
        try:
            self._study.set_user_attr(_BOUNDS_KEY, kept)
        except OSError as error:
            raise self._unwritable(error) from error

    def bounds(self) -> dict[OuterChoice, float]:
        """Returns lower bounds in seconds by the parameters of their configuration.

        Raises:
            StudyError: They do not have the form this version writes.
        """
        stored = self._study.user_attrs.get(_BOUNDS_KEY, [])
        try:
            return dict(_bounds_adapter().validate_python(stored))
        except ValueError as error:
            raise StudyError(
                f"{self._path}: the lower bounds are not those of this version of dse "
                f"({str(error).splitlines()[0]}); run the study again in a new folder"
            ) from error

    def _unwritable(self, error: OSError) -> StudyError:
        return StudyError(
            f"cannot write {self._path}: {error.strerror or error}; free the disk, then use "
            "--resume"
        )

    def records(self) -> tuple[TrialRecord, ...]:
        """Returns all finished records in the order in which they finished.

        Raises:
            StudyError: A record does not have the form this version writes.
        """
        records = []
        for trial in self._study.get_trials(deepcopy=False):
            stored = trial.user_attrs.get(_RECORD_KEY)
            try:
                records.append(_adapter().validate_python(stored))
            except ValueError as error:
                raise StudyError(
                    f"{self._path}: trial {trial.number} is not a record of this version of dse "
                    f"({str(error).splitlines()[0]}); run the study again in a new folder"
                ) from error
        return tuple(records)


def repair_journal(path: Path) -> None:
    """Cuts off a torn last line and checks that all other lines are JSON objects.

    Raises:
        StudyError: A line before the last one is damaged; the message gives its byte offset.
    """
    if not path.exists():
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror or error}") from error
    offset = 0
    lines = content.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if not line.endswith(b"\n"):
            # Only the last line can lack its end: a write that was cut short.
            with path.open("r+b") as file:
                file.truncate(offset)
        elif not _is_json_object(line):
            raise StudyError(
                f"{path}: damaged at byte {offset} (line {index + 1}); restore it from a copy, or "
                "start again in a new folder"
            )
        offset += len(line)


def _is_json_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@cache
def _adapter() -> TypeAdapter[TrialRecord]:
    from pydantic import TypeAdapter

    return TypeAdapter(TrialRecord)


@cache
def _bounds_adapter() -> TypeAdapter[list[tuple[OuterChoice, float]]]:
    from pydantic import TypeAdapter

    return TypeAdapter(list[tuple[OuterChoice, float]])
