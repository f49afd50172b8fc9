"""Evaluation of options with the evaluators of studies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.errors import ConfigError, DseError
from dse.search.recommend._types import Solved
from dse.sharding import ShardingPlan, ShardingType
from dse.workload.dlrm import Configuration, DlrmRuntime
from dse.workload.transformer import (
    DataSharding,
    Parallelism,
    Recompute,
    StepConfiguration,
    parallelism_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.search.evaluate._dlrm import ModelEvaluator
    from dse.search.evaluate._transformer import StepContext, StepEvaluator
    from dse.search.recommend._types import Option

#: Relative distance beyond a required throughput that is ruled out as well, against rounding.
_BEYOND = 1.001

_MICRO_BATCHES = (1, 2, 4, 8, 16)
_DATA_SHARDING = (DataSharding.NONE, DataSharding.OPTIMIZER, DataSharding.PARAMETERS)

#: From the fastest to the smallest.
_RECOMPUTE = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


class OptionEvaluator(ABC):
    """Evaluates the options of one model."""

    @abstractmethod
    def impossible(self, option: Option) -> str:
        """Returns why an option cannot run at all, or nothing when it may."""

    @abstractmethod
    def bound_per_s(self, option: Option, required_per_s: float | None = None) -> float:
        """Returns a throughput that no plan of an option exceeds.

        Args:
            option: The option.
            required_per_s: Refine the bound until it rules this out; None for a quick one.
        """

    @abstractmethod
    def solve(self, option: Option, bound_per_s: float) -> Solved:
        """Returns an option with the best plan found.

        Args:
            option: The option.
            bound_per_s: Its bound; infinite where it is not known.
        """

    @abstractmethod
    def limit(self, solved: Solved) -> str:
        """Returns a sentence on what limits an option with its plan."""


@dataclass(frozen=True)
class DlrmOptions(OptionEvaluator):
    """Options of a recommendation model; the solver places the tables.

    Attributes:
        evaluator: The evaluator of studies.
        types: Sharding types that plans may use.
        software: How the training program is written.
    """

    evaluator: ModelEvaluator
    types: frozenset[ShardingType]
    software: DlrmRuntime

    def impossible(self, option: Option) -> str:
        """A batch that does not divide, half-empty nodes, or more tables than memory."""
        return self.evaluator.refusal(self._configuration(option))

    def bound_per_s(self, option: Option, required_per_s: float | None = None) -> float:
        """By the linear programs that bound all sharding plans from below."""
        batch, incumbent_s = option.global_batch_size, None
        if required_per_s is not None:
            incumbent_s = _BEYOND * batch / required_per_s
        return batch / self.evaluator.bound_s(self._configuration(option), self.types, incumbent_s)

    def solve(self, option: Option, bound_per_s: float) -> Solved:
        """By the sharding solver."""
        configuration = self._configuration(option)
        bound_s = option.global_batch_size / bound_per_s
        plan, planner, prediction = self.evaluator.planned(configuration, self.types, bound_s)
        return Solved(option, replace(configuration, plan=plan), prediction, planner, bound_per_s)

    def limit(self, solved: Solved) -> str:
        """By its memory, or by the critical path of its iteration."""
        return solved.prediction.infeasible_reason or self.evaluator.limit(solved.configuration)

    def _configuration(self, option: Option) -> Configuration:
        return Configuration(
            platform=option.platform,
            world_size=option.world_size,
            global_batch_size=option.global_batch_size,
            plan=ShardingPlan(option.world_size, ()),
            precision=option.precision,
            software=self.software,
        )


class TransformerOptions(OptionEvaluator):
    """Options of a transformer: every usual way to spread its step is tried.

    Of each product of tensor, pipeline and data parallelism with each micro-batch, the first kind
    of recomputation that fits is taken: more of it only takes longer. So the best is the best of
    that lattice, not a heuristic's.

    Args:
        context: What its evaluations need.
        program: Name of the training program.
    """

    def __init__(self, context: StepContext, program: str = "default") -> None:
        self._model = context.model
        self._platforms = context.platforms
        self._evaluator: StepEvaluator = context.make_evaluator()
        self._program = program
        self._fitting = lru_cache(maxsize=None)(self._find_fitting)

    def impossible(self, option: Option) -> str:
        """Half-empty nodes, or no way to spread the step that fits the memory."""
        platform = self._platforms[option.platform]
        try:
            platform.cluster(option.world_size)
        except DseError as error:
            return str(error)
        if self._fitting(option):
            return ""
        return (
            f"no way to spread {self._model.name} over {option.world_size} × "
            f"{platform.device.name} at batch {option.global_batch_size:,} fits their memory; use "
            "more ranks"
        )

    def bound_per_s(self, option: Option, required_per_s: float | None = None) -> float:
        """By the arithmetic of the model at the peak rate of all devices."""
        del required_per_s
        peak = self._platforms[option.platform].device.peak.of(option.precision)
        return peak * option.world_size / self._model.model_flops_per_sample

    def solve(self, option: Option, bound_per_s: float) -> Solved:
        """By trying all that fit; so the best is its own bound.

        Raises:
            ConfigError: Nothing fits.
        """
        del bound_per_s
        fitting = self._fitting(option)
        if not fitting:
            raise ConfigError(self.impossible(option))
        predictions = [self._evaluator.predict(configuration) for configuration in fitting]
        best = min(range(len(fitting)), key=lambda place: predictions[place].iteration_time_s)
        words = parallelism_words(fitting[best].parallelism)
        bound_per_s = predictions[best].throughput_samples_per_s
        return Solved(option, fitting[best], predictions[best], words, bound_per_s)

    def limit(self, solved: Solved) -> str:
        """By the critical path of its step."""
        return self._evaluator.limit(solved.configuration)

    def _find_fitting(self, option: Option) -> tuple[StepConfiguration, ...]:
        found = []
        for degrees in self._degrees(option):
            for recompute in _RECOMPUTE:
                parallelism = replace(degrees, recompute=recompute)
                configuration = self._configuration(option, parallelism)
                if self._evaluator.refusal(configuration):
                    break
                if self._evaluator.fits(configuration):
                    found.append(configuration)
                    break
        return tuple(found)

    def _degrees(self, option: Option) -> Iterator[Parallelism]:
        """Yields ways to spread a step over the ranks, without recomputation."""
        local_size = self._platforms[option.platform].cluster(option.world_size).local_size
        for tensor in _divisors(local_size):
            for pipeline in _divisors(option.world_size // tensor):
                data = option.world_size // tensor // pipeline
                for micro_batch in _MICRO_BATCHES:
                    for sharding in _DATA_SHARDING if data > 1 else _DATA_SHARDING[:1]:
                        yield Parallelism(
                            tensor=tensor,
                            pipeline=pipeline,
                            data=data,
                            sequence_parallel=tensor > 1,
                            micro_batch_size=micro_batch,
                            data_sharding=sharding,
                        )

    def _configuration(self, option: Option, parallelism: Parallelism) -> StepConfiguration:
        return StepConfiguration(
            platform=option.platform,
            world_size=option.world_size,
            global_batch_size=option.global_batch_size,
            precision=option.precision,
            parallelism=parallelism,
            software=self._program,
        )


def _divisors(count: int) -> list[int]:
    return [value for value in range(1, count + 1) if count % value == 0]
