"""Predictions of configurations that options describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dse.cli._options import member
from dse.cli._output import fields_of
from dse.cli._request import SAME_PLAN, SEARCH_PLAN, Request
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.explanation import Difference, Explanation
    from dse.machine import Precision
    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.report.terminal import PredictionView
    from dse.sharding import ShardingPlan
    from dse.workload import Job, PairedComparison, Prediction
    from dse.workload.dlrm import Configuration, DlrmRuntime, PlanScorer
    from dse.workload.transformer import Parallelism


@dataclass(frozen=True)
class Predicted:
    """A predicted configuration.

    Attributes:
        job: The job.
        prediction: Its prediction.
        view: What is printed.
        document: The fields of the public contract.
    """

    job: Job
    prediction: Prediction
    view: PredictionView
    document: dict[str, object]

    @cached_property
    def explanation(self) -> Explanation:
        """What determines the duration of its iteration."""
        from dse.workload import explain_job

        return explain_job(self.job)

    def paired(self, other: Predicted) -> PairedComparison:
        """Compares it with a second configuration under the same errors of the models."""
        from dse.workload import compare_jobs

        return compare_jobs(self.job, other.job)

    def difference(self, other: Predicted) -> Difference:
        """Returns where the iteration times of two configurations differ."""
        from dse.explanation import compare_explanations

        return compare_explanations(self.explanation, other.explanation)

    def write_timeline(self, path: Path) -> None:
        """Writes the predicted iteration for Perfetto."""
        from dse.report import write_timeline
        from dse.simulate import critical_path, simulate
        from dse.workload import task_details

        attributed = self.job.attributed()
        simulated = simulate(attributed.graph)
        title = f"{self.view.job}, {self.view.setup}, predicted"
        write_timeline(
            simulated,
            path,
            critical=critical_path(simulated),
            title=f"{title}; a process is one rank of each {self.view.place}"
            if self.view.ranks_per_place > 1
            else title,
            details=task_details(attributed),
            arrival_arrows=self.job.rank_word == "rank",
        )


def predicted(request: Request, first: Predicted | None = None) -> Predicted:
    """Predicts a configuration; finds a plan where none is given.

    Args:
        request: The options.
        first: The configuration to compare with, whose plan ``same`` means.

    Raises:
        ConfigError: A name is unknown, values do not fit the platform, or the model is of another
            kind than the first one.
        PlanError: The plan is for another model or another number of ranks.
    """
    from dse.machine.platforms import load_platform
    from dse.model import TransformerModel, load_model
    from dse.workload.dlrm import DlrmJob

    model = load_model(request.model)
    request.check_kind(model)
    platform = load_platform(request.platform)
    transformer = isinstance(model, TransformerModel)
    if first is not None and transformer is isinstance(first.job, DlrmJob):
        kind = "a transformer" if transformer else "a recommendation model"
        raise ConfigError(
            f"--versus: `{model.name}` is {kind}, the first model is not; compare models of one "
            "kind"
        )
    if isinstance(model, TransformerModel):
        return _predicted_transformer(request, model, platform)
    return _predicted_dlrm(request, model, platform, first)


def _predicted_dlrm(
    request: Request, model: DlrmModel, platform: Platform, first: Predicted | None
) -> Predicted:
    from dse.machine.host import load_host_profile
    from dse.report.terminal import PredictionView
    from dse.workload import predict_job
    from dse.workload.dlrm import DlrmJob, PlanScorer, problem_of

    profile = load_host_profile(Path(request.host_profile)) if request.host_profile else None
    configuration = dlrm_configuration(request, model, platform)
    scorer = PlanScorer(problem_of(model, platform, configuration, host_profile=profile))
    plan, planner = _plan(request.plan or SEARCH_PLAN, scorer, first)
    job = DlrmJob(scorer, plan)
    prediction = predict_job(job, price_usd_per_hour(platform, request.world_size))
    host = f"platform {platform.name}"
    if profile is not None:
        host = f"measured, profile {profile.name} ({request.host_profile})"
    program = request.program or None
    view = PredictionView(
        job=_title(request, model, platform, configuration.precision),
        setup=planner,
        prediction=prediction,
        place=job.rank_word,
        remarks=(f"host overheads: {host}", *([f"program: {program}"] if program else [])),
    )
    document = {
        **_request_fields(request, model, platform, configuration.precision),
        "planner": planner,
        "host_overheads": request.host_profile or platform.name,
        "program": program,
        # The former name.
        "software_profile": program,
        **prediction_fields(prediction),
    }
    return Predicted(job, prediction, view, document)


def _plan(chosen: str, scorer: PlanScorer, first: Predicted | None) -> tuple[ShardingPlan, str]:
    from dse.sharding import ShardingType, check_plan, read_plan
    from dse.workload.dlrm import DlrmJob
    from dse.workload.dlrm.solver import SolverSettings, solve

    if chosen == SEARCH_PLAN:
        solved = solve(scorer, frozenset(ShardingType), SolverSettings(lp_start=True))
        return solved.plan, solved.planner
    tables, cluster = scorer.problem.model.tables, scorer.problem.cluster
    if chosen == SAME_PLAN and first is not None and isinstance(first.job, DlrmJob):
        plan, planner = first.job.plan, "the same"
    else:
        plan, planner = read_plan(Path(chosen), tables), chosen
    checked = check_plan(plan, tables, cluster.world_size, cluster.devices_per_node)
    return checked, planner


def _predicted_transformer(
    request: Request, model: TransformerModel, platform: Platform
) -> Predicted:
    from dse.machine import Precision
    from dse.report.console import plural
    from dse.report.terminal import PredictionView
    from dse.workload import predict_job
    from dse.workload.transformer import StepConfiguration, parallelism_words, step_problem

    configuration = StepConfiguration(
        platform=platform.name,
        world_size=request.world_size,
        global_batch_size=request.global_batch_size,
        precision=member(Precision, request.precision or model.precision.value, "--precision"),
        parallelism=_parallelism(request),
        link=request.link,
        network=request.network,
        software=request.program or "default",
    )
    job = step_problem(model, platform, configuration)
    prediction = predict_job(job, price_usd_per_hour(platform, request.world_size))
    parallelism = job.parallelism
    ranks = parallelism.tensor * parallelism.replicas
    setup = parallelism_words(parallelism)
    view = PredictionView(
        job=_title(request, model, platform, configuration.precision),
        setup=f"{setup}; {plural(job.micro_batches, 'micro-batch', 'es')} a replica",
        prediction=prediction,
        place=job.rank_word,
        ranks_per_place=ranks,
    )
    document = {
        **_request_fields(request, model, platform, configuration.precision),
        "program": configuration.software,
        # The former name.
        "software": configuration.software,
        "parallelism": parallelism,
        "parallelism_words": setup,
        "micro_batches": job.micro_batches,
        **prediction_fields(prediction, ranks),
        "stages": [
            {
                "stage": stage,
                "first_rank": stage * ranks,
                "ranks": ranks,
                **fields_of(parts),
                "memory_bytes": memory.total_bytes,
                "memory": {
                    f"{purpose.removesuffix(' state')}_bytes": size_bytes
                    for purpose, size_bytes in memory.parts
                },
            }
            for stage, (parts, memory) in enumerate(
                zip(prediction.breakdown, prediction.memory, strict=True)
            )
        ],
    }
    return Predicted(job, prediction, view, document)


def _title(
    request: Request,
    model: DlrmModel | TransformerModel,
    platform: Platform,
    precision: Precision,
) -> str:
    return (
        f"{model.name} on {request.world_size} × {platform.device.name}, global batch "
        f"{request.global_batch_size:,}, {precision.value}"
    )


def _request_fields(
    request: Request,
    model: DlrmModel | TransformerModel,
    platform: Platform,
    precision: Precision,
) -> dict[str, object]:
    return {
        "model": model.name,
        "platform": platform.name,
        "world_size": request.world_size,
        "global_batch_size": request.global_batch_size,
        "precision": precision.value,
    }


def _parallelism(request: Request) -> Parallelism:
    """Returns the degrees; data parallelism takes the remaining ranks.

    Raises:
        ConfigError: The other degrees do not divide the ranks, or a name is unknown.
    """
    from dse.workload.transformer import DataSharding, Parallelism, Recompute

    tensor, pipeline, context = request.tensor or 1, request.pipeline or 1, request.context or 1
    others = tensor * pipeline * context
    if request.world_size % others:
        raise ConfigError(
            f"--tensor {tensor} × --pipeline {pipeline} × --context {context} = {others} does "
            f"not divide {request.world_size} ranks; choose degrees whose product does"
        )
    sharding = request.data_sharding or DataSharding.NONE
    return Parallelism(
        tensor=tensor,
        pipeline=pipeline,
        data=request.world_size // others,
        context=context,
        interleave=request.interleave or 1,
        sequence_parallel=bool(request.sequence_parallel),
        micro_batch_size=request.micro_batch_size or 1,
        recompute=member(Recompute, request.recompute or Recompute.NONE, "--recompute"),
        data_sharding=member(DataSharding, sharding, "--data-sharding"),
    )


def dlrm_configuration(request: Request, model: DlrmModel, platform: Platform) -> Configuration:
    """Returns the configuration of a recommendation model, without a plan.

    Raises:
        ConfigError: An option names something unknown.
    """
    from dse.machine import Precision
    from dse.sharding import ShardingPlan
    from dse.workload.dlrm import Configuration

    precision = model.precision
    if request.precision:
        precision = member(Precision, request.precision, "--precision")
    return Configuration(
        platform=platform.name,
        world_size=request.world_size,
        global_batch_size=request.global_batch_size,
        plan=ShardingPlan(request.world_size, ()),
        precision=precision,
        link=request.link,
        network=request.network,
        software=dlrm_software(request.program, request.launch, precision),
    )


def dlrm_software(program: str, launch: str, precision: Precision) -> DlrmRuntime:
    """Returns how a program trains a recommendation model; `launch` overrides the program.

    Raises:
        ConfigError: The program or the way to launch is unknown.
    """
    from dse.workload.dlrm import DlrmRuntime, LaunchMode, software_profile

    software = software_profile(program).software_for(precision) if program else DlrmRuntime()
    if launch:
        software = replace(software, launch=member(LaunchMode, launch, "--launch"))
    return software


def price_usd_per_hour(platform: Platform, world_size: int) -> float | None:
    """Returns the price of that many devices, if known."""
    quote = platform.quote(world_size)
    return quote.usd_per_hour if quote else None


def prediction_fields(prediction: Prediction, ranks: int = 1) -> dict[str, object]:
    """Returns a prediction under the names of the public contract.

    Args:
        prediction: The prediction.
        ranks: Ranks that each entry of the breakdown and the memory stands for.
    """
    return {
        "iteration_time_s": prediction.iteration_time_s,
        "iteration_time_p5_s": prediction.iteration_time_p5_s,
        "iteration_time_p95_s": prediction.iteration_time_p95_s,
        "throughput_samples_per_s": prediction.throughput_samples_per_s,
        **dict(prediction.metrics),
        "price_usd_per_hour": prediction.price_usd_per_hour,
        "cost_usd_per_million_samples": prediction.cost_usd_per_million_samples,
        "memory_bytes_per_rank": [
            size_bytes for size_bytes in prediction.memory_bytes_per_rank for _ in range(ranks)
        ],
        "usable_memory_bytes": prediction.usable_memory_bytes,
        "feasible": prediction.feasible,
        "infeasible_reason": prediction.infeasible_reason,
        "breakdown": [parts for parts in prediction.breakdown for _ in range(ranks)],
    }
