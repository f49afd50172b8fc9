"""What studies of a captured trace keep."""

from __future__ import annotations

from dataclasses import dataclass
import math

from dse.workload import Metric


@dataclass(frozen=True, slots=True)
class TraceRank:
    """One rank of a changed step; the parts add up to its length.

    Attributes:
        rank: Global rank.
        step_s: Length of its step, in seconds.
        compute_s: Time with a kernel, copy or fill running.
        exposed_communication_s: Time with only a collective running.
        idle_s: The rest.
    """

    rank: int
    step_s: float
    compute_s: float
    exposed_communication_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class ChangeEffect:
    """What one change did.

    Attributes:
        title: The change in words.
        tasks: Tasks that it scaled, added, removed or moved.
        before_s: Length of the step before it, in seconds.
        after_s: Length of the step after it.
    """

    title: str
    tasks: int
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class TracePrediction:
    """What the simulation of a captured step says after changes.

    There is no interval: the changed parts are re-timed by models of known spread, but for how the
    captured step itself varies one step says nothing.

    Attributes:
        iteration_time_s: Length of the step: until the longest rank and its devices have finished.
        speedup: How many times as many samples a second as captured.
        throughput_samples_per_s: None unless the samples of the captured step are known.
        price_usd_per_hour: Price of the machines; None without a price or a known platform.
        cost_usd_per_million_samples: None unless both are known.
        platform: Name of the platform; empty if unknown.
        world_size: Ranks of the job, traced or not.
        ranks: Where the time of each traced rank goes.
        effects: What each change did, in order.
        notes: What was assumed.
    """

    iteration_time_s: float
    speedup: float
    throughput_samples_per_s: float | None
    price_usd_per_hour: float | None
    cost_usd_per_million_samples: float | None
    platform: str
    world_size: int
    ranks: tuple[TraceRank, ...]
    effects: tuple[ChangeEffect, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> dict[Metric, float]:
        """Every metric of it; NaN where it is not known."""
        return {
            Metric.THROUGHPUT: _or_nan(self.throughput_samples_per_s),
            Metric.ITERATION_TIME: self.iteration_time_s,
            Metric.COST: _or_nan(self.cost_usd_per_million_samples),
            Metric.PRICE: _or_nan(self.price_usd_per_hour),
            Metric.WORLD_SIZE: float(self.world_size),
            Metric.SPEEDUP: self.speedup,
        }


@dataclass(frozen=True, slots=True)
class StudyTrace:
    """The captured step that a study changes.

    Attributes:
        path: File or folder of the traces, as the search space has it.
        step: Which part of the traces it is, for example ``profiler step 12``.
        device: Name of the devices as the traces have it; empty for CPUs.
        samples_per_step: Samples of the step over all ranks; None if not told.
        baseline: The step as captured.
    """

    path: str
    step: str
    device: str
    samples_per_step: int | None
    baseline: TracePrediction


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
