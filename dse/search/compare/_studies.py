"""Comparison of two studies."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dse._text.html import fields_html
from dse._text.percent import signed_percent
from dse.errors import ConfigError
from dse.search.analyse._front_moves import BestMove, best_of
from dse.search.analyse._hypervolume import hypervolume
from dse.search.analyse._outcomes import outcome_key
from dse.search.compare._inputs import default_wires, input_differences
from dse.workload import workload_kind

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from dse.search._records import StudyResult, TrialRecord
    from dse.search.compare._inputs import InputDifference
    from dse.search.space import Objective
    from dse.sharding import ShardingPlan
    from dse.workload import ParameterValue, Workload

    _Pairs: TypeAlias = frozenset[tuple[str, ParameterValue]]

#: Relative change of a time from which on a prediction counts as moved.
_MOVED = 1e-9

#: Differences of inputs that a notebook shows.
_SHOWN_DIFFERENCES = 20


@dataclass(frozen=True, slots=True)
class CommonCandidate:
    """An outcome that both studies evaluated, by the first trial of each that has it.

    Attributes:
        first: Its number in the first study.
        second: Its number in the second study.
        time_ratio: Iteration time in the second over that in the first.
        same_plan: Whether its plan is the same; of a transformer or a trace it always is.
        reasons: Differences that its prediction depends on.
    """

    first: int
    second: int
    time_ratio: float
    same_plan: bool
    reasons: tuple[str, ...]

    @property
    def moved(self) -> bool:
        """Whether its time changed."""
        return abs(self.time_ratio - 1.0) > _MOVED


@dataclass(frozen=True, slots=True)
class StudyComparison:
    """Two studies and what differs between them.

    Attributes:
        first: One study.
        second: The other one.
        objectives: Objectives of both, in the order of the first.
        same_objectives: Whether neither has any other objective.
        differences: Inputs and settings that differ.
        best: The best candidate of each common objective in both.
        hypervolumes: Hypervolume of each front from a common reference, relative to the box
            between the best and the worst values of both fronts; None where a front is empty.
        common: Outcomes that both evaluated.
        conclusion: One sentence.
    """

    first: StudyResult
    second: StudyResult
    objectives: tuple[Objective, ...]
    same_objectives: bool
    differences: tuple[InputDifference, ...]
    best: tuple[BestMove, ...]
    hypervolumes: tuple[float, float] | None
    common: tuple[CommonCandidate, ...]
    conclusion: str

    def __repr__(self) -> str:
        return f"StudyComparison({self.first!r}, {self.second!r}: {self.conclusion})"

    def _repr_html_(self) -> str:
        """Shows the conclusion and what differs in a notebook."""
        fields = [
            (f"{each.kind} {each.name}", f"{each.quantity}: {each.first} → {each.second}")
            if each.quantity
            else (f"{each.kind} {each.name}", "differs")
            for each in self.differences[:_SHOWN_DIFFERENCES]
        ]
        title = f"{self.first.name} and {self.second.name}: {self.conclusion}"
        return fields_html(title, fields)

    @property
    def hypervolume_ratio(self) -> float | None:
        """Hypervolume of the second front over that of the first."""
        if self.hypervolumes is None or not self.hypervolumes[0] > 0:
            return None
        return self.hypervolumes[1] / self.hypervolumes[0]


def compare_studies(first: StudyResult, second: StudyResult) -> StudyComparison:
    """Compares two studies of any spaces in the objectives that they have in common.

    Raises:
        ConfigError: They have no objective in common.
    """
    objectives = tuple(axis for axis in first.objectives if axis in second.objectives)
    if not objectives:
        raise ConfigError(
            f"{first.name} and {second.name} have no objective in common: "
            f"{_listed(first.objectives)} and {_listed(second.objectives)}; compare studies that "
            "share one"
        )
    differences = input_differences(first, second)
    best = tuple(
        BestMove(axis.metric, axis.maximize, *best_of(first, axis), *best_of(second, axis))
        for axis in objectives
    )
    volumes = _hypervolumes(first, second, objectives)
    common = _common(first, second, differences)
    return StudyComparison(
        first=first,
        second=second,
        objectives=objectives,
        same_objectives=set(first.objectives) == set(second.objectives),
        differences=differences,
        best=best,
        hypervolumes=volumes,
        common=common,
        conclusion=_models(first, second)
        + _conclusion(workload_kind(first.kind), best, volumes, common, differences),
    )


def objective_values(
    records: Sequence[TrialRecord], objectives: Sequence[Objective]
) -> np.ndarray:
    """Returns objective values by metric; shape `(records, objectives)`."""
    rows = [[record.metrics[axis.metric] for axis in objectives] for record in records]
    return np.array(rows, dtype=np.float64).reshape(-1, len(objectives))


def _hypervolumes(
    first: StudyResult, second: StudyResult, objectives: Sequence[Objective]
) -> tuple[float, float] | None:
    """Returns hypervolumes in objectives scaled to the box of both fronts.

    The reference lies a tenth beyond the worst corner, so that points there count as well.
    """
    fronts = [objective_values(study.front, objectives) for study in (first, second)]
    if not all(len(front) for front in fronts):
        return None
    signs = np.array([-1.0 if axis.maximize else 1.0 for axis in objectives])
    costs = [front * signs for front in fronts]
    both = np.vstack(costs)
    low, high = np.nanmin(both, axis=0), np.nanmax(both, axis=0)
    extent = np.where(high > low, high - low, 1.0)
    reference = np.full(len(objectives), 1.1)
    minimize = [False] * len(objectives)
    one, other = (hypervolume((cost - low) / extent, reference, minimize) for cost in costs)
    return one, other


def _common(
    first: StudyResult, second: StudyResult, differences: Sequence[InputDifference]
) -> tuple[CommonCandidate, ...]:
    """Returns outcomes of which both studies evaluated a configuration, one pair each."""
    mine, theirs = _Configurations(first), _Configurations(second)
    own, others = _first_numbers(first), _first_numbers(second)
    defaults = default_wires(first)
    found: dict[tuple[int, int], CommonCandidate] = {}
    for record in first.records:
        other = theirs.like(record, mine) if record.evaluated else None
        if other is None:
            continue
        pair = own[record.number], others[other.number]
        if pair in found:
            continue
        same_plan = _plan(record) == _plan(other)
        ratio = _time_s(other) / _time_s(record)
        reasons = [] if same_plan else ["its plan"]
        networks = _network(record), _network(other)
        if all(networks) and networks[0] != networks[1]:
            reasons.append(f"its network: {networks[0]} → {networks[1]}")
        reasons += [
            difference.text for difference in differences if difference.concerns(record, defaults)
        ]
        moved = abs(ratio - 1) > _MOVED
        found[pair] = CommonCandidate(*pair, ratio, same_plan, tuple(reasons) if moved else ())
    return tuple(found.values())


def _network(record: TrialRecord) -> str:
    """Returns the network that a candidate was predicted over; empty inside a node or pod."""
    return "" if record.prediction is None else record.prediction.network


def _first_numbers(study: StudyResult) -> dict[int, int]:
    """Returns, for each evaluated trial, the number of the first one with its outcome."""
    first: dict[Hashable, int] = {}
    return {
        record.number: first.setdefault(outcome_key(record), record.number)
        for record in study.records
        if record.evaluated
    }


class _Configurations:
    """The configurations of a study, to be found among those of another one.

    Args:
        study: The study.
    """

    def __init__(self, study: StudyResult) -> None:
        self._trials = [record for record in study.records if record.evaluated]
        self._exact = {frozenset(record.parameters): record for record in reversed(self._trials)}
        #: What makes no difference to some trial.
        self.irrelevant = {frozenset(record.equal_because) for record in self._trials}
        self._outcomes: dict[frozenset[str], dict[_Pairs, TrialRecord | None]] = {}

    def like(self, record: TrialRecord, among: _Configurations) -> TrialRecord | None:
        """Returns the first trial with the configuration of another study's; None without one.

        The same parameters count, in any order. Else those that make no difference to one of the
        two are left out, where the others name a single outcome in both studies.

        Args:
            record: A trial of the other study.
            among: The configurations of that study.
        """
        found = self._exact.get(frozenset(record.parameters))
        if found is not None:
            return found
        own = frozenset(record.equal_because)
        for ignored in sorted({own | theirs for theirs in self.irrelevant}, key=sorted):
            if not ignored:
                continue
            rest = _without(record, ignored)
            found = self._single(ignored).get(rest)
            if found is not None and among._single(ignored).get(rest) is not None:
                return found
        return None

    def _single(self, ignored: frozenset[str]) -> dict[_Pairs, TrialRecord | None]:
        """Returns the first trial of each outcome by the other parameters; None of several."""
        if ignored not in self._outcomes:
            index: dict[_Pairs, TrialRecord | None] = {}
            for record in self._trials:
                known = index.setdefault(_without(record, ignored), record)
                if known is not None and outcome_key(known) != outcome_key(record):
                    index[_without(record, ignored)] = None
            self._outcomes[ignored] = index
        return self._outcomes[ignored]


def _without(record: TrialRecord, ignored: frozenset[str]) -> _Pairs:
    return frozenset(pair for pair in record.parameters if pair[0] not in ignored)


def _plan(record: TrialRecord) -> ShardingPlan | None:
    return None if record.configuration is None else record.configuration.plan


def _time_s(record: TrialRecord) -> float:
    assert record.prediction is not None
    return record.prediction.iteration_time_s


def _models(first: StudyResult, second: StudyResult) -> str:
    if first.model_name == second.model_name:
        return ""
    return (
        f"the studies are of different models, {first.model_name} and {second.model_name}, whose "
        "figures answer different questions; "
    )


def _conclusion(
    kind: type[Workload],
    best: Sequence[BestMove],
    volumes: tuple[float, float] | None,
    common: Sequence[CommonCandidate],
    differences: Sequence[InputDifference],
) -> str:
    """Returns a sentence on which study is ahead, and in what."""
    if volumes is None:
        return _nothing_feasible(best)
    better, worse = (
        [
            f"{kind.metric(move.metric).noun} ({signed_percent(move.change)})"
            for move in best
            if _lead(move) == sign
        ]
        for sign in (1, -1)
    )
    parts = []
    if better:
        parts.append(f"the second is ahead in {_and(better)}")
    if worse:
        parts.append(f"{'' if better else 'the second is '}behind in {_and(worse)}")
    if not parts:
        parts.append("both reach the same best values")
    parts.append(f"the second's front covers {_coverage(volumes)}")
    moved = [one for one in common if one.moved]
    if moved:
        ratios = np.array([one.time_ratio for one in moved])
        parts.append(
            f"{len(moved)} of {len(common)} common candidates are predicted differently, in the "
            f"median {signed_percent(float(np.median(ratios)) - 1)} in time"
        )
    elif common and any(difference.matters for difference in differences):
        parts.append(f"all {len(common)} common candidates are predicted the same")
    return "; ".join(parts)


def _nothing_feasible(best: Sequence[BestMove]) -> str:
    first = all(move.number_before is None for move in best)
    second = all(move.number_after is None for move in best)
    if first and second:
        return "nothing is feasible in either study"
    return f"nothing is feasible in the {'first' if first else 'second'} study"


def _lead(move: BestMove) -> int:
    """Returns 1 where the second study is better, -1 where it is worse, 0 where they are equal."""
    if math.isnan(move.change) or abs(move.change) <= _MOVED:
        return 0
    return 1 if (move.change > 0) == move.maximize else -1


def _coverage(volumes: tuple[float, float]) -> str:
    """Returns how a front compares; a factor would depend on the box that the fronts span."""
    before, after = volumes
    if math.isclose(before, after, rel_tol=5e-4):
        return "as much"
    return "more" if after > before else "less"


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _listed(objectives: Sequence[Objective]) -> str:
    return ", ".join(
        f"{axis.metric} ({'maximize' if axis.maximize else 'minimize'})" for axis in objectives
    )
