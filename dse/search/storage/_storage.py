"""Where the finished trials of a study are kept, as the loop of a run sees it.

Two kinds: a journal file of one run (:class:`LocalStorage`), and a database that several runs
share (`_shared.py`). The loop asks the sampler and evaluates; the storage says what others
have finished, which proposals are left to evaluate here, and under which numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search._records import Params, TrialRecord
    from dse.search.propose._proposer import Proposal
    from dse.search.storage._journal import Journal


@dataclass(frozen=True, slots=True)
class News:
    """What the others of a study have done.

    Attributes:
        records: Finished elsewhere since the last look, in the order of their numbers.
        busy: Being evaluated elsewhere.
        orphans: Begun elsewhere and given up; whoever comes first evaluates them.
        total: Configurations to evaluate in the whole study.
        complete: Whether as many are evaluated.
        runs: Runs that work on the study now, this one included.
    """

    records: tuple[TrialRecord, ...]
    busy: frozenset[Params]
    orphans: tuple[Params, ...]
    total: int
    complete: bool
    runs: int


@dataclass(frozen=True, slots=True)
class Entered:
    """What became of a round of proposals.

    Attributes:
        proposals: Those to evaluate here, with their numbers in the study; the others are
            evaluated elsewhere, or are more than the study wants.
        rejections: Records of the rejected configurations, with their numbers in the study.
    """

    proposals: tuple[Proposal, ...]
    rejections: tuple[TrialRecord, ...]


class StudyStorage(ABC):
    """Keeps the finished trials of a study."""

    @property
    @abstractmethod
    def stream(self) -> int:
        """Which stream of random numbers the sampler of this run takes; 0 for the first run."""

    @property
    @abstractmethod
    def shared(self) -> bool:
        """Whether other runs may work on the study at the same time."""

    @abstractmethod
    def former_records(self) -> tuple[TrialRecord, ...]:
        """Returns what earlier runs of the same stream have finished.

        Raises:
            StudyError: They cannot be read.
        """

    @abstractmethod
    def news(self) -> News:
        """Returns what others have done since the last call.

        Raises:
            StudyError: It cannot be read.
        """

    @abstractmethod
    def enter(self, proposals: Sequence[Proposal], rejections: Sequence[TrialRecord]) -> Entered:
        """Keeps rejections, and takes proposals that nobody else has for evaluation here.

        Args:
            proposals: New configurations, numbered in the order of asking.
            rejections: Configurations over a hard limit, numbered together with the proposals.

        Raises:
            StudyError: They cannot be written.
        """

    @abstractmethod
    def add(self, record: TrialRecord) -> bool:
        """Keeps the record of a proposal that was taken.

        Returns:
            Whether it counts; not so when this run was taken for dead and another one evaluates
            the configuration again.

        Raises:
            StudyError: It cannot be written.
        """

    @abstractmethod
    def renumbered(self, record: TrialRecord, number: int) -> TrialRecord:
        """Returns a former record as it counts for the study when it is proposed again.

        Args:
            record: What was finished before.
            number: Position among all proposals and rejections of this run.
        """

    @abstractmethod
    def records(self, seen: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """Returns all records of the study.

        Args:
            seen: What this run has evaluated, rejected or was told of.

        Raises:
            StudyError: They cannot be read.
        """

    @abstractmethod
    def bounds(self) -> dict[Params, float]:
        """Returns lower bounds in seconds by the parameters of their configuration.

        Raises:
            StudyError: They do not have the form that this version writes.
        """

    @abstractmethod
    def add_bounds(self, bounds: Mapping[Params, float]) -> None:
        """Keeps lower bounds, in seconds, beside those that are there.

        Raises:
            StudyError: They cannot be written.
        """

    @abstractmethod
    def wait(self) -> None:
        """Waits until there may be news."""


class LocalStorage(StudyStorage):
    """A journal file that one run at a time writes.

    Args:
        journal: The file.
        total: Configurations to evaluate.
    """

    def __init__(self, journal: Journal, total: int) -> None:
        self._journal = journal
        self._total = total

    @property
    def stream(self) -> int:
        """The only one."""
        return 0

    @property
    def shared(self) -> bool:
        """It is not."""
        return False

    def former_records(self) -> tuple[TrialRecord, ...]:
        """Returns all that is in the file."""
        return self._journal.records()

    def news(self) -> News:
        """Returns that there are none."""
        return News((), frozenset(), (), self._total, complete=False, runs=1)

    def enter(self, proposals: Sequence[Proposal], rejections: Sequence[TrialRecord]) -> Entered:
        """Keeps rejections; everything is evaluated here."""
        for record in rejections:
            self._journal.add(record)
        return Entered(tuple(proposals), tuple(rejections))

    def add(self, record: TrialRecord) -> bool:
        """Appends a record; it always counts."""
        self._journal.add(record)
        return True

    def renumbered(self, record: TrialRecord, number: int) -> TrialRecord:
        """Numbers it by its position in this run, as if there had been no interruption."""
        return replace(record, number=number)

    def records(self, seen: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """Returns what this run has seen; a run goes through all that former runs did."""
        return tuple(seen)

    def bounds(self) -> dict[Params, float]:
        """Returns the lower bounds in the file."""
        return self._journal.bounds()

    def add_bounds(self, bounds: Mapping[Params, float]) -> None:
        """Appends lower bounds."""
        self._journal.add_bounds(bounds)

    def wait(self) -> None:
        """Returns at once: there is nobody to wait for."""
