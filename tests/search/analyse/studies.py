"""Made-up studies of recommendation models."""

from __future__ import annotations

from dataclasses import replace

from dse.search import StudyResult, TrialRecord, TrialStatus, mark_front
from dse.search.space import Objective
from dse.simulate import RankBreakdown
from dse.workload import Configuration, MemoryAccount, Prediction

SPEED = Objective("throughput_samples_per_s", True)
COST = Objective("cost_usd_per_million_samples", False)
MEMORY = Objective("memory_headroom_fraction", True)


def trial(
    number: int,
    throughput: float,
    cost: float | None,
    *,
    platform: str = "a",
    world_size: int = 8,
    batch: int = 1000,
    free: float = 0.5,
    objectives: tuple[Objective, ...] = (SPEED, COST),
    **changes: object,
) -> TrialRecord:
    """A feasible trial; its interval reaches from 0.8 to 1.25 of its throughput."""
    time_s = batch / throughput
    parameters = (("platform", platform), ("world_size", world_size), ("network", "default"))
    breakdown = RankBreakdown(0.6 * time_s, 0.3 * time_s, 0.1 * time_s, 0.0)
    prediction = Prediction(
        iteration_time_s=time_s,
        iteration_time_p5_s=0.8 * time_s,
        iteration_time_p95_s=1.25 * time_s,
        throughput_samples_per_s=throughput,
        price_usd_per_hour=None if cost is None else cost * throughput * 3600 / 1e6,
        cost_usd_per_million_samples=cost,
        breakdown=(breakdown,),
        memory=(MemoryAccount((("weights", 100 * (1 - free)),)),),
        usable_memory_bytes=100,
        feasible=True,
        infeasible_reason="",
        bound_by="compute",
        bound_share=0.6,
    )
    record = TrialRecord(
        number=number,
        status=TrialStatus.FEASIBLE,
        reason="",
        parameters=parameters,
        values=(),
        configuration=Configuration(
            kind="dlrm",
            platform=platform,
            world_size=world_size,
            global_batch_size=batch,
            parameters=parameters,
        ),
        prediction=prediction,
    )
    values = tuple(record.metrics[axis.metric] for axis in objectives)
    return replace(record, values=values, **changes)


def study_of_trials(
    *records: TrialRecord,
    objectives: tuple[Objective, ...] = (SPEED, COST),
    **changes: object,
) -> StudyResult:
    """A study with these trials and nothing else."""
    study = StudyResult(
        name="made up",
        model_name="model",
        objectives=objectives,
        records=mark_front(records, objectives),
        inputs=(),
        facts=(),
        versions=(),
        seed=0,
        sampler="random",
        created="2026-01-01T00:00:00+00:00",
    )
    return replace(study, **changes)
