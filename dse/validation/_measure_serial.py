"""Measuring plans for more ranks than there are devices: rank after rank on one device."""

from __future__ import annotations

from functools import partial
import math
import statistics
import time
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.launch import start_ranks
from dse.validation._estimate import FEWEST_SAMPLES, median_interval
from dse.validation._run import BACKENDS, checked_together
from dse.validation._serial import BuildRank, serial_worker
from dse.validation._types import Measurement
from dse.validation._worker import Drop, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.launch import RankGroup
    from dse.validation._measure import MeasureLimits
    from dse.validation._types import Candidate, TrainerOptions
    from dse.validation._worker import Span


def measure_serially(
    candidates: Sequence[Candidate],
    communication_s: Sequence[Sequence[float]],
    *,
    device: str,
    threads: int,
    limits: MeasureLimits,
    options: TrainerOptions,
    timeout_s: float = 120.0,
    on_round: Callable[[int, float], None] | None = None,
    on_samples: Callable[[tuple[Measurement, ...]], None] | None = None,
) -> tuple[Measurement, ...]:
    """Measures the work of each rank in turn and adds communication that is given.

    Each rank has its exact shards and gets the indices that the others would send it; collectives
    take no time. The n-th sample of an iteration is that of the rank for which the n-th measured
    time and the given communication together are longest. Waiting for other ranks is not added:
    the longest rank waits for none. Candidates follow each other, so a disturbance of the machine
    does not hit all alike.

    Args:
        candidates: For the same number of ranks, with different names.
        communication_s: For each candidate and each rank the time of an iteration with nothing
            but a collective running, in seconds.
        device: ``cpu`` or ``cuda``.
        threads: CPU threads.
        limits: When to stop; the budget is shared by all ranks of all candidates.
        options: Seed, learning rates, batches.
        timeout_s: Time for the process to start, and for one sample or set-up, in seconds.
        on_round: Called after each candidate with its number from 1 and the elapsed seconds.
        on_samples: Called after each candidate, before `on_round`, with those measured so far.

    Returns:
        One measurement of each candidate, in their order; rank times are without communication.

    Raises:
        ConfigError: As :func:`measure`, or communication is not given for every rank.
        PlanError: A plan is not for its model and ranks.
        WorkerError: The process failed; the message ends with its traceback.
    """
    checked = checked_together(candidates)
    ranks = checked[0].configuration.world_size
    if [len(one) for one in communication_s] != [ranks] * len(checked):
        raise ConfigError(
            f"communication is given for {[len(one) for one in communication_s]} ranks; give "
            f"{ranks} times for each of {len(checked)} candidates"
        )
    start_s = time.monotonic()
    with start_ranks(
        partial(serial_worker, checked, options),
        backend=BACKENDS[device],
        world_size=1,
        threads=threads,
        timeout_s=timeout_s,
    ) as group:
        found: list[Measurement] = []
        for number, candidate in enumerate(checked):
            end_s = limits.budget_s * (number + 1) / len(checked)
            by_rank = []
            for rank in range(ranks):
                left_s = (end_s - (time.monotonic() - start_s)) / (ranks - rank)
                by_rank.append(_rank(group, number, rank, limits, left_s))
            found.append(_together(candidate, by_rank, communication_s[number], limits))
            if on_samples is not None:
                on_samples(tuple(found))
            if on_round is not None:
                on_round(number + 1, time.monotonic() - start_s)
    return tuple(found)


#: Iterations of a sample, and of each sample its time and processor time of an iteration.
_RankSamples = tuple[int, list[tuple[float, float]]]


def _rank(
    group: RankGroup, number: int, rank: int, limits: MeasureLimits, budget_s: float
) -> _RankSamples:
    start_s = time.monotonic()
    group.ask(BuildRank(number, rank))
    quick_s = min(
        _duration_s(group.ask(Run(number, limits.warm_up, count))[0]) / count for count in (1, 3)
    )
    count = min(1000, max(2, math.ceil(limits.sample_s / quick_s)))
    samples: list[tuple[float, float]] = []
    while not _enough(
        [time_s for time_s, _ in samples], limits, time.monotonic() - start_s, budget_s
    ):
        span: Span = group.ask(Run(number, limits.warm_up, count))[0]
        samples.append((_duration_s(span) / count, span.processor_s / count))
    group.ask(Drop(number))
    return count, samples


def _duration_s(span: Span) -> float:
    return span.end_s - span.start_s


def _enough(
    samples: list[float], limits: MeasureLimits, elapsed_s: float, budget_s: float
) -> bool:
    if len(samples) < FEWEST_SAMPLES:
        return False
    if elapsed_s >= budget_s or len(samples) >= limits.max_rounds:
        return True
    low_s, high_s = median_interval(samples)
    return 0.5 * (high_s - low_s) / statistics.median(samples) <= limits.target_half_width


def _together(
    candidate: Candidate,
    by_rank: list[_RankSamples],
    communication_s: Sequence[float],
    limits: MeasureLimits,
) -> Measurement:
    rounds = min(len(samples) for _, samples in by_rank)
    samples = tuple(
        max(
            own[number][0] + added_s
            for (_, own), added_s in zip(by_rank, communication_s, strict=True)
        )
        for number in range(rounds)
    )
    low_s, high_s = median_interval(samples)
    median_s = statistics.median(samples)
    return Measurement(
        name=candidate.name,
        iteration_time_s=median_s,
        low_s=low_s,
        high_s=high_s,
        samples=samples,
        iterations_per_sample=min(count for count, _ in by_rank),
        rank_times_s=tuple(statistics.median(time_s for time_s, _ in own) for _, own in by_rank),
        rank_processor_times_s=tuple(
            statistics.median(processor_s for _, processor_s in own) for _, own in by_rank
        ),
        settled=0.5 * (high_s - low_s) / median_s <= limits.target_half_width,
    )
