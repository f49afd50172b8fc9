"""`dse recommend`: the cheapest or fastest configuration for a goal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._complete import listed as complete_list
from dse.cli._complete import platforms as platform_names
from dse.cli._exit import ExitCode
from dse.cli._options import (
    ForceOption,
    JsonOption,
    SeedOption,
    listed,
    new_file,
    quantity,
    whole_numbers,
    with_host_profile,
)
from dse.cli.job._options import describes_job

if TYPE_CHECKING:
    from dse._text.terminal import Console
    from dse.cli.job._request import Request
    from dse.search.recommend import Recommendation, Solved


@describes_job(without=("platform", "world_size", "global_batch_size", "precision", "plan"))
def recommend_command(
    request: Request,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="RATE",
            help="Cheapest that reaches this throughput: `10M samples/s`, or of a transformer "
            "`1M tokens/s` or `10B tokens/day`.",
        ),
    ] = "",
    deadline: Annotated[
        str,
        typer.Option(
            "--deadline", metavar="TIME", help="Cheapest that trains --samples in time: `3h`."
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="MONEY",
            help="Fastest that trains --samples for at most this much, `500USD`; or fastest "
            "machines for at most this much an hour, `100USD/h`.",
        ),
    ] = "",
    samples: Annotated[
        str,
        typer.Option(
            "--samples",
            metavar="COUNT",
            help="Samples of the whole job, `4.2G`, or tokens, `15T tokens`.",
        ),
    ] = "",
    platforms: Annotated[
        str,
        typer.Option(
            "--platforms",
            metavar="NAMES",
            help="Comma-separated names or files; by default all with a price.",
            autocompletion=complete_list(platform_names),
        ),
    ] = "",
    world_sizes: Annotated[
        str,
        typer.Option(
            "--world-sizes",
            metavar="N,…",
            help="Numbers of ranks: `8,16`; by default 1, 2, 4, 8, then 2, 3, 4, 6, 8 nodes, up "
            "to 64 ranks, or up to 1,024 if these are too few.",
        ),
    ] = "",
    batch_sizes: Annotated[
        str,
        typer.Option(
            "--batch-sizes",
            metavar="N,…",
            help="Global batches: `32768,65536`; by default the model's own and two, four and "
            "eight times that.",
        ),
    ] = "",
    precisions: Annotated[
        str,
        typer.Option(
            "--precisions",
            metavar="TYPES",
            help="Such as `tf32,fp16`; by default the model's own.",
        ),
    ] = "",
    confidence: Annotated[
        str,
        typer.Option(
            "--confidence",
            metavar="SHARE",
            help="Minimum probability of reaching the goal, such as `95 %`.",
        ),
    ] = "50 %",
    seed: SeedOption = 0,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the plan of the answer as JSON."),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the cheapest configuration that reaches a throughput or a deadline, or the fastest."""
    from dse._io.writing import write_atomically
    from dse.api import recommend
    from dse.cli._output import emit
    from dse.cli._progress import progress
    from dse.config import UnitKind
    from dse.report.console import line
    from dse.report.terminal.studies import print_recommendation

    new_file("--export", export, force=force)
    with progress("looking", quiet=as_json) as display:
        found = recommend(
            request.model,
            target=target,
            deadline=deadline,
            budget=budget,
            samples=samples,
            platforms=listed(platforms),
            world_sizes=whole_numbers("--world-sizes", world_sizes),
            batch_sizes=whole_numbers("--batch-sizes", batch_sizes),
            precisions=listed(precisions),
            price_basis=request.price_basis or "on_demand",
            price_provider=request.price_provider,
            confidence=quantity("--confidence", confidence, UnitKind.FRACTION),
            seed=seed,
            overrides=with_host_profile(request.overrides, request.host_profile),
            progress=display,
            **request.parameters,
        )
    written = export if found.answer is not None else None
    if written is not None and found.answer is not None:
        write_atomically(written, _plan(found.answer, found.model))

    def show(console: Console) -> None:
        print_recommendation(found, console)
        if written is not None:
            line(console, f"plan: {written}")

    emit(_document(found), show, as_json=as_json)
    if found.answer is None:
        raise typer.Exit(ExitCode.FAILED)


def _plan(solved: Solved, model_name: str) -> str:
    from dse.workload import workload_kind

    configuration = solved.configuration
    return workload_kind(configuration.kind).deployment(configuration, model_name)


def _document(found: Recommendation) -> dict[str, object]:
    from dse.cli.job._predictions import program_fields
    from dse.search.recommend import Verdict

    return {
        "model": found.model,
        **program_fields(found.program or None),
        "goal": found.goal.text,
        "confidence": found.confidence,
        "answer": found.answer and _solved(found, found.answer),
        "sure": found.sure and _solved(found, found.sure),
        "own_batch": found.own_batch and _solved(found, found.own_batch),
        "runners_up": [_solved(found, solved) for solved in found.runners_up],
        "closest": found.closest and _solved(found, found.closest),
        "limit": found.limit,
        "advice": found.advice,
        "model_batch_size": found.model_batch_size or None,
        "space": list(found.space),
        "unpriced": [
            {
                "platform": one.platform,
                "world_sizes": list(one.world_sizes) or None,
                "reason": one.reason,
            }
            for one in found.unpriced
        ],
        "impossible": [
            {"platform": platform, "reason": reason}
            for platform, reason in found.impossible_platforms.items()
        ],
        "configurations": len(found.judgements),
        "solved": found.solved,
        "verdicts": {verdict.value: found.count(verdict) for verdict in Verdict},
        "undecided": [
            {
                "configuration": judgement.option.text,
                "price_usd_per_hour": judgement.option.price_usd_per_hour,
                "best_found_samples_per_s": judgement.solved and judgement.solved.throughput_per_s,
                "bound_samples_per_s": judgement.bound_per_s,
            }
            for judgement in found.undecided_better
        ],
    }


def _solved(found: Recommendation, solved: Solved) -> dict[str, object]:
    import json

    from dse.cli.job._predictions import cost_fields, offer_fields
    from dse.report.terminal.studies import samples_of
    from dse.search.recommend import job_cost_usd

    option, prediction = solved.option, solved.prediction
    samples = samples_of(found.goal)
    job = None
    if samples is not None:
        cost = job_cost_usd(samples, solved.throughput_per_s, option.price_usd_per_hour)
        job = {"duration_s": samples / solved.throughput_per_s, "cost_usd": cost}
    return {
        "platform": option.platform,
        "world_size": option.world_size,
        "global_batch_size": option.global_batch_size,
        "precision": option.precision.value,
        "network": prediction.network or None,
        "price_usd_per_hour": option.price_usd_per_hour,
        "rented": prediction.rented or None,
        "offer": option.offer and offer_fields(option.offer),
        "throughput_samples_per_s": solved.throughput_per_s,
        "iteration_time_s": prediction.iteration_time_s,
        "iteration_time_p5_s": prediction.iteration_time_p5_s,
        "iteration_time_p95_s": prediction.iteration_time_p95_s,
        **dict(prediction.metrics),
        **cost_fields(prediction),
        "bound_samples_per_s": solved.bound_per_s,
        "is_bound": found.is_bound,
        "bound_by": prediction.bound_text,
        "probability": solved.probability(found.goal),
        "job": job,
        "planner": solved.planner,
        "plan": json.loads(_plan(solved, found.model)),
    }
