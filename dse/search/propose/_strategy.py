"""Strategies: which configurations are looked at, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dse.search._proposals import Batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dse.search._certificate import Certificate
    from dse.search._records import Params, TrialRecord


class Strategy(ABC):
    """Proposes configurations in rounds, and learns from their answers.

    What is proposed depends on the space, the seed and the answers, and not on when they arrive.
    """

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether there is nothing left to propose."""

    @abstractmethod
    def ask(self, count: int, *, hurried: bool = False) -> Batch:
        """Proposes a round of at most `count` configurations.

        All of them must be answered by :meth:`tell` or :meth:`tell_bounds` before the next call,
        except those that others evaluate.

        Args:
            count: Most configurations, with those that :meth:`ask_ahead` has proposed of this
                round, which are not proposed again.
            hurried: Propose what to evaluate by what is known now, without asking for bounds.
        """

    def ask_ahead(self, count: int, most: int) -> Batch:
        """Begins the next round while the last one is not answered, as far as no answer matters.

        Args:
            count: What the next call of :meth:`ask` will ask for.
            most: Most configurations to propose now.

        Returns:
            What :meth:`ask` would have proposed first, if all had been answered; empty if that
            depends on an answer.
        """
        del count, most
        return Batch(())

    @abstractmethod
    def tell(self, records: Sequence[TrialRecord]) -> None:
        """Answers proposals of the last round, in any order, or adds answers of others."""

    def tell_bounds(self, records: Sequence[TrialRecord]) -> None:
        """Answers the bounds of the last round, in any order; without bounds, does nothing."""
        del records

    @abstractmethod
    def mark_in_flight(self, in_flight: Iterable[Params]) -> None:
        """Excludes configurations that others are evaluating; :meth:`tell` adds their answers."""

    def annotated(self, record: TrialRecord) -> TrialRecord:
        """Returns an answer with how many other configurations have the same one."""
        return record

    def certificate(self) -> Certificate | None:
        """Returns what is proven about the front; None if nothing is."""
        return None
