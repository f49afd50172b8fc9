"""Options and results of real runs."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """Options of a trainer.

    Attributes:
        seed: Seed of initial weights and batches, which do not depend on the sharding plan.
        dense_learning_rate: Learning rate of everything but embedding tables.
        sparse_learning_rate: Learning rate of embedding tables.
        batches: Number of different batches, used in turn.
        double: Compute and store everything in double precision, to compare results, where the
            trainer can.
    """

    seed: int = 0
    dense_learning_rate: float = 0.05
    sparse_learning_rate: float = 0.05
    batches: int = 8
    double: bool = False


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Losses and weights after some training steps.

    Attributes:
        losses: Mean loss of the global batch before each step; shape `(steps,)`.
        weights: Whole weights after the last step by name, which does not depend on the plan;
            empty if the trainer does not collect them.
    """

    losses: tuple[float, ...]
    weights: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Iteration time of one candidate.

    A sample is the mean of some iterations between two barriers, from the start of the last rank
    to the end of the last rank. `iteration_time_s` is the median over the rounds; its interval
    makes no assumption about the noise (see :func:`dse.validation.median_interval`).

    Attributes:
        name: Name of the candidate.
        iteration_time_s: Median of the samples.
        low_s: Lower end of its 95 % interval.
        high_s: Upper end of its 95 % interval.
        samples: Mean seconds per iteration in each round; all candidates of a run share rounds.
        iterations_per_sample: Iterations in a sample.
        rank_times_s: Median time per iteration of each rank, waiting included.
        rank_processor_times_s: Median processor time per iteration of all threads of each rank. On
            a disturbed CPU the clock time is much longer than the processor time.
        converged: Whether the interval is as narrow as the limits demand.
        needed_s: Budget, in seconds, that is expected to give all medians of the run an interval.
        diverged: Whether the loss of a measured iteration was no finite number; not looked at
            where ranks run one after another, without what others send.
    """

    name: str
    iteration_time_s: float
    low_s: float
    high_s: float
    samples: tuple[float, ...]
    iterations_per_sample: int
    rank_times_s: tuple[float, ...]
    rank_processor_times_s: tuple[float, ...]
    converged: bool
    needed_s: float = 0.0
    diverged: bool = False

    @property
    def half_width(self) -> float:
        """Half of the interval relative to the iteration time; may be infinite."""
        half_s = 0.5 * (self.high_s - self.low_s)
        return half_s / self.iteration_time_s if math.isfinite(half_s) else math.inf
