"""Options, judgements and the recommendation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
import math
from statistics import NormalDist
from typing import TYPE_CHECKING

from dse.workload import IDEAL

if TYPE_CHECKING:
    from dse.machine import Precision
    from dse.search.recommend._goals import Goal, Rank
    from dse.workload import Configuration, Prediction

#: Standard deviations from the middle to the ends of a 90 % interval.
_NINETY = 1.645


@dataclass(frozen=True, slots=True)
class Option:
    """Machines and a batch, whose speed is not known yet.

    Attributes:
        platform: Platform name.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        precision: Arithmetic of the dense part.
        price_usd_per_hour: Price of all machines.
    """

    platform: str
    world_size: int
    global_batch_size: int
    precision: Precision
    price_usd_per_hour: float

    @property
    def words(self) -> str:
        """Short description."""
        return (
            f"{self.world_size} × {self.platform}, batch {self.global_batch_size:,}, "
            f"{self.precision.value}"
        )


class Verdict(StrEnum):
    """Outcome of an option.

    ``meets``: its best plan reaches the goal. ``misses``: its best plan does not, and no other
    can. ``undecided``: its best plan does not, but the bound leaves room for one that does.
    ``bounded``: no plan can reach the goal, by the bound or the price alone. ``worse``: no plan
    can be better than what was found before. ``impossible``: it cannot run, for example because
    the model does not fit.
    """

    MEETS = "meets"
    MISSES = "misses"
    UNDECIDED = "undecided"
    BOUNDED = "bounded"
    WORSE = "worse"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Solved:
    """An option with the best plan that was found for it.

    Attributes:
        option: The option.
        configuration: How it is run, with the sharding plan where there is one.
        prediction: Its prediction.
        planner: How the plan was found; of workloads without one, what was chosen.
        bound_per_s: No plan has a higher throughput.
    """

    option: Option
    configuration: Configuration
    prediction: Prediction
    planner: str
    bound_per_s: float

    def bounded(self, bound_per_s: float) -> Solved:
        """Returns the same with another bound."""
        return replace(self, bound_per_s=bound_per_s)

    @property
    def throughput_per_s(self) -> float:
        """Samples a second."""
        return self.prediction.throughput_samples_per_s

    def rank(self, goal: Goal) -> Rank:
        """Returns the rank among those that reach the goal; less is better."""
        return goal.rank(self.throughput_per_s, self.option.price_usd_per_hour)

    def probability(self, goal: Goal) -> float:
        """Returns the probability to reach the goal, given the interval of the prediction.

        The iteration time is taken to be lognormal, with the prediction's 90 % interval.
        """
        required = goal.required_per_s(self.option.price_usd_per_hour)
        if not math.isfinite(required):
            return 0.0
        if required <= 0:
            return 1.0
        prediction = self.prediction
        width = math.log(prediction.iteration_time_p95_s / prediction.iteration_time_p5_s)
        margin = math.log(self.throughput_per_s / required)
        if width <= 0:
            return 1.0 if margin >= 0 else 0.0
        return NormalDist().cdf(margin / (width / (2 * _NINETY)))


@dataclass(frozen=True, slots=True)
class Judgement:
    """One option and its outcome.

    Attributes:
        option: The option.
        verdict: Its outcome.
        bound_per_s: No plan has a higher throughput; infinite where it was not computed.
        solved: Its best plan; None where no plan was searched.
        reason: Why it is impossible; else empty.
    """

    option: Option
    verdict: Verdict
    bound_per_s: float = math.inf
    solved: Solved | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best configuration of a space for a goal.

    Attributes:
        goal: What was wanted.
        model: Name of the model.
        answer: The best that reaches it; None where nothing does.
        runners_up: The best of every other platform that reaches it, best first.
        judgements: Every option with its outcome: what "best" is relative to.
        closest: The option that comes closest where nothing reaches the goal; None otherwise, or
            where no plan was searched.
        limit: A sentence on what limits the closest; empty without one.
        confidence: Required probability to reach the goal.
        space: Description of the space, a line for each choice.
        program: Training program of all options; empty where the workload has none.
    """

    goal: Goal
    model: str
    answer: Solved | None
    runners_up: tuple[Solved, ...]
    judgements: tuple[Judgement, ...]
    closest: Solved | None
    limit: str
    confidence: float
    space: tuple[str, ...]
    program: str = ""

    @property
    def is_bound(self) -> bool:
        """Whether the ideal program runs, so that no real program is as fast."""
        return self.program == IDEAL

    def count(self, verdict: Verdict) -> int:
        """Returns how many options came to a verdict."""
        return sum(judgement.verdict is verdict for judgement in self.judgements)

    @property
    def solved(self) -> int:
        """Options for which a plan was searched."""
        return sum(judgement.solved is not None for judgement in self.judgements)

    @property
    def undecided_better(self) -> tuple[Judgement, ...]:
        """Undecided options that a better plan could make better than the answer."""
        answer = self.answer
        return tuple(
            judgement
            for judgement in self.judgements
            if judgement.verdict is Verdict.UNDECIDED
            and (
                answer is None
                or self.goal.rank(judgement.bound_per_s, judgement.option.price_usd_per_hour)
                < answer.rank(self.goal)
            )
        )
