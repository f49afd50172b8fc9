"""Times the phases of real iterations on every rank, by the wall clock and by the processor.

Every rank times what its training thread does in each phase, without phases inside it. The time by
the processor (`time.thread_time`) does not count waiting, and a busy machine disturbs it little.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
import statistics
import time
from typing import TYPE_CHECKING, Any

from dse.launch import start_ranks
from dse.validation import Candidate, TrainerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from dse.launch import RankContext, Worker

#: Phases of the training thread, in the order of an iteration.
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
)


@dataclass(frozen=True, slots=True)
class RankPhases:
    """One rank in one candidate's iterations.

    Attributes:
        processor_s: Processor time of the training thread in an iteration, by phase.
        wall_s: Time by the wall clock in an iteration, by phase; waiting included.
        messages_s: Processor time of the threads that exchange messages, in an iteration.
        steps_s: Processor time of the training thread in each iteration.
    """

    processor_s: dict[str, float]
    wall_s: dict[str, float]
    messages_s: float
    steps_s: tuple[float, ...]

    @property
    def waiting_s(self) -> float:
        """Time of an iteration in which the training thread does not run."""
        return sum(self.wall_s.values()) - sum(self.processor_s.values())


class Clock:
    """Times of the calling thread by phase, without those of phases inside."""

    def __init__(self) -> None:
        self._inside: list[list[float]] = []
        self.clear()

    def clear(self) -> None:
        """Forgets all times."""
        self.processor_s = dict.fromkeys(PHASES, 0.0)
        self.wall_s = dict.fromkeys(PHASES, 0.0)

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with its times added to a phase."""

        def run(*arguments: Any, **named: Any) -> Any:
            self._inside.append([0.0, 0.0])
            start = time.thread_time(), time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                processor_s = time.thread_time() - start[0]
                wall_s = time.perf_counter() - start[1]
                inside = self._inside.pop()
                self.processor_s[phase] += processor_s - inside[0]
                self.wall_s[phase] += wall_s - inside[1]
                if self._inside:
                    self._inside[-1][0] += processor_s
                    self._inside[-1][1] += wall_s

        return run


def _returning(clock: Clock, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Times a function that starts something and returns what waits for it."""
    start = clock.timed(phase, function)
    return lambda *arguments: clock.timed(phase, start(*arguments))


def instrument(trainer: Any, clock: Clock) -> None:
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
    """Returns what builds a candidate, runs it and answers with its phases."""
    import torch

    from dse.calibration.microbench import keep_freed_memory
    from dse.validation.trainer.reference import ReferenceTrainer

    keep_freed_memory()
    trainers: dict[int, tuple[Any, Clock]] = {}

    def answer(order: Any) -> object:
        number, iterations = order
        if number not in trainers:
            trainer = ReferenceTrainer().rank(candidates[number], options, context)
            clock = Clock()
            instrument(trainer, clock)
            trainers[number] = trainer, clock
        trainer, clock = trainers[number]
        for _ in range(2):
            trainer.step()
        if context.world_size > 1:
            torch.distributed.barrier()
        clock.clear()
        steps_s = []
        process_s = time.process_time()
        for _ in range(iterations):
            start_s = time.thread_time()
            trainer.step()
            steps_s.append(time.thread_time() - start_s)
        process_s = time.process_time() - process_s

        def each(seconds: dict[str, float]) -> dict[str, float]:
            return {phase: spent / iterations for phase, spent in seconds.items()}

        messages_s = (process_s - sum(steps_s)) / iterations
        return RankPhases(each(clock.processor_s), each(clock.wall_s), messages_s, tuple(steps_s))

    return answer


def measure_phases(
    candidates: tuple[Candidate, ...], rounds: int, iterations: int, seed: int
) -> list[list[RankPhases]]:
    """Returns medians over the rounds, for each candidate and rank; all steps of all rounds."""
    factory = partial(_phase_worker, candidates, TrainerOptions(seed=seed, batches=4))
    ranks = candidates[0].world_size
    found: list[list[list[RankPhases]]] = [[] for _ in candidates]
    with start_ranks(
        factory, backend="gloo", world_size=ranks, threads=1, timeout_s=120.0, own_cores=True
    ) as group:
        for _ in range(rounds):
            for number, samples in enumerate(found):
                samples.append(group.ask((number, iterations)))
    return [
        [_median([sample[rank] for sample in samples]) for rank in range(ranks)]
        for samples in found
    ]


def _median(samples: list[RankPhases]) -> RankPhases:
    def each(name: str) -> dict[str, float]:
        return {
            phase: statistics.median(getattr(sample, name)[phase] for sample in samples)
            for phase in PHASES
        }

    return RankPhases(
        each("processor_s"),
        each("wall_s"),
        statistics.median(sample.messages_s for sample in samples),
        tuple(step for sample in samples for step in sample.steps_s),
    )
