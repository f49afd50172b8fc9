"""Who evaluates what in a shared study: the trials in the database, seen as claims and records.

A running trial is a claim. A finished one holds a record, or was a claim that was withdrawn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dse.errors import StudyError
from dse.search._records import TrialStatus
from dse.search.storage._database import whole
from dse.search.storage._record_json import record_from_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from optuna.trial import FrozenTrial

    from dse.search._records import Params, TrialRecord
    from dse.workload import Parameter

#: Attributes of a trial: its parameters with the types that they have in the space, the run that
#: claimed it, and what came of it.
CHOICE_KEY = "parameters"
RUN_KEY = "run"
RECORD_KEY = "record"


class Claims:
    """Claims and records of a study, as of the last look at its trials.

    Args:
        place: Where the study is, for messages.
        parameters: Outer parameters; what others have written must be choices of theirs.
    """

    def __init__(self, place: str, parameters: Sequence[Parameter]) -> None:
        self._place = place
        self._allowed = [(one.name, frozenset(one.choices)) for one in parameters]
        self._choices: dict[int, Params] = {}
        self._runs: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._withdrawn: dict[int, Params] = {}
        self._finished: set[int] = set()
        self._records: dict[Params, TrialRecord] = {}
        self._evaluated_count = 0

    @property
    def evaluated_count(self) -> int:
        """Configurations that are evaluated, with whatever result."""
        return self._evaluated_count

    def update(self, trials: Iterable[FrozenTrial]) -> list[TrialRecord]:
        """Takes in all trials by number; returns records that are new.

        Raises:
            StudyError: A trial does not have the form that this version writes.
        """
        new = []
        for trial in trials:
            number = trial.number
            if number in self._finished:
                continue
            if number not in self._choices:
                self._choices[number] = self._choice(trial)
                self._runs[number] = int(trial.user_attrs.get(RUN_KEY, -1))
                self._numbers[trial._trial_id] = number
            if not trial.state.is_finished():
                self._open[number] = trial._trial_id
                continue
            self._open.pop(number, None)
            self._finished.add(number)
            if RECORD_KEY not in trial.user_attrs:
                self._withdrawn[number] = self._choices[number]
                continue
            record = self._record(trial)
            # Optuna keeps finished trials in memory; of the largest part, one copy is enough.
            trial.user_attrs = {}
            if self._counts(record):
                new.append(record)
        return new

    def records(self) -> tuple[TrialRecord, ...]:
        """Returns the record of every finished configuration by number."""
        return tuple(sorted(self._records.values(), key=lambda record: record.number))

    def record_of(self, choice: Params) -> TrialRecord | None:
        """Returns the record of a configuration, if it is finished."""
        return self._records.get(choice)

    def settled(self, choice: Params) -> bool:
        """Returns whether there is an answer; failed evaluations may be tried again."""
        record = self._records.get(choice)
        return record is not None and record.status is not TrialStatus.FAILED

    def number_of(self, trial_id: int) -> int:
        """Returns the number of a trial."""
        return self._numbers[trial_id]

    def run_of(self, number: int) -> int:
        """Returns the number of the run that claimed a trial."""
        return self._runs[number]

    def open_claims(self) -> dict[int, int]:
        """Returns the trial ids of claims by their numbers."""
        return dict(self._open)

    def choice_of(self, number: int) -> Params:
        """Returns the parameters of a trial."""
        return self._choices[number]

    def holds(self, number: int, total: int) -> bool:
        """Returns whether a claim holds.

        Args:
            number: Of the claim.
            total: Configurations that the study wants.
        """
        choice = self._choices[number]
        if number not in self._open or self.settled(choice):
            return False
        before = {self._choices[other] for other in self._open if other < number}
        if choice in before:
            return False
        open_count = sum(other not in self._records for other in before)
        # Trying a failed one again takes its own place.
        finished_count = self._evaluated_count - (choice in self._records)
        return open_count + finished_count < total

    def withdraw(self, number: int) -> None:
        """Notes that a claim was withdrawn."""
        if self._open.pop(number, None) is not None:
            self._finished.add(number)
            self._withdrawn[number] = self._choices[number]

    def orphans(self) -> tuple[Params, ...]:
        """Returns configurations that were claimed, and are neither finished nor claimed now."""
        for number in [one for one, choice in self._withdrawn.items() if choice in self._records]:
            del self._withdrawn[number]
        claimed = {self._choices[number] for number in self._open}
        found = {self._withdrawn[number]: None for number in sorted(self._withdrawn)}
        return tuple(choice for choice in found if choice not in claimed)

    def withdrawn_by(self, runs: Collection[int]) -> set[Params]:
        """Returns configurations that were claimed by these runs and are not finished."""
        return {
            choice
            for number, choice in self._withdrawn.items()
            if self._runs[number] in runs and choice not in self._records
        }

    def _counts(self, record: TrialRecord) -> bool:
        """Takes in a record; returns whether it is the one that counts for its configuration.

        Two can only be there when a run that was taken for dead came back, or a failed evaluation
        was tried again.
        """
        former = self._records.get(record.parameters)
        if former is not None:
            if former.status is not TrialStatus.FAILED:
                return False
            self._evaluated_count -= 1
        self._records[record.parameters] = record
        # A trace may refuse a change only when it is tried; that is no evaluation either.
        self._evaluated_count += record.status is not TrialStatus.REJECTED
        return True

    def _choice(self, trial: FrozenTrial) -> Params:
        try:
            pairs = whole(trial.user_attrs, CHOICE_KEY)
            choice = tuple((str(name), value) for name, value in pairs)
            known = all(
                name == wanted and value in choices
                for (name, value), (wanted, choices) in zip(choice, self._allowed, strict=True)
            )
        except (TypeError, ValueError):
            known = False
        if not known:
            raise StudyError(
                f"{self._place}: trial {trial.number} was not made by dse for this space; choose "
                "another --study-name"
            )
        return choice

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        try:
            record = record_from_json(whole(trial.user_attrs, RECORD_KEY))
            if record.parameters != self._choices[trial.number]:
                raise ValueError("it is of another configuration")  # noqa: TRY301
        except ValueError as error:
            raise StudyError(
                f"{self._place}: trial {trial.number} is not a record of this version of dse "
                f"({str(error).splitlines()[0]}); choose another --study-name"
            ) from None
        return replace(record, number=trial.number)
