"""A study in a database that several runs work on at the same time.

A proposal is *claimed* before it is evaluated: a running trial with its parameters. Whoever has
created one sees all that came before (`_storage_database.py`), so two rules need no lock. Of two
claims of one configuration the one with the lower number holds; and a claim holds only while fewer
configurations with lower numbers are claimed or finished than the study wants. All others are
withdrawn. So nothing is evaluated twice, and exactly as much is evaluated as is wanted.

Claims of a run that ended or died (`_storage_runs.py`) are withdrawn by those that are still
there, and what was claimed is evaluated by whoever claims it first.
"""

from __future__ import annotations

from dataclasses import replace
import time
from typing import TYPE_CHECKING

from dse.errors import StudyError
from dse.search._records import TrialRecord, TrialStatus
from dse.search.storage._claims import CHOICE_KEY, RECORD_KEY, RUN_KEY, Claims
from dse.search.storage._database import pieces, whole
from dse.search.storage._record_json import (
    bounds_from_json,
    bounds_to_json,
    optuna_values,
    record_to_json,
)
from dse.search.storage._storage import Entered, News, StudyStorage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optuna.trial import FrozenTrial

    from dse.search._header import StudyHeader
    from dse.search._records import Params
    from dse.search.propose._proposer import Proposal
    from dse.search.storage._database import StudyTables
    from dse.search.storage._journal import Journal
    from dse.search.storage._runs import Runs
    from dse.search.storage._url import StorageUrl

#: Seconds between two looks while others are at the last configurations.
_POLL_S = 0.5

#: Attribute of the study: how many configurations it wants.
TOTAL_KEY = "trials"

_BOUNDS_KEY = "lower_bounds_s"


