"""Importance of parameters for the objectives."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING
import warnings

from dse.report._metrics import metric_formats
from dse.report.page._payload import rounded
from dse.search import TrialStatus
from dse.workload import PLACEMENT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    import optuna

    from dse.search import StudyResult, TrialRecord
    from dse.workload import ParameterValue

#: Fewest trials; half of them are then the good ones.
MIN_TRIALS = 10

#: Share of the trials that count as good, and the fewest of them that give a stable answer.
_GOOD_SHARE = 0.1
_MIN_GOOD = 5

#: Attribute of an Optuna trial that keeps the objective values.
_VALUES = "values"


@dataclass(frozen=True, slots=True)
class ImportanceView:
    """Importance of the parameters for one objective.

    Attributes:
        title: The objective.
        parameters: Names, most important first.
        shares: Share of each, all together 1; shape of `parameters`.
        sentence: What was compared, or why `parameters` is empty.
    """

    title: str
    parameters: tuple[str, ...]
    shares: tuple[float, ...]
    sentence: str


def importance_views(study: StudyResult) -> tuple[ImportanceView, ...]:
    """Compares the good trials with all feasible ones, for each objective.

    Parameters that never vary are left out, and so are placements of single tables.

    METHOD: PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023) as Optuna has it: how far the
    distribution of a parameter among the good trials is from the one among all of them.
    """
    feasible = [record for record in study.records if record.status is TrialStatus.FEASIBLE]
    choices = _varied(feasible)
    trials = _optuna_study(feasible, choices) if len(feasible) >= MIN_TRIALS else None
    formats = metric_formats(study)
    return tuple(
        _view(formats[axis.metric].title, index, axis.maximize, feasible, trials, choices)
        for index, axis in enumerate(study.objectives)
    )


def _varied(records: Sequence[TrialRecord]) -> dict[str, list[ParameterValue]]:
    """Returns the values of each parameter that has more than one, in order."""
    found: dict[str, dict[ParameterValue, None]] = {}
    for record in records:
        for name, value in record.parameters:
            if not name.startswith(PLACEMENT_PREFIX):
                found.setdefault(name, {}).setdefault(value)
    return {
        name: sorted(values, key=float) if _ordered(values) else sorted(values, key=str)
        for name, values in found.items()
        if len(values) > 1
    }


def _ordered(values: dict[ParameterValue, None]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _optuna_study(
    records: Sequence[TrialRecord], choices: dict[str, list[ParameterValue]]
) -> optuna.Study:
    """Returns records as an Optuna study; parameters are positions among their values."""
    import optuna
    from optuna import create_trial
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        IntDistribution,
    )

    distributions: dict[str, BaseDistribution] = {
        name: IntDistribution(0, len(values) - 1)
        if _ordered(dict.fromkeys(values))
        else CategoricalDistribution(list(range(len(values))))
        for name, values in choices.items()
    }
    places = {
        name: {value: place for place, value in enumerate(values)}
        for name, values in choices.items()
    }
    trials = []
    for record in records:
        chosen = {name: places[name][value] for name, value in record.parameters if name in places}
        trials.append(
            create_trial(
                params=chosen,
                distributions={name: distributions[name] for name in chosen},
                # Values must be numbers for Optuna, so the objectives are kept as an attribute.
                values=[0.0],
                user_attrs={_VALUES: record.values},
            )
        )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    study.add_trials(trials)
    return study


def _view(
    title: str,
    index: int,
    maximize: bool,
    records: Sequence[TrialRecord],
    trials: optuna.Study | None,
    choices: dict[str, list[ParameterValue]],
) -> ImportanceView:
    values = [record.values[index] for record in records if math.isfinite(record.values[index])]
    why = ""
    if trials is None or len(values) < MIN_TRIALS:
        why = f"{_how_many(len(values))} a value of it; at least {MIN_TRIALS} are needed."
    elif not choices:
        why = "No parameter varies among the feasible trials."
    elif len(set(values)) == 1:
        why = "All feasible trials have the same value of it."
    if why or trials is None:
        return ImportanceView(title, (), (), why)
    share = max(_GOOD_SHARE, _MIN_GOOD / len(values))
    raw = _evaluate(trials, index, maximize, share)
    total = sum(raw.values())
    if not total > 0:
        return ImportanceView(
            title, (), (), "The best trials choose their parameters just as all trials do."
        )
    ranked = sorted(raw.items(), key=lambda pair: (-pair[1], pair[0]))
    return ImportanceView(
        title=title,
        parameters=tuple(name for name, _ in ranked),
        shares=tuple(rounded(value / total, 4) for _, value in ranked),
        sentence=f"The best {math.ceil(share * len(values))} of {len(values)} feasible trials "
        "against all of them.",
    )


def _how_many(count: int) -> str:
    if not count:
        return "No feasible trial has"
    return "Only one feasible trial has" if count == 1 else f"Only {count} feasible trials have"


def _evaluate(study: optuna.Study, index: int, maximize: bool, share: float) -> dict[str, float]:
    from optuna.importance import PedAnovaImportanceEvaluator

    sign = -1.0 if maximize else 1.0
    with warnings.catch_warnings():
        # It warns on every call that low values are taken for good ones, which is meant here.
        warnings.simplefilter("ignore")
        # Trials without a value of the objective are left out by it.
        return PedAnovaImportanceEvaluator(target_quantile=share).evaluate(
            study, target=lambda trial: sign * trial.user_attrs[_VALUES][index]
        )
