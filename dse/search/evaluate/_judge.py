"""Records of trials: with objective values and status, with bounds, and without an answer."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING

from dse.search._records import TrialRecord, TrialStatus
from dse.workload import PREDICTED_FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search._proposals import Proposal
    from dse.search.space import Objective, SearchSpace
    from dse.workload import Metric, ParameterValue, Workload


def judged(
    record: TrialRecord, space: SearchSpace, workload: Workload | type[Workload]
) -> TrialRecord:
    """Returns an evaluated record with its objective values, its status and the reason for it.

    A constraint on a metric that is not known is broken.

    Args:
        record: A record with a prediction.
        space: Objectives and constraints.
        workload: Knows the metrics.
    """
    values = record.metrics
    broken = [
        constraint.reason(values[constraint.metric], workload.metric(constraint.metric))
        for constraint in space.constraints
        if not constraint.violation(values[constraint.metric]) <= 0
    ]
    return _answered(record, broken, tuple(values[axis.metric] for axis in space.objectives))


def optimistic(record: TrialRecord, space: SearchSpace, workload: Workload) -> TrialRecord:
    """Returns a record of bounds with its objective values, its status and the reason for it.

    A bound on the time bounds other metrics on their good side. An objective or a limit that
    wants the other direction is not bounded: the objective is infinitely good, the limit kept.

    Args:
        record: A record whose prediction cannot be beaten.
        space: Objectives and constraints.
        workload: Knows the metrics.
    """
    values, broken = record.metrics, []
    for constraint in space.constraints:
        one_sided, metric = constraint, workload.metric(constraint.metric)
        if _is_predicted(metric):
            # The true value may be anywhere on the other side of the bound.
            if metric.maximize:
                one_sided = replace(constraint, at_most=None)
            else:
                one_sided = replace(constraint, at_least=None)
        value = values.get(constraint.metric, math.nan)
        if one_sided.violation(value) > 0:
            broken.append(one_sided.reason(value, metric))
    best = [
        _best_value(axis, workload.metric(axis.metric), values.get(axis.metric, math.nan))
        for axis in space.objectives
    ]
    return _answered(record, broken, tuple(best))


def _answered(
    record: TrialRecord, broken: Sequence[str], values: tuple[float, ...]
) -> TrialRecord:
    """Returns a record with its objective values, its status and the reason for it.

    Args:
        record: A record with a prediction.
        broken: Which limits it breaks, besides that of the memory.
        values: Of the objectives.
    """
    prediction = record.prediction
    reasons = [*broken]
    if prediction is not None and not prediction.feasible:
        reasons.insert(0, prediction.infeasible_reason)
    return replace(
        record,
        status=TrialStatus.INFEASIBLE if reasons else TrialStatus.FEASIBLE,
        reason="; ".join(reasons),
        values=values,
        on_front=False,
    )


def _is_predicted(metric: Metric) -> bool:
    """Returns whether a metric is known from a prediction alone, so that a bound bounds it."""
    return metric.needs(*PREDICTED_FIGURES) or metric.value is None


def _best_value(objective: Objective, metric: Metric, value: float) -> float:
    """Returns an optimistic value of an objective; infinitely good where nothing bounds it."""
    one_sided = _is_predicted(metric) and metric.maximize != objective.maximize
    if not math.isnan(value) and not one_sided:
        return value
    return math.inf if objective.maximize else -math.inf


def unbounded(space: SearchSpace, proposal: Proposal, reason: str = "") -> TrialRecord:
    """Returns the bounds of a configuration of whose time nothing is known.

    Args:
        space: Its objectives give the values.
        proposal: The configuration.
        reason: Why it breaks a hard limit; empty if it does not.
    """
    status = TrialStatus.INFEASIBLE if reason else TrialStatus.FEASIBLE
    record = without_answer(proposal.number, status, reason, dict(proposal.parameters))
    values = tuple(math.inf if axis.maximize else -math.inf for axis in space.objectives)
    return replace(record, values=values)


def without_answer(
    number: int, status: TrialStatus, reason: str, parameters: Mapping[str, ParameterValue]
) -> TrialRecord:
    """Returns the record of a configuration that has no prediction."""
    return TrialRecord(number, status, reason, tuple(parameters.items()), (), None, None)
