"""How far plans on several nodes may be from the best: of studies, and of `dse shard`.

Usage: python benchmarks/plan_gaps.py [--models A,B] [--programs A,B] [--platforms A,B]
    [--ranks 16,32] [--samples N]

Every configuration is searched quickly, as in a study, and thoroughly, as by `dse shard`. A gap is
the iteration time over the lower bound, less one; times are processor time.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

from dse.machine.platforms import load_platform
from dse.workload import PlanEffort, load_workload


@dataclass(frozen=True, slots=True)
class Gaps:
    """One configuration.

    Attributes:
        name: Model, program, platform and ranks, as cells of a table.
        bound_s: No plan is faster.
        gaps: Of the quick and of the thorough search.
        seconds: Processor time of both.
    """

    name: str
    bound_s: float
    gaps: tuple[float, float]
    seconds: tuple[float, float]


def measured(model: str, program: str, platform: str, ranks: int, samples: int) -> Gaps:
    """Searches one configuration with both efforts.

    Args:
        model: Name of a recommendation model.
        program: Name of the training program.
        platform: Name of the platform.
        ranks: Number of ranks.
        samples: Samples of each rank in one iteration.
    """
    parameters = {
        "platform": platform,
        "world_size": ranks,
        "global_batch_size": samples * ranks,
        "program": program,
    }
    times_s, seconds = [], []
    for quick in (True, False):
        job = load_workload(model).job(load_platform(platform), parameters)
        started = time.process_time()
        planned = job.planned(PlanEffort(quick=quick))
        seconds.append(time.process_time() - started)
        times_s.append(planned.simulated()[0])
    bound_s = job.lower_bound_s(times_s[1])
    quick_gap, gap = (time_s / bound_s - 1.0 for time_s in times_s)
    name = f"{model} | {program} | {ranks} × {platform}"
    return Gaps(name, bound_s, (quick_gap, gap), (seconds[0], seconds[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="dlrm_criteo,dlrm_dcnv2")
    parser.add_argument("--programs", default="torchrec,hugectr,ideal")
    parser.add_argument("--platforms", default="a100_sxm_80,h100_sxm,b200_sxm")
    parser.add_argument("--ranks", default="16,32,64,128")
    parser.add_argument("--samples", type=int, default=8192)
    options = parser.parse_args()
    print(
        "| model | program | machines | lower bound | study | its time | `dse shard` | its time |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for program in options.programs.split(","):
        rows = []
        for model in options.models.split(","):
            for platform in options.platforms.split(","):
                for ranks in options.ranks.split(","):
                    row = measured(model, program, platform, int(ranks), options.samples)
                    rows.append(row)
                    cells = " | ".join(
                        f"{gap:.1%} | {seconds:.2f} s"
                        for gap, seconds in zip(row.gaps, row.seconds, strict=True)
                    )
                    print(f"| {row.name} | {1e3 * row.bound_s:.3f} ms | {cells} |", flush=True)
        quick, thorough = (sorted(row.gaps[effort] for row in rows) for effort in (0, 1))
        print(
            f"{program}: median and worst gap {statistics.median(quick):.1%} and {quick[-1]:.1%} "
            f"in a study, {statistics.median(thorough):.1%} and {thorough[-1]:.1%} by `dse shard`"
        )


if __name__ == "__main__":
    main()
