"""Predicting candidates of a study again, each with the plan that the study keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.errors import StudyError
from dse.machine import Quote
from dse.search._rescore_inputs import model_context, stored_inputs
from dse.search.evaluate._dlrm import ModelContext
from dse.sharding import check_plan
from dse.workload import predict_job
from dse.workload.dlrm import DlrmJob, PlanScorer, problem_of
from dse.workload.transformer import StepConfiguration, step_problem

if TYPE_CHECKING:
    from dse.machine import Cluster
    from dse.machine.platforms import Platform
    from dse.search._records import StudyResult, TrialRecord
    from dse.search.evaluate._transformer import StepContext
    from dse.search.space import SearchSpace
    from dse.workload import Job
    from dse.workload.dlrm import Configuration, DlrmProblem, Prediction
    from dse.workload.transformer import StepPrediction, TransformerJob


@dataclass(frozen=True, slots=True)
class StoredPlans:
    """Predicts candidates under the inputs of a context, without any search.

    Attributes:
        context: The model, the platforms and the search space.
    """

    context: ModelContext | StepContext

    def price_of(self, configuration: Configuration | StepConfiguration) -> float | None:
        """Returns USD per hour of the machines of a configuration; None without a price."""
        space = self.context.space
        quote = self._platform(configuration.platform).quote(
            configuration.world_size,
            basis=space.price_basis,
            provider=space.price_provider,
        )
        return None if quote is None else quote.usd_per_hour

    def cluster_of(self, configuration: Configuration | StepConfiguration) -> Cluster:
        """Returns the machines of a configuration."""
        space = self.context.space
        return self._platform(configuration.platform).cluster(
            configuration.world_size,
            link=configuration.link,
            network=configuration.network,
            extra_links=space.links,
            extra_networks=space.networks,
        )

    def predict(self, record: TrialRecord) -> Prediction | StepPrediction:
        """Predicts a candidate that has a configuration.

        Args:
            record: The candidate.

        Raises:
            StudyError: It has no configuration, or names a platform that the study does not keep.
            ConfigError: The configuration is impossible.
            PlanError: Its plan is not one of the study's model.
        """
        configuration = record.configuration
        if configuration is None:
            raise StudyError(f"configuration {record.number} has no plan to predict")
        return predict_job(self.job(record), self.price_of(configuration))

    def job(self, record: TrialRecord) -> Job:
        """Returns a candidate as the performance model takes it.

        Args:
            record: The candidate.

        Raises:
            StudyError: It has no configuration, or names a platform that the study does not keep.
            ConfigError: The configuration is impossible.
            PlanError: Its plan is not one of the study's model.
        """
        configuration = record.configuration
        if configuration is None:
            raise StudyError(f"configuration {record.number} has no plan to predict")
        if isinstance(configuration, StepConfiguration):
            return self._step_problem(configuration)
        problem = self._problem(configuration)
        cluster = problem.cluster
        plan = check_plan(
            configuration.plan, problem.model.tables, cluster.world_size, cluster.devices_per_node
        )
        return DlrmJob.scored(PlanScorer(problem), plan)

    def problem(self, record: TrialRecord) -> DlrmProblem | TransformerJob:
        """Returns a candidate as the model of iterations or steps takes it, its plan left out.

        Args:
            record: The candidate.

        Raises:
            StudyError: It has no configuration, or names a platform that the study does not keep.
            ConfigError: The configuration is impossible.
        """
        configuration = record.configuration
        if configuration is None:
            raise StudyError(f"configuration {record.number} has no plan to predict")
        if isinstance(configuration, StepConfiguration):
            return self._step_problem(configuration)
        return self._problem(configuration)

    def _platform(self, name: str) -> Platform:
        try:
            return self.context.platforms[name]
        except KeyError:
            raise StudyError(
                f"the study keeps no platform `{name}`; its study.yaml was changed"
            ) from None

    def _problem(self, configuration: Configuration) -> DlrmProblem:
        assert isinstance(self.context, ModelContext)
        space = self.context.space
        return problem_of(
            self.context.model,
            self._platform(configuration.platform),
            configuration,
            extra_links=space.links,
            extra_networks=space.networks,
        )

    def _step_problem(self, configuration: StepConfiguration) -> TransformerJob:
        assert not isinstance(self.context, ModelContext)
        space = self.context.space
        return step_problem(
            self.context.model,
            self._platform(configuration.platform),
            configuration,
            extra_links=space.links,
            extra_networks=space.networks,
        )


def stored_plans(study: StudyResult, space: SearchSpace | None = None) -> StoredPlans:
    """Returns what predicts the candidates of a study from the inputs that it keeps.

    Args:
        study: The study.
        space: Its search space, where that was made in Python and is in no file.

    Raises:
        ConfigError: The study is of a captured trace, its search space is in no file, or a file
            is damaged.
        StudyError: A file is missing.
    """
    return StoredPlans(model_context(study, stored_inputs(study, space)))


def surely_fits(prediction: Prediction | StepPrediction, cluster: Cluster) -> bool:
    """Whether what fitted before fits these machines too, by what a prediction says of memory.

    Args:
        prediction: Of the same plan on machines of which only figures differ.
        cluster: The machines now.
    """
    fullest = max(memory.total_bytes for memory in prediction.memory)
    on_host = any(memory.host_bytes > 0 for memory in prediction.memory)
    return (
        prediction.feasible
        and fullest <= cluster.device.usable_memory_bytes
        and (not on_host or cluster.host_memory_bytes is None)
    )


def cost_of(price_usd_per_hour: float | None, throughput: float) -> float | None:
    """Returns USD per million samples, in the order of operations of predictions."""
    if price_usd_per_hour is None:
        return None
    return Quote(price_usd_per_hour).cost_usd_per_million(throughput)
