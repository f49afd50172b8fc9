"""Journal of a study: an Optuna journal file that gains one line for each finished trial.

Each evaluated or rejected configuration is one Optuna trial whose user attribute ``record`` holds
the whole record as JSON, so the file can be opened with any Optuna tool and `--resume` finds
everything again. Trials are added when they are finished; a kill loses at most those in flight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse._io.writing import fsync_folder, unwritable
from dse.errors import StudyError
from dse.search.storage._journal_backend import JournalBackend, stored_records
from dse.search.storage._journal_line import CREATE_STUDY, RECORD_KEY, STATUS_KEY
from dse.search.storage._journal_repair import JournalDamage, drop_damage, repair_journal
from dse.search.storage._record_json import (
    bounds_from_json,
    bounds_to_json,
    optuna_values,
    record_from_json,
    record_to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from optuna.study import StudyDirection

    from dse.search._records import Params, TrialRecord
    from dse.search.space import Objective
    from dse.workload import Parameter

_STUDY_NAME = "dse"
_BOUNDS_KEY = "lower_bounds_s"


class Journal:
    """Finished trials on disk.

    Args:
        path: The journal file.
        objectives: Axes of the front.
        parameters: Outer parameters.
        create: Start the file when it is missing, and append to it, which only the holder of the
            folder's lock may do; otherwise it is only read.
        repair: Drop damaged lines; otherwise they are refused.

    Attributes:
        dropped: The damaged lines that were dropped.

    Raises:
        StudyError: The file is damaged or cannot be written. A torn last line, which a kill in the
            middle of a write leaves behind, is cut off instead, or passed over where the file is
            only read.
    """

    def __init__(
        self,
        path: Path,
        objectives: Sequence[Objective],
        parameters: Sequence[Parameter],
        *,
        create: bool = False,
        repair: bool = False,
    ) -> None:
        import optuna
        from optuna.storages import JournalStorage

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._path = path
        self._objectives = objectives
        self.dropped: tuple[JournalDamage, ...] = ()
        either = optuna.study.StudyDirection
        directions = [either.MAXIMIZE if axis.maximize else either.MINIMIZE for axis in objectives]
        fixed = optuna.distributions.CategoricalDistribution
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            parameter.name: fixed(parameter.choices) for parameter in parameters
        }
        try:
            if create and repair:
                self.dropped = drop_damage(path, _start(directions))
            if create:
                repair_journal(path)
            self._backend = JournalBackend(path, append=create)
            storage = JournalStorage(self._backend)  # type: ignore[arg-type]
            known = optuna.get_all_study_names(storage)
            if _STUDY_NAME in known:
                self._study = optuna.load_study(study_name=_STUDY_NAME, storage=storage)
            elif create:
                self._study = optuna.create_study(
                    study_name=_STUDY_NAME,
                    storage=storage,
                    directions=directions,
                )
                fsync_folder(path.parent)
            else:
                raise StudyError(f"{path}: the journal is empty; continue the run with --resume")
        except OSError as error:
            raise unwritable(path, error) from error
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            raise StudyError(
                f"{path}: not a readable study journal ({error}); restore it from a copy or start "
                "again in a new folder"
            ) from error

    def add(self, *records: TrialRecord) -> None:
        """Appends finished records; they are on the disk when it returns."""
        import optuna

        state = optuna.trial.TrialState
        try:
            with self._backend.together():
                for record in records:
                    values = optuna_values(record, len(self._objectives))
                    self._study.add_trial(
                        optuna.create_trial(
                            state=state.FAIL if values is None else state.COMPLETE,
                            values=values,
                            params=dict(record.parameters),
                            distributions=self._distributions,
                            user_attrs={
                                STATUS_KEY: record.status.value,
                                RECORD_KEY: record_to_json(record),
                            },
                        )
                    )
        except OSError as error:
            raise unwritable(self._path, error) from error

    def add_bounds(self, bounds: Mapping[Params, float]) -> None:
        """Adds lower bounds.

        Args:
            bounds: Seconds by the parameters of the configuration.
        """
        if not bounds:
            return
        kept = {**self.bounds(), **bounds}
        try:
            self._study.set_user_attr(_BOUNDS_KEY, bounds_to_json(kept))
        except OSError as error:
            raise unwritable(self._path, error) from error

    def bounds(self) -> dict[Params, float]:
        """Returns lower bounds in seconds by the parameters of their configuration.

        Raises:
            StudyError: They do not have the form this version writes.
        """
        stored = self._study.user_attrs.get(_BOUNDS_KEY, [])
        try:
            return bounds_from_json(stored)
        except ValueError as error:
            raise StudyError(
                f"{self._path}: the lower bounds are not those of this version of dse "
                f"({str(error).splitlines()[0]}); run the study again in a new folder"
            ) from error

    def records(self) -> tuple[TrialRecord, ...]:
        """Returns all finished records in the order in which they finished.

        A configuration that failed and was evaluated again counts once, with its last answer. Of
        one that got a better plan afterwards, that is the answer before, if there is one. Earlier
        versions gave a number twice where a study was continued with more trials; the later
        configuration gets the next free one.

        Raises:
            StudyError: A record does not have the form this version writes.
        """
        found: dict[Params, TrialRecord] = {}
        for record in self._all():
            if not record.revised or record.parameters not in found:
                found[record.parameters] = record
        numbered: dict[int, TrialRecord] = {}
        for record in found.values():
            number = 1 + max(numbered) if record.number in numbered else record.number
            numbered[number] = replace(record, number=number)
        return tuple(numbered.values())

    def revised(self) -> tuple[TrialRecord, ...]:
        """Returns later answers to some of them, with better plans; see :meth:`records`."""
        return tuple(record for record in self._all() if record.revised)

    def _all(self) -> Iterator[TrialRecord]:
        for number, stored in enumerate(stored_records(self._path)):
            try:
                record = record_from_json(stored)
            except ValueError as error:
                raise StudyError(
                    f"{self._path}: trial {number} is not a record of this version of dse "
                    f"({str(error).splitlines()[0]}); run the study again in a new folder"
                ) from error
            yield record


def _start(directions: Sequence[StudyDirection]) -> dict[str, object]:
    """Returns the operation that creates the study, as Optuna writes it."""
    return {
        "op_code": CREATE_STUDY,
        "worker_id": "repair",
        "study_name": _STUDY_NAME,
        "directions": directions,
    }
