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
from dse.validation.measurement._samples import MeasureLimits
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
    on_round: Callable[[int, float], None] | None = None,
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
        on_round: Called after each round with its number and the elapsed seconds.
        on_samples: Called after each round, before `on_round`, with the measurements so far, for
            callers that keep them when interrupted. The first intervals are infinite.

    Returns:
        One measurement per candidate, in the same order.

    Raises:
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

    def drive(group: RankGroup) -> tuple[Measurement, ...]:
        rounds = Rounds(
            group,
            checked,
            limits,
            resident=_fit_together(checked, device),
            one_clock=one_clock,
            seed=options.seed,
        )
        return rounds.run(on_round, on_samples)

    return with_ranks(drive, program, checked, options, device, threads, timeout_s, own_cores=True)


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
        resident: Whether the ranks keep all candidates, or rebuild each for every sample.
        one_clock: Whether times of different ranks can be compared.
        seed: Seed of the order within rounds.
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
    ) -> None:
        self._group, self._candidates, self._limits = group, candidates, limits
        self._one_clock = one_clock
        self._order = np.random.default_rng(seed)
        self._resident = resident
        self._start_s = time.monotonic()
        self._samples: list[list[float]] = [[] for _ in candidates]
        self._spans: list[list[list[Span]]] = [[] for _ in candidates]

    def run(
        self,
        on_round: Callable[[int, float], None] | None,
        on_samples: Callable[[tuple[Measurement, ...]], None] | None = None,
    ) -> tuple[Measurement, ...]:
        """Takes rounds of samples until the limits are reached; see :func:`measure`."""
        counts = [self._iterations(number) for number in range(len(self._candidates))]
        done = 0
        while not self._limits.reached(self._samples, time.monotonic() - self._start_s):
            for number in self._order.permutation(len(self._candidates)).tolist():
                spans = self._sample(number, counts[number])
                self._samples[number].append(self._time_s(spans) / counts[number])
                self._spans[number].append(spans)
            done += 1
            if on_samples is not None:
                on_samples(self._measurements(counts))
            if on_round is not None:
                on_round(done, time.monotonic() - self._start_s)
        return self._measurements(counts)

    def _measurements(self, counts: list[int]) -> tuple[Measurement, ...]:
        return tuple(self._measurement(number, count) for number, count in enumerate(counts))

    def _iterations(self, number: int) -> int:
        """Returns the iterations of a sample, from two short runs."""
        if self._resident:
            self._group.ask(Build(number))
        return self._limits.iterations(
            min(self._time_s(self._sample(number, count)) / count for count in (1, 3))
        )

    def _sample(self, number: int, iterations: int) -> list[Span]:
        """Runs iterations of a candidate; returns the span of each rank."""
        if not self._resident:
            self._group.ask(Build(number))
        spans = self._group.ask(Run(number, self._limits.warm_up, iterations))
        if not self._resident:
            self._group.ask(Drop(number))
        return spans

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
