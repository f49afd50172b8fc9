"""A short calibration of this machine for the selection experiments, kept for an hour.

Prediction and measurement should be of the same machine at the same time. Only what a training
iteration of the experiment consists of is measured, at sizes that occur in it: operators on all
ranks at once, by their processor time, so that other programs disturb little; exchanges by the
clock. Most of the time goes to lookups and updates, as it does in an iteration.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
import json
from pathlib import Path
import statistics
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from selection_clock import measure_phases
from selection_phases import PARTS, predicted_parts
from selection_tasks import TRAINER, draw_model, software_of, task_problem

from dse.calibration import fit_machine, write_machine
from dse.calibration.microbench import (
    MeasureSettings,
    describe_machine,
    make_plan,
    run_session,
    torch_measurer,
)
from dse.calibration.microbench.plan import Limits
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.validation import Candidate, MeasureLimits, measure
from dse.workload import predict_job

if TYPE_CHECKING:
    from dse.calibration.microbench import MeasurementPlan
    from dse.machine.platforms import Platform
    from dse.workload.dlrm import DlrmRuntime

#: How long a calibration is good for, in seconds: neighbours of a virtual machine change.
KEPT_S = 3600.0

#: Share of the memory bandwidth at which the model streams indices.
STREAM_EFFICIENCY = 0.8

#: Lookup and update of tables under each trainer.
LOOKUPS = {
    "reference": ("embedding_forward", "embedding_backward"),
    "torchrec": ("fbgemm_forward", "fbgemm_backward"),
}

#: What an iteration of the experiment calls besides.
OPERATORS = (
    "gemm",
    "elementwise",
    "concat",
    "index_permute",
    "optimizer_step",
    "memcpy_h2d",
    "memcpy_d2d",
)

#: What a training step of a transformer calls, and its exchanges; trainer `pytorch`.
TRANSFORMER_OPERATORS = (
    "gemm",
    "elementwise",
    "concat",
    *("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"),
    *("softmax", "attention", "causal_attention", "causal_attention_backward"),
    *("gelu", "gelu_backward", "silu", "silu_backward"),
    *("cross_entropy", "cross_entropy_backward"),
    "optimizer_step",
    "memcpy_h2d",
    "memcpy_d2d",
)
TRANSFORMER_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")

#: Exchanges of an iteration, and the most that one of them moves.
COLLECTIVES = ("all_reduce", "all_to_all", "reduce_scatter", "all_gather")
LARGEST_EXCHANGE_BYTES = 2**24

#: Of points that an iteration hardly spends time in, one in so many is measured: everything but
#: updates of at least so many lookups.
OTHERS_EVERY = 3
FEW_LOOKUPS = 1500.0

#: Operators that an iteration spends its time in, of which every point is measured.
_MOST_TIME = ("embedding_backward", "fbgemm_forward", "fbgemm_backward")

#: Turns of a plan; more than a calibration has time for.
POINTS = 96

#: Tables of the experiment are at most 200 MB, and an iteration looks up 32 MB on all ranks. One
#: table may be most of that: its update writes and sorts gradients of as many bytes.
LIMITS = Limits(280e6, 0.1, 20e9, 2e9, 10e6)


#: Seed of the task on which the trainer's own work is measured; not one of the experiment.
TRAINER_SEED = 1000


def calibrated_machine(
    ranks: int, budget_s: float, trainer: str = "reference"
) -> tuple[Platform, DlrmRuntime]:
    """Returns this machine as a platform, and the trainer with its own work as measured here.

    Args:
        ranks: Ranks of the machine, of one thread each.
        budget_s: Time for measuring kernels and exchanges, in seconds.
        trainer: What trains.
    """
    platform = calibrated_platform(ranks, budget_s, trainer=trainer)
    if trainer == "torchrec":
        return platform, measured_torchrec(platform, ranks, _folder() / "torchrec_step.json")
    return platform, measured_trainer(platform, ranks)


def _folder() -> Path:
    """Where calibrations are kept, below the folder for temporary files."""
    found = Path(tempfile.gettempdir()) / "dse_selection"
    found.mkdir(parents=True, exist_ok=True)
    return found


def measured_trainer(platform: Platform, ranks: int) -> DlrmRuntime:
    """Measures what the trainer does beside kernels: a constant, and routing for each index.

    Two plans of one made-up task are trained: all tables whole, and all tables by rows.
    """
    model = draw_model(0, TRAINER_SEED, ranks, 32.0)
    problem = task_problem(model, ranks, platform)
    everyone = tuple(range(ranks))
    kinds = {"whole": ShardingType.TABLE_WISE, "rows": ShardingType.ROW_WISE}
    candidates = tuple(
        Candidate(
            name,
            problem,
            ShardingPlan(
                ranks,
                tuple(
                    TablePlan(
                        table.name,
                        kind,
                        (number % ranks,) if kind is ShardingType.TABLE_WISE else everyone,
                    )
                    for number, table in enumerate(model.tables)
                ),
            ),
        )
        for name, kind in kinds.items()
    )
    whole, rows = measure_phases(candidates, rounds=7, iterations=8, seed=TRAINER_SEED)
    expected_s = predicted_parts(candidates[0])["own work"] - TRAINER.step_host_s
    step_s = statistics.fmean(
        sum(rank.processor_s[phase] for phase in PARTS["own work"]) for rank in whole
    )
    lookups = model.global_batch_size / ranks * sum(t.lookups_per_sample for t in model.tables)
    bandwidth = platform.device.memory_bandwidth_bytes_per_s
    routing_s = statistics.fmean(rank.processor_s["routing"] for rank in rows)
    joined_s = lookups * TRAINER.embedding.joined_index_bytes / (STREAM_EFFICIENCY * bandwidth)
    kernels = replace(
        TRAINER.embedding,
        routed_index_bytes=STREAM_EFFICIENCY * bandwidth * routing_s / lookups,
    )
    measured = replace(
        TRAINER, step_host_s=max(0.0, step_s - expected_s - joined_s), embedding=kernels
    )
    print(
        f"trainer: {1e3 * measured.step_host_s:.2f} ms a step, "
        f"{kernels.routed_index_bytes:.0f} B a routed index",
        file=sys.stderr,
        flush=True,
    )
    return measured


def measured_torchrec(platform: Platform, ranks: int, kept: Path) -> DlrmRuntime:
    """Measures what a step takes under TorchRec besides what is predicted: one constant.

    Made-up tasks are trained with all tables whole; a step of next to no samples would not do,
    because there nothing hides what the ranks wait for each other.

    Args:
        platform: The machine.
        ranks: Its ranks.
        kept: File that keeps the constant for runs of the same hour.
    """
    software = replace(software_of("torchrec"), step_host_s=0.0)
    if not kept.exists() or time.time() - kept.stat().st_mtime > KEPT_S:
        found = [_torchrec_step_s(number, platform, ranks, software) for number in range(2)]
        kept.write_text(json.dumps(found), encoding="utf-8")
        each = ", ".join(f"{1e3 * one:.2f}" for one in found)
        print(f"TorchRec: {each} ms a step besides", file=sys.stderr, flush=True)
    step_s = statistics.fmean(json.loads(kept.read_text(encoding="utf-8")))
    return replace(software, step_host_s=max(0.0, step_s))


def _torchrec_step_s(number: int, platform: Platform, ranks: int, software: DlrmRuntime) -> float:
    """Measured less predicted time of a step of one made-up task."""
    model = draw_model(number, TRAINER_SEED, ranks, 32.0)
    problem = task_problem(model, ranks, platform, software)
    tables = tuple(
        TablePlan(table.name, ShardingType.TABLE_WISE, (number % ranks,))
        for number, table in enumerate(model.tables)
    )
    candidate = Candidate(model.name, problem, ShardingPlan(ranks, tables))
    (found,) = measure(
        [candidate],
        trainer="torchrec",
        threads=1,
        limits=MeasureLimits(budget_s=6.0),
        timeout_s=600.0,
    )
    return found.iteration_time_s - predict_job(candidate.job()).iteration_time_s


def calibration_plan(ranks: int, trainer: str = "reference") -> MeasurementPlan:
    """Returns what is measured, most of it where an iteration spends its time.

    Args:
        ranks: Ranks of the machine, all at work at once.
        trainer: What trains.
    """
    plan = make_plan(
        "cpu",
        collectives_backend="gloo",
        local_ranks=ranks,
        threads=1,
        operators=(*LOOKUPS[trainer], *OPERATORS),
        points=POINTS,
        limits=LIMITS,
    )
    others: Counter[tuple[str, str]] = Counter()
    kept = []
    for point in plan.kernels:
        sizes = dict(point.sizes)
        lookups = sizes.get("batch", 0.0) * sizes.get("pooling", 0.0)
        if point.op not in _MOST_TIME or lookups < FEW_LOOKUPS:
            # Points that check the fits have a count of their own.
            others[point.op, point.purpose] += 1
            if others[point.op, point.purpose] % OTHERS_EVERY != 1:
                continue
        kept.append(point)
    exchanges = tuple(
        point
        for point in plan.collectives
        if point.op in COLLECTIVES and point.size_bytes <= LARGEST_EXCHANGE_BYTES
    )
    return replace(plan, kernels=tuple(kept), collectives=exchanges)


def transformer_plan(ranks: int) -> MeasurementPlan:
    """Returns what is measured for steps of transformers.

    Args:
        ranks: Ranks of the machine, all at work at once.
    """
    plan = make_plan(
        "cpu",
        collectives_backend="gloo",
        local_ranks=ranks,
        threads=1,
        operators=TRANSFORMER_OPERATORS,
    )
    exchanges = tuple(one for one in plan.collectives if one.op in TRANSFORMER_COLLECTIVES)
    return replace(plan, collectives=exchanges)


def calibrated_platform(
    ranks: int, budget_s: float, folder: Path | None = None, trainer: str = "reference"
) -> Platform:
    """Returns this machine as a platform; measures it unless that was done within the hour.

    Args:
        ranks: Ranks of the machine, of one thread each.
        budget_s: Time for measuring, in seconds.
        folder: Where it is kept; below the folder for temporary files by default.
        trainer: What trains.
    """
    folder = folder or _folder()
    path = folder / f"cpu_{ranks}_ranks_{budget_s:g}_s_{trainer}.yaml"
    log = path.with_suffix(".points.jsonl")
    plan = transformer_plan(ranks) if trainer == "pytorch" else calibration_plan(ranks, trainer)
    if not path.exists() or time.time() - path.stat().st_mtime > KEPT_S:
        log.unlink(missing_ok=True)
        print(f"calibrating for {budget_s:g} s, kept as {path}", file=sys.stderr, flush=True)
        settings = MeasureSettings(time_limit_s=0.1)
        with torch_measurer(plan, settings, time.process_time_ns) as measurer:
            result = run_session(
                plan, log, budget_s, measurer=measurer, machine=describe_machine("cpu")
            )
        return write_machine(fit_machine(path.stem, result, ranks), path)
    from dse.machine.platforms import load_platform

    return load_platform(str(path))
