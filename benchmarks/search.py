"""Does the exact search find the whole front, how soon, and how do samplers compare?

Usage: python benchmarks/search.py [SPACE ...] [--drawn N] [--jobs N] [--seed N] [--samplers A,B]
    [--trials N] [--most-truth N] [--json] [--write docs/performance.md]

Of each space, and of some that are drawn at random, every distinct configuration is evaluated as
in a study: that is the truth, where there are no more than `--most-truth`. The table says how long
the search took and what share it evaluated, by how much it missed points of the true front at
most, and what Optuna's samplers find in as many trials as a user would give them. Regret is the
throughput that a front lacks at the cost of a true point, on average over these. Plans of the
front are compared with those of `dse shard`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, field, replace
import json
import os
from pathlib import Path
import random
import sys
import tempfile
import time
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from pages import replace_section, table

from dse.search import RunOptions, TrialStatus, read_inputs, run
from dse.search._polish import FrontPolish
from dse.search._proposals import Effort, Proposal
from dse.search.analyse._hypervolume import hypervolume
from dse.search.analyse._pareto import pareto_mask
from dse.search.evaluate._distinct import enumerate_space
from dse.search.execute import make_executor
from dse.search.space import SamplerName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from dse.search import StudyResult, TrialRecord
    from dse.search._inputs import StudyInputs
    from dse.search.space import Objective

SHIPPED = (
    "dlrm_sharding",
    "gpt_parallelism",
    "bert_ddp",
    "llama3_parallelism",
    "moe_parallelism",
)

#: What spaces are drawn from.
MODELS = ("dlrm_dcnv2", "dlrm_criteo", "dlrm_dle_small", "dlrm_small")
PLATFORMS = ("a100_sxm_40", "a100_sxm_80", "h100_sxm", "h200_sxm", "b200_sxm")
BATCHES = (8192, 16384, 32768, 65536, 131072, 262144)
NETWORKS = ("default", "ethernet_100g")

TITLE = "## Search of a space"

_HEAD = """\
`python benchmarks/search.py --write docs/performance.md` searches the shipped spaces and some
random ones, and writes this section. It measures the wall time of the search including its files
(`--jobs {jobs}`), and the processor time of the process that coordinates it, without the start of
Python. For spaces of up to {most:,} distinct configurations, it evaluates all of them to find the
truth; that takes twenty minutes, most of it for the spaces of transformers, which
`--most-truth 1000` leaves out."""

_NOTES = """\
The last columns are for Optuna's samplers: the share of the true hypervolume that they find, and
their regret, the average throughput that their front lacks at the cost of a true point. The number
after the plus counts other sizes of the recommended configuration, which are proven dominated but
are evaluated to show what more ranks or another batch would bring. Every point of the front has to
be evaluated, so in spaces of a hundred outcomes these are most of the share. Wall times depend on
what else the machine is doing."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a sampler found.

    Attributes:
        sampler: Its name.
        hypervolume_share: Hypervolume of its front over the true one.
        regret: Mean share of the throughput that it lacks at the cost of true points.
    """

    sampler: str
    hypervolume_share: float
    regret: float


@dataclass(frozen=True, slots=True)
class Found:
    """One space.

    Attributes:
        space: Its name.
        seconds: Wall time of the exact search, files included.
        processor_s: Processor time of this process; workers are children of another one.
        complete: Whether it was certified.
        distinct: Distinct configurations.
        evaluated: Those that were evaluated to certify the front.
        compared: Others that were evaluated for comparison.
        front: Rows of the front.
        missed: Largest relative shortfall of the front behind a true point; NaN without a truth.
        shard_gap: Largest relative difference of a plan on the front from that of `dse shard`; NaN
            without plans.
        samplers: For comparison.
    """

    space: str
    seconds: float
    processor_s: float
    complete: bool
    distinct: int
    evaluated: int
    compared: int
    front: int
    missed: float
    shard_gap: float
    samplers: tuple[Sampled, ...] = field(default=())


def drawn_space(number: int, seed: int) -> dict[str, object]:
    """Returns a space of a recommendation model that is drawn at random."""
    rng = random.Random(f"{seed} {number}")
    return {
        "schema_version": 1,
        "name": f"drawn_{number}",
        "workload": {"model": rng.choice(MODELS)},
        "parameters": {
            "platform": sorted(rng.sample(PLATFORMS, rng.randint(2, 4))),
            "world_size": sorted(rng.sample((2, 4, 8, 16, 32, 64), rng.randint(3, 5))),
            "global_batch_size": sorted(rng.sample(BATCHES, rng.randint(2, 4))),
            "network": list(NETWORKS),
            "precision": ["tf32", "fp16"],
            "communication_precision": ["fp32", "fp16"],
            "program": rng.choice(("torchrec", "hugectr", "ideal")),
        },
        "objectives": [
            {"metric": "throughput_samples_per_s", "direction": "maximize"},
            {"metric": "cost_usd_per_million_samples", "direction": "minimize"},
        ],
        "constraints": [{"metric": "memory_headroom_fraction", "at_least": "5 %"}],
    }


def true_records(inputs: StudyInputs, jobs: int) -> list[TrialRecord]:
    """Evaluates every distinct configuration, and the plans of the front thoroughly."""
    space, evaluator = inputs.space, inputs.context.make_evaluator()
    # Those that differ in the machine alone follow each other: workers keep the last few graphs.
    distinct = sorted(
        enumerate_space(space, evaluator).distinct,
        key=lambda each: [str(value) for _, value in reversed(each.parameters)],
    )
    wanted = [
        Proposal(number, each.parameters)
        for number, each in enumerate(distinct)
        if not evaluator.rejection(dict(each.parameters))
    ]
    with make_executor("process", inputs.context, jobs) as executor:
        first = list(executor.run(wanted))
        polish = FrontPolish(first, (), space.objectives, evaluator.with_plans_of)
        while polish.waiting:
            ahead = [Proposal(r.number, r.parameters, Effort.THOROUGH) for r in polish.waiting]
            for record in executor.run(ahead, polish.wants):
                polish.add(replace(record, thorough=True))
    return list(polish.records)


def front_of(
    records: Iterable[TrialRecord], objectives: Sequence[Objective]
) -> tuple[NDArray[np.float64], list[TrialRecord]]:
    """Returns the front of the feasible records, and its values."""
    feasible = [record for record in records if record.status is TrialStatus.FEASIBLE]
    values = np.array([record.values for record in feasible]).reshape(-1, len(objectives))
    mask = pareto_mask(values, [axis.maximize for axis in objectives])
    return values[mask], [r for r, marked in zip(feasible, mask, strict=True) if marked]


def shortfall(
    found: NDArray[np.float64], true: NDArray[np.float64], maximize: list[bool]
) -> float:
    """Returns the largest share by which the best found point is behind a true point."""
    signs = np.where(maximize, 1.0, -1.0)
    behind = signs * (true[:, None, :] - found[None, :, :]) / np.abs(true[:, None, :])
    return float(max(0.0, behind.max(axis=2).min(axis=1).max()))


def regret(found: NDArray[np.float64], true: NDArray[np.float64]) -> float:
    """Returns the mean share of throughput that is lacking at the cost of true points."""
    shares = []
    for throughput, cost in true:
        within = found[found[:, 1] <= cost * (1 + 1e-9)]
        best = within[:, 0].max(initial=0.0)
        shares.append(max(0.0, 1.0 - best / throughput))
    return float(np.mean(shares))


def shard_gap(inputs: StudyInputs, result: StudyResult) -> float:
    """Returns the largest difference of a plan on the front from that of `dse shard`, or NaN."""
    evaluator = inputs.context.make_evaluator()
    gaps = []
    for record in result.front:
        if not record.planner or record.prediction is None:
            continue
        solved = evaluator.open_job(dict(record.parameters)).solve()
        gaps.append(abs(record.prediction.iteration_time_s / solved.iteration_time_s - 1.0))
    return max(gaps, default=float("nan"))


def measured(
    space: str | Mapping[str, object], arguments: argparse.Namespace, folder: Path
) -> Found:
    """Searches one space in all ways."""
    inputs = read_inputs(space)
    name = inputs.space.name
    started, processor_s = time.monotonic(), time.process_time()
    study = run(space, RunOptions(out=folder / name, jobs=arguments.jobs))
    seconds, processor_s = time.monotonic() - started, time.process_time() - processor_s
    result, certificate = study.result, study.result.certificate
    values = np.array([record.values for record in result.front])
    maximize = [axis.maximize for axis in result.objectives]
    missed = float("nan")
    samplers = []
    distinct = 0 if certificate is None else certificate.distinct
    if 0 < distinct <= arguments.most_truth:
        true, _ = front_of(true_records(inputs, arguments.jobs), result.objectives)
        missed = shortfall(values, true, maximize)
        worst = np.where(maximize, 0.0, 2.0 * true.max(axis=0))
        most = hypervolume(true, worst, maximize)
        for sampler in filter(None, arguments.samplers.split(",")):
            options = RunOptions(
                out=folder / f"{name} {sampler}",
                jobs=arguments.jobs,
                trials=arguments.trials,
                sampler=SamplerName(sampler),
                seed=arguments.seed,
            )
            other = np.array([r.values for r in run(space, options).result.front])
            share = hypervolume(other, worst, maximize) / most
            samplers.append(Sampled(sampler, share, regret(other, true)))
    evaluated = sum(record.evaluated for record in result.records)
    needed = evaluated if certificate is None else certificate.evaluated
    return Found(
        space=name,
        seconds=seconds,
        processor_s=processor_s,
        complete=certificate is not None and certificate.complete,
        distinct=distinct,
        evaluated=needed,
        compared=evaluated - needed,
        front=len(result.front),
        missed=missed,
        shard_gap=shard_gap(inputs, result),
        samplers=tuple(samplers),
    )


def main() -> None:
    """Prints a row for each space."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spaces", nargs="*", default=list(SHIPPED))
    parser.add_argument("--drawn", type=int, default=3, help="spaces to draw at random")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samplers", default="nsga2,random")
    parser.add_argument("--trials", type=int, default=300, help="trials of each sampler")
    parser.add_argument(
        "--most-truth",
        type=int,
        default=30_000,
        help="distinct configurations to enumerate at most",
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page whose section to write")
    arguments = parser.parse_args()
    spaces = [*arguments.spaces, *(drawn_space(n, arguments.seed) for n in range(arguments.drawn))]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for space in spaces:
            one = measured(space, arguments, Path(folder))
            found.append(one)
            if not arguments.json:
                print(_row(one), flush=True)
    if arguments.json:
        json.dump([asdict(one) for one in found], sys.stdout, indent=1)
    if arguments.write:
        replace_section(arguments.write, section(found, arguments))


def section(found: Sequence[Found], arguments: argparse.Namespace) -> str:
    """Returns the section of the page, with its title."""
    samplers = list(filter(None, arguments.samplers.split(",")))
    heads = [
        "space",
        "complete in",
        "processor time of the coordinator",
        "evaluated of distinct",
        "front",
        "behind the true front at most",
        "plans against `dse shard`",
        *(f"{name}, {arguments.trials} trials" for name in samplers),
    ]
    rows = []
    for one in found:
        known = {each.sampler: each for each in one.samplers}
        cells = [
            f"`{one.space}`",
            f"{one.seconds:.1f} s" if one.complete else f"not complete in {one.seconds:.1f} s",
            f"{one.processor_s:.1f} s",
            f"{one.evaluated} of {one.distinct:,} ({one.evaluated / max(1, one.distinct):.1%})"
            f" + {one.compared}",
            str(one.front),
            "not compared" if one.missed != one.missed else f"{one.missed:.2%}",
            "no plans" if one.shard_gap != one.shard_gap else f"{one.shard_gap:.2%}",
            *(
                f"{known[name].hypervolume_share:.1%}, {known[name].regret:.0%}"
                if name in known
                else "–"
                for name in samplers
            ),
        ]
        rows.append(cells)
    head = _HEAD.format(jobs=arguments.jobs, most=arguments.most_truth)
    return "\n".join(("", TITLE, "", head, "", *table(heads, "l", rows), "", _NOTES, ""))


def _row(one: Found) -> str:
    share = one.evaluated / max(1, one.distinct)
    state = "complete" if one.complete else "NOT complete"
    missed = "not compared" if one.missed != one.missed else f"missed by at most {one.missed:.2%}"
    plans = "no plans"
    if one.shard_gap == one.shard_gap:
        plans = f"plans {one.shard_gap:.2%} from `dse shard`"
    text = (
        f"{one.space}: {state} in {one.seconds:.1f} s; {one.evaluated} of {one.distinct:,} "
        f"evaluated ({share:.1%}) and {one.compared} for comparison; front of {one.front}, "
        f"{missed}; {plans}"
    )
    for each in one.samplers:
        text += (
            f"\n    {each.sampler}: {each.hypervolume_share:.1%} of the hypervolume, "
            f"regret {each.regret:.1%}"
        )
    return text


if __name__ == "__main__":
    main()
