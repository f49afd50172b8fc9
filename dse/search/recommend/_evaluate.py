"""Evaluation of options with the evaluator of studies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
import math
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError, DseError
from dse.search._proposals import Effort
from dse.search.recommend._types import Solved
from dse.workload import fit_probability, predict_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.search.evaluate._configurations import ConfigurationEvaluator
    from dse.search.recommend._types import Option
    from dse.workload import Job, ParameterValue

#: Relative distance beyond a required throughput that is ruled out as well, against rounding.
_BEYOND = 1.001

#: Least probability that a way to run a workload fits, if any way has it: what runs out of memory
#: trains nothing, and a way that surely fits is mostly a few percent slower than the fastest.
_FITS = 0.9


@dataclass(frozen=True)
class OptionEvaluator:
    """Evaluates the options of one workload.

    The fastest of the usual ways to run a workload that surely fit a machine is the option's.

    Attributes:
        evaluator: The evaluator of studies.
        fixed: Parameters that all options share, such as the training program.
        link: Interconnect of options with several ranks; empty for the platform's own.
    """

    evaluator: ConfigurationEvaluator
    fixed: Mapping[str, ParameterValue]
    link: str = ""
    _fitting: dict[Option, tuple[dict[str, ParameterValue], ...]] = field(default_factory=dict)
    _solved: dict[tuple[Option, float, float], Solved] = field(default_factory=dict)

    def impossible(self, option: Option) -> str:
        """Returns why an option cannot run at all; empty if it may.

        Whether any way to run it fits is found out with the closest of its bounds.
        """
        parameters = self._parameters(option)
        reason = self.evaluator.refusal(parameters)
        if not reason or self.evaluator.workload.finds_plans:
            return reason
        try:
            self.evaluator.open_job(parameters)
        except DseError as error:
            # What all ways have in common is impossible here.
            return str(error)
        return "" if len(self.bounds) > 1 else self.no_way(option)

    def no_way(self, option: Option) -> str:
        """Returns that no way to run an option fits; empty if one does."""
        if self._ways(option):
            return ""
        return (
            f"no way to run {self.evaluator.workload.name} on {option.world_size} × "
            f"{option.platform} at batch {option.global_batch_size:,} fits their memory; use more "
            "ranks"
        )

    @property
    def bounds(self) -> tuple[Effort, ...]:
        """Kinds of bounds, the quickest first."""
        if self.evaluator.finest_bound < Effort.OWN_BOUND:
            return (Effort.OPTIMISTIC,)
        return Effort.OPTIMISTIC, Effort.OWN_BOUND

    def bound_per_s(self, option: Option, effort: Effort = Effort.OWN_BOUND) -> float:
        """Returns a throughput that no way to run an option exceeds; 0 where no way fits.

        Args:
            option: The option.
            effort: Kind of the bound.
        """
        closer = effort > Effort.OPTIMISTIC
        ways = self._ways(option) if closer else (self._parameters(option),)
        times_s = (self.evaluator.least_time_s(one, closer=closer) for one in ways)
        least_s = min(times_s, default=math.inf)
        return option.global_batch_size / least_s if least_s > 0 else math.inf

    def refined_per_s(self, option: Option, required_per_s: float) -> float:
        """Returns a bound like :meth:`bound_per_s`, refined until it rules a throughput out.

        Args:
            option: The option.
            required_per_s: The throughput.
        """
        batch = option.global_batch_size
        job = self.evaluator.open_job(self._parameters(option))
        least_s = job.lower_bound_s(_BEYOND * batch / required_per_s)
        return batch / least_s if least_s else math.inf

    def solve(self, option: Option, bound_per_s: float, confidence: float = 0.5) -> Solved:
        """Returns an option with the best way to run it; asked again, the same.

        Args:
            option: The option.
            bound_per_s: Its bound; infinite if it is not known.
            confidence: Least probability that it fits its memory, never below nine tenths; where
                no way has it, the best way is returned all the same.

        Raises:
            ConfigError: Nothing fits.
        """
        # A plan is found, whatever the probability that it fits.
        least = 0.0 if self.evaluator.workload.finds_plans else max(confidence, _FITS)
        key = option, bound_per_s, least
        if key not in self._solved:
            self._solved[key] = self._solve(option, bound_per_s, least)
        return self._solved[key]

    def _solve(self, option: Option, bound_per_s: float, confidence: float) -> Solved:
        ways = self._ways(option)
        if not ways:
            raise ConfigError(self.no_way(option))
        closer = len(self.bounds) > 1
        bounded = [(self.evaluator.least_time_s(way, closer=closer), way) for way in ways]
        best_s, job, best = math.inf, None, ways[0]
        for least_s, way in sorted(bounded, key=itemgetter(0)):
            if job is not None and least_s >= best_s:
                break
            planned = self.evaluator.planned(way)
            if not _surely_fits(planned, confidence):
                continue
            time_s = planned.simulated().time_s
            if job is None or time_s < best_s:
                best_s, job, best = time_s, planned, way
        if job is None:
            # Where no way surely fits, the fastest of those that fit more likely than not.
            return self._solve(option, bound_per_s, 0.0)
        configuration = self.evaluator.configuration(job, best)
        prediction = predict_job(job, self.evaluator.quote(configuration))
        if not self.evaluator.workload.finds_plans:
            # All ways were tried, so the best is its own bound.
            bound_per_s = prediction.throughput_samples_per_s
        return Solved(
            option,
            configuration,
            prediction,
            job.planner or self.evaluator.workload.summary(configuration),
            bound_per_s,
            tuple(np.sort(job.sample_times_s()).tolist()),
        )

    def limit(self, solved: Solved) -> str:
        """Returns a sentence on what limits an option: its memory, or its critical path."""
        reason = solved.prediction.infeasible_reason
        return reason or self.evaluator.limit(solved.configuration)

    def _parameters(self, option: Option) -> dict[str, ParameterValue]:
        parameters: dict[str, ParameterValue] = {
            "platform": option.platform,
            "world_size": option.world_size,
            "global_batch_size": option.global_batch_size,
            "precision": option.precision.value,
            **self.fixed,
        }
        if self.link and option.world_size > 1:
            parameters["link"] = self.link
        if option.network:
            parameters["network"] = option.network
        return parameters

    def _ways(self, option: Option) -> tuple[dict[str, ParameterValue], ...]:
        """Returns the ways to run an option that fit its memory; networks make no difference."""
        parameters = self._parameters(option)
        workload = self.evaluator.workload
        if workload.finds_plans:
            return (parameters,)
        alike = replace(option, network="", price_usd_per_hour=0.0)
        if alike not in self._fitting:
            platform = self.evaluator.platform(option.platform)
            self._fitting[alike] = tuple(map(dict, workload.candidates(platform, parameters)))
        connected = {name: parameters[name] for name in ("network",) if name in parameters}
        return tuple({**one, **connected} for one in self._fitting[alike])


def _surely_fits(job: Job, confidence: float) -> bool:
    """Returns whether every rank of a job fits with a probability, or its memory is not known."""
    if job.cluster is None:
        return True
    return not fit_probability(job.memory(), job.cluster.device.usable_memory_bytes) < confidence
