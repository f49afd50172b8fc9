"""Where the time of a real iteration goes, phase by phase, beside its prediction.

Usage: python benchmarks/selection_phases.py [--tasks 2] [--platform P | --calibrate] [--json]

Draws tasks as `selection.py` does, by other seeds, and times the phases of their iterations on
every rank (`selection_clock.py`). Beside them stands what the model says of the same work:

* lookups: sorting of indices by owner, lookups;
* updates: of the tables;
* own work: the trainer's operators, joining and the dense part included; in the model its host
  time and the dense part;
* transfers: exchanges, and waiting for the other rank. By the wall clock this is what the training
  thread waits, by the processor what the message threads compute.

Where the machine is busy only the processor columns mean something.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
import json
import math
import os
import statistics
import sys
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from costs import load
from pages import table
from selection_clock import measure_phases
from selection_tasks import TRAINER, draw_model, plans_of, task_problem

from dse.graph import TaskKind
from dse.machine.platforms import load_platform
from dse.validation import Candidate
from dse.workload import DurationClass, predict_job
from dse.workload.dlrm import PlanScorer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selection_clock import RankPhases

    from dse.machine.platforms import Platform
    from dse.workload.dlrm import DlrmRuntime

#: Parts of an iteration and the measured phases that are in them; what is left is transfers.
PARTS = {
    "lookups": ("routing", "lookups"),
    "updates": ("updates",),
    "own work": (
        "send lengths",
        "send indices",
        "join lookups",
        "outputs",
        "forward",
        "backward",
        "exchange calls",
        "dense optimizer",
    ),
}
TRANSFERS = "transfers"
ITERATION = "iteration"

#: Ends of the names of tasks, and the part that they belong to.
_ENDINGS = (
    ("lookup backward", "updates"),
    ("tables update", "updates"),
    ("lookup", "lookups"),
)


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One plan of one task; seconds of an iteration by part, of the rank with the most of it.

    Attributes:
        task: Which draw.
        sharders: Who made the plan.
        predicted_s: By the model, the iteration as a whole included.
        processor_s: Measured by the processor.
        wall_s: Measured by the wall clock.
        straggler_s: What ranks lose when each step waits for the rank that has more to compute in
            that step, over what they lose to the rank with more on average.
    """

    task: int
    sharders: tuple[str, ...]
    predicted_s: dict[str, float]
    processor_s: dict[str, float]
    wall_s: dict[str, float]
    straggler_s: float


def predicted_parts(candidate: Candidate) -> dict[str, float]:
    """Returns the model's seconds by part on the rank with the most of it."""
    layout = PlanScorer(candidate.problem).filled(candidate.plan).expanded()
    graph = layout.graph
    ranks = range(candidate.world_size)
    found = {part: dict.fromkeys(ranks, 0.0) for part in (*PARTS, TRANSFERS)}
    for task, name in enumerate(graph.names):
        part = _part_of(name, TaskKind(int(graph.kind[task])), int(layout.duration_class[task]))
        if part is not None:
            rank = graph.streams[int(graph.stream[task])].rank
            found[part][rank] += float(graph.duration_s[task])
    prediction = predict_job(candidate.job())
    parts = {part: max(by_rank.values()) for part, by_rank in found.items()}
    return {**parts, ITERATION: prediction.iteration_time_s}


def _part_of(name: str, kind: TaskKind, duration_class: int) -> str | None:
    """Which part a task of the model's graph belongs to; launches and copies run beside others."""
    if duration_class == DurationClass.COPY or name.startswith("launch "):
        return None
    if kind is TaskKind.COLLECTIVE:
        return TRANSFERS
    return next((part for ending, part in _ENDINGS if name.endswith(ending)), "own work")


def measured_parts(ranks: list[RankPhases]) -> tuple[dict[str, float], dict[str, float]]:
    """Returns seconds by part on the rank with the most of it, by the processor and by the wall.

    By the wall, parts are those of the processor and waiting is all of a rank's; the iteration is
    that of the slowest rank.
    """

    def most(seconds: str, phases: tuple[str, ...]) -> float:
        return max(sum(getattr(rank, seconds)[phase] for phase in phases) for rank in ranks)

    processor = {part: most("processor_s", phases) for part, phases in PARTS.items()}
    processor[TRANSFERS] = max(rank.messages_s for rank in ranks)
    processor[ITERATION] = max(sum(rank.processor_s.values()) + rank.messages_s for rank in ranks)
    wall = {part: most("wall_s", phases) for part, phases in PARTS.items()}
    wall[TRANSFERS] = statistics.fmean(rank.waiting_s for rank in ranks)
    wall[ITERATION] = max(sum(rank.wall_s.values()) for rank in ranks)
    return processor, wall


