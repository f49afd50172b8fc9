"""A study in a database that several runs work on at the same time.

A proposal becomes a trial that waits, and is evaluated by the run that starts it. Two rules need
no lock, since a run that has created a trial sees all trials before it: of two trials of one
configuration that are not finished, only the one with the lower number may start; and a trial may
start only while fewer configurations before it are open or finished than the study wants. The run
that created any other trial withdraws it. So no configuration is evaluated twice, and exactly as
many are evaluated as are wanted.

Trials of a run that was interrupted or died are queued again, by itself or by Optuna once their
heartbeat has stopped, and the first run to start them evaluates them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
import os
import socket
import threading
import time
from typing import TYPE_CHECKING
import uuid

from dse.errors import DseError, StudyError
from dse.search._records import TrialRecord, TrialStatus
from dse.search.storage._database import HEARTBEAT_S, pieces, whole
from dse.search.storage._record_json import (
    bounds_from_json,
    bounds_to_json,
    optuna_values,
    record_from_json,
    record_to_json,
)
from dse.search.storage._storage import ClaimedBatch, StorageUpdate, StudyStorage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optuna.trial import FrozenTrial

    from dse.search._header import StudyHeader
    from dse.search._proposals import Proposal
    from dse.search._records import Params
    from dse.search.storage._database import StudyTables
    from dse.search.storage._journal import Journal

#: Seconds between two looks while other runs evaluate the last configurations.
_POLL_S = 0.5

#: Attribute of the study: how many configurations it wants.
TOTAL_KEY = "trials"

#: Attributes of a trial: its parameters with the types that they have in the space, the run that
#: created it, and its record.
PARAMETERS_KEY = "parameters"
RUN_KEY = "run"
RECORD_KEY = "record"

_BOUNDS_KEY = "lower_bounds_s"


class SharedStorage(StudyStorage):
    """Finished trials of all runs of a study, in a database.

    A context manager: it sends the heartbeats of the trials that this run has started, and queues
    those that are not finished again when it ends.

    Args:
        tables: The study in the database.
        header: What the study was started with.
        copy: Journal in the study folder that gets everything too, so that the folder can be read
            without the database.
        retry_failed: Whether configurations that failed are queued again.

    Raises:
        StudyError: The database cannot be read.
    """

    def __init__(
        self,
        tables: StudyTables,
        header: StudyHeader,
        copy: Journal,
        *,
        retry_failed: bool = False,
    ) -> None:
        self._tables = tables
        self._header = header
        self._copy = copy
        self._copied = {record.parameters: _mark(record) for record in copy.records()}
        self._revised = list(copy.revised())
        self._allowed = [(each.name, frozenset(each.choices)) for each in header.parameters]
        self._run = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex[:8]}"
        self._params: dict[int, Params] = {}
        self._open: dict[int, FrozenTrial] = {}
        self._finished: set[int] = set()
        self._records: dict[Params, TrialRecord] = {}
        self._new: dict[Params, TrialRecord] = {}
        self._reported: set[Params] = set()
        self._own: dict[int, int] = {}
        self._checked_s = -float("inf")
        self._stop = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, name="dse heartbeat", daemon=True)
        self._refresh()
        if retry_failed:
            for record in self.records(()):
                if record.status is TrialStatus.FAILED:
                    self._create(record.parameters)
            self._refresh()

    def __enter__(self) -> SharedStorage:
        """Starts the heartbeat."""
        self._heartbeat.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Ends the heartbeat and queues unfinished trials again."""
        self._stop.set()
        self._heartbeat.join()
        # Without the database, other runs take over when the heartbeat has stopped for a while.
        with suppress(DseError):
            self._refresh()
            for number, trial_id in self._own.items():
                if number in self._open and self._withdraw(trial_id):
                    self._create(self._params[number])

    @property
    def stream(self) -> int:
        """Drawn at random when the run joined; 0 for the run that started the study."""
        return 0 if self._header.storage is None else self._header.storage.stream

    def former_records(self) -> tuple[TrialRecord, ...]:
        """Returns nothing: what is finished comes with the first update, from every run."""
        return ()

    def update(self) -> StorageUpdate:
        """Returns what other runs have finished, started and abandoned."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= HEARTBEAT_S:
            self._checked_s = now_s
            self._tables.requeue_stale()
        self._refresh()
        # A failed configuration that is tried again has no answer yet.
        retried = {self._params[number] for number in self._open}
        known = self._reported | retried
        new = [record for params, record in self._new.items() if params not in known]
        self._new = {}
        self._reported.update(record.parameters for record in new)
        running = {number for number, trial in self._open.items() if _is_running(trial)}
        in_flight = frozenset(self._params[number] for number in running)
        waiting = {self._params[number]: None for number in sorted(self._open)}
        total = self._total()
        return StorageUpdate(
            records=tuple(sorted(new, key=lambda record: record.number)),
            in_flight=in_flight,
            abandoned=tuple(
                params
                for params in waiting
                if params not in in_flight and not self._settled(params)
            ),
            total=total,
            complete=self._evaluated_count() >= total,
            runs=len(
                {self._open[number].user_attrs.get(RUN_KEY) for number in running} | {self._run}
            ),
        )

    def claim(
        self, proposals: Sequence[Proposal], rejections: Sequence[TrialRecord]
    ) -> ClaimedBatch:
        """Starts trials and keeps rejections, in the order of proposing; see the module's text."""
        waiting = {
            self._params[number]: number
            for number, trial in sorted(self._open.items(), reverse=True)
            if not _is_running(trial)
        }
        wanted: dict[int, Proposal] = {}
        created = set()
        both: list[Proposal | TrialRecord] = [*proposals, *rejections]
        for item in sorted(both, key=lambda item: item.number):
            if self._settled(item.parameters):
                continue
            if isinstance(item, TrialRecord):
                self._create(item.parameters, item)
            elif item.parameters in waiting:
                wanted[self._open[waiting[item.parameters]]._trial_id] = item
            else:
                trial_id = self._create(item.parameters)
                created.add(trial_id)
                wanted[trial_id] = item
        self._refresh()
        total = self._total()
        taken = []
        for number, trial in sorted(self._open.items()):
            proposal = wanted.get(trial._trial_id)
            if proposal is None or _is_running(trial):
                continue
            if not self._may_start(number, total):
                if trial._trial_id in created:
                    self._withdraw(trial._trial_id)
                    del self._open[number]
            elif self._tables.start(trial._trial_id):
                if trial._trial_id not in created:
                    self._tables.set_trial_attribute(trial._trial_id, RUN_KEY, self._run)
                self._own[number] = trial._trial_id
                taken.append(replace(proposal, number=number))
        found = [self._records.get(record.parameters) for record in rejections]
        rejected = tuple(record for record in found if record is not None)
        self._reported.update(record.parameters for record in rejected)
        return ClaimedBatch(tuple(taken), rejected)

    def add(self, record: TrialRecord) -> bool:
        """Keeps the record of a trial that this run has started."""
        from optuna.trial import TrialState

        trial_id = self._own[record.number]
        values = optuna_values(record, len(self._header.objectives))
        state = TrialState.FAIL if values is None else TrialState.COMPLETE
        kept = self._tables.set_trial_attribute(
            trial_id, RECORD_KEY, record_to_json(record)
        ) and self._tables.finish(trial_id, state, values)
        del self._own[record.number]
        if kept:
            self._reported.add(record.parameters)
        return kept

    def records(self, seen: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """Returns the records of all runs by number."""
        self._refresh()
        return tuple(sorted(self._records.values(), key=lambda record: record.number))

    def revise(self, record: TrialRecord) -> None:
        """Keeps a better answer in the folder; every run finds the same ones for itself."""
        self._copy.add(record)
        self._revised.append(record)

    def revised(self) -> tuple[TrialRecord, ...]:
        """Returns the better answers in the folder."""
        return tuple(self._revised)

    def bounds(self) -> dict[Params, float]:
        """Returns the lower bounds in the database."""
        try:
            return bounds_from_json(whole(self._tables.attributes(), _BOUNDS_KEY) or [])
        except ValueError as error:
            raise self._foreign("the lower bounds are", error) from None

    def add_bounds(self, bounds: Mapping[Params, float]) -> None:
        """Adds lower bounds to the database and to the copy."""
        kept = {**self.bounds(), **bounds}
        if bounds:
            self._tables.set_attribute(_BOUNDS_KEY, bounds_to_json(kept))
        known = self._copy.bounds()
        new = {params: kept[params] for params in kept if kept[params] != known.get(params)}
        self._copy.add_bounds(new)

    def wait(self) -> None:
        """Waits a moment."""
        time.sleep(_POLL_S)

    def _total(self) -> int:
        return int(self._tables.attributes().get(TOTAL_KEY, self._header.trials))

    def _settled(self, params: Params) -> bool:
        """Returns whether a configuration has an answer; failed ones may be tried again."""
        record = self._records.get(params)
        return record is not None and record.status is not TrialStatus.FAILED

    def _evaluated_count(self, unless: frozenset[Params] | None = None) -> int:
        """Returns how many configurations are evaluated and not about to be tried again.

        Args:
            unless: Configurations not to count; None for all that are open.
        """
        if unless is None:
            unless = frozenset(self._params[number] for number in self._open)
        # A trace may refuse a change only when it is tried; that is no evaluation either.
        return sum(
            record.status is not TrialStatus.REJECTED
            and (params not in unless or self._settled(params))
            for params, record in self._records.items()
        )

    def _may_start(self, number: int, total: int) -> bool:
        """Returns whether the rules of this module allow to start a trial."""
        params = self._params[number]
        before = frozenset(self._params[other] for other in self._open if other < number)
        before = frozenset(other for other in before if not self._settled(other))
        if params in before or self._settled(params):
            return False
        return len(before) + self._evaluated_count(before | {params}) < total

    def _refresh(self) -> None:
        """Reads what is new in the database, and copies records to the folder.

        Raises:
            StudyError: A trial was not written by this version of dse for this space.
        """
        for trial in self._tables.trials():
            number = trial.number
            if number in self._finished:
                continue
            if number not in self._params:
                self._params[number] = self._params_of(trial)
            if not trial.state.is_finished():
                self._open[number] = trial
                continue
            self._open.pop(number, None)
            self._finished.add(number)
            if RECORD_KEY in trial.user_attrs:
                self._take(self._record_of(trial))
                # Optuna keeps finished trials in memory; one copy of the record is enough.
                trial.user_attrs = {}

    def _take(self, record: TrialRecord) -> None:
        """Notes a record unless its configuration had an answer before."""
        if self._settled(record.parameters):
            return
        self._records[record.parameters] = record
        self._new[record.parameters] = record
        if self._copied.get(record.parameters) != _mark(record):
            self._copied[record.parameters] = _mark(record)
            self._copy.add(record)

    def _withdraw(self, trial_id: int) -> bool:
        from optuna.trial import TrialState

        return self._tables.finish(trial_id, TrialState.FAIL)

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            # The run itself meets the same error and reports it.
            with suppress(DseError):
                for trial_id in list(self._own.values()):
                    self._tables.beat(trial_id)
        self._tables.end_thread()

    def _create(self, params: Params, record: TrialRecord | None = None) -> int:
        """Creates a trial that waits, or one that is finished with a record; returns its id."""
        import optuna

        states = optuna.trial.TrialState
        attributes = {
            **pieces(PARAMETERS_KEY, [list(pair) for pair in params]),
            RUN_KEY: self._run,
        }
        if record is not None:
            attributes |= pieces(RECORD_KEY, record_to_json(record))
        # For Optuna's own tools. Each costs a few statements under the lock of the study, so
        # parameters that never vary are left out.
        chosen: dict[str, optuna.distributions.BaseDistribution] = {
            parameter.name: optuna.distributions.CategoricalDistribution(parameter.choices)
            for parameter in self._header.parameters
            if len(parameter.choices) > 1
        }
        template = optuna.create_trial(
            state=states.WAITING if record is None else states.FAIL,
            params={name: value for name, value in params if name in chosen},
            distributions=chosen,
            user_attrs=attributes,
        )
        return self._tables.create(template)

    def _params_of(self, trial: FrozenTrial) -> Params:
        try:
            params = tuple(
                (str(name), value) for name, value in whole(trial.user_attrs, PARAMETERS_KEY)
            )
            known = all(
                name == wanted and value in choices
                for (name, value), (wanted, choices) in zip(params, self._allowed, strict=True)
            )
        except (TypeError, ValueError):
            known = False
        if not known:
            raise StudyError(
                f"{self._tables.url.shown}: trial {trial.number} was not made by dse for this "
                "space; choose another --study-name"
            )
        return params

    def _record_of(self, trial: FrozenTrial) -> TrialRecord:
        try:
            record = record_from_json(whole(trial.user_attrs, RECORD_KEY))
            if record.parameters != self._params[trial.number]:
                raise ValueError("it is of another configuration")  # noqa: TRY301
        except ValueError as error:
            raise self._foreign(f"trial {trial.number} is not a record", error) from None
        return replace(record, number=trial.number)

    def _foreign(self, what: str, error: ValueError) -> StudyError:
        return StudyError(
            f"{self._tables.url.shown}: {what} of this version of dse "
            f"({str(error).splitlines()[0]}); choose another --study-name"
        )


def _is_running(trial: FrozenTrial) -> bool:
    return trial.state.name == "RUNNING"


def _mark(record: TrialRecord) -> tuple[int, TrialStatus]:
    """Returns what distinguishes records of one configuration."""
    return record.number, record.status
