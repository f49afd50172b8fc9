"""Options of a transformer: every usual way to spread its step is tried.

Of each product of tensor, pipeline and data parallelism with each micro-batch, the first kind of
recomputation that fits is taken: more of it only takes longer. So a best plan is the best of that
lattice, not a heuristic's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dse.errors import ConfigError, DseError
from dse.search.recommend._bench import Bench
from dse.search.recommend._types import Solved
from dse.workload.transformer import (
    DataSharding,
    Parallelism,
    Recompute,
    StepConfiguration,
    check_parallelism,
    explain_step,
    parallelism_words,
    predict_step,
    stage_memory,
    step_problem,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dse.machine.platforms import Platform
    from dse.model import TransformerModel
    from dse.search.recommend._types import Option
    from dse.workload.transformer import TransformerJob

_MICRO_BATCHES = (1, 2, 4, 8, 16)

#: From the fastest to the smallest.
_RECOMPUTE = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
_DATA_SHARDING = (DataSharding.NONE, DataSharding.OPTIMIZER, DataSharding.PARAMETERS)

#: Ways to spread a step that are kept between two questions about an option.
_OPTIONS_KEPT = 256


class StepBench(Bench):
    """Options of a transformer.

    Args:
        model: What is trained.
        platforms: By name.
        software: Name of the training program.
    """

    def __init__(
        self, model: TransformerModel, platforms: Mapping[str, Platform], software: str = "default"
    ) -> None:
        self._model = model
        self._platforms = platforms
        self._software = software
        self._fitting = lru_cache(maxsize=_OPTIONS_KEPT)(self._find_fitting)

    def impossible(self, option: Option) -> str:
        """Half-empty nodes, or no way to spread the step that fits the memory."""
        try:
            self._platforms[option.platform].cluster(option.world_size)
        except DseError as error:
            return str(error)
        if self._fitting(option):
            return ""
        device = self._platforms[option.platform].device
        return (
            f"no way to spread {self._model.name} over {option.world_size} × {device.name} at "
            f"batch {option.global_batch_size:,} fits their memory; use more ranks"
        )

    def bound_per_s(self, option: Option) -> float:
        """By the arithmetic of the model at the peak rate of all devices."""
        device = self._platforms[option.platform].device
        peak = device.peak.of(option.precision) * option.world_size
        return peak / self._model.model_flops_per_sample

    def solve(self, option: Option, bound_per_s: float, *, thorough: bool = False) -> Solved:
        """By trying all that fit.

        Raises:
            ConfigError: None fits.
        """
        del thorough, bound_per_s  # all ways are tried anyway, so the best is its own bound
        found = [
            (predict_step(problem, option.price_usd_per_hour), configuration)
            for configuration, problem in self._fitting(option)
        ]
        if not found:
            raise ConfigError(self.impossible(option))
        prediction, configuration = min(found, key=lambda pair: pair[0].iteration_time_s)
        return Solved(
            option,
            configuration,
            prediction,
            parallelism_words(configuration.parallelism),
            prediction.throughput_samples_per_s,
            thorough=True,
        )

    def limit(self, solved: Solved) -> str:
        """By the critical path of its step."""
        assert isinstance(solved.configuration, StepConfiguration)
        return explain_step(self._problem(solved.configuration)).sentence

    def _find_fitting(self, option: Option) -> list[tuple[StepConfiguration, TransformerJob]]:
        found = []
        for degrees in self._degrees(option):
            for recompute in _RECOMPUTE:
                configuration = self._configuration(option, degrees, recompute)
                problem = self._problem(configuration)
                if self._fits(problem):
                    found.append((configuration, problem))
                    break
        return found

    def _degrees(self, option: Option) -> Iterator[Parallelism]:
        """Yields ways to spread a step that are possible, without recomputation."""
        platform = self._platforms[option.platform]
        cluster = platform.cluster(option.world_size)
        for tensor in _divisors(cluster.local_size):
            for pipeline in _divisors(option.world_size // tensor):
                data = option.world_size // tensor // pipeline
                for micro_batch in _MICRO_BATCHES:
                    for sharding in _DATA_SHARDING:
                        if sharding is not DataSharding.NONE and data == 1:
                            continue
                        degrees = Parallelism(
                            tensor=tensor,
                            pipeline=pipeline,
                            data=data,
                            sequence_parallel=tensor > 1,
                            micro_batch_size=micro_batch,
                            data_sharding=sharding,
                        )
                        try:
                            check_parallelism(
                                self._model, cluster, option.global_batch_size, degrees
                            )
                        except ConfigError:
                            continue
                        yield degrees

    def _configuration(
        self, option: Option, degrees: Parallelism, recompute: Recompute
    ) -> StepConfiguration:
        return StepConfiguration(
            platform=option.platform,
            world_size=option.world_size,
            global_batch_size=option.global_batch_size,
            precision=option.precision,
            parallelism=replace(degrees, recompute=recompute),
            software=self._software,
        )

    def _problem(self, configuration: StepConfiguration) -> TransformerJob:
        return step_problem(self._model, self._platforms[configuration.platform], configuration)

    def _fits(self, problem: TransformerJob) -> bool:
        usable = problem.cluster.device.usable_memory_bytes
        stages = range(problem.parallelism.pipeline)
        return all(stage_memory(problem, stage).total_bytes <= usable for stage in stages)


def _divisors(count: int) -> list[int]:
    return [value for value in range(1, count + 1) if count % value == 0]
