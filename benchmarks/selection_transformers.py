"""Does the performance model choose the right parallelism of a small transformer on this CPU?

Usage: python benchmarks/selection_transformers.py [--tasks 6] [--seed S]
           [--platform NAME_OR_FILE | --calibrate SECONDS] [--budget SECONDS] [--json]

A task is a made-up decoder and batch, and the ways to spread its step over two gloo ranks: DDP,
FSDP2 with and without resharding, tensor parallelism with and without sequence parallelism, whole
or in two micro-batches, with and without recomputation. All are predicted on the platform, such as
the file that `dse calibrate` has just written, or on what `--calibrate` measures of the operators
and exchanges that occur, and trained for real by the trainer `pytorch` in interleaved rounds. No
figure is fitted to the tasks. Wants a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
import json
import math
import os
from pathlib import Path
import statistics
import sys
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

from marks import Mark
import numpy as np
from pages import table
from selection_figures import choice_figures

from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import Activation, NormKind, load_model
from dse.ranking import kendall_tau
from dse.validation import MeasureLimits, TrainerOptions, TransformerCandidate, measure
from dse.workload import predict_job
from dse.workload.transformer import (
    TRANSFORMER_PROGRAMS,
    DataSharding,
    Parallelism,
    Recompute,
    TransformerJob,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.machine.platforms import Platform
    from dse.model import TransformerModel

RANKS = 2

PROGRAM = "pytorch"

#: Least Kendall's τ, mean of the tasks, and largest geometric mean error of the time.
MARKS = {"kendall_tau": ("≥", 0.8), "geomean_time_error": ("≤", 0.12)}


@dataclass(frozen=True, slots=True)
class Row:
    """One plan of one task.

    Attributes:
        task: Number of the draw.
        model: Its sizes, as text.
        plan: How the step is spread.
        predicted_s: Iteration time by the model.
        measured_s: Median of the rounds.
        low_s: Lower end of its 95 % interval.
        high_s: Upper end.
        processor_s: Processor time of an iteration on the busiest rank.
    """

    task: int
    model: str
    plan: str
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float
    processor_s: float


def draw_model(number: int, seed: int) -> tuple[TransformerModel, int]:
    """Returns a decoder that a core trains in a fifth of a second, and its batch."""
    rng = np.random.default_rng((seed, number))
    heads = int(rng.choice([2, 4, 6]))
    hidden = 64 * heads
    tokens = int(rng.choice([64, 128, 256]))
    gated = bool(rng.integers(2))
    model = replace(
        load_model("gpt_cpu"),
        name=f"task{number}",
        layers=int(rng.integers(2, 6)),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=64,
        ffn_hidden=round(8 / 3 * hidden / 64) * 64 if gated else 4 * hidden,
        gated_ffn=gated,
        activation=Activation.SILU if gated else Activation.GELU,
        norm=NormKind(str(rng.choice([kind.value for kind in NormKind]))),
        vocab=int(rng.choice([2048, 4096, 8192])),
        sequence_length=tokens,
    )
    # Samples in fours, so that two replicas can take two micro-batches each.
    wanted = 16e9 / model.model_flops_per_sample
    return model, max(4, 4 * round(wanted / 4))


def plans_of(batch: int) -> dict[str, Parallelism]:
    """Returns the ways to spread a step over two ranks, by name."""
    own, zero3 = batch // 2, DataSharding.PARAMETERS
    ddp = Parallelism(data=2, micro_batch_size=own)
    fsdp = replace(ddp, data_sharding=zero3)
    tensor = Parallelism(tensor=2, micro_batch_size=batch)
    return {
        "DDP": ddp,
        "DDP, 2 micro-batches": replace(ddp, micro_batch_size=own // 2),
        "FSDP2": fsdp,
        "FSDP2, not resharded": replace(fsdp, reshard_after_forward=False),
        "FSDP2, 2 micro-batches": replace(fsdp, micro_batch_size=own // 2),
        "FSDP2, recomputed": replace(fsdp, recompute=Recompute.FULL),
        "tensor": tensor,
        "tensor and sequence": replace(tensor, sequence_parallel=True),
    }


def candidates_of(number: int, seed: int, platform: Platform) -> list[TransformerCandidate]:
    """Returns the candidates of a task."""
    model, batch = draw_model(number, seed)
    cluster = replace(platform, devices_per_node=RANKS).cluster(RANKS)
    software = TRANSFORMER_PROGRAMS[PROGRAM].software_for(on_cpu=cluster.device.kind == "cpu")
    return [
        TransformerCandidate(
            name,
            TransformerJob(
                model, cluster, batch, Precision.FP32, spread, software, program=PROGRAM
            ),
        )
        for name, spread in plans_of(batch).items()
    ]


def run_task(number: int, seed: int, platform: Platform, budget_s: float) -> list[Row]:
    """Predicts and measures the plans of one task."""
    candidates = candidates_of(number, seed, platform)
    measured = measure(
        candidates,
        trainer="pytorch",
        threads=1,
        limits=MeasureLimits(budget_s=budget_s, target_half_width=0.015, warm_up=1),
        options=TrainerOptions(seed=seed, dense_learning_rate=1e-3, batches=2),
    )
    model = candidates[0].model
    text = (
        f"{model.layers} × {model.hidden}, {'gated' if model.gated_ffn else 'plain'}, "
        f"{model.norm.value}, {model.vocab} words, {candidates[0].global_batch_size} × "
        f"{model.sequence_length}"
    )
    return [
        Row(
            number,
            text,
            one.name,
            predict_job(one.job()).iteration_time_s,
            found.iteration_time_s,
            found.low_s,
            found.high_s,
            max(found.rank_processor_times_s),
        )
        for one, found in zip(candidates, measured, strict=True)
    ]


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the figures over all tasks."""
    tasks = [[row for row in rows if row.task == task] for task in {row.task for row in rows}]
    times = [([row.measured_s for row in own], [row.predicted_s for row in own]) for own in tasks]
    logs = [math.log(row.predicted_s / row.measured_s) for row in rows]
    scale, choices = statistics.fmean(logs), choice_figures(times)
    return {
        "tasks": len(tasks),
        "kendall_tau": choices["kendall_tau"],
        "least_kendall_tau": min(kendall_tau(*one) for one in times),
        "geomean_time_error": choices["geomean_time_error"],
        "predicted_over_measured": math.exp(scale),
        "geomean_time_error_after_scale": math.expm1(
            statistics.fmean(abs(one - scale) for one in logs)
        ),
        "success_rate": choices["success_rate"],
        "mean_top1_regret": choices["mean_top1_regret"],
        "median_half_width": statistics.median(
            0.5 * (row.high_s - row.low_s) / row.measured_s for row in rows
        ),
        "wall_over_processor": statistics.median(row.measured_s / row.processor_s for row in rows),
    }


