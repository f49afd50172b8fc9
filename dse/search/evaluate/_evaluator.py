"""What every evaluator can do: answer for configurations, and bound them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
import traceback
from typing import TYPE_CHECKING, ClassVar

from dse.errors import DseError
from dse.search._proposals import Effort
from dse.search._records import TrialRecord, TrialStatus
from dse.search.evaluate._judge import unbounded, without_answer
from dse.search.space import SearchSpace
from dse.workload import ParameterValue

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from dse.search._proposals import Proposal

#: Innermost calls that a record keeps of where an evaluation raised.
_CALLS_KEPT = 50


@dataclass(frozen=True)
class EvaluationContext(ABC):
    """All that an evaluation needs besides the parameters; sent once to every worker.

    Attributes:
        space: The search space.
        seed: Seed of the study.
        preloaded: Modules that evaluations import late; a worker imports them before the first.
    """

    preloaded: ClassVar[tuple[str, ...]] = ()

    space: SearchSpace
    seed: int

    @abstractmethod
    def make_evaluator(self) -> Evaluator:
        """Returns an evaluator, in whichever process it is needed."""


class Evaluator(ABC):
    """Answers for configurations, in whichever process it lives.

    Args:
        space: The search space.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space

    @abstractmethod
    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit; empty if it may be evaluated."""

    def answer(self, proposal: Proposal) -> TrialRecord:
        """Returns what a proposal asks for: bounds as :meth:`bound`, else :meth:`evaluate`.

        A closer bound is a time alone, in the record's `lower_bound_s`; :meth:`bounded` makes
        values of it.
        """
        if proposal.effort < Effort.QUICK:
            try:
                if proposal.effort is Effort.OPTIMISTIC:
                    return self.bound(proposal)
                least_s = self.closer_time_s(proposal)
            except Exception:  # nothing is known; the evaluation will raise it too
                return unbounded(self.space, proposal)
            return replace(unbounded(self.space, proposal), lower_bound_s=least_s)
        if proposal.effort is Effort.THOROUGH:
            return self.evaluate_thoroughly(proposal.number, dict(proposal.parameters))
        return self.evaluate(proposal.number, dict(proposal.parameters))

    def evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        """Answers for a configuration.

        Args:
            number: Trial number, for the record.
            parameters: Value of every parameter.

        Returns:
            A record; an evaluation that raises, whatever it is, gives one with status failed and
            the traceback.
        """
        return self._answered_or_failed(self._evaluate, number, parameters)

    def evaluate_thoroughly(
        self, number: int, parameters: Mapping[str, ParameterValue]
    ) -> TrialRecord:
        """Answers with a plan that is searched as thoroughly as by :func:`dse.shard`."""
        return self._answered_or_failed(self._evaluate_thoroughly, number, parameters)

    def _answered_or_failed(
        self,
        evaluate: Callable[[int, Mapping[str, ParameterValue]], TrialRecord],
        number: int,
        parameters: Mapping[str, ParameterValue],
    ) -> TrialRecord:
        try:
            return evaluate(number, parameters)
        except Exception as error:  # one candidate must not end a study
            return replace(
                without_answer(number, TrialStatus.FAILED, _reason(error), parameters),
                traceback="".join(traceback.format_exception(error, limit=-_CALLS_KEPT)),
            )

    def rejection(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns the same as :meth:`reject`, but never raises.

        An error is not a rejection: the evaluation will raise it too, and keeps the traceback.

        Args:
            parameters: Value of every parameter.
        """
        try:
            return self.reject(parameters)
        except Exception:  # one candidate must not end a study
            return ""

    def with_plans_of(
        self, record: TrialRecord, others: Sequence[TrialRecord]
    ) -> tuple[TrialRecord, ...]:
        """Returns an answer with each faster plan of other configurations that is feasible.

        Args:
            record: A feasible answer with a plan.
            others: Answers to other configurations of the space, with plans.
        """
        del record, others
        return ()

    @property
    def finest_bound(self) -> Effort:
        """The most effort that bounds can take; more gives nothing new."""
        return Effort.OPTIMISTIC

    @property
    def bounds_time(self) -> bool:
        """Whether bounds say anything about the time of a configuration."""
        return False

    def outcome(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns what decides the answer; equal for configurations with equal answers.

        Args:
            parameters: Value of every parameter.

        Raises:
            DseError: The configuration is impossible.
        """
        return tuple(parameters.items())

    def favourable(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns the outcome whose bound :attr:`Effort.SHARED_BOUND` takes.

        Args:
            parameters: Value of every parameter of a possible configuration.
        """
        return tuple(parameters.items())

    def bound(self, proposal: Proposal) -> TrialRecord:
        """Returns a record with values that a configuration cannot beat.

        A configuration that cannot be feasible is infeasible in the record too, with the reason.
        The time of the record's prediction is the bound; minus infinity or infinity stand for
        values that nothing limits.

        Args:
            proposal: The configuration.
        """
        return unbounded(self.space, proposal)

    def closer_time_s(self, proposal: Proposal) -> float:
        """Returns seconds that a configuration cannot beat; infinite if it is certain not to fit.

        Args:
            proposal: The configuration and the effort, more than optimistic.
        """
        del proposal
        return 0.0

    def bounded(self, proposal: Proposal, time_s: float) -> TrialRecord:
        """Returns the same for a time that the configuration cannot beat.

        Args:
            proposal: The configuration.
            time_s: Infinite if it is certain that no plan fits.
        """
        del time_s
        return unbounded(self.space, proposal)

    @abstractmethod
    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        """Does the same as :meth:`evaluate`, but may raise."""

    def _evaluate_thoroughly(
        self, number: int, parameters: Mapping[str, ParameterValue]
    ) -> TrialRecord:
        """Does the same with more effort; where there is nothing to search, the same."""
        return self._evaluate(number, parameters)


def _reason(error: Exception) -> str:
    """Returns the error message, one line with its type unless it is a `DseError`."""
    if isinstance(error, DseError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
