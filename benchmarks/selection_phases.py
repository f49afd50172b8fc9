"""Where the processor time of a real iteration goes, phase by phase, beside its prediction.

Usage: python benchmarks/selection_phases.py [--tasks 2] [--seed S] [--iterations 40] [--json]

Draws tasks as `selection.py` does, by other seeds. Every rank times what its training thread
computes in each phase, without what phases inside it take (`time.thread_time`, so a busy machine
disturbs little and waiting does not count), and the processor time of the threads that exchange
messages. Beside it stands what the model says of the same operators on the platform, which is wall
time: for kernels the same, for exchanges not.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from functools import partial
import json
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from selection import configuration_of, draw_model, plans_of

from dse.graph import TaskKind
from dse.platforms import load_platform
from dse.prediction import DurationClass, PlanScorer, problem_of
from dse.ranks import start_ranks
from dse.validate import Candidate, TrainerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dse.platforms import Platform
    from dse.ranks import RankContext, Worker

#: Phases in the order of an iteration, and those of the model that do the same.
PHASES = (
    "routing",
    "send lengths",
    "send indices",
    "join lookups",
    "lookups",
    "outputs",
    "forward",
    "backward",
    "exchange calls",
    "updates",
    "dense optimizer",
    "message threads",
)


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """One plan of one task.

    Attributes:
        task: Which draw.
        sharders: Who made the plan.
        processor_s: Processor time of an iteration by phase, on the rank with the most.
        predicted_s: The model's time of the same operators by phase, on its rank with the most;
            phases that it does not have are left out.
        iteration_s: Processor time of an iteration, of all threads of the busiest rank.
        predicted_iteration_s: Iteration time by the model.
    """

    task: int
    sharders: tuple[str, ...]
    processor_s: dict[str, float]
    predicted_s: dict[str, float]
    iteration_s: float
    predicted_iteration_s: float


class _Clock:
    """Processor time of the calling thread by phase, without that of phases inside."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._inside: list[float] = []

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            start = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                spent = time.thread_time() - start
                self.seconds[phase] += spent - self._inside.pop()
                if self._inside:
                    self._inside[-1] += spent

        return run


