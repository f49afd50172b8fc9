"""Decision: what to take from a front by one rule, and its fastest and cheapest outcomes."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

import numpy as np

from dse._text.digits import significant
from dse.search._records import TrialStatus
from dse.search.analyse._reasons import nothing_feasible
from dse.search.analyse._settings import searched_names, setting_texts
from dse.workload import PRICE_FIGURES, workload_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dse.search._records import StudyResult, TrialRecord
    from dse.search.space import Constraint, Objective
    from dse.workload import Metric

#: Unit of shares, of which twice as much is not worth twice as much.
_SHARE = "%"

#: Ratio from which on three digits show more than 1.00.
_SEEN = 1.005

#: Distance from the chord, as a share of the front's range, below which a front has no knee.
_FLAT = 1e-9


@dataclass(frozen=True, slots=True)
class Doubling:
    """What twice the ranks of the same platform bring, as far as the study looked.

    Attributes:
        number: The fastest trial with twice the ranks.
        machines: Its ranks and platform.
        speed_ratio: Its speed over that of the choice.
        cost_ratio: Its cost of a sample over that of the choice; None without prices.
    """

    number: int
    machines: str
    speed_ratio: float
    cost_ratio: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One outcome to choose.

    Attributes:
        number: Trial number.
        machines: Ranks and platform, such as ``8 × b200_sxm``.
        setup: What else was chosen, such as the parallelism of a transformer and the precision;
            may be empty. What the plan says, the program and the batch are not in it.
        program: Training program; empty where none is named.
        global_batch_size: Samples of one iteration; 0 if they are not known.
        counts: What throughput and cost count: ``samples`` or ``tokens``.
        throughput_per_s: Samples or tokens a second; NaN if they are not known.
        throughput_p5_per_s: Lower end of its 90 % interval; NaN without one.
        throughput_p95_per_s: Upper end of its 90 % interval; NaN without one.
        iteration_time_s: Time of one iteration.
        speedup: Of a changed captured step, times the captured throughput; None of models.
        price_usd_per_hour: Price of all machines; None if it is not known.
        rented: Whose price it is, such as ``2 × AWS p5.48xlarge``; empty if it is not known.
        cost_usd_per_billion: Cost of a billion samples or tokens; None without a price.
        bound_by: What most of the iteration waits for, with its share; empty if not known.
        fit_probability: Probability that every rank fits its memory; NaN if that is not known.
        plan_gap: How much slower than the best possible plan its plan is at most, as a share;
            None without a lower bound.
        doubled: What twice the ranks bring; None where nothing with twice the ranks of the same
            platform was evaluated and feasible.
    """

    number: int
    machines: str
    setup: str
    program: str
    global_batch_size: int
    counts: str
    throughput_per_s: float
    throughput_p5_per_s: float
    throughput_p95_per_s: float
    iteration_time_s: float
    speedup: float | None
    price_usd_per_hour: float | None
    rented: str
    cost_usd_per_billion: float | None
    bound_by: str
    fit_probability: float
    plan_gap: float | None
    doubled: Doubling | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to take from a front.

    Attributes:
        take: The best value by the rule.
        fastest: The fastest on the front.
        cheapest: The one on the front whose samples cost least; None where no price is known.
        rule: Why `take` is taken.
    """

    take: Choice
    fastest: Choice
    cheapest: Choice | None
    rule: str

    def __repr__(self) -> str:
        cheapest = "" if self.cheapest is None else f", cheapest #{self.cheapest.number}"
        others = f"fastest #{self.fastest.number}{cheapest}"
        return f"Decision(take #{self.take.number}, {others}: {self.rule})"


def decide(study: StudyResult) -> Decision | None:
    """Returns what to take from the front of a study; None if nothing is feasible.

    The rule: where a limit asks for a throughput or an iteration time, the least cost among those
    whose 90 % interval keeps the limit as a whole. Otherwise the knee: the point of the front
    farthest below the straight line between the best points in two objectives, both scaled to the
    front's range; these are the first objective and the next one that is a speed, a time, a cost
    or a size, or else the second. Where no point lies below that line, the one of its ends whose
    lead in its own objective is the larger ratio, or the best in the first objective where ratios
    say nothing (of free memory, twice as much is not worth twice as much). With one objective,
    the best.
    """
    front = study.front
    if not front:
        return None
    taken, rule = _best_value(study, front)
    fastest = max(front, key=lambda record: (_speed(record), -record.number))
    priced = [record for record in front if _cost(record) is not None]
    cheapest = min(
        priced,
        key=lambda record: (_cost(record) or 0.0, -_speed(record), record.number),
        default=None,
    )
    return Decision(
        take=_choice(study, taken),
        fastest=_choice(study, fastest),
        cheapest=None if cheapest is None else _choice(study, cheapest),
        rule=rule,
    )


def recommended_trial(study: StudyResult) -> TrialRecord | None:
    """Returns the trial that :func:`decide` takes; None if nothing is feasible."""
    return _best_value(study, study.front)[0] if study.front else None


def conclude(study: StudyResult) -> str:
    """Returns in one line what to take and why, or why nothing is feasible."""
    decision = decide(study)
    if decision is None:
        return nothing_feasible(study)
    take = decision.take
    setup = f", {take.setup}" if take.setup else ""
    batch = f", batch {take.global_batch_size:,}" if take.global_batch_size else ""
    return f"take #{take.number}: {take.machines}{setup}{batch}; {decision.rule}"


# The rule ---------------------------------------------------------------------------------------


def _best_value(study: StudyResult, front: Sequence[TrialRecord]) -> tuple[TrialRecord, str]:
    wanted = _wanted(study)
    if wanted is not None and all(_cost(record) is not None for record in front):
        limit, metric = wanted
        words = _limit_text(limit, metric)
        sure = [record for record in front if _keeps(record, limit, metric)]
        by_cost = min(sure or front, key=lambda record: (_cost(record) or 0.0, record.number))
        if sure:
            return by_cost, f"the least cost among those whose whole 90 % interval keeps {words}"
        return by_cost, f"the least cost; no 90 % interval keeps {words} as a whole"
    metrics = [workload_kind(study.kind).metric(axis.metric) for axis in study.objectives]
    if len(study.objectives) == 1:
        return _best(front, study.objectives[0], metrics[0])
    return _knee(front, study.objectives, metrics)


def _wanted(study: StudyResult) -> tuple[Constraint, Metric] | None:
    """Returns the limit that asks for a throughput or a time, if any does."""
    for constraint in study.constraints:
        metric = workload_kind(study.kind).metric(constraint.metric)
        if metric.time_exponent and not metric.needs(*PRICE_FIGURES):
            return constraint, metric
    return None


def _limit_text(limit: Constraint, metric: Metric) -> str:
    ends = [("at least", limit.at_least), ("at most", limit.at_most)]
    texts = [f"{words} {metric.text(end)} {metric.unit}" for words, end in ends if end is not None]
    return f"{metric.noun} {' and '.join(texts)}".rstrip()


def _keeps(record: TrialRecord, limit: Constraint, metric: Metric) -> bool:
    """Returns whether the whole interval keeps a limit; the value where there is no interval."""
    prediction = record.prediction
    value = record.metrics.get(metric.name, math.nan)
    if prediction is None:
        return False
    ends = (prediction.iteration_time_p5_s, prediction.iteration_time_p95_s)
    ratios = [end / prediction.iteration_time_s for end in ends if not math.isnan(end)]
    return all(
        limit.violation(value * ratio**metric.time_exponent) <= 0 for ratio in ratios or [1.0]
    )


def _best(
    front: Sequence[TrialRecord], axis: Objective, metric: Metric
) -> tuple[TrialRecord, str]:
    sign = -1.0 if axis.maximize else 1.0
    best = min(front, key=lambda record: (sign * record.values[0], record.number))
    return best, f"the best in {metric.noun}"


def _knee(
    front: Sequence[TrialRecord], objectives: Sequence[Objective], metrics: Sequence[Metric]
) -> tuple[TrialRecord, str]:
    """Returns the knee in two objectives, or the better end where there is none."""
    columns = [0, _other_column(metrics)]
    axes = [objectives[column] for column in columns]
    nouns = [metrics[column].noun for column in columns]
    words = " and ".join(nouns)
    signs = np.array([-1.0 if axis.maximize else 1.0 for axis in axes])
    costs = np.array([[record.values[column] for column in columns] for record in front]) * signs
    ends = [int(np.lexsort((costs[:, 1 - column], costs[:, column]))[0]) for column in (0, 1)]
    if (costs[ends[0]] <= costs[ends[1]]).all():
        return front[ends[0]], f"the best in {words}"
    below = below_chord(costs, costs[ends[0]], costs[ends[1]])
    if below.max() > _FLAT:
        knee = front[int(np.argmax(below))]
        return knee, f"the knee of {words}: past it, a little more of one costs much of the other"
    if any(metrics[column].unit == _SHARE for column in columns):
        return _best(front, axes[0], metrics[0])
    leads = [_ratio(costs[ends[0], column], costs[ends[1], column]) for column in (0, 1)]
    won, lost = (0, 1) if leads[0] >= leads[1] else (1, 0)
    gains, loses = (f"{nouns[column]} {_by(leads[column])}" for column in (won, lost))
    best, other = front[ends[won]], front[ends[lost]]
    return best, f"against #{other.number} it is better in {gains}, and worse in {loses}"


def _other_column(metrics: Sequence[Metric]) -> int:
    """Returns the objective to weigh against the first: one that is no share, if there is one."""
    others = range(1, len(metrics))
    return next((column for column in others if metrics[column].unit != _SHARE), 1)


def below_chord(
    costs: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns how far points lie below the line between two ends, in units of their range.

    Args:
        costs: Two costs of each point, less is better; shape `(points, 2)`.
        first: The point of the least first cost.
        second: The point of the least second cost; better in that, worse in the first.

    Returns:
        Shape `(points,)`, negative above the line.
    """
    # Scaled, the ends lie at (0, 1) and (1, 0), so the line is x + y = 1.
    low = np.array([first[0], second[1]])
    high = np.array([second[0], first[1]])
    below: NDArray[np.float64] = (1.0 - ((costs - low) / (high - low)).sum(axis=1)) / 2**0.5
    return below


