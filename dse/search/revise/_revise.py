"""Revision of a finished study under other inputs, without a new search.

Every evaluated candidate keeps its plan. Where its machines are the same as before in all that a
prediction depends on, only its price and cost change and its times stay to the last bit. All
others are predicted again. Then limits are judged and the front is recomputed.

Plans were searched for the old inputs, so a new search could find better ones: the times are upper
bounds for each candidate under the new inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING, Protocol

from dse._text.html import fields_html
from dse.errors import ConfigError
from dse.machine import Quote
from dse.search._input_files import platform_facts
from dse.search._overrides import check_price_changes, with_overrides
from dse.search._proposals import Effort, Proposal
from dse.search._records import TrialRecord, TrialStatus
from dse.search._result import mark_front
from dse.search.analyse._decision import conclude
from dse.search.analyse._front_moves import best_moves
from dse.search.evaluate._evaluator import EvaluationContext, Evaluator
from dse.search.evaluate._judge import judged
from dse.search.evaluate._rent import quote_for
from dse.search.execute._executor import check_executor, make_executor, useful_jobs
from dse.search.revise._stored import study_context, study_machines
from dse.workload import named, workload_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.machine import Cluster
    from dse.machine.platforms import ChangedFigure, Override
    from dse.search._overrides import StudyMachines
    from dse.search._records import Params, StudyResult
    from dse.search.evaluate._configurations import ConfigurationEvaluator, WorkloadContext
    from dse.search.space import SearchSpace
    from dse.workload import Configuration, ParameterValue, Prediction

#: Predictions from which on several workers are worth their start.
_WORTH_WORKERS = 200


class RevisionProgress(Protocol):
    """Called after every candidate."""

    def __call__(self, done: int, total: int, /) -> None:
        """Takes the number of candidates that are done, and of all."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A study under other inputs.

    Attributes:
        before: The study as it was.
        after: The same candidates under the changed inputs, with their new front. Lower bounds are
            left out where they were for other inputs, and so are validations.
        overrides: What was changed.
        figures: Every figure that changed.
        kept: Candidates whose prediction stayed as it was.
        repriced: Candidates whose times stayed while price and cost changed.
        simulated: Candidates that were predicted again.
        searched: Candidates for which a new plan was searched, and whether it is better.
        newly_allowed: Configurations that broke a hard limit before and would not now; they have
            no plan, so they are not among the candidates.
    """

    before: StudyResult
    after: StudyResult
    overrides: tuple[Override, ...]
    figures: tuple[ChangedFigure, ...]
    kept: int
    repriced: int
    simulated: int
    searched: tuple[tuple[int, bool], ...] = ()
    newly_allowed: int = 0

    def __repr__(self) -> str:
        return f"Revision({self.before!r}, {self._changes}: {conclude(self.after)})"

    def _repr_html_(self) -> str:
        """Shows what changed and the best before and after in a notebook."""
        formats = {metric.name: metric for metric in workload_kind(self.after.kind).metrics}
        fields = [
            (
                f"best {(form := formats[move.metric]).title_with_unit}",
                f"{form.text(move.value_before)} → {form.text(move.value_after)}",
            )
            for move in best_moves(self.before, self.after)
        ]
        return fields_html(f"{self.before.name}, {self._changes}: {conclude(self.after)}", fields)

    @property
    def _changes(self) -> str:
        return ", ".join(change.text for change in self.overrides)


def revise_study(
    result: StudyResult,
    overrides: Sequence[str | Override],
    *,
    replan: int = 0,
    jobs: int = 1,
    space: SearchSpace | None = None,
    progress: RevisionProgress | None = None,
) -> Revision:
    """Predicts all candidates of a study again under changed inputs, their plans kept.

    Args:
        result: The study; of a captured trace only prices can change.
        overrides: `PATH=VALUE` texts, or what they say; see :mod:`dse.machine.platforms`.
        replan: Search new plans for this many of the best candidates.
        jobs: Worker processes for the predictions; no more start than are of use.
        space: The search space, where it was made in Python and is in no file.
        progress: Called after every candidate.

    Raises:
        ConfigError: An override is wrong, the study cannot be revised under it, or there are to
            be no workers.
        StudyError: The study does not keep what is needed.
    """
    check_executor("process", jobs, "")
    if replan < 0:
        raise ConfigError(f"replan {replan}: expected 0 or more candidates to search again")
    if not overrides:
        raise ConfigError(
            f"nothing to change in {result.name}: give a change such as `link.bandwidth=+20%`"
        )
    machines = study_machines(result, space)
    parsed = machines.parsed(overrides)
    changed, figures = machines.overridden(parsed)
    if not figures:
        named = " ".join(change.text for change in parsed)
        raise ConfigError(
            f"{named}: nothing in {result.name} has that figure, so nothing would change"
        )
    if result.trace is not None:
        check_price_changes(parsed, result.name)
        if replan:
            raise ConfigError("a captured trace has no plan to search again; leave --replan out")
    engine = _Engine(result, machines, changed)
    records = engine.revised(jobs, progress)
    searched: tuple[tuple[int, bool], ...] = ()
    if replan:
        records, searched = engine.replanned(records, replan, jobs, progress)
    return Revision(
        before=result,
        after=_study(result, records, parsed, changed),
        overrides=parsed,
        figures=figures,
        kept=engine.kept,
        repriced=engine.repriced,
        simulated=engine.simulated,
        searched=searched,
        newly_allowed=engine.newly_allowed(),
    )


def _workers(jobs: int, at_once: int) -> int:
    """Returns how many worker processes to start for so many predictions."""
    return useful_jobs("process", jobs, "", max(1, at_once))


def best_first(records: Sequence[TrialRecord], result: StudyResult) -> list[TrialRecord]:
    """Returns feasible candidates: the front, then the rest, each by the first objective."""
    sign = -1.0 if result.objectives[0].maximize else 1.0
    feasible = [record for record in records if record.status is TrialStatus.FEASIBLE]
    return sorted(
        feasible, key=lambda record: (not record.on_front, sign * record.values[0], record.number)
    )


def _study(
    result: StudyResult,
    records: Sequence[TrialRecord],
    overrides: Sequence[Override],
    machines: StudyMachines,
) -> StudyResult:
    """Returns a study with revised records, its front and facts recomputed."""
    marked = mark_front(records, result.objectives)
    facts = [
        fact
        for name, platform in machines.platforms.items()
        for fact in platform_facts(name, platform)
    ]
    return replace(
        result,
        records=marked,
        inputs=with_overrides(result.inputs, overrides),
        facts=tuple(facts),
        validation=None,
        # What was not evaluated was proven dominated under the former inputs.
        certificate=None,
    )


class _Engine:
    """Revises the candidates of one study.

    Args:
        result: The study.
        machines: The machines before the overrides.
        changed: The machines after them.
    """

    def __init__(
        self, result: StudyResult, machines: StudyMachines, changed: StudyMachines
    ) -> None:
        self._result = result
        self._machines = changed
        self._context: WorkloadContext | None = None
        self.kept = self.repriced = self.simulated = 0
        if result.trace is None:
            context = study_context(result, changed)
            former = replace(context, space=machines.space, platforms=machines.platforms)
            self._context = context
            self._before = former.make_evaluator()
            self._after = context.make_evaluator()

    def revised(self, jobs: int, progress: RevisionProgress | None) -> list[TrialRecord]:
        """Returns all records under the changed inputs, in their order."""
        records: dict[int, TrialRecord] = {}
        waiting: dict[int, TrialRecord] = {}
        for record in self._result.records:
            kept = record.configuration is None or self._context is None
            if kept or self._same_machines(record):
                records[record.number] = self._repriced(record)
            else:
                waiting[record.number] = record
        self.simulated = len(waiting)
        if waiting and self._context is not None:
            context = _KeptPlans(self._context.space, self._result.seed, self._context, waiting)
            jobs = _workers(jobs, len(waiting)) if len(waiting) >= _WORTH_WORKERS else 1
            proposals = [Proposal(record.number, record.parameters) for record in waiting.values()]
            with make_executor("process", context, jobs) as executor:
                for record in executor.run(proposals):
                    records[record.number] = record
                    if progress is not None:
                        progress(len(records), len(self._result.records))
        return [records[record.number] for record in self._result.records]

    def replanned(
        self,
        records: Sequence[TrialRecord],
        count: int,
        jobs: int,
        progress: RevisionProgress | None,
    ) -> tuple[list[TrialRecord], tuple[tuple[int, bool], ...]]:
        """Searches new plans for the best candidates; a plan that is no faster is dropped.

        The search is that of :func:`dse.shard`, as for the front of a new study.
        """
        assert self._context is not None
        best = best_first(mark_front(records, self._result.objectives), self._result)[:count]
        by_number = {record.number: record for record in records}
        searched: dict[int, bool] = {}
        workers = _workers(jobs, len(best))
        with make_executor("process", self._context, workers) as executor:
            for found in executor.run(
                [Proposal(record.number, record.parameters, Effort.THOROUGH) for record in best]
            ):
                searched[found.number] = _faster(found, by_number[found.number])
                if searched[found.number]:
                    by_number[found.number] = found
                if progress is not None:
                    progress(len(searched), len(best))
        return [by_number[record.number] for record in records], tuple(sorted(searched.items()))

    def newly_allowed(self) -> int:
        """Counts rejected configurations that would be evaluated now."""
        if self._context is None:
            return 0
        return sum(
            record.status is TrialStatus.REJECTED and self._allowed(record.parameters)
            for record in self._result.records
        )

    def _allowed(self, parameters: Params) -> bool:
        """Returns whether a search would evaluate a configuration: not if no plan can fit."""
        if self._after.rejection(dict(parameters)):
            return False
        best = self._after.answer(Proposal(0, parameters, Effort.OPTIMISTIC))
        return best.status is TrialStatus.FEASIBLE

    def _same_machines(self, record: TrialRecord) -> bool:
        configuration = record.configuration
        if configuration is None:
            return True
        before, after = (
            _figures(evaluator.cluster(configuration)) for evaluator in (self._before, self._after)
        )
        return before == after

    def _repriced(self, record: TrialRecord) -> TrialRecord:
        """Returns a record at the changed prices."""
        prediction = record.prediction
        if prediction is None or record.configuration is None:
            return record
        quote = self._quote(record.configuration, prediction)
        price = None if quote is None else quote.usd_per_hour
        if price == prediction.price_usd_per_hour:
            self.kept += 1
            return record
        rented = "" if quote is None else quote.text
        self.repriced += 1
        throughput, cost = prediction.throughput_samples_per_s, None
        if quote is not None and not math.isnan(throughput):
            cost = quote.cost_usd_per_million(throughput)
        repriced = replace(
            prediction,
            price_usd_per_hour=price,
            cost_usd_per_million_samples=cost,
            rented=rented,
        )
        return judged(
            replace(record, prediction=repriced),
            self._machines.space,
            workload_kind(self._result.kind),
        )

    def _quote(self, configuration: Configuration, prediction: Prediction) -> Quote | None:
        if self._context is not None:
            return self._after.quote(configuration)
        for platform in self._machines.platforms.values():
            if platform.name == configuration.platform:
                return quote_for(
                    platform,
                    configuration.world_size,
                    self._machines.space,
                    named(dict(configuration.parameters), "network"),
                )
        price = prediction.price_usd_per_hour
        return None if price is None else Quote(price)


def _figures(cluster: Cluster | None) -> Cluster | None:
    """Returns machines reduced to what predictions on them depend on.

    A link matters only where a node has several ranks, a network only between nodes. What was
    measured of the device moves with its figures.
    """
    if cluster is None:
        return None
    link, network = cluster.link, cluster.network
    if cluster.domain_size == 1:
        link = replace(
            link, bandwidth_bytes_per_s=0.0, latency_s=0.0, calibrations=(), measured_on=None
        )
    if cluster.domain_count == 1:
        network = replace(network, nic_bandwidth_bytes_per_s=0.0, latency_s=0.0, nics_per_node=0)
    device = replace(cluster.device, calibrations=())
    return replace(cluster, device=device, link=link, network=network)


def _faster(found: TrialRecord, kept: TrialRecord) -> bool:
    """Returns whether a new plan fits and is faster than the one that was kept."""
    if found.status is not TrialStatus.FEASIBLE or found.prediction is None:
        return False
    if kept.status is not TrialStatus.FEASIBLE or kept.prediction is None:
        return True
    return found.prediction.iteration_time_s < kept.prediction.iteration_time_s


@dataclass(frozen=True)
class _KeptPlans(EvaluationContext):
    """What workers need to predict recorded candidates with their plans.

    Attributes:
        inner: The study's context after the overrides.
        records: The candidates by number.
    """

    inner: WorkloadContext
    records: Mapping[int, TrialRecord]

    def make_evaluator(self) -> Evaluator:
        """Returns an evaluator that looks up plans instead of searching them."""
        return _KeptPlanEvaluator(self)


class _KeptPlanEvaluator(Evaluator):
    """Predicts recorded candidates with their plans."""

    def __init__(self, context: _KeptPlans) -> None:
        super().__init__(context.space)
        self._records = context.records
        self._inner: ConfigurationEvaluator = context.inner.make_evaluator()

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns nothing: all of them were evaluated once."""
        del parameters
        return ""

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        del parameters
        record = self._records[number]
        assert record.configuration is not None
        prediction = self._inner.predict(record.configuration)
        predicted = replace(record, prediction=prediction, lower_bound_s=None)
        return judged(predicted, self.space, self._inner.workload)
