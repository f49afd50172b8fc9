"""Scoring a finished study again under other inputs, without searching again.

Every evaluated candidate keeps its plan. Where its machines are the same as before in all that its
iteration depends on, its times stay to the last bit and only price, cost and memory limit move;
elsewhere its iteration is simulated again. Then limits are judged and the front is marked anew.

Plans were searched for the old inputs, so a new search could find better ones: what comes out is
an upper bound on the time of each candidate under the new inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.search._records import TrialRecord, TrialStatus
from dse.search._rescore_inputs import model_context, read_changes, stored_inputs
from dse.search._rescore_predict import StoredPlans, cost_of, surely_fits
from dse.search._rescore_result import Rescored, judged, rescored_study
from dse.search._rescore_trace import rescored_trace
from dse.search._result import mark_front
from dse.search.evaluate._base import EvaluationContext, Evaluator
from dse.search.execute._executor import make_executor
from dse.search.propose._proposer import Proposal
from dse.search.space import WorkloadKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dse.machine import Cluster
    from dse.search._records import Params, StudyResult
    from dse.search._rescore_changes import Change
    from dse.search._rescore_inputs import StoredInputs
    from dse.search._rescore_result import RescoreProgress
    from dse.search.evaluate._dlrm import ModelContext
    from dse.search.evaluate._transformer import StepContext
    from dse.search.space import ParameterValue, SearchSpace

#: Simulations from which on several workers are worth their start.
_WORTH_WORKERS = 200


def rescore(
    result: StudyResult,
    changes: Sequence[str | Change],
    *,
    replan: int = 0,
    jobs: int = 1,
    space: SearchSpace | None = None,
    progress: RescoreProgress | None = None,
) -> Rescored:
    """Predicts all candidates of a study again under changed inputs, their plans kept.

    Args:
        result: The study, of a model; of a captured trace where only prices change.
        changes: `PATH=VALUE` texts (see :mod:`dse.search._rescore_changes`), or changes.
        replan: Search new plans for this many of the best candidates.
        jobs: Worker processes for the simulations.
        space: The search space, where it was made in Python and is in no file.
        progress: Told of every candidate.

    Returns:
        The study before and after. Its lower bounds are left out where they were for other
        inputs, and so are its validations.

    Raises:
        ConfigError: A change is wrong, or the study cannot be scored again under it.
        StudyError: The study does not keep what is needed.
    """
    if replan < 0:
        raise ConfigError(f"replan {replan}: expected 0 or more candidates to search again")
    inputs = stored_inputs(result, space)
    read = read_changes(result, changes, inputs)
    changed, figures = inputs.changed(read)
    if not figures:
        words = " ".join(change.text for change in read)
        raise ConfigError(
            f"{words}: nothing in {result.name} has that figure, so nothing would change"
        )
    if result.kind is WorkloadKind.TRACE:
        if replan:
            raise ConfigError("a captured trace has no plan to search again; leave --replan out")
        return rescored_trace(result, read, figures, changed, progress)
    engine = _Engine(result, inputs, changed)
    records = engine.run(jobs, progress)
    searched: list[tuple[int, bool]] = []
    if replan:
        records, searched = engine.replan(records, replan, jobs, progress)
    return Rescored(
        before=result,
        after=rescored_study(result, records, read, changed),
        changes=read,
        figures=figures,
        kept=engine.kept,
        repriced=engine.repriced,
        simulated=engine.simulated,
        searched=tuple(searched),
        newly_allowed=engine.newly_allowed(),
    )


class _Engine:
    """Scores the candidates of one study of a model.

    Args:
        result: The study.
        inputs: What it was made from.
        changed: The same after the changes.
    """

    def __init__(self, result: StudyResult, inputs: StoredInputs, changed: StoredInputs) -> None:
        self._result = result
        self._old = StoredPlans(model_context(result, inputs))
        self._context = model_context(result, changed)
        self._new = StoredPlans(self._context)
        self.kept = self.repriced = self.simulated = 0

    def run(self, jobs: int, progress: RescoreProgress | None) -> list[TrialRecord]:
        """Returns all records under the changed inputs, the front not marked yet."""
        records: dict[int, TrialRecord] = {}
        waiting: list[TrialRecord] = []
        total = len(self._result.records)
        for record in self._result.records:
            scored = self._without_simulation(record)
            if scored is None:
                waiting.append(record)
            else:
                records[record.number] = scored
        for scored in self._simulate(waiting, jobs):
            records[scored.number] = scored
            if progress is not None:
                progress(len(records), total)
        self.simulated = len(waiting)
        return [records[record.number] for record in self._result.records]

    def replan(
        self,
        records: Sequence[TrialRecord],
        count: int,
        jobs: int,
        progress: RescoreProgress | None,
    ) -> tuple[list[TrialRecord], list[tuple[int, bool]]]:
        """Searches new plans for the best candidates; a plan that is no faster is dropped."""
        best = best_first(mark_front(records, self._result.objectives), self._result)[:count]
        proposals = [Proposal(record.number, record.parameters) for record in best]
        by_number = {record.number: record for record in records}
        searched: list[tuple[int, bool]] = []
        with make_executor("process", self._context, jobs) as executor:
            for found in executor.run(proposals):
                better = _faster(found, by_number[found.number])
                if better:
                    by_number[found.number] = found
                searched.append((found.number, better))
                if progress is not None:
                    progress(len(searched), len(proposals))
        return [by_number[record.number] for record in records], sorted(searched)

    def newly_allowed(self) -> int:
        """Counts configurations whose hard limit is none any more."""
        evaluator = self._context.make_evaluator()
        return sum(
            record.status is TrialStatus.REJECTED
            and not evaluator.rejection(dict(record.parameters))
            for record in self._result.records
        )

    def _simulate(self, waiting: Sequence[TrialRecord], jobs: int) -> Iterable[TrialRecord]:
        """Yields records that are simulated again."""
        if not waiting:
            return
        stored = {record.parameters: record for record in waiting}
        context = _StoredContext(self._context.space, self._result.seed, self._context, stored)
        workers = jobs if len(waiting) >= _WORTH_WORKERS else 1
        proposals = [Proposal(record.number, record.parameters) for record in waiting]
        with make_executor("process", context, workers) as executor:
            yield from executor.run(proposals)

    def _without_simulation(self, record: TrialRecord) -> TrialRecord | None:
        """Returns a record whose times stay; None where they may move."""
        configuration, old = record.configuration, record.prediction
        if configuration is None or old is None:
            return replace(record, on_front=False)
        before = self._old.cluster_of(configuration)
        after = self._new.cluster_of(configuration)
        if not _same_times(before, after):
            return None
        usable = after.device.usable_memory_bytes
        moved = usable != old.usable_memory_bytes
        if (moved or before.host_memory_bytes != after.host_memory_bytes) and not surely_fits(
            old, after
        ):
            # What does not fit, before or now, is told in the prediction's own words.
            return None
        price = self._new.price_of(configuration)
        if price == old.price_usd_per_hour and not moved:
            self.kept += 1
            return replace(record, on_front=False)
        self.repriced += 1
        prediction = replace(
            old,
            price_usd_per_hour=price,
            cost_usd_per_million_samples=cost_of(price, old.throughput_samples_per_s),
            usable_memory_bytes=usable,
        )
        return judged(record, prediction, self._context)


@dataclass(frozen=True)
class _StoredContext(EvaluationContext):
    """What a worker needs to simulate candidates with their stored plans."""

    inner: ModelContext | StepContext
    stored: Mapping[Params, TrialRecord]

    def make_evaluator(self) -> _StoredEvaluator:
        return _StoredEvaluator(self)


class _StoredEvaluator(Evaluator):
    """Predicts candidates with their stored plans."""

    def __init__(self, context: _StoredContext) -> None:
        super().__init__(context.space)
        self._stored = context
        self._plans = StoredPlans(context.inner)

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Nothing: all of them were evaluated once."""
        del parameters
        return ""

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        record = self._stored.stored[tuple(parameters.items())]
        prediction = self._plans.predict(record)
        return replace(judged(record, prediction, self._stored.inner), number=number)


