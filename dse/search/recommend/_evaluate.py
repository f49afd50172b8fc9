"""Evaluation of options with the evaluator of studies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.search.recommend._types import Solved
from dse.workload import predict_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.search.evaluate._evaluator import ConfigurationEvaluator
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
    """

    evaluator: ConfigurationEvaluator
    fixed: Mapping[str, ParameterValue]
    _fitting: dict[Option, tuple[dict[str, ParameterValue], ...]] = field(default_factory=dict)

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

    def bound_per_s(self, option: Option, required_per_s: float | None = None) -> float:
        """Returns a throughput that no way to run an option exceeds.

        Args:
            option: The option.
            required_per_s: Refine the bound until it rules this out; None for a quick one.
        """
        batch = option.global_batch_size
        job = self.evaluator.open_job(self._parameters(option))
        incumbent_s = None if required_per_s is None else _BEYOND * batch / required_per_s
        least_s = job.lower_bound_s(incumbent_s)
        if least_s is None:
            # Other ways to spread the step have other times; none uses more than all arithmetic.
            # What a step of one second would use of it is the least time in seconds.
            least_s = dict(job.metrics(1.0)).get("model_flops_utilization", 0.0)
        return batch / least_s if least_s > 0 else float("inf")

    def solve(self, option: Option, bound_per_s: float) -> Solved:
        """Returns an option with the best way to run it.

        Args:
            option: The option.
            bound_per_s: Its bound; infinite if it is not known.

        Raises:
            ConfigError: Nothing fits.
        """
        ways = self._ways(option)
        if not ways:
            raise ConfigError(self.impossible(option))
        bound_s = option.global_batch_size / bound_per_s
        best: Solved | None = None
        for parameters in ways:
            job = self.evaluator.planned(parameters, bound_s)
            configuration = self.evaluator.configuration(job, parameters)
            prediction = predict_job(job, self.evaluator.quote(configuration))
            found_by = job.planner or self.evaluator.workload.summary(configuration)
            found = Solved(option, configuration, prediction, found_by, bound_per_s)
            if best is None or _rank(found) < _rank(best):
                best = found
        assert best is not None
        # All ways were tried, so the best is its own bound where no plan is searched.
        if not self.evaluator.workload.finds_plans:
            best = best.bounded(best.throughput_per_s)
        return best

    def limit(self, solved: Solved) -> str:
        """Returns a sentence on what limits an option: its memory, or its critical path."""
        reason = solved.prediction.infeasible_reason
        return reason or self.evaluator.limit(solved.configuration)

    def _parameters(self, option: Option) -> dict[str, ParameterValue]:
        return {
            "platform": option.platform,
            "world_size": option.world_size,
            "global_batch_size": option.global_batch_size,
            "precision": option.precision.value,
            **self.fixed,
        }

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


def _rank(solved: Solved) -> tuple[bool, float]:
    return not solved.prediction.feasible, -solved.throughput_per_s