class SharedStorage(StudyStorage):
    """Finished trials of all runs of a study, in a database.

    Args:
        tables: The study in the database.
        url: Where the database is, for messages.
        runs: The runs of the study.
        header: What the study was started with.
        copy: Journal in the study folder that gets everything too, so that the folder can be read
            without the database.

    Raises:
        StudyError: The database cannot be read.
    """

    def __init__(
        self,
        tables: StudyTables,
        url: StorageUrl,
        runs: Runs,
        header: StudyHeader,
        copy: Journal,
    ) -> None:
        self._tables = tables
        self._place = url.shown
        self._runs = runs
        self._header = header
        self._copy = copy
        self._copied = {record.parameters: _mark(record) for record in copy.records()}
        self._claims = Claims(url.shown, header.parameters)
        self._own: dict[int, int] = {}
        self._new: list[TrialRecord] = []
        self._told: set[Params] = set()
        self._finished_count = 0
        self._refresh()
        runs.look(now=True)
        self._free_gone()
        former = runs.of_stream(runs.stream)
        self._former = tuple(
            record
            for record in self._claims.records()
            if self._claims.run_of(record.number) in former
        )
        self._told.update(record.parameters for record in self._former)
        # What a killed run of this stream had claimed is asked again by the same sampler.
        self._asked_again = self._claims.withdrawn_by(former)

    @property
    def stream(self) -> int:
        """The order of joining; of a continued run, that of the run that it continues."""
        return self._runs.stream

    @property
    def shared(self) -> bool:
        """It is."""
        return True

    @property
    def finished_count(self) -> int:
        """Configurations that this run has evaluated."""
        return self._finished_count

    def former_records(self) -> tuple[TrialRecord, ...]:
        """Returns what earlier runs of the same stream have finished."""
        return self._former

    def news(self) -> News:
        """Returns what other runs have finished, claimed and given up."""
        self._runs.look()
        self._refresh()
        self._free_gone()
        new = [record for record in self._new if record.parameters not in self._told]
        new.sort(key=lambda record: record.number)
        self._new = []
        self._told.update(record.parameters for record in new)
        total = self._total()
        claims = self._claims.open_claims()
        return News(
            records=tuple(new),
            busy=frozenset(self._claims.choice_of(number) for number in claims),
            orphans=tuple(
                choice for choice in self._claims.orphans() if choice not in self._asked_again
            ),
            total=total,
            complete=self._claims.evaluated_count >= total,
            runs=1 + self._runs.others_count,
        )

    def enter(self, proposals: Sequence[Proposal], rejections: Sequence[TrialRecord]) -> Entered:
        """Claims proposals and keeps rejections, in the order of asking; see the module's text."""
        claimed: dict[int, Proposal] = {}
        both: list[Proposal | TrialRecord] = [*proposals, *rejections]
        for one in sorted(both, key=lambda one: one.number):
            if self._claims.settled(one.parameters):
                continue
            if isinstance(one, TrialRecord):
                self._tables.create(self._template(one.parameters, one))
            else:
                claimed[self._tables.create(self._template(one.parameters, None))] = one
        self._refresh()
        total = self._total()
        taken = []
        for trial_id, proposal in sorted(claimed.items()):
            number = self._claims.number_of(trial_id)
            if self._claims.holds(number, total):
                self._own[number] = trial_id
                taken.append(replace(proposal, number=number))
            else:
                self._withdraw(number, trial_id)
        found = [self._claims.record_of(record.parameters) for record in rejections]
        rejected = tuple(record for record in found if record is not None)
        self._told.update(record.parameters for record in rejected)
        return Entered(tuple(taken), rejected)

    def add(self, record: TrialRecord) -> bool:
        """Keeps the record of a claimed proposal."""
        import optuna

        trial_id = self._own.pop(record.number)
        values = optuna_values(record, len(self._header.objectives))
        states = optuna.trial.TrialState
        kept = self._tables.set_trial_attribute(trial_id, RECORD_KEY, record_to_json(record))
        if not kept or not self._tables.finish(
            trial_id, states.FAIL if values is None else states.COMPLETE, values
        ):
            return False
        self._told.add(record.parameters)
        self._finished_count += record.evaluated
        return True

    def renumbered(self, record: TrialRecord, number: int) -> TrialRecord:
        """Returns it as it is: numbers of a shared study do not change."""
        return record

    def records(self, seen: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """Returns all records of the study, whoever evaluated them."""
        self._refresh()
        return self._claims.records()

    def bounds(self) -> dict[Params, float]:
        """Returns the lower bounds in the database."""
        try:
            return bounds_from_json(whole(self._tables.attributes(), _BOUNDS_KEY) or [])
        except ValueError as error:
            raise StudyError(
                f"{self._place}: the lower bounds are not those of this version of dse "
                f"({str(error).splitlines()[0]}); choose another --study-name"
            ) from None

    def add_bounds(self, bounds: Mapping[Params, float]) -> None:
        """Keeps lower bounds in the database and in the copy."""
        kept = {**self.bounds(), **bounds}
        if bounds:
            self._tables.set_attribute(_BOUNDS_KEY, bounds_to_json(kept))
        known = self._copy.bounds()
        self._copy.add_bounds({choice: kept[choice] for choice in kept if choice not in known})

    def wait(self) -> None:
        """Waits a moment."""
        time.sleep(_POLL_S)

    def give_up(self) -> None:
        """Withdraws what was claimed and is not finished."""
        for number, trial_id in self._own.items():
            self._withdraw(number, trial_id)
        self._own = {}

    def _total(self) -> int:
        return int(self._tables.attributes().get(TOTAL_KEY, self._header.trials))

    def _refresh(self) -> None:
        """Reads what is new in the database, and copies it to the folder."""
        new = self._claims.update(self._tables.trials())
        for record in new:
            if self._copied.get(record.parameters) != _mark(record):
                self._copied[record.parameters] = _mark(record)
                self._copy.add(record)
        self._new += new

    def _free_gone(self) -> None:
        """Withdraws the claims of runs that have ended or died."""
        for number, trial_id in self._claims.open_claims().items():
            if self._runs.is_gone(self._claims.run_of(number)):
                self._withdraw(number, trial_id)

    def _withdraw(self, number: int, trial_id: int) -> None:
        import optuna

        # If somebody else has ended it, the next look shows what became of it.
        if self._tables.finish(trial_id, optuna.trial.TrialState.FAIL):
            self._claims.withdraw(number)

    def _template(self, choice: Params, record: TrialRecord | None) -> FrozenTrial:
        """Returns a trial to create: a claim, or a configuration that is finished."""
        import optuna

        attributes = {
            **pieces(CHOICE_KEY, [list(pair) for pair in choice]),
            RUN_KEY: self._runs.number,
        }
        if record is not None:
            attributes |= pieces(RECORD_KEY, record_to_json(record))
        states = optuna.trial.TrialState
        fixed = optuna.distributions.CategoricalDistribution
        # For Optuna's own tools. Each costs a few statements under the lock of the study, so
        # those that never vary are left out.
        chosen: dict[str, optuna.distributions.BaseDistribution] = {
            parameter.name: fixed(parameter.choices)
            for parameter in self._header.parameters
            if len(parameter.choices) > 1
        }
        return optuna.create_trial(
            state=states.RUNNING if record is None else states.FAIL,
            params={name: value for name, value in choice if name in chosen},
            distributions=chosen,
            user_attrs=attributes,
        )


def _mark(record: TrialRecord) -> tuple[int, TrialStatus]:
    """Returns what tells records of one configuration apart."""
    return record.number, record.status
