"""Whether probabilities are what they say: of recommendations, and against published steps.

Usage: python benchmarks/probability.py [--data DIR] [--fit [--write]]

The first table compares the probability that recommendations print with the share of the samples
of the same job, drawn anew, that reach the goal. The second is the reliability of the predicted
distributions: the share of published step times below each quantile of their own predictions.
Where the distribution is right these shares are the quantiles themselves, up to chance; beside the
largest deviation stands what chance alone gives on average with as many cases, were they
independent. They are not: the standard errors (±) come from drawing groups of one program, machine
and model with all their steps. Further tables are the same with spreads that were fitted without
the machine, the model, the number of ranks or the program of each step; the last ones show what
would be left if each program's predictions were multiplied by the median of its other groups.

With ``--fit`` the spreads of programs are found again, as is due when predictions have changed,
and with ``--write`` they replace those that come with dse. Beside them stand the most likely shape
of the distribution, and scores of other shapes on groups that were left out, by which the shape
that comes with dse was chosen.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
import sys
from typing import TYPE_CHECKING

from accuracy import published
from folders import DATA, ROOT
from marks import Mark
import numpy as np
from step_errors import (
    KINDS,
    Shape,
    best_shape,
    fitted,
    group_error,
    left_out,
    left_out_scores,
    write,
)
from step_figures import by_family, read_all, step_files

from dse.errors import DseError
from dse.machine.platforms import load_platform
from dse.search.recommend import SURE, HourlyBudget, RecommendOptions, Target, recommend
from dse.workload import load_workload
from dse.workload._step_errors import FAST_SIDE, KERNEL_SHARE, TAIL, ErrorShape, step_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from step_errors import StepError

#: The last is the one that recommendations call sure.
QUANTILES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, SURE)

#: Steps on several nodes, beside those of the folder of measurements.
_SEVERAL_NODES = ROOT / "benchmarks/measurements/vtrain_multi_node.csv"

#: Times that a simulator made (`simulated_steps.py`), from which no error of a prediction follows.
_SIMULATED = "vtrain.csv"

#: Spreads that come with dse.
SHIPPED = ROOT / "dse/workload/step_errors.json"

#: Both marks: points between what is said and what is true.
MARK = 0.05
_AIM = f"≤ {100 * MARK:g}"

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

#: Shapes that are scored beside the shipped one, the first.
_SHAPES = (
    Shape(),
    Shape(fast_side=0.5),
    Shape(fast_side=0.7),
    Shape(tail=0.2),
    Shape(tail=0.5),
    Shape(tail_spread=0.0),
    Shape(tail=0.5, tail_spread=0.0),
    Shape(tail_spread=1.0),
    Shape(kernel_share=0.0),
    Shape(kernel_share=0.2),
    Shape(kernel_share=0.5),
    Shape(median=0.0),
    Shape(median=0.05),
    Shape(median=0.2),
)

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
        rates = solved.option.global_batch_size / job.iteration().sample_times_s(seed=1)
        for share in _SHARES:
            required = share * solved.throughput_per_s
            name = f"{model} on {ranks} × {platform}, {share:.0%} of the expected"
            said = solved.probability(Target(required))
            rows.append((name, said, float((rates >= required).mean())))
    return rows


def largest_deviation(shares_faster: Sequence[float] | NDArray[np.float64]) -> float:
    """Returns the largest distance of a quantile from the share of cases below it.

    Args:
        shares_faster: Of each case, the share of predicted times that are below the measured one.
    """
    return max(abs(share - level) for level, share in reliability(shares_faster).items())


def reliability(shares_faster: Sequence[float] | NDArray[np.float64]) -> dict[float, float]:
    """Returns by quantile the share of measured times below that quantile of the prediction."""
    values = np.asarray(shares_faster)
    return {level: float((values < level).mean()) for level in QUANTILES}


def inside(shares_faster: NDArray[np.float64]) -> float:
    """Returns the share of measured times inside the 90 % interval of their prediction."""
    return float(((shares_faster >= 0.05) & (shares_faster <= 0.95)).mean())


def by_chance(cases: int) -> float:
    """Returns the largest deviation that right distributions have on average."""
    drawn = np.random.default_rng(0).random((_DRAWS, cases))
    return float(np.mean([largest_deviation(row) for row in drawn]))


def errors_by_family(data: Path) -> dict[str, list[StepError]]:
    """Returns the errors of published steps by family."""
    found: dict[str, list[StepError | None]] = {}
    for case in published(data):
        found.setdefault(case.family, []).append(case.step_error)
    files = [path for path in step_files(data / "published") if path.name != _SIMULATED]
    for family, steps in by_family(read_all([*files, _SEVERAL_NODES])).items():
        found[family] = [one.step.step_error for one in steps]
    known = {
        name: [error for error in errors if error is not None] for name, errors in found.items()
    }
    return {name: errors for name, errors in known.items() if errors}


def print_reliability(
    title: str, families: Mapping[str, Sequence[StepError]], shares: NDArray[np.float64]
) -> None:
    """Prints one row a family, and one for all.

    Args:
        title: What the shares are.
        families: Published steps.
        shares: Share of predicted times below the measured one of each step, in that order.
    """
    head = " ".join(f"{f'{100 * level:.0f} %':>6}" for level in QUANTILES)
    print(f"\n{title:<34} {'cases':>5} {head} {'largest':>8} {'chance':>7} {'inside 90 %':>12}")
    begin, rows = 0, []
    for name, steps in families.items():
        rows.append((name, steps, shares[begin : begin + len(steps)]))
        begin += len(steps)
    every = [step for steps in families.values() for step in steps]
    rows.append(("all", every, shares))
    for name, steps, mine in rows:
        cells = " ".join(f"{100 * share:4.0f} %" for share in reliability(mine).values())
        error = 100 * group_error(steps, mine, inside)
        print(
            f"{name:<34} {len(steps):5d} {cells} {100 * largest_deviation(mine):8.1f} "
            f"{100 * by_chance(len(steps)):7.1f} {100 * inside(mine):7.0f} ± {error:.0f}"
        )
    for name, steps, mine in rows:
        reached = largest_deviation(mine)
        error = 100 * group_error(steps, mine, largest_deviation)
        figure = f"{100 * reached:.1f} ± {error:.1f} points"
        print(Mark(name, figure, _AIM, reached <= MARK).line)


def print_spreads(steps: Sequence[StepError]) -> None:
    """Prints the spread of each program with what was fitted, and the median of its errors."""
    found, shipped = fitted(steps), step_errors()
    print(
        f"\n{'program':<24} {'steps':>5} {'groups':>6} {'spread':>7} {'shipped':>7} {'tail':>5} "
        f"{'shipped':>7} {'median':>8}"
    )
    unknown = ErrorShape(math.nan, math.nan)
    for name, shape in found.programs.items():
        mine = [step for step in steps if step.program == name]
        before = shipped.programs.get(name, unknown)
        errors = np.array([step.log_error for step in mine])
        median = 100 * float(np.median(errors))
        error = 100 * group_error(mine, errors, lambda values: float(np.median(values)))
        print(
            f"{name:<24} {len(mine):5d} {len({step.group for step in mine}):6d} "
            f"{shape.scale:7.3f} {before.scale:7.3f} {shape.tail:5.2f} {before.tail:7.2f} "
            f"{median:+6.1f} % ± {error:.1f}"
        )
    print(f"{'with experts, added':<37} {found.experts:7.3f} {shipped.experts:7.3f}")
    print(f"{'no published step':<37} {found.without_steps:7.3f} {shipped.without_steps:7.3f}")
    common, gain = best_shape(steps)
    print(
        f"most likely shape with one tail: kernels {common.kernel_share:g}, "
        f"fast side {common.fast_side:g}, tail {common.tail:.2g} (log-likelihood {gain:+.1f} over "
        f"{KERNEL_SHARE:g}, {FAST_SIDE:g}, {TAIL:g})"
    )
    for name in found.programs:
        without, gain = best_shape([step for step in steps if step.program != name])
        print(
            f"  without {name}: {without.kernel_share:g}, {without.fast_side:g}, "
            f"{without.tail:.2g} ({gain:+.1f})"
        )


def print_shapes(steps: Sequence[StepError]) -> None:
    """Prints scores of shapes on left-out groups; log-likelihoods over that of the first."""
    print(
        f"\n{'left out':<9} {'kernels':>7} {'fast side':>9} {'tail':>5} {'spread':>6} "
        f"{'median':>6} {'log-lik.':>8} "
        f"{'CRPS':>7} {'interval score':>14} {'width':>7} {'inside':>7}"
    )
    for kind in KINDS:
        shipped = math.nan
        for shape in _SHAPES:
            found = left_out_scores(steps, kind, shape)
            if shape == _SHAPES[0]:
                shipped = found.log_likelihood
            print(
                f"{kind:<9} {shape.kernel_share:7g} {shape.fast_side:9g} {shape.tail:5g} "
                f"{shape.tail_spread:6g} {shape.median:6g} "
                f"{found.log_likelihood - shipped:+8.1f} {found.crps:7.4f} "
                f"{found.interval_score:14.3f} {found.width:7.3f} {100 * found.inside:5.0f} %"
            )


def print_recommendations() -> None:
    """Prints what recommendations say beside the share of another draw of samples."""
    rows = said_and_sampled()
    print(f"{'recommendation':<58} {'said':>6} {'samples':>8}")
    for name, said, sampled in rows:
        print(f"{name:<58} {100 * said:4.0f} % {100 * sampled:6.1f} %")
    worst = max(abs(said - sampled) for _, said, sampled in rows)
    figure = f"largest {100 * worst:.1f} points"
    print(Mark(f"{len(rows)} recommendations", figure, _AIM, worst <= MARK).line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of measurements")
    parser.add_argument("--fit", action="store_true", help="find the spreads of programs again")
    parser.add_argument("--write", action="store_true", help="with --fit: ship what was found")
    arguments = parser.parse_args()
    if arguments.write and not arguments.fit:
        parser.error("--write needs --fit, whose spreads it writes")
    if not arguments.fit:
        print_recommendations()
    try:
        families = errors_by_family(arguments.data)
    except DseError as error:
        sys.exit(f"{parser.prog}: {error}")
    steps = [step for errors in families.values() for step in errors]
    if arguments.fit:
        print_spreads(steps)
        print_shapes(steps)
        if arguments.write:
            write(SHIPPED, fitted(steps), steps)
            print(f"written to {SHIPPED}; run again without --fit for its reliability")
        return
    shipped = np.array([step.share_faster for step in steps])
    print_reliability("measured below the quantile", families, shipped)
    for kind in KINDS:
        print_reliability(f"the same, {kind} left out", families, left_out(steps, kind))
    for kind in KINDS:
        moved = left_out(steps, kind, centred=True)
        print_reliability(f"{kind} left out, medians removed", families, moved)


if __name__ == "__main__":
    main()