def best_first(records: Iterable[TrialRecord], result: StudyResult) -> list[TrialRecord]:
    """Returns feasible candidates: the front, then the rest, each by the first objective."""
    sign = -1.0 if result.objectives[0].maximize else 1.0
    feasible = [record for record in records if record.status is TrialStatus.FEASIBLE]
    return sorted(feasible, key=lambda one: (not one.on_front, sign * one.values[0], one.number))


def _faster(found: TrialRecord, kept: TrialRecord) -> bool:
    """Whether a new plan fits and is faster than the one that was kept."""
    if found.status is not TrialStatus.FEASIBLE or found.prediction is None:
        return False
    if kept.status is not TrialStatus.FEASIBLE or kept.prediction is None:
        return True
    return found.prediction.iteration_time_s < kept.prediction.iteration_time_s


def _same_times(before: Cluster, after: Cluster) -> bool:
    """Whether nothing that an iteration's time depends on is different.

    A link matters only where a node has several ranks, a network only between nodes, and the sizes
    of memories nowhere.
    """
    return _timing(before) == _timing(after)


def _timing(cluster: Cluster) -> tuple[object, ...]:
    device = replace(cluster.device, memory_bytes=0.0, reserved_memory_bytes=0.0, calibrations=())
    return (
        device,
        cluster.link if cluster.local_size > 1 else None,
        cluster.network if cluster.node_count > 1 else None,
        cluster.host_link,
        cluster.host,
        cluster.devices_per_node,
        cluster.world_size,
    )