def _ratio(one: float, other: float) -> float:
    """Returns by how much two values of a kind differ, as a ratio of at least 1."""
    small, large = sorted((abs(float(one)), abs(float(other))))
    if one * other <= 0:
        return math.inf
    return large / small


def _by(ratio: float) -> str:
    # Gains and losses as factors: percents of a loss and of a gain cannot be compared.
    if math.isinf(ratio):
        return "beyond any factor"
    return f"by a factor of {significant(ratio)}" if ratio >= _SEEN else "by less than 0.5 %"


# Choices ----------------------------------------------------------------------------------------


def _choice(study: StudyResult, record: TrialRecord) -> Choice:
    configuration, prediction = record.configuration, record.prediction
    assert configuration is not None
    assert prediction is not None
    per_s = prediction.throughput_per_s
    slow = prediction.iteration_time_s / prediction.iteration_time_p95_s
    fast = prediction.iteration_time_s / prediction.iteration_time_p5_s
    return Choice(
        number=record.number,
        machines=_machines(record),
        setup=_setup(study, record),
        program=prediction.program,
        global_batch_size=configuration.global_batch_size,
        counts=prediction.counts,
        throughput_per_s=per_s,
        throughput_p5_per_s=per_s * slow,
        throughput_p95_per_s=per_s * fast,
        iteration_time_s=prediction.iteration_time_s,
        speedup=prediction.metric("speedup", None),
        price_usd_per_hour=prediction.price_usd_per_hour,
        rented=prediction.rented,
        cost_usd_per_billion=prediction.cost_usd_per_billion,
        bound_by=prediction.bound_text,
        fit_probability=prediction.fit_probability,
        plan_gap=record.plan_gap,
        doubled=_doubled(study, record),
    )


