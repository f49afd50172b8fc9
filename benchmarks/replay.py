"""Replays of execution traces against the training that they were captured from, with marks.

Usage: python benchmarks/replay.py [--jobs mlp,…] [--rounds N] [--traces FOLDER] [--json]

Jobs (replay_jobs.py) train on one core, are captured, and then train and replay in turns, so that
both see the same machine. Compared is the processor time of a step, which other work on the
machine disturbs least: that of the job itself without any profiler, and that of the replay.
`--traces` names a folder with published execution traces, by default that of `DSE_MEASUREMENTS`.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING

from folders import DATA

os.environ.setdefault("OMP_NUM_THREADS", "1")

from costs import processor_s
from marks import Mark
from replay_jobs import JOBS

from dse.trace.replay import ReplayOptions, replay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.trace.replay import RankResult

#: Steps that are captured, and trained between two replays.
STEPS = 3
#: Aims.
ERROR, COVERAGE = 0.10, 0.98
#: Published traces: file, factor on the batch (32 images take minutes on a core), how many steps.
PUBLISHED = (
    ("resnet_et.json.gz", 1 / 16, "ProfilerStep#6"),
    ("resnet_2gpu_et.json.gz", 1 / 16, "ProfilerStep#6"),
    ("linear_et.json.gz", 1.0, ""),
)
DLRM = "dlrm_pytorch_et.tar.gz"
#: Reason for time that belongs to no operator.
OUTSIDE = "work of the device outside of operators"


def job_marks(name: str, rounds: int) -> Iterator[Mark]:
    """Captures a job, then trains and replays in turns."""
    import torch

    import dse

    torch.manual_seed(0)
    torch.set_num_threads(1)
    step = JOBS[name]("cpu")
    with tempfile.TemporaryDirectory() as folder:
        with dse.capture(folder, steps=STEPS, skip=4) as capture:
            for _ in capture.steps(range(STEPS + 12)):
                step()
        trained_s: list[float] = []
        replayed_s: list[float] = []
        for _ in range(rounds):
            trained_s += [processor_s(step) for _ in range(2 * STEPS)]
            result = replay([folder], ReplayOptions(iterations=2, warm_up=1))
            replayed_s += [seconds / STEPS for seconds in result.ranks[0].cpu_s]
    (rank,) = result.ranks
    before_s, after_s = statistics.median(trained_s), statistics.median(replayed_s)
    error = after_s / before_s - 1
    original = rank.original
    assert original.profiled_s is not None
    yield Mark(
        f"{name}: time of a step",
        f"{1e3 * after_s:.1f} ms replayed, {1e3 * before_s:.1f} ms trained: {100 * error:+.1f} % "
        f"(processor time; on the clock {1e3 * original.profiled_s / STEPS:.1f} ms with the "
        f"profiler, {1e3 * (original.unprofiled_s or 0) / STEPS:.1f} ms without)",
        f"within {100 * ERROR:.0f} %",
        abs(error) <= ERROR,
    )
    share = rank.coverage.time_share or 0.0
    yield Mark(
        f"{name}: operators' time that is replayed",
        f"{100 * share:.2f} %, {rank.coverage.replayed} of {rank.coverage.operators} operators",
        f"at least {100 * COVERAGE:.0f} %",
        share >= COVERAGE,
    )


def dlrm_mark(folder: Path) -> Mark:
    """Replays eight ranks over gloo; every operator is rebuilt or listed."""
    result = replay([folder / DLRM], ReplayOptions(iterations=2, warm_up=1))
    accounted = all(_accounted(rank) for rank in result.ranks)
    first = result.ranks[0]
    reasons = sorted({one.reason for rank in result.ranks for one in rank.skipped})
    shares = [rank.coverage.time_share or 0.0 for rank in result.ranks]
    return Mark(
        "eight ranks of a DLRM on V100 (schema 1.0.1)",
        f"{len(result.ranks)} ranks, collectives {result.collectives}: {first.coverage.replayed} "
        f"of {first.coverage.operators} operators, {100 * min(shares):.1f}–"
        f"{100 * max(shares):.1f} % of the host's time; not: {'; '.join(reasons)}",
        "every operator is rebuilt or listed with its reason",
        accounted and len(result.ranks) == 8,
    )


def _accounted(rank: RankResult) -> bool:
    """Whether replayed and listed operators are all that there are."""
    listed = [one for one in rank.skipped if not one.by_option and one.reason != OUTSIDE]
    count = rank.coverage.replayed + sum(one.count for one in listed)
    return count == rank.coverage.operators and all(one.reason for one in listed)


def published_marks(folder: Path) -> Iterator[Mark]:
    """Replays traces of GPUs on the CPU."""
    for name, factor, label in PUBLISHED:
        options = ReplayOptions(
            iterations=1, warm_up=0, scale_batch=factor, begin=label, end=label
        )
        result = replay([folder / name], options)
        (rank,) = result.ranks
        reasons = sorted({f"{one.name}: {one.reason}" for one in rank.skipped})
        yield Mark(
            f"{name} on the CPU",
            f"{rank.coverage.replayed} of {rank.coverage.operators} operators in "
            f"{rank.replayed_s:.2f} s"
            + (f", batch {rank.batch[1]} for {rank.batch[0]}" if rank.batch else "")
            + f", collectives {result.collectives}"
            + (f"; not: {'; '.join(reasons)}" if reasons else ""),
            "it replays",
            rank.coverage.operator_share >= COVERAGE,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the marks; the exit code is 1 if one is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--traces", type=Path, default=DATA / "traces")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    marks: list[Mark] = []

    def tell(mark: Mark) -> None:
        marks.append(mark)
        if not given.json:
            print(mark.line, flush=True)

    for name in filter(None, given.jobs.split(",")):
        for mark in job_marks(name, given.rounds):
            tell(mark)
    if given.traces.is_dir():
        for mark in published_marks(given.traces):
            tell(mark)
        tell(dlrm_mark(given.traces))
    else:
        print(f"no published traces in {given.traces}", file=sys.stderr)
    if given.json:
        fields = ("name", "aim", "figure", "met")
        rows = [{name: getattr(mark, name) for name in fields} for mark in marks]
        print(json.dumps(rows, indent=1))
    return 0 if all(mark.met for mark in marks) else 1


if __name__ == "__main__":
    sys.exit(main())
