"""Failed evaluations: when they end a run, and their text for `failures.txt`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import WorkerError
from dse.search._records import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.search._records import TrialRecord

#: Evaluations, all of them failed, after which a run gives up: the fault is not one of a single
#: configuration.
MAX_FAILED_FIRST = 20


class FailureWatch:
    """Ends a run when all of its evaluations fail.

    Args:
        debug: Whether the first failure ends the run.
    """

    def __init__(self, *, debug: bool = False) -> None:
        self._debug = debug
        self._first: TrialRecord | None = None
        self._failed = 0
        self._any_answer = False

    def note(self, record: TrialRecord) -> None:
        """Adds an answer.

        Raises:
            WorkerError: Too many evaluations have failed; with debug, the message has the
                traceback of the first one.
        """
        if record.status is not TrialStatus.FAILED:
            self._any_answer = self._any_answer or record.status is not TrialStatus.REJECTED
            return
        if self._debug:
            raise WorkerError(
                f"trial {record.number} ({_text(record)}) failed: {record.reason}\n"
                f"{record.traceback}".rstrip()
            )
        self._failed += 1
        self._first = self._first or record
        if self._failed >= MAX_FAILED_FIRST and not self._any_answer:
            first = self._first
            raise WorkerError(
                f"the first {self._failed} evaluations all failed, trial {first.number} "
                f"({_text(first)}) with: {first.reason}; `dse --debug run …` stops at the "
                "first one with its traceback"
            )


def failures_text(records: Iterable[TrialRecord]) -> str:
    """Returns all failed configurations for reading: parameters, reason, traceback.

    Args:
        records: Trials of a study; empty text when none of them failed.
    """
    return "\n".join(
        f"trial {record.number}: {_text(record)}\n{record.reason}\n{record.traceback}"
        for record in records
        if record.status is TrialStatus.FAILED
    )


def _text(record: TrialRecord) -> str:
    return ", ".join(f"{name}={value}" for name, value in record.parameters)
