"""Options, judgements and the recommendation."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
import math
from typing import TYPE_CHECKING

from dse._text.digits import dollars
from dse._text.html import fields_html
from dse.workload import IDEAL

if TYPE_CHECKING:
    from dse.machine import Offer, Precision
    from dse.search.recommend._goals import Goal, Rank
    from dse.workload import Configuration, Prediction

#: What each doubling of the model's own batch has to bring before it is preferred; where it brings
#: less, the batch that the model is known to train with is the better choice.
WORTH_DOUBLING = 0.05

#: Probability from which a goal is reached for sure.
SURE = 0.95

#: Against rounding where a sample equals what is required.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Option:
    """Machines and a batch, whose speed is not known yet.

    Attributes:
        platform: Platform name.
        world_size: Number of ranks.
        global_batch_size: Samples of one iteration over all ranks.
        precision: Arithmetic of the dense part.
        price_usd_per_hour: Price of all machines.
        doublings: How often the model's own batch is doubled; 0 for batches that were asked for.
        network: Name of the network between nodes; empty on one node.
        offer: The instances that it is the price of; None where only the price is known.
    """

    platform: str
    world_size: int
    global_batch_size: int
    precision: Precision
    price_usd_per_hour: float
    doublings: int = 0
    network: str = ""
    offer: Offer | None = field(default=None, compare=False)

    def rank(self, goal: Goal, throughput_per_s: float) -> Rank:
        """Returns its rank among those that reach a goal; less is better.

        A larger batch than the model's own counts as if it were slower, by `WORTH_DOUBLING` for
        each doubling; among equally good ones the smallest batch is the best.

        Args:
            goal: What is wanted.
            throughput_per_s: Samples a second that it reaches.
        """
        counted = throughput_per_s / (1 + WORTH_DOUBLING) ** self.doublings
        first, second = goal.rank(counted, self.price_usd_per_hour)
        return first, self.doublings, second

    @property
    def text(self) -> str:
        """Short description."""
        over = f" over {self.network}" if self.network else ""
        return (
            f"{self.world_size} × {self.platform}{over}, batch {self.global_batch_size:,}, "
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
        times_s: Iteration times drawn under the errors of the models, ascending; empty where
            nothing says how far off the prediction may be.
    """

    option: Option
    configuration: Configuration
    prediction: Prediction
    planner: str
    bound_per_s: float
    times_s: tuple[float, ...] = field(default=(), repr=False)

    @property
    def throughput_per_s(self) -> float:
        """Samples a second."""
        return self.prediction.throughput_samples_per_s

    def rank(self, goal: Goal) -> Rank:
        """Returns the rank among those that reach the goal; less is better."""
        return self.option.rank(goal, self.throughput_per_s)

    def probability(self, goal: Goal) -> float:
        """Returns the probability to reach the goal: the share of the drawn times that do.

        Without drawn times, the expected value decides. What fits with a smaller probability than
        that has this one.
        """
        required = goal.required_per_s(self.option.price_usd_per_hour)
        if not math.isfinite(required):
            return 0.0
        fits = self.prediction.fit_probability if self.prediction.feasible else 1.0
        most = 1.0 if math.isnan(fits) else fits
        if required <= 0:
            return most
        slowest_s = self.option.global_batch_size / required * (1 + _ROUNDING)
        times_s = self.times_s or (self.prediction.iteration_time_s,)
        return min(most, bisect_right(times_s, slowest_s) / len(times_s))


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
class Unpriced:
    """Machines that were not looked at because they have no price.

    Attributes:
        platform: Platform name.
        world_sizes: Numbers of ranks that have none; empty for all.
        reason: Why not.
    """

    platform: str
    world_sizes: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The best configuration of a space for a goal.

    Attributes:
        goal: What was wanted.
        model: Name of the model.
        answer: The best that reaches it; None where nothing does.
        sure: The best that is at least `SURE` to reach it; None where that is the answer, or
            where nothing is.
        own_batch: The best with the model's own batch where the answer doubles it; None
            otherwise, or where no plan that was found reaches the goal with it.
        runners_up: The best of every other platform that reaches it, best first.
        judgements: Every option with its outcome: what "best" is relative to.
        closest: The option that comes closest where nothing reaches the goal; None otherwise, or
            where no plan was searched.
        limit: A sentence on what limits the closest; empty without one.
        advice: What would help where nothing reaches the goal; may be empty.
        confidence: Required probability to reach the goal.
        space: Description of the space, a line for each choice.
        program: Training program of all options; empty where the workload has none.
        model_batch_size: Batch of the model's own recipe; 0 if it has none.
        unpriced: Machines that were left out because they have no price.
        tokens_per_sample: Tokens of a sample where throughput is reported in tokens; else 0.
    """

    goal: Goal
    model: str
    answer: Solved | None
    sure: Solved | None
    own_batch: Solved | None
    runners_up: tuple[Solved, ...]
    judgements: tuple[Judgement, ...]
    closest: Solved | None
    limit: str
    advice: str
    confidence: float
    space: tuple[str, ...]
    program: str = ""
    model_batch_size: int = 0
    unpriced: tuple[Unpriced, ...] = ()
    tokens_per_sample: int = 0

    def __repr__(self) -> str:
        found = "nothing reaches it"
        if self.answer is not None:
            option = self.answer.option
            found = f"{option.world_size} × {option.platform}, {self.answer.prediction!r}"
        return f"Recommendation({self.model}, {self.goal}: {found})"

    def _repr_html_(self) -> str:
        """Shows the answer and the best of other platforms in a notebook."""
        first = "best" if self.answer is not None else "closest"
        named = [(first, self.answer or self.closest), ("surer", self.sure)]
        named += [("model's own batch", self.own_batch)]
        named += [("another platform", other) for other in self.runners_up]
        fields = [
            (name, f"{found.option.text}, {price} USD/h: {found.prediction!r}")
            for name, found in named
            if found is not None
            for price in (dollars(found.option.price_usd_per_hour, grouped=True),)
        ]
        return fields_html(
            f"{self.model}: {self.goal.text}", [*fields, ("limit", self.limit), ("", self.advice)]
        )

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
    def impossible_platforms(self) -> dict[str, str]:
        """Platforms none of whose options can run, with the reason for the most ranks."""
        possible = {
            one.option.platform for one in self.judgements if one.verdict is not Verdict.IMPOSSIBLE
        }
        impossible = sorted(
            (one for one in self.judgements if one.option.platform not in possible),
            key=lambda one: one.option.world_size,
        )
        reasons = {one.option.platform: one.reason for one in impossible}
        platforms = dict.fromkeys(one.option.platform for one in self.judgements)
        return {name: reasons[name] for name in platforms if name in reasons}

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
                or judgement.option.rank(self.goal, judgement.bound_per_s) < answer.rank(self.goal)
            )
        )