def errors_by_plan(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the geometric mean of predicted over measured time, less 1, by plan."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.plan, []).append(math.log(row.predicted_s / row.measured_s))
    return {plan: math.expm1(statistics.fmean(logs)) for plan, logs in found.items()}


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields plans, figures and marks."""
    heads = ("task", "plan", "predicted", "measured", "95 % interval", "error")
    cells = (
        (
            *(f"{row.task}: {row.model}", row.plan, f"{1e3 * row.predicted_s:.1f} ms"),
            f"{1e3 * row.measured_s:.1f} ms",
            f"{1e3 * row.low_s:.1f}–{1e3 * row.high_s:.1f} ms",
            f"{row.predicted_s / row.measured_s - 1:+.1%}",
        )
        for row in rows
    )
    yield from table(heads, "llrrlr", cells)
    yield ""
    for plan, error in errors_by_plan(rows).items():
        yield f"{plan}: {error:+.1%}"
    yield ""
    figures = summary(rows)
    for name, value in figures.items():
        yield f"{name}: {value:.3g}"
    for name, (sign, mark) in MARKS.items():
        yield Mark.of(name, figures[name], sign, mark, "{:.3g}".format).line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=25.0, help="seconds of measuring a task")
    parser.add_argument("--platform", default="cpu", help="a name or a file")
    parser.add_argument(
        "--calibrate",
        type=float,
        metavar="SECONDS",
        help="measure this machine first and predict by that; kept for an hour",
    )
    parser.add_argument(
        "--rows", type=Path, help="keep measurements in this file; predict those that it has"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.calibrate:
        from selection_calibrate import calibrated_platform

        platform = calibrated_platform(RANKS, arguments.calibrate, trainer="pytorch")
    else:
        platform = load_platform(arguments.platform)
    rows: list[Row] = []
    if arguments.rows and arguments.rows.exists():
        rows = [Row(**row) for row in json.loads(arguments.rows.read_text())]
    start_s = time.monotonic()
    for number in range(arguments.tasks):
        if any(row.task == number for row in rows):
            continue
        rows += run_task(number, arguments.seed, platform, arguments.budget)
        print(f"task {number}: {time.monotonic() - start_s:.0f} s", file=sys.stderr, flush=True)
        if arguments.rows:
            arguments.rows.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    predicted = {
        (number, one.name): predict_job(one.job()).iteration_time_s
        for number in {row.task for row in rows}
        for one in candidates_of(number, arguments.seed, platform)
    }
    rows = [replace(row, predicted_s=predicted[row.task, row.plan]) for row in rows]
    if arguments.json:
        print(json.dumps({**summary(rows), "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print("\n".join(lines(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