def straggler_s(ranks: list[RankPhases]) -> float:
    """Returns how much the mean of the slowest exceeds the slowest mean, over steps."""
    slowest = statistics.fmean(map(max, zip(*(rank.steps_s for rank in ranks), strict=True)))
    return slowest - max(statistics.fmean(rank.steps_s) for rank in ranks)


def run_task(
    number: int, platform: Platform, software: DlrmRuntime, arguments: Any
) -> list[PhaseRow]:
    """Measures the plans of one task."""
    model = draw_model(number, arguments.seed, arguments.ranks, arguments.megabytes)
    problem = task_problem(model, arguments.ranks, platform, software)
    plans = plans_of(problem, number)
    candidates = tuple(Candidate(", ".join(names), problem, plan) for plan, names in plans.items())
    measured = measure_phases(candidates, arguments.rounds, arguments.iterations, arguments.seed)
    rows = []
    for candidate, names, ranks in zip(candidates, plans.values(), measured, strict=True):
        predicted = predicted_parts(candidate)
        processor, wall = measured_parts(ranks)
        rows.append(PhaseRow(number, tuple(names), predicted, processor, wall, straggler_s(ranks)))
    return rows


def lines(rows: list[PhaseRow]) -> Iterator[str]:
    """Yields plans, then means over all of them, as Markdown tables in milliseconds."""
    parts = (*PARTS, TRANSFERS, ITERATION)
    yield "Predicted / by the processor / by the wall clock, in ms:"
    yield ""
    plans = (
        (
            f"{row.task}, {', '.join(row.sharders)}",
            *(
                f"{1e3 * row.predicted_s[part]:.2f} / {1e3 * row.processor_s[part]:.2f} / "
                f"{1e3 * row.wall_s[part]:.2f}"
                for part in parts
            ),
        )
        for row in rows
    )
    yield from table(("task, plan of", *parts), "lr", plans)
    yield ""
    means = []
    for part in parts:
        predicted, processor, wall = (
            [getattr(row, name)[part] for row in rows]
            for name in ("predicted_s", "processor_s", "wall_s")
        )
        by_processor = (_ms(processor), _ratio(predicted, processor))
        by_wall = (_ms(wall), _ratio(predicted, wall))
        means.append((part, _ms(predicted), *by_processor, *by_wall))
    over = "predicted over it"
    yield from table(("part", "predicted", "processor", over, "wall", over), "lr", means)
    share = statistics.fmean(row.straggler_s / row.processor_s[ITERATION] for row in rows)
    yield ""
    yield f"waiting for the rank that has more to compute in a step: {share:.1%} of an iteration"


def _ms(seconds: list[float]) -> str:
    return f"{1e3 * statistics.fmean(seconds):.2f} ms"


def _ratio(predicted: list[float], measured: list[float]) -> str:
    """Geometric mean of predicted over measured."""
    pairs = [pair for pair in zip(predicted, measured, strict=True) if min(pair) > 0]
    if not pairs:
        return "-"
    return f"{math.exp(statistics.fmean(math.log(one / other) for one, other in pairs)):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1000, help="not that of the experiment")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=32.0)
    parser.add_argument("--platform", default="cpu", help="a name or a file")
    parser.add_argument(
        "--calibrate",
        type=float,
        nargs="?",
        const=120.0,
        default=0.0,
        metavar="SECONDS",
        help="predict by this machine as `selection.py --calibrate` measures it",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    platform, software = load_platform(arguments.platform), TRAINER
    if arguments.calibrate:
        from selection_calibrate import calibrated_machine

        platform, software = calibrated_machine(arguments.ranks, arguments.calibrate)
    rows: list[PhaseRow] = []
    for number in range(arguments.tasks):
        rows += run_task(number, platform, software, arguments)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print("\n".join(lines(rows)))
        print(load())
    return 0


if __name__ == "__main__":
    sys.exit(main())
