"""When to stop sampling: the stopping rule of a measurement, and budgets that are too short."""

from __future__ import annotations

from dataclasses import dataclass, field
import math
import statistics
from typing import TYPE_CHECKING

from dse._median import FEWEST_SAMPLES, median_interval
from dse.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MIN_ITERATIONS, _MAX_ITERATIONS = 2, 1000

#: Budgets are advised with some room, as the machine may be slower next time.
_ROOM = 1.2


class BudgetError(ConfigError):
    """A budget in which not every candidate can be sampled once.

    Attributes:
        cause: What was found, as a clause.
        budget_s: The budget, in seconds.
        needed_s: Budget that is expected to give every median an interval, in seconds.
        share_s: What these candidates have of the budget, in seconds: less than all of it where
            there are candidates of other numbers of ranks.
    """

    def __init__(
        self, cause: str, budget_s: float, needed_s: float, share_s: float | None = None
    ) -> None:
        self.cause, self.budget_s, self.needed_s = cause, budget_s, needed_s
        self.share_s = budget_s if share_s is None else share_s
        part = (
            f"of it, candidates of this number of ranks have {self.share_s:.3g} s; "
            if self.share_s < budget_s
            else ""
        )
        super().__init__(
            f"a budget of {budget_s:.3g} s is too short: {part}{cause}; "
            f"give {budget_text(needed_s)} "
            "for six rounds, the fewest that tell candidates apart, or run fewer candidates",
            key="budget_s",
            value=budget_s,
            limit=needed_s,
        )

    def __reduce__(self) -> tuple[type[BudgetError], tuple[str, float, float, float]]:
        return BudgetError, (self.cause, self.budget_s, self.needed_s, self.share_s)


def budget_text(seconds: float) -> str:
    """Returns a time, rounded up, as the command line takes it."""
    if seconds <= 90:
        return f"{5 * max(1, math.ceil(seconds / 5))}s"
    return f"{math.ceil(seconds / 60)}min"


@dataclass(slots=True)
class Costs:
    """What was measured costs besides the result; decides early whether a budget is too short.

    Attributes:
        total: Candidates, or ranks of candidates, that are started.
        starts_s: How long each start took so far.
        samples_s: How long a sample of each takes, rebuilding included.
    """

    total: int
    starts_s: list[float] = field(default_factory=list)
    samples_s: list[float] = field(default_factory=list)

    @property
    def round_s(self) -> float:
        """Time for a sample of each, in seconds."""
        return self.total * statistics.fmean(self.samples_s)

    @property
    def needed_s(self) -> float:
        """Budget that is expected to give every median an interval, in seconds."""
        starts_s = self.total * statistics.fmean(self.starts_s)
        return _ROOM * (starts_s + FEWEST_SAMPLES * self.round_s)

    def check(self, budget_s: float, elapsed_s: float, unsampled: int) -> None:
        """Checks after a start that the other starts and a sample of each fit the budget.

        The first start pays for what all share, so it alone decides only if it took most of the
        budget.

        Args:
            budget_s: The budget.
            elapsed_s: Time used so far.
            unsampled: How many have no sample yet.

        Raises:
            BudgetError: They do not fit.
        """
        started = len(self.starts_s)
        left = self.total - started
        starts_s = left * min(self.starts_s)
        ahead_s = starts_s + unsampled * self.round_s / self.total
        known = started > 1 or not left or elapsed_s > 0.5 * budget_s
        if known and elapsed_s + ahead_s > budget_s:
            others = f", the other {left} about {starts_s:.3g} s," if left else ""
            raise BudgetError(
                f"starting {started} of {self.total} took {elapsed_s:.3g} s{others} and a round "
                f"takes about {self.round_s:.3g} s",
                budget_s,
                self.needed_s,
            )


@dataclass(frozen=True, slots=True)
class MeasureLimits:
    """Stopping rule of a measurement.

    Attributes:
        budget_s: Time for all candidates, in seconds, from when the ranks have started. A round
            begins only if the time that the last one took is left.
        target_half_width: Stop when half of each median's 95 % interval, relative to the median,
            is at most this.
        max_rounds: Stop after this many rounds.
        sample_s: Shortest duration of a sample, in seconds.
        warm_up: Iterations before each sample.
    """

    budget_s: float = 60.0
    target_half_width: float = 0.02
    max_rounds: int = 200
    sample_s: float = 0.15
    warm_up: int = 2

    def iterations(self, iteration_s: float) -> int:
        """Returns the iterations of a sample from an estimate of one iteration, in seconds."""
        return min(_MAX_ITERATIONS, max(_MIN_ITERATIONS, math.ceil(self.sample_s / iteration_s)))

    def converged(self, samples: Sequence[float]) -> bool:
        """Returns whether the interval of the median is narrow enough."""
        low_s, high_s = median_interval(samples)
        return 0.5 * (high_s - low_s) / statistics.median(samples) <= self.target_half_width

    def reached(
        self,
        samples: Sequence[Sequence[float]],
        elapsed_s: float,
        last_s: float = 0.0,
        budget_s: float | None = None,
    ) -> bool:
        """Returns whether to stop.

        Args:
            samples: Samples of each candidate, in equal numbers.
            elapsed_s: Time used so far, in seconds.
            last_s: Time that the last round took, and the next one is expected to.
            budget_s: Replaces the budget of all candidates.
        """
        rounds = len(samples[0])
        if not rounds:
            return False
        late = elapsed_s + last_s > (self.budget_s if budget_s is None else budget_s)
        return late or rounds >= self.max_rounds or all(map(self.converged, samples))
