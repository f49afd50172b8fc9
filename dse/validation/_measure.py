"""Measuring candidates side by side.

The ranks are started once and keep all candidates, as far as memory allows. Candidates are run in
rounds, in another order each time, one sample of each a round: what disturbs the machine for a
while hits all of them, and the samples of a round can be compared in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
import os
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from dse.launch import load_torch, torchrun_environment
from dse.sharding import stored_bytes
from dse.validation._estimate import FEWEST_SAMPLES, median_interval
from dse.validation._run import checked_together, with_ranks
from dse.validation._types import Measurement, TrainerOptions
from dse.validation._worker import Build, Drop, Run, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.launch import RankGroup
    from dse.validation._types import Candidate

#: Share of the machine's memory that resident candidates may take.
_RESIDENT_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class MeasureLimits:
    """When candidates are measured well enough.

    Attributes:
        budget_s: Time for all of it, in seconds; exceeded only until there are six rounds.
        target_half_width: Half of each median's 95 % interval over the median, at which to stop.
        max_rounds: Rounds at which to stop.
        sample_s: Least duration of a sample, in seconds.
        warm_up: Iterations before each sample.
    """

    budget_s: float = 60.0
    target_half_width: float = 0.02
    max_rounds: int = 200
    sample_s: float = 0.15
    warm_up: int = 2


def measure(
    candidates: Sequence[Candidate],
    *,
    device: str = "cpu",
    threads: int | None = None,
    limits: MeasureLimits | None = None,
    options: TrainerOptions | None = None,
    timeout_s: float = 120.0,
    on_round: Callable[[int, float], None] | None = None,
    on_samples: Callable[[tuple[Measurement, ...]], None] | None = None,
) -> tuple[Measurement, ...]:
    """Trains candidates for real and measures their iteration times.

    Under ``torchrun`` every rank calls this and gets the result; else ranks are started on this
    machine, and none is left when it returns, fails or is interrupted.

    Args:
        candidates: What is measured; for the same number of ranks, with different names.
        device: ``cpu`` (gloo) or ``cuda`` (NCCL).
        threads: Threads of a rank; its share of the cores by default.
        limits: When to stop; the defaults if omitted.
        options: Seed, learning rates, batches.
        timeout_s: Time for the ranks to start, and for one sample or set-up, in seconds.
        on_round: Called after each round with its number and the elapsed seconds.
        on_samples: Called after each round, before `on_round`, with what there is so far; for
            those who keep it when they are interrupted. Intervals are infinite at first.

    Returns:
        One measurement of each candidate, in their order.

    Raises:
        ConfigError: There is no candidate, they are for different numbers of ranks, names are
            repeated, or the trainer cannot run one.
        PlanError: A plan is not for its model and ranks.
        WorkerError: A rank failed; the message names it and ends with its traceback.
    """
    limits, options = limits or MeasureLimits(), options or TrainerOptions()
    checked = checked_together(candidates)
    one_clock = torchrun_environment() is None

    def drive(group: RankGroup) -> tuple[Measurement, ...]:
        rounds = _Rounds(
            group,
            checked,
            limits,
            resident=_fit_together(checked, device),
            one_clock=one_clock,
            seed=options.seed,
        )
        return rounds.run(on_round, on_samples)

    return with_ranks(drive, checked, options, device, threads, timeout_s, own_cores=True)


def _table_bytes(candidate: Candidate) -> float:
    """Bytes of a candidate's tables and their state on all ranks, copies on each of them."""
    model, copies = candidate.model, candidate.configuration.world_size
    return sum(
        stored_bytes(table, model.sparse_optimizer, table.rows, table.dim)
        * (copies if placement.sharding_type.value == "data_parallel" else 1)
        for table, placement in zip(model.tables, candidate.configuration.plan.tables, strict=True)
    )


def _fit_together(candidates: Sequence[Candidate], device: str) -> bool:
    """Whether the ranks can keep all candidates at once."""
    if device == "cpu":
        total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        properties = load_torch().cuda.get_device_properties(0)
        total_bytes = candidates[0].configuration.world_size * properties.total_memory
    return sum(map(_table_bytes, candidates)) <= _RESIDENT_SHARE * total_bytes


class _Rounds:
    """One session with running ranks.

    Args:
        group: Whom to ask.
        candidates: What is measured.
        limits: When to stop.
        resident: Whether the ranks keep all candidates, or make each anew for every sample.
        one_clock: Whether begin and end of different ranks can be compared.
        seed: Of the order within rounds.
    """

    def __init__(
        self,
        group: RankGroup,
        candidates: tuple[Candidate, ...],
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
        counts = [self._iterations(number) for number in range(len(self._candidates))]
        done = 0
        while not self._finished(done):
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
        """Returns how many iterations a sample needs, from two short runs."""
        if self._resident:
            self._group.ask(Build(number))
        quick_s = min(self._time_s(self._sample(number, count)) / count for count in (1, 3))
        return min(1000, max(2, math.ceil(self._limits.sample_s / quick_s)))

    def _sample(self, number: int, iterations: int) -> list[Span]:
        """Runs iterations of a candidate; returns when each rank did."""
        if not self._resident:
            self._group.ask(Build(number))
        spans = self._group.ask(Run(number, self._limits.warm_up, iterations))
        if not self._resident:
            self._group.ask(Drop(number))
        return spans

    def _time_s(self, spans: list[Span]) -> float:
        """Time from where the last rank begins until the last one ends, in seconds."""
        if not self._one_clock:
            return max(span.end_s - span.start_s for span in spans)
        return max(span.end_s for span in spans) - max(span.start_s for span in spans)

    def _finished(self, done: int) -> bool:
        if done < FEWEST_SAMPLES:
            return False
        late = time.monotonic() - self._start_s >= self._limits.budget_s
        if late or done >= self._limits.max_rounds:
            return True
        return all(
            self._half_width(samples) <= self._limits.target_half_width
            for samples in self._samples
        )

    @staticmethod
    def _half_width(samples: list[float]) -> float:
        low_s, high_s = median_interval(samples)
        return 0.5 * (high_s - low_s) / statistics.median(samples)

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
            rank_times_s=self._by_rank(number, iterations, lambda span: span.end_s - span.start_s),
            rank_processor_times_s=self._by_rank(
                number, iterations, lambda span: span.processor_s
            ),
            settled=self._half_width(samples) <= self._limits.target_half_width,
        )

    def _by_rank(
        self, number: int, iterations: int, seconds: Callable[[Span], float]
    ) -> tuple[float, ...]:
        """Medians over the rounds of what an iteration took on each rank."""
        every = [[seconds(span) / iterations for span in spans] for spans in self._spans[number]]
        return tuple(np.median(every, axis=0).tolist())
