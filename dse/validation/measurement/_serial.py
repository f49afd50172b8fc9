"""Rank-serial measurement: plans for more ranks than devices, one rank after another."""

from __future__ import annotations

from functools import partial
import statistics
import time
from typing import TYPE_CHECKING

from dse._median import median_interval
from dse.errors import ConfigError
from dse.launch import start_ranks
from dse.validation._protocol import AloneTrainer
from dse.validation._types import Measurement
from dse.validation.measurement._ranks import (
    BACKENDS,
    DEFAULT_TRAINER,
    checked_together,
    installed_trainer,
)
from dse.validation.measurement._samples import Costs
from dse.validation.measurement._worker import AloneWorker, BuildRank, Drop, Run, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dse.launch import RankGroup
    from dse.validation._protocol import RunCandidate
    from dse.validation._types import TrainerOptions
    from dse.validation.measurement._samples import MeasureLimits


def measure_serially(
    candidates: Sequence[RunCandidate],
    communication_s: Sequence[Sequence[float]],
    *,
    trainer: str = DEFAULT_TRAINER,
    device: str,
    threads: int,
    limits: MeasureLimits,
    options: TrainerOptions,
    timeout_s: float = 120.0,
    on_step: Callable[[str], None] | None = None,
    on_samples: Callable[[tuple[Measurement, ...]], None] | None = None,
) -> tuple[Measurement, ...]:
    """Measures the work of one rank after another and adds a given communication time.

    Each rank has its exact shards and the indices that the others would send; collectives take no
    time. The n-th sample of an iteration is the longest sum, over the ranks, of the n-th measured
    time and the given communication. Waiting for other ranks is not added, because the slowest
    rank does not wait. Candidates are not interleaved, so disturbances of the machine do not
    affect all alike.

    Args:
        candidates: Candidates with different names, all for the same number of ranks.
        communication_s: Exposed communication of an iteration for each candidate and each rank,
            in seconds.
        trainer: Name of what trains them.
        device: ``cpu`` or ``cuda``.
        threads: CPU threads.
        limits: Stopping rule; all ranks of all candidates share the budget.
        options: Seed, learning rates, batches.
        timeout_s: Time for the process to start, and for each set-up or sample, in seconds.
        on_step: Called before each rank of each candidate with what begins, in words.
        on_samples: Called after each candidate with the measurements so far.

    Returns:
        One measurement per candidate, in the same order; rank times exclude communication.

    Raises:
        BudgetError: The budget does not allow a sample of every rank.
        ConfigError: As for :func:`measure`, or a rank has no communication time.
        PlanError: A plan does not match its model and ranks.
        WorkerError: The process failed; a note of the error has its traceback.
    """
    program = installed_trainer(trainer)
    if not isinstance(program, AloneTrainer):
        raise ConfigError(f"{program.title} cannot run one rank without the others; run them all")
    checked = checked_together(program, candidates, device)
    ranks = checked[0].world_size
    if [len(one) for one in communication_s] != [ranks] * len(checked):
        raise ConfigError(
            f"communication is given for {[len(one) for one in communication_s]} ranks; give "
            f"{ranks} times for each of {len(checked)} candidates"
        )
    with start_ranks(
        partial(AloneWorker, program, checked, options),
        backend=BACKENDS[device],
        world_size=1,
        threads=threads,
        timeout_s=timeout_s,
    ) as group:
        start_s = time.monotonic()
        costs = Costs(ranks * len(checked))
        found: list[Measurement] = []
        for number, candidate in enumerate(checked):
            end_s = limits.budget_s * (number + 1) / len(checked)
            by_rank = []
            for rank in range(ranks):
                if on_step is not None:
                    on_step(f"candidate {number + 1} of {len(checked)}, rank {rank}")
                left_s = (end_s - (time.monotonic() - start_s)) / (ranks - rank)
                by_rank.append(_rank(group, number, rank, limits, left_s, costs, start_s))
            found.append(_together(candidate, by_rank, communication_s[number], limits, costs))
            if on_samples is not None:
                on_samples(tuple(found))
    return tuple(found)


#: Iterations per sample, and the time and processor time of an iteration in each sample.
_RankSamples = tuple[int, list[tuple[float, float]]]


def _rank(
    group: RankGroup,
    number: int,
    rank: int,
    limits: MeasureLimits,
    budget_s: float,
    costs: Costs,
    all_start_s: float,
) -> _RankSamples:
    start_s = time.monotonic()
    group.ask(BuildRank(number, rank))

    def span(iterations: int) -> Span:
        (found,) = group.ask(Run(number, limits.warm_up, iterations))
        assert isinstance(found, Span)
        return found

    iteration_s = min(span(count).duration_s / count for count in (1, 3))
    count = limits.iterations(iteration_s)
    costs.starts_s.append(time.monotonic() - start_s)
    costs.samples_s.append((limits.warm_up + count) * iteration_s)
    unsampled = costs.total - len(costs.starts_s) + 1
    costs.check(limits.budget_s, time.monotonic() - all_start_s, unsampled)
    samples: list[tuple[float, float]] = []
    last_s = 0.0
    while not limits.reached(
        [[time_s for time_s, _ in samples]], time.monotonic() - start_s, last_s, budget_s
    ):
        began_s = time.monotonic()
        sample = span(count)
        samples.append((sample.duration_s / count, sample.processor_s / count))
        last_s = time.monotonic() - began_s
    group.ask(Drop(number))
    return count, samples


def _together(
    candidate: RunCandidate,
    by_rank: list[_RankSamples],
    communication_s: Sequence[float],
    limits: MeasureLimits,
    costs: Costs,
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
    return Measurement(
        name=candidate.name,
        iteration_time_s=statistics.median(samples),
        low_s=low_s,
        high_s=high_s,
        samples=samples,
        iterations_per_sample=min(count for count, _ in by_rank),
        rank_times_s=tuple(statistics.median(time_s for time_s, _ in own) for _, own in by_rank),
        rank_processor_times_s=tuple(
            statistics.median(processor_s for _, processor_s in own) for _, own in by_rank
        ),
        converged=limits.converged(samples),
        needed_s=costs.needed_s,
    )
