"""Interleaved measurement of candidates.

The ranks are started once and keep all candidates, as far as memory allows. Each round takes one
sample of every candidate, in random order: temporary disturbances of the machine affect all
candidates alike, and the samples of a round can be compared in pairs.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from dse._median import median_interval
from dse._torch import load_torch
from dse.launch import torchrun_environment
from dse.validation._types import Measurement, TrainerOptions
from dse.validation.measurement._ranks import (
    DEFAULT_TRAINER,
    checked_together,
    installed_trainer,
    with_ranks,
)
from dse.validation.measurement._samples import BudgetError, Costs, MeasureLimits
from dse.validation.measurement._worker import Build, Drop, Run, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.launch import RankGroup
    from dse.validation._protocol import RunCandidate

#: Share of the machine's memory that resident candidates may use.
_RESIDENT_SHARE = 0.4


def measure(
    candidates: Sequence[RunCandidate],
    *,
    trainer: str = DEFAULT_TRAINER,
    device: str = "cpu",
    threads: int | None = None,
    limits: MeasureLimits | None = None,
    options: TrainerOptions | None = None,
    timeout_s: float = 120.0,
    on_step: Callable[[str], None] | None = None,
    on_samples: Callable[[tuple[Measurement, ...]], None] | None = None,
) -> tuple[Measurement, ...]:
    """Trains candidates and measures their iteration times.

    Under ``torchrun`` every rank calls this and gets the result. Otherwise ranks are started on
    this machine and ended when it returns, fails or is interrupted.

    Args:
        candidates: Candidates with different names, all for the same number of ranks.
        trainer: Name of what trains them.
        device: ``cpu`` (gloo) or ``cuda`` (NCCL).
        threads: CPU threads of each rank; its share of the cores by default.
        limits: Stopping rule.
        options: Seed, learning rates, batches.
        timeout_s: Time for the ranks to start, and for each set-up or sample, in seconds.
        on_step: Called before each start, round and rebuilding with what begins, in words.
        on_samples: Called after each round with the measurements so far, for callers that keep
            them when interrupted. The first intervals are infinite.

    Returns:
        One measurement per candidate, in the same order. If the budget allows fewer than six
        rounds, the intervals are infinite.

    Raises:
        BudgetError: The budget does not allow a single round of all candidates.
        ConfigError: There is no candidate, names are repeated, numbers of ranks differ, or the
            trainer cannot run a candidate.
        OptionalDependencyError: The trainer needs what is not installed.
        PlanError: A plan does not match its model and ranks.
        WorkerError: A rank failed; a note of the error has its traceback.
    """
    limits, options = limits or MeasureLimits(), options or TrainerOptions()
    program = installed_trainer(trainer)
    checked = checked_together(program, candidates, device)
    one_clock = torchrun_environment() is None

    def drive(group: RankGroup) -> tuple[Measurement, ...] | BudgetError:
        rounds = Rounds(
            group,
            checked,
            limits,
            resident=_fit_together(checked, device),
            one_clock=one_clock,
            seed=options.seed,
        )
        try:
            return rounds.run(on_step, on_samples)
        except BudgetError as error:
            # An answer, so that every rank of `torchrun` gets it.
            return error

    found = with_ranks(
        drive, program, checked, options, device, threads, timeout_s, own_cores=True
    )
    if isinstance(found, BudgetError):
        raise found
    return found


def _fit_together(candidates: Sequence[RunCandidate], device: str) -> bool:
    """Returns whether the ranks can keep all candidates at once."""
    if device == "cpu":
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        properties = load_torch().cuda.get_device_properties(0)
        total_bytes = candidates[0].world_size * properties.total_memory
    return sum(one.resident_bytes for one in candidates) <= _RESIDENT_SHARE * total_bytes


class Rounds:
    """Measurement on running ranks.

    Args:
        group: The ranks.
        candidates: Candidates that the ranks know.
        limits: Stopping rule.
        resident: Whether the ranks keep all candidates, or only the latest.
        one_clock: Whether times of different ranks can be compared.
        seed: Seed of the order within rounds.
        clock: Returns the time, in seconds.
    """

    def __init__(
        self,
        group: RankGroup,
        candidates: tuple[RunCandidate, ...],
        limits: MeasureLimits,
        *,
        resident: bool,
        one_clock: bool,
        seed: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._candidates, self._limits = group, candidates, limits
        self._one_clock = one_clock
        self._order = np.random.default_rng(seed)
        self._resident = resident
        self._clock, self._start_s = clock, clock()
        self._costs = Costs(len(candidates))
        self._built: set[int] = set()
        self._on_step: Callable[[str], None] | None = None
        self._samples: list[list[float]] = [[] for _ in candidates]
        self._spans: list[list[list[Span]]] = [[] for _ in candidates]

    def run(
        self,
        on_step: Callable[[str], None] | None = None,
        on_samples: Callable[[tuple[Measurement, ...]], None] | None = None,
    ) -> tuple[Measurement, ...]:
        """Takes rounds of samples until the limits are reached; see :func:`measure`."""
        self._on_step = on_step
        counts = self._start_all()
        done, last_s = 0, 0.0
        while not self._limits.reached(self._samples, self._elapsed_s(), last_s):
            done += 1
            start_s = self._clock()
            self._say(f"round {done}")
            for number in self._order.permutation(len(self._candidates)).tolist():
                spans = self._sample(number, counts[number], f"round {done}, rebuilding")
                self._samples[number].append(self._time_s(spans) / counts[number])
                self._spans[number].append(spans)
            last_s = self._clock() - start_s
            if on_samples is not None:
                on_samples(self._measurements(counts))
        return self._measurements(counts)

    def _say(self, words: str) -> None:
        if self._on_step is not None:
            self._on_step(words)

    def _elapsed_s(self) -> float:
        return self._clock() - self._start_s

    def _measurements(self, counts: list[int]) -> tuple[Measurement, ...]:
        return tuple(self._measurement(number, count) for number, count in enumerate(counts))

    def _start_all(self) -> list[int]:
        """Builds every candidate once; returns the iterations of a sample of each."""
        counts = []
        for number in range(len(self._candidates)):
            start_s = self._clock()
            self._build(number, "starting")
            build_s = self._clock() - start_s
            iteration_s = min(
                self._time_s(self._sample(number, count, "starting")) / count for count in (1, 3)
            )
            counts.append(self._limits.iterations(iteration_s))
            run_s = (self._limits.warm_up + counts[-1]) * iteration_s
            self._costs.starts_s.append(self._clock() - start_s)
            self._costs.samples_s.append(run_s if self._resident else build_s + run_s)
            self._costs.check(self._limits.budget_s, self._elapsed_s(), len(self._candidates))
        return counts

    def _build(self, number: int, doing: str) -> None:
        """Builds a candidate unless it is there; where only one has room, another one goes."""
        if number in self._built:
            return
        self._say(f"{doing} candidate {number + 1} of {len(self._candidates)}")
        if not self._resident:
            for other in self._built:
                self._group.ask(Drop(other))
            self._built.clear()
        self._group.ask(Build(number))
        self._built.add(number)

    def _sample(self, number: int, iterations: int, doing: str) -> list[Span]:
        """Runs iterations of a candidate; returns the span of each rank."""
        self._build(number, doing)
        return self._group.ask(Run(number, self._limits.warm_up, iterations))

    def _time_s(self, spans: list[Span]) -> float:
        """Time from the start of the last rank to the end of the last rank, in seconds."""
        if not self._one_clock:
            return max(span.duration_s for span in spans)
        return max(span.end_s for span in spans) - max(span.start_s for span in spans)

    def _measurement(self, number: int, iterations: int) -> Measurement:
        samples = self._samples[number]
        low_s, high_s = median_interval(samples)
        return Measurement(
            name=self._candidates[number].name,
            iteration_time_s=statistics.median(samples),
            low_s=low_s,
            high_s=high_s,
            samples=tuple(samples),
            iterations_per_sample=iterations,
            rank_times_s=self._by_rank(number, iterations, lambda span: span.duration_s),
            rank_processor_times_s=self._by_rank(
                number, iterations, lambda span: span.processor_s
            ),
            converged=self._limits.converged(samples),
            needed_s=self._costs.needed_s,
            diverged=any(
                not math.isfinite(span.loss) for spans in self._spans[number] for span in spans
            ),
        )

    def _by_rank(
        self, number: int, iterations: int, seconds: Callable[[Span], float]
    ) -> tuple[float, ...]:
        """Median over the rounds of the seconds per iteration of each rank."""
        every = [[seconds(span) / iterations for span in spans] for spans in self._spans[number]]
        return tuple(np.median(every, axis=0).tolist())
