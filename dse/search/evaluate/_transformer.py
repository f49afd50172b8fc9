"""Evaluating configurations of a transformer: check the degrees, predict the step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.errors import ConfigError, DseError
from dse.machine import Precision
from dse.search._records import TrialRecord, TrialStatus
from dse.search.evaluate._base import (
    ConfigurationEvaluator,
    EvaluationContext,
    judged,
    named,
    without_answer,
)
from dse.workload import Metric, ParameterValue
from dse.workload.transformer import (
    DataSharding,
    Parallelism,
    Recompute,
    StepConfiguration,
    step_problem,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine.platforms import Platform
    from dse.model import TransformerModel
    from dse.search.evaluate._base import AnyConfiguration
    from dse.workload.transformer import TransformerJob


@dataclass(frozen=True)
class StepContext(EvaluationContext):
    """What evaluations of a transformer need.

    Attributes:
        model: What is trained.
        platforms: Every platform that the space names, by that name.
    """

    model: TransformerModel
    platforms: Mapping[str, Platform]

    def make_evaluator(self) -> StepEvaluator:
        """Returns an evaluator of the transformer."""
        return StepEvaluator(self)


class StepEvaluator(ConfigurationEvaluator):
    """Predicts each way of spreading a training step.

    Args:
        context: Everything fixed.
    """

    def __init__(self, context: StepContext) -> None:
        super().__init__(context.space, context.platforms)
        self._context = context

    def reject(self, parameters: Mapping[str, ParameterValue]) -> str:
        """Returns why a configuration breaks a hard limit, or nothing when it may be evaluated."""
        try:
            configuration = self._configuration(parameters)
        except DseError as error:
            return str(error)
        if refusal := self.refusal(configuration):
            return refusal
        sharding = configuration.parallelism.data_sharding
        if configuration.parallelism.replicas == 1 and sharding is not DataSharding.NONE:
            return f"data sharding {sharding.value} with one replica shards nothing: same as none"
        platform = self._context.platforms[configuration.platform]
        known = {
            Metric.PRICE: self.price_usd_per_hour(configuration),
            Metric.WORLD_SIZE: float(configuration.world_size),
            Metric.GLOBAL_BATCH_SIZE: float(configuration.global_batch_size),
        }
        return self._over_limit(platform, known)

    def refusal(self, configuration: AnyConfiguration) -> str:
        """Returns why a training step cannot be spread like this, or nothing."""
        try:
            self.job(configuration).check()
        except DseError as error:
            return str(error)
        return ""

    def _evaluate(self, number: int, parameters: Mapping[str, ParameterValue]) -> TrialRecord:
        configuration = self._configuration(parameters)
        record = replace(
            without_answer(number, TrialStatus.FEASIBLE, "", parameters),
            configuration=configuration,
            prediction=self.predict(configuration),
        )
        return judged(record, self._context.space)

    def _configuration(self, parameters: Mapping[str, ParameterValue]) -> StepConfiguration:
        """Returns the configuration; data parallelism takes the ranks that are left over.

        Raises:
            ConfigError: The other degrees do not divide the ranks.
        """
        world_size = int(parameters["world_size"])
        tensor, pipeline, context = (
            int(parameters[name]) for name in ("tensor", "pipeline", "context")
        )
        others = tensor * pipeline * context
        if world_size % others:
            raise ConfigError(
                f"tensor {tensor} × pipeline {pipeline} × context {context} = {others} does not "
                f"divide {world_size} ranks; choose degrees whose product does"
            )
        precision = parameters.get("precision", self._context.model.precision.value)
        return StepConfiguration(
            platform=str(parameters["platform"]),
            world_size=world_size,
            global_batch_size=int(parameters["global_batch_size"]),
            precision=Precision(str(precision)),
            parallelism=Parallelism(
                tensor=tensor,
                pipeline=pipeline,
                data=world_size // others,
                context=context,
                interleave=int(parameters["interleave"]),
                sequence_parallel=bool(parameters["sequence_parallel"]),
                micro_batch_size=int(parameters["micro_batch_size"]),
                recompute=Recompute(str(parameters["recompute"])),
                data_sharding=DataSharding(str(parameters["data_sharding"])),
            ),
            link=named(parameters["link"]),
            network=named(parameters["network"]),
            software=str(parameters["software"]),
        )

    def job(self, configuration: AnyConfiguration) -> TransformerJob:
        """Returns a configuration as the model of training steps takes it."""
        assert isinstance(configuration, StepConfiguration)
        space = self._context.space
        return step_problem(
            self._context.model,
            self._platform(configuration.platform),
            configuration,
            extra_links=space.links,
            extra_networks=space.networks,
        )
