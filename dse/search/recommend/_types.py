"""What is asked and what is answered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
import math
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine import Precision
    from dse.search.recommend._goals import Goal, Rank
    from dse.workload.dlrm import Configuration, Prediction
    from dse.workload.transformer import StepConfiguration, StepPrediction

#: Standard deviations from the middle to the ends of a 90 % interval.
_NINETY = 1.645


@dataclass(frozen=True, slots=True)
class Option:
    """Machines and a batch, before anybody knows how fast they are.

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
        """It in a few words."""
        return (
            f"{self.world_size} × {self.platform}, batch {self.global_batch_size:,}, "
            f"{self.precision.value}"
        )


class Verdict(StrEnum):
    """What became of an option.

    ``meets``: its best plan reaches the goal. ``misses``: its best plan does not, nor can another.
    ``undecided``: its best plan does not, but the bound does not rule out that another one does.
    ``bounded``: no plan can reach the goal, by the bound or the price alone. ``worse``: no plan
    can be better than what was found already. ``impossible``: it cannot run, for example because
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
        configuration: With the sharding plan, or the parallelism of a transformer.
        prediction: What the model says of it.
        planner: How the plan was found.
        bound_per_s: No plan has a higher throughput.
    """

    option: Option
    configuration: Configuration | StepConfiguration
    prediction: Prediction | StepPrediction
    planner: str
    bound_per_s: float

    @property
    def throughput_per_s(self) -> float:
        """Samples a second."""
        return self.prediction.throughput_samples_per_s

    def rank(self, goal: Goal) -> Rank:
        """Where it stands among those that reach the goal; less is better."""
        return goal.rank(self.throughput_per_s, self.option.price_usd_per_hour)

    def probability(self, goal: Goal) -> float:
        """Returns how likely it is to reach the goal, given the interval of its prediction.

        The iteration time is taken for lognormal, with the prediction's 90 % interval.
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
    """One option and what became of it.

    Attributes:
        option: The option.
        verdict: What became of it.
        bound_per_s: No plan has a higher throughput; infinite where that was not computed.
        solved: Its best plan; None where none was searched.
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
        judgements: Every option and what became of it: what "best" is relative to.
        closest: What comes closest to the goal where nothing reaches it; None where something
            does, or where nothing was tried.
        limit: What limits the closest, in a sentence; empty without one.
        confidence: Least probability to reach the goal that was asked for.
        space: The space in words.
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

    def count(self, verdict: Verdict) -> int:
        """Returns how many options came to a verdict."""
        return sum(judgement.verdict is verdict for judgement in self.judgements)

    @property
    def solved(self) -> int:
        """Options for which a plan was searched."""
        return sum(judgement.solved is not None for judgement in self.judgements)

    @property
    def undecided_better(self) -> tuple[Judgement, ...]:
        """Undecided options that would be better than the answer if a better plan existed."""
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
