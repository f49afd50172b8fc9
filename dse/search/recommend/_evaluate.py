"""Evaluation of options with the evaluator of studies."""

from __future__ import annotations

from dataclasses import dataclass, field
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import ConfigError
from dse.search._proposals import Effort, Proposal
from dse.search.recommend._types import Solved
from dse.workload import predict_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.search.evaluate._configurations import ConfigurationEvaluator
    from dse.search.recommend._types import Option
    from dse.workload import ParameterValue

#: Relative distance beyond a required throughput that is ruled out as well, against rounding.
_BEYOND = 1.001


@dataclass(frozen=True)
class OptionEvaluator:
    """Evaluates the options of one workload.

    Of each of the usual ways to run a workload on a machine, the first alternative that fits is
    taken; the best of them is the option's.

    Attributes:
        evaluator: The evaluator of studies.
        fixed: Parameters that all options share, such as the training program.
        link: Interconnect of options with several ranks; empty for the platform's own.
    """

    evaluator: ConfigurationEvaluator
    fixed: Mapping[str, ParameterValue]
    link: str = ""
    _fitting: dict[Option, tuple[dict[str, ParameterValue], ...]] = field(default_factory=dict)
    _solved: dict[tuple[Option, float], Solved] = field(default_factory=dict)

    def impossible(self, option: Option) -> str:
        """Returns why an option cannot run at all; empty if it may."""
        parameters = self._parameters(option)
        reason = self.evaluator.refusal(parameters)
        if not reason or self.evaluator.workload.finds_plans:
            return reason
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
        """Returns a throughput that no way to run an option exceeds.

        Args:
            option: The option.
            effort: Kind of the bound.
        """
        least_s = min(
            (self._least_s(parameters, effort) for parameters in self._ways(option)),
            default=math.inf,
        )
        return option.global_batch_size / least_s if least_s > 0 else math.inf

    def _least_s(self, parameters: Mapping[str, ParameterValue], effort: Effort) -> float:
        record = self.evaluator.answer(Proposal(0, tuple(parameters.items()), effort))
        return 0.0 if record.prediction is None else record.prediction.iteration_time_s

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

    def solve(self, option: Option, bound_per_s: float) -> Solved:
        """Returns an option with the best way to run it; asked again, the same.

        Args:
            option: The option.
            bound_per_s: Its bound; infinite if it is not known.

        Raises:
            ConfigError: Nothing fits.
        """
        if (option, bound_per_s) not in self._solved:
            self._solved[option, bound_per_s] = self._solve(option, bound_per_s)
        return self._solved[option, bound_per_s]

    def _solve(self, option: Option, bound_per_s: float) -> Solved:
        ways = self._ways(option)
        if not ways:
            raise ConfigError(self.impossible(option))
        bound_s = option.global_batch_size / bound_per_s
        least = [self._least_s(parameters, Effort.OPTIMISTIC) for parameters in ways]
        best_s, job, best = math.inf, None, ways[0]
        for place in sorted(range(len(ways)), key=least.__getitem__):
            if job is not None and least[place] >= best_s:
                break
            planned = self.evaluator.planned(ways[place], bound_s)
            time_s = planned.simulated().time_s
            if job is None or time_s < best_s:
                best_s, job, best = time_s, planned, ways[place]
        assert job is not None
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
        """Returns the ways to run an option that fit its memory."""
        if option not in self._fitting:
            self._fitting[option] = tuple(self._find_ways(option))
        return self._fitting[option]

    def _find_ways(self, option: Option) -> list[dict[str, ParameterValue]]:
        parameters = self._parameters(option)
        workload, evaluator = self.evaluator.workload, self.evaluator
        if workload.finds_plans:
            return [parameters]
        found = []
        for alternatives in workload.candidates(evaluator.platform(option.platform), parameters):
            for chosen in alternatives:
                if evaluator.refusal(chosen):
                    break
                if evaluator.fits(chosen):
                    found.append(dict(chosen))
                    break
        return found
