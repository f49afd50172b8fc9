"""Storage of finished trials, as the loop of a run uses it.

There are two kinds: a journal file of one run (:class:`LocalStorage`), and a database that several
runs share (`_shared.py`). The loop proposes and evaluates; the storage returns what other runs
have finished, and which proposals are left to evaluate here under which numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search._proposals import Proposal
    from dse.search._records import Params, TrialRecord
    from dse.search.storage._journal import Journal


@dataclass(frozen=True, slots=True)
class StorageUpdate:
    """Progress of the other runs of a study.

    Attributes:
        records: Finished by others since the last update, by number.
        in_flight: Configurations that other runs are evaluating.
        abandoned: Configurations that were queued or started and that nobody is evaluating; the
            first run to claim them does.
        total: Configurations to evaluate in the whole study.
        complete: Whether that many are evaluated.
        runs: Runs that are working on the study, including this one.
    """

    records: tuple[TrialRecord, ...]
    in_flight: frozenset[Params]
    abandoned: tuple[Params, ...]
    total: int
    complete: bool
    runs: int


@dataclass(frozen=True, slots=True)
class ClaimedBatch:
    """The part of a batch of proposals that this run evaluates.

    Attributes:
        proposals: What to evaluate here, with its numbers in the study; the others are evaluated
            elsewhere, or are more than the study wants.
        rejections: Records of the rejected configurations, with their numbers in the study.
    """

    proposals: tuple[Proposal, ...]
    rejections: tuple[TrialRecord, ...]


class StudyStorage(ABC):
    """Keeps the finished trials of a study.

    Attributes:
        shared: Whether other runs may work on it at the same time.
    """

    shared = True

    @property
    @abstractmethod
    def stream(self) -> int:
        """Stream of random numbers of this run's sampler; 0 for the run that started the study."""

    @abstractmethod
    def former_records(self) -> tuple[TrialRecord, ...]:
        """Returns what earlier runs have finished and this run will propose again.

        Raises:
            StudyError: The records cannot be read.
        """

    @abstractmethod
    def update(self) -> StorageUpdate:
        """Returns what other runs have done since the last call.

        Raises:
            StudyError: The storage cannot be read.
        """

    @abstractmethod
    def claim(
        self, proposals: Sequence[Proposal], rejections: Sequence[TrialRecord]
    ) -> ClaimedBatch:
        """Keeps rejections, and claims the proposals that no other run has.

        Args:
            proposals: New configurations, numbered in the order of proposing.
            rejections: Configurations over a hard limit, numbered together with the proposals.

        Raises:
            StudyError: The storage cannot be written.
        """

    @abstractmethod
    def add(self, record: TrialRecord) -> bool:
        """Keeps the record of a claimed proposal.

        Returns:
            Whether it counts: False if this run was taken for dead and another one evaluates the
            configuration.

        Raises:
            StudyError: The storage cannot be written.
        """

    @abstractmethod
    def records(self, seen: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """Returns all records of the study.

        Args:
            seen: What this run has evaluated, rejected or received from others.

        Raises:
            StudyError: The storage cannot be read.
        """

    @abstractmethod
    def revise(self, record: TrialRecord) -> None:
        """Keeps a better answer to a configuration that has one, for the reader.

        The search itself goes on with the first answer, so that a study does not depend on where
        it was interrupted.

        Args:
            record: The answer, with the number of the first one.

        Raises:
            StudyError: The storage cannot be written.
        """

    @abstractmethod
    def revised(self) -> tuple[TrialRecord, ...]:
        """Returns the answers of :meth:`revise`, the last one last."""

    @abstractmethod
    def bounds(self) -> dict[Params, float]:
        """Returns lower bounds in seconds by the parameters of their configuration.

        Raises:
            StudyError: They were not written by this version of dse.
        """

    @abstractmethod
    def add_bounds(self, bounds: Mapping[Params, float]) -> None:
        """Adds lower bounds, in seconds.

        Raises:
            StudyError: The storage cannot be written.
        """

    @abstractmethod
    def wait(self) -> None:
        """Waits until other runs may have made progress."""


class LocalStorage(StudyStorage):
    """A journal file that one run at a time writes.

    Args:
        journal: The file.
        total: Configurations to evaluate.
    """

    shared = False

    def __init__(self, journal: Journal, total: int) -> None:
        self._journal = journal
        self._total = total
        self._revised = list(journal.revised())

    @property
    def stream(self) -> int:
        """The only one."""
        return 0

    def former_records(self) -> tuple[TrialRecord, ...]:
        """Returns the first answers in the file."""
        return self._journal.records()

    def update(self) -> StorageUpdate:
        """Returns that there are no other runs."""
        return StorageUpdate((), frozenset(), (), self._total, complete=False, runs=1)

    def claim(
        self, proposals: Sequence[Proposal], rejections: Sequence[TrialRecord]
    ) -> ClaimedBatch:
        """Keeps rejections; everything is evaluated here."""
        self._journal.add(*rejections)
        return ClaimedBatch(tuple(proposals), tuple(rejections))

    def add(self, record: TrialRecord) -> bool:
        """Appends a record; it always counts."""
        self._journal.add(record)
        return True

    def records(self, seen: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """Returns what this run has seen, which includes the records of earlier runs."""
        return tuple(seen)

    def revise(self, record: TrialRecord) -> None:
        """Appends a better answer."""
        self._journal.add(record)
        self._revised.append(record)

    def revised(self) -> tuple[TrialRecord, ...]:
        """Returns the better answers in the file."""
        return tuple(self._revised)

    def bounds(self) -> dict[Params, float]:
        """Returns the lower bounds in the file."""
        return self._journal.bounds()

    def add_bounds(self, bounds: Mapping[Params, float]) -> None:
        """Appends lower bounds."""
        self._journal.add_bounds(bounds)

    def wait(self) -> None:
        """Returns at once: there are no other runs."""
