"""Cost models of users: a callable in place of the performance model.

Proposals, limits on price and size, executors, storage and the page stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, TypeAlias

from dse.errors import ConfigError
from dse.search._proposals import Effort
from dse.search.evaluate._configurations import ConfigurationEvaluator, WorkloadContext
from dse.search.evaluate._judge import judged
from dse.workload import MemoryAccount, ParameterValue, Prediction

if TYPE_CHECKING:
    from collections.abc import Hashable

    from dse.machine import Quote
    from dse.search._records import TrialRecord
    from dse.workload import Job

#: Takes the value of every parameter and returns a prediction, figures by name, or the time of one
#: iteration in seconds. A module-level function, so that worker processes can import it.
ObjectiveFunction: TypeAlias = Callable[
    [Mapping[str, ParameterValue]], "Prediction | Mapping[str, float] | float"
]

#: Figures that a mapping may have besides metrics of the workload.
_PEAK_MEMORY = "peak_memory_bytes"


@dataclass(frozen=True)
class ObjectiveContext(WorkloadContext):
    """What evaluations by a cost model need.

    Attributes:
        objective: The cost model.
    """

    objective: ObjectiveFunction

    def make_evaluator(self) -> ObjectiveEvaluator:
        """Returns an evaluator that asks the cost model."""
        return ObjectiveEvaluator(self, self.objective)


def objective_context(
    context: WorkloadContext, seed: int, objective: ObjectiveFunction
) -> ObjectiveContext:
    """Returns a context whose evaluations ask a cost model.

    Args:
        context: Space, workload and platforms.
        seed: Seed of the study.
        objective: The cost model.
    """
    return ObjectiveContext(context.space, seed, context.workload, context.platforms, objective)


class ObjectiveEvaluator(ConfigurationEvaluator):
    """Asks a cost model about each configuration that breaks no hard limit."""

    def __init__(self, context: ObjectiveContext, objective: ObjectiveFunction) -> None:
        super().__init__(context)
        self._objective = objective
        self._known = tuple(metric.name for metric in context.workload.metrics)
        asked = [axis.metric for axis in context.space.objectives]
        asked += [constraint.metric for constraint in context.space.constraints]
        metric = context.workload.metric
        needs_memory = ("peak_memory_bytes", "memory_headroom_fraction", "fit_probability")
        self._of_memory = [name for name in asked if metric(name).needs(*needs_memory)]

    @property
    def finest_bound(self) -> Effort:
        """Nothing bounds a cost model that is not ours."""
        return Effort.OPTIMISTIC

    @property
    def bounds_time(self) -> bool:
        """Nothing bounds a cost model that is not ours."""
        return False

    def outcome(self, parameters: Mapping[str, ParameterValue]) -> Hashable:
        """Returns all parameters: only the cost model knows which of them matter."""
        self.open_job(parameters).check_parameters()
        return tuple(parameters.items())

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        job = self.open_job(parameters)
        answer = self._objective(dict(parameters))
        prediction = (
            answer
            if isinstance(answer, Prediction)
            else _prediction(answer, job, self._quote(job, parameters), self._known)
        )
        if not prediction.memory and self._of_memory:
            raise ConfigError(
                f"the objective returned no `{_PEAK_MEMORY}`, which "
                f"`{self._of_memory[0]}` in the search space needs"
            )
        record = self.predicted(number, parameters, job, prediction)
        return judged(record, self.space, self.workload)


def _prediction(
    answer: Mapping[str, float] | float,
    job: Job,
    quote: Quote | None,
    known: tuple[str, ...],
) -> Prediction:
    """Returns the prediction that figures stand for.

    Metrics that the answer names count as it gives them; others follow from the iteration time.

    Args:
        answer: Iteration time in seconds, or figures by name.
        job: What was asked about.
        quote: Price of the whole cluster, or None if it is not known.
        known: Names of the workload's metrics.

    Raises:
        ConfigError: They do not say how long an iteration takes, or one is not a metric.
    """
    figures: dict[str, float] = (
        dict(answer) if isinstance(answer, Mapping) else {"iteration_time_s": answer}
    )
    seconds = float(figures.pop("iteration_time_s", math.nan))
    if not 0 < seconds < math.inf:
        raise ConfigError(
            f"the objective returned iteration_time_s = {seconds}; expected a positive number of "
            "seconds"
        )
    peak_bytes = figures.pop(_PEAK_MEMORY, None)
    low_s = float(figures.pop("iteration_time_p5_s", seconds))
    high_s = float(figures.pop("iteration_time_p95_s", seconds))
    unknown = [name for name in figures if name not in known]
    if unknown:
        raise ConfigError(
            f"the objective returned `{unknown[0]}`; expected names of metrics such as "
            f"{', '.join(known)}"
        )
    cluster = job.cluster
    usable_bytes = 0.0 if cluster is None else cluster.device.usable_memory_bytes
    memory: tuple[MemoryAccount, ...] = ()
    reason = ""
    if peak_bytes is not None:
        memory = (MemoryAccount((("all", float(peak_bytes)),)),)
        if peak_bytes > usable_bytes:
            reason = (
                f"out of memory: {peak_bytes / 2**30:.1f} GiB of {usable_bytes / 2**30:.1f} GiB"
            )
    throughput = job.samples_per_iteration / seconds
    return Prediction(
        iteration_time_s=seconds,
        iteration_time_p5_s=low_s,
        iteration_time_p95_s=high_s,
        throughput_samples_per_s=throughput,
        price_usd_per_hour=None if quote is None else quote.usd_per_hour,
        cost_usd_per_million_samples=None
        if quote is None
        else quote.cost_usd_per_million(throughput),
        breakdown=(),
        memory=memory,
        usable_memory_bytes=usable_bytes,
        feasible=not reason,
        infeasible_reason=reason,
        metrics=tuple((name, float(value)) for name, value in figures.items()),
        network=cluster.network.name if cluster and cluster.domain_count > 1 else "",
        rented="" if quote is None else quote.text,
    )