def _returning(clock: _Clock, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Times a function that starts something and returns what waits for it."""
    start = clock.timed(phase, function)
    return lambda *arguments: clock.timed(phase, start(*arguments))


def instrument(trainer: Any, clock: _Clock) -> None:
    """Makes the phases of a trainer report to a clock."""
    inputs = trainer._inputs
    for owner, method, phase in (
        (inputs, "_blocks", "routing"),
        (inputs, "send_lengths", "send lengths"),
        (inputs, "send_indices", "send indices"),
        (inputs, "finish", "join lookups"),
        (trainer, "_lookup", "lookups"),
        (trainer, "_leaves", "outputs"),
        (trainer, "_network", "forward"),
        (trainer, "_update_tables", "updates"),
        (trainer._optimizer, "step", "dense optimizer"),
        (trainer, "step", "backward"),
    ):
        setattr(owner, method, clock.timed(phase, getattr(owner, method)))
    for exchange in trainer._exchanges.values():
        exchange.send = _returning(clock, "exchange calls", exchange.send)
        exchange.send_back = _returning(clock, "exchange calls", exchange.send_back)


def _phase_worker(
    candidates: tuple[Candidate, ...], options: TrainerOptions, context: RankContext
) -> Worker:
    """Returns what builds a candidate, runs it and answers its phases' seconds an iteration."""
    import torch

    from dse.microbench import keep_freed_memory
    from dse.validate._trainer import Trainer

    keep_freed_memory()
    trainers: dict[int, tuple[Any, _Clock]] = {}

    def answer(order: Any) -> object:
        number, iterations = order
        if number not in trainers:
            trainer, clock = Trainer(torch, candidates[number], options, context), _Clock()
            instrument(trainer, clock)
            trainers[number] = trainer, clock
        trainer, clock = trainers[number]
        for _ in range(2):
            trainer.step()
        if context.world_size > 1:
            torch.distributed.barrier()
        clock.seconds.update(dict.fromkeys(PHASES, 0.0))
        process_s, thread_s = time.process_time(), time.thread_time()
        for _ in range(iterations):
            trainer.step()
        process_s, thread_s = time.process_time() - process_s, time.thread_time() - thread_s
        clock.seconds["message threads"] = process_s - thread_s
        return {name: spent / iterations for name, spent in clock.seconds.items()}

    return answer


def measure_phases(
    candidates: tuple[Candidate, ...], rounds: int, iterations: int, seed: int
) -> list[list[dict[str, float]]]:
    """Returns medians over the rounds, for each candidate and rank."""
    factory = partial(_phase_worker, candidates, TrainerOptions(seed=seed, batches=4))
    ranks = candidates[0].configuration.world_size
    found: list[list[list[dict[str, float]]]] = [[] for _ in candidates]
    with start_ranks(
        factory, backend="gloo", world_size=ranks, threads=1, timeout_s=120.0
    ) as group:
        for _ in range(rounds):
            for number, samples in enumerate(found):
                samples.append(group.ask((number, iterations)))
    return [
        [
            {
                phase: statistics.median(sample[rank][phase] for sample in samples)
                for phase in PHASES
            }
            for rank in range(ranks)
        ]
        for samples in found
    ]


def _phase_of(name: str, kind: TaskKind, duration_class: int) -> str | None:
    """Which phase a task of the model's graph belongs to."""
    if kind is TaskKind.HOST or duration_class == DurationClass.COPY:
        return None
    if duration_class == DurationClass.COMMUNICATION:
        return "message threads"
    for ending, phase in _ENDINGS:
        if name.endswith(ending):
            return phase
    return "backward" if "backward" in name or "gradient" in name else "forward"


_ENDINGS = (
    ("route indices", "routing"),
    ("join indices", "join lookups"),
    ("lookup backward", "updates"),
    ("tables update", "updates"),
    ("lookup", "lookups"),
    ("dense optimizer", "dense optimizer"),
)


def predicted_phases(platform: Platform, candidate: Candidate) -> dict[str, float]:
    """Returns the model's seconds by phase on the rank with the most."""
    problem = problem_of(candidate.model, platform, candidate.configuration)
    layout = PlanScorer(problem).layout_graph(candidate.configuration.plan)
    graph = layout.graph
    ranks = range(candidate.configuration.world_size)
    found: dict[str, dict[int, float]] = {}
    for task, name in enumerate(graph.names):
        kind = TaskKind(int(graph.kind[task]))
        phase = _phase_of(name, kind, int(layout.duration_class[task]))
        if phase is None:
            continue
        rank = graph.lanes[int(graph.lane[task])].rank
        by_rank = found.setdefault(phase, dict.fromkeys(ranks, 0.0))
        by_rank[rank] += float(graph.duration_s[task])
    return {phase: max(by_rank.values()) for phase, by_rank in found.items()}


def run_task(number: int, seed: int, platform: Platform, arguments: Any) -> list[PhaseRow]:
    """Measures the plans of one task."""
    from dse.prediction import predict

    ranks = 2
    model = draw_model(number, seed, ranks, arguments.megabytes)
    plans = plans_of(model, ranks, number, platform)
    candidates = tuple(
        Candidate(", ".join(names), model, configuration_of(model, ranks, plan))
        for plan, names in plans.items()
    )
    measured = measure_phases(candidates, arguments.rounds, arguments.iterations, seed)
    rows = []
    for candidate, names, by_rank in zip(candidates, plans.values(), measured, strict=True):
        prediction = predict(model, platform, candidate.configuration)
        rows.append(
            PhaseRow(
                number,
                tuple(names),
                {phase: max(one[phase] for one in by_rank) for phase in PHASES},
                predicted_phases(platform, candidate),
                max(sum(one.values()) for one in by_rank),
                prediction.iteration_time_s,
            )
        )
    return rows


def lines(rows: list[PhaseRow]) -> Iterator[str]:
    """Yields measured and predicted phases in milliseconds as a Markdown table."""
    yield "| task, plan of | " + " | ".join(PHASES) + " | iteration |"
    yield "|---|" + "---:|" * (len(PHASES) + 1)
    for row in rows:
        cells = []
        for phase in PHASES:
            predicted = row.predicted_s.get(phase)
            beside = "" if predicted is None else f" ({1e3 * predicted:.2f})"
            cells.append(f"{1e3 * row.processor_s[phase]:.2f}{beside}")
        cells.append(f"{1e3 * row.iteration_s:.2f} ({1e3 * row.predicted_iteration_s:.2f})")
        yield f"| {row.task}, {', '.join(row.sharders)} | " + " | ".join(cells) + " |"
    yield ""
    for phase in PHASES:
        both = [
            (row.processor_s[phase], row.predicted_s[phase])
            for row in rows
            if row.predicted_s.get(phase) and row.processor_s[phase] > 0
        ]
        if both:
            ratio = np.exp(np.mean([np.log(spent / expected) for spent, expected in both]))
            yield f"{phase}: measured over predicted {ratio:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1000, help="not that of the experiment")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=32.0)
    parser.add_argument("--platform", default="cpu", help="a name or a file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    platform = load_platform(arguments.platform)
    rows: list[PhaseRow] = []
    for number in range(arguments.tasks):
        rows += run_task(number, arguments.seed, platform, arguments)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print("\n".join(lines(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
