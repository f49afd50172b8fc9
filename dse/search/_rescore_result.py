"""What comes out of scoring a study again, and how candidates are judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from dse.search._records import Fact, TrialRecord, TrialStatus, metric_values
from dse.search._rescore_inputs import with_changes
from dse.search._result import mark_front
from dse.search.analyse._conclusion import conclude

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dse.search._records import StudyResult
    from dse.search._rescore_changes import Change
    from dse.search._rescore_inputs import StoredInputs
    from dse.search._rescore_platforms import ChangedFigure
    from dse.search.evaluate._dlrm import ModelContext
    from dse.search.evaluate._transformer import StepContext
    from dse.search.space import Constraint, Metric
    from dse.workload.dlrm import Prediction
    from dse.workload.transformer import StepPrediction


class RescoreProgress(Protocol):
    """Told of every candidate."""

    def __call__(self, done: int, total: int, /) -> None:
        """Takes the number of candidates that are scored, and of all."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """A study under other inputs.

    Attributes:
        before: The study as it was.
        after: The same candidates under the changed inputs, the front marked anew.
        changes: What was changed.
        figures: Every figure that moved.
        kept: Candidates whose prediction stayed as it was.
        repriced: Candidates whose times stayed while price, cost or memory limit moved.
        simulated: Candidates that were simulated again.
        searched: Numbers of candidates that got a new search, and whether it found a better plan.
        newly_allowed: Configurations that broke a hard limit before and would not now; they have
            no plan, so they are not among the candidates.
    """

    before: StudyResult
    after: StudyResult
    changes: tuple[Change, ...]
    figures: tuple[ChangedFigure, ...]
    kept: int
    repriced: int
    simulated: int
    searched: tuple[tuple[int, bool], ...]
    newly_allowed: int


def rescored_study(
    result: StudyResult,
    records: Sequence[TrialRecord],
    changes: Sequence[Change],
    inputs: StoredInputs,
) -> StudyResult:
    """Returns a study with other records: the front marked, origins of figures and words anew.

    Args:
        result: The study before.
        records: Its candidates, scored again.
        changes: What was changed.
        inputs: What they are predicted from now.
    """
    marked = mark_front(records, result.objectives)
    facts = [
        Fact(name, fact.quantity, fact.value, fact.origin, fact.source, fact.as_of)
        for name, platform in inputs.platforms.items()
        for fact in platform.facts
    ]
    return replace(
        result,
        records=marked,
        inputs=with_changes(result.inputs, changes),
        facts=tuple(facts),
        conclusion=conclude(result.objectives, marked),
        validation=None,
    )


def judged(
    record: TrialRecord,
    prediction: Prediction | StepPrediction,
    context: ModelContext | StepContext,
) -> TrialRecord:
    """Returns a candidate with another prediction, its limits judged again.

    Args:
        record: The candidate; it has a configuration.
        prediction: What is predicted of it now.
        context: What it is predicted from.
    """
    assert record.configuration is not None
    values = metric_values(record.configuration, prediction)
    space = context.space
    reasons = [] if prediction.feasible else [prediction.infeasible_reason]
    reasons += broken(space.constraints, values)
    old = record.prediction
    same_times = old is not None and old.iteration_time_s == prediction.iteration_time_s
    return replace(
        record,
        status=TrialStatus.INFEASIBLE if reasons else TrialStatus.FEASIBLE,
        reason="; ".join(reasons),
        values=tuple(values[objective.metric] for objective in space.objectives),
        prediction=prediction,
        on_front=False,
        lower_bound_s=record.lower_bound_s if same_times else None,
    )


def broken(constraints: Iterable[Constraint], values: Mapping[Metric, float]) -> list[str]:
    """Says in words which limits an answer breaks; what is not known breaks them too."""
    return [
        constraint.reason(values[constraint.metric])
        for constraint in constraints
        if not constraint.violation(values[constraint.metric]) <= 0
    ]
