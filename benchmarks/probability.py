"""Whether probabilities are what they say: of recommendations, and against published steps.

Usage: python benchmarks/probability.py [--data DIR]

The first table compares the probability that recommendations print with the share of the samples
of the same job, drawn anew, that reach the goal. The second is the reliability of the predicted
distributions: the share of published step times below each quantile of their own predictions.
Where the distribution is right these shares are the quantiles themselves, up to chance; beside the
largest deviation stands what chance alone gives on average with as many cases, were they
independent.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
import sys
from typing import TYPE_CHECKING

from accuracy import DATA, published
import numpy as np
from step_figures import by_family, read_all, step_files

from dse.errors import DseError
from dse.machine.platforms import load_platform
from dse.search.recommend import SURE, HourlyBudget, RecommendOptions, Target, recommend
from dse.workload import load_workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The last is the one that recommendations call sure.
QUANTILES = (0.10, 0.25, 0.50, 0.75, 0.90, SURE)

#: Both marks: points between what is said and what is true.
MARK = 0.05

#: What recommendations are asked about: model, platform, ranks and program.
QUESTIONS = (
    ("dlrm_dcnv2", "h100_sxm", 8, "torchrec"),
    ("dlrm_dcnv2", "a100_sxm_80", 16, "hugectr"),
    ("dlrm_criteo", "b200_sxm", 8, "hugectr"),
    ("gpt_1_7b", "a100_sxm_80", 8, "megatron"),
    ("gpt_1_7b", "h100_sxm", 16, "megatron"),
)

#: Targets as shares of the expected throughput.
_SHARES = (0.88, 0.96, 1.02, 1.10)

#: Draws of a calibrated model, for what chance gives.
_DRAWS = 2000


def said_and_sampled() -> list[tuple[str, float, float]]:
    """Returns what is asked, the probability that is said, and the share of samples."""
    rows = []
    for model, platform, ranks, program in QUESTIONS:
        workload = load_workload(model)
        options = RecommendOptions(
            platforms=(platform,),
            world_sizes=(ranks,),
            batch_sizes=(workload.global_batch_size,),
            program=program,
        )
        solved = recommend(workload, HourlyBudget(1e6), options).answer
        assert solved is not None
        configuration = solved.configuration
        job = workload.job(load_platform(platform), dict(configuration.parameters))
        if configuration.plan is not None:
            job = job.with_plan(configuration.plan)
        rates = solved.option.global_batch_size / job.sample_times_s()
        for share in _SHARES:
            required = share * solved.throughput_per_s
            name = f"{model} on {ranks} × {platform}, {share:.0%} of the expected"
            said = solved.probability(Target(required))
            rows.append((name, said, float((rates >= required).mean())))
    return rows


def largest_deviation(shares_faster: Sequence[float]) -> float:
    """Returns the largest distance of a quantile from the share of cases below it.

    Args:
        shares_faster: Of each case, the share of predicted times that are below the measured one.
    """
    return max(abs(share - level) for level, share in reliability(shares_faster).items())


def reliability(shares_faster: Sequence[float]) -> dict[float, float]:
    """Returns by quantile the share of measured times below that quantile of the prediction."""
    values = np.asarray(shares_faster)
    return {level: float((values < level).mean()) for level in QUANTILES}


def by_chance(cases: int) -> float:
    """Returns the largest deviation that right distributions have on average."""
    drawn = np.random.default_rng(0).random((_DRAWS, cases))
    return float(np.mean([largest_deviation(row) for row in drawn]))


def groups_of(data: Path) -> dict[str, list[float]]:
    """Returns the shares of predicted times below the measured one, by family."""
    groups: dict[str, list[float]] = {}
    for case in published(data):
        groups.setdefault(case.family, []).append(case.share_faster)
    for family, steps in by_family(read_all(step_files(data / "published"))).items():
        groups[family] = [one.step.share_faster for one in steps]
    known = {
        name: [share for share in shares if not math.isnan(share)]
        for name, shares in groups.items()
    }
    return {name: shares for name, shares in known.items() if shares}


def print_reliability(groups: Mapping[str, Sequence[float]]) -> None:
    """Prints one row a group, and one for all."""
    every = [share for shares in groups.values() for share in shares]
    head = " ".join(f"{f'{100 * level:.0f} %':>6}" for level in QUANTILES)
    print(f"{'measured below the quantile':<28} {'cases':>5} {head} {'largest':>8} {'chance':>7}")
    for name, shares in [*groups.items(), ("all", every)]:
        cells = " ".join(f"{100 * share:4.0f} %" for share in reliability(shares).values())
        print(
            f"{name:<28} {len(shares):5d} {cells} {100 * largest_deviation(shares):8.1f} "
            f"{100 * by_chance(len(shares)):7.1f}"
        )
    for name, shares in [*groups.items(), ("all", every)]:
        verdict = "met" if largest_deviation(shares) <= MARK else "MISSED"
        print(f"{verdict:<7} {name}: {100 * largest_deviation(shares):.1f} points (≤ 5)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of measurements")
    arguments = parser.parse_args()
    rows = said_and_sampled()
    print(f"{'recommendation':<58} {'said':>6} {'samples':>8}")
    for name, said, sampled in rows:
        print(f"{name:<58} {100 * said:4.0f} % {100 * sampled:6.1f} %")
    worst = max(abs(said - sampled) for _, said, sampled in rows)
    verdict = "met" if worst <= MARK else "MISSED"
    print(f"{verdict:<7} {len(rows)} recommendations: largest {100 * worst:.1f} points (≤ 5)\n")
    try:
        print_reliability(groups_of(arguments.data))
    except DseError as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