def _setup(study: StudyResult, record: TrialRecord) -> str:
    configuration = record.configuration
    assert configuration is not None
    names = {*searched_names(study)} - {"program", "sharding_types"}
    summary = workload_kind(configuration.kind).summary(configuration)
    return ", ".join(filter(None, (summary, *setting_texts(record, names))))


def _machines(record: TrialRecord) -> str:
    configuration = record.configuration
    if configuration is None:
        return ""
    network = "" if record.prediction is None else record.prediction.network
    over = f" over {network}" if network else ""
    return f"{configuration.world_size} × {configuration.platform or 'as captured'}{over}"


def _doubled(study: StudyResult, record: TrialRecord) -> Doubling | None:
    own = record.configuration
    assert own is not None
    wider = [
        other
        for other in study.records
        if other.status is TrialStatus.FEASIBLE
        and other.configuration is not None
        and other.configuration.world_size == 2 * own.world_size
        and other.configuration.platform == own.platform
    ]
    if not wider:
        return None
    best = max(wider, key=lambda other: (_speed(other), -other.number))
    costs = _cost(best), _cost(record)
    return Doubling(
        number=best.number,
        machines=_machines(best),
        speed_ratio=_speed(best) / _speed(record),
        cost_ratio=None if costs[0] is None or not costs[1] else costs[0] / costs[1],
    )


def _speed(record: TrialRecord) -> float:
    """Returns what makes one outcome faster than another, in units of the study."""
    prediction = record.prediction
    if prediction is None:
        return 0.0
    if math.isfinite(prediction.throughput_per_s):
        return prediction.throughput_per_s
    return prediction.metric("speedup", None) or 1.0 / prediction.iteration_time_s


def _cost(record: TrialRecord) -> float | None:
    return None if record.prediction is None else record.prediction.cost_usd_per_million_samples
