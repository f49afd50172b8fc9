"""One training step: its graph, the duration of each task, and how far off each may be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
import math
from typing import TYPE_CHECKING, NamedTuple
import zlib

import numpy as np

from dse.graph import TaskKind
from dse.simulate import (
    Timeline,
    breakdown,
    breakdown_of_copies,
    critical_path,
    path_over_copies,
    simulate,
)
from dse.workload._step_errors import KERNEL_SHARE, ErrorShape, error_quantiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.simulate import FoldedRanks, RankBreakdown, SymmetricRanks

#: Samples of a step's time.
_SAMPLES = 200

#: Durations that are held at once while sampling, and the fewest samples of a large graph.
_MOST_DURATIONS = 20_000_000
_FEWEST_SAMPLES = 32

#: Durations of which the logarithms are taken at once.
_LOGARITHMS_AT_ONCE = 1_000_000

#: Durations closer than this share are taken for equal where a random stream is chosen.
_SAME_DURATION = 1e-4


class DurationClass(IntEnum):
    """Kind of model that a duration comes from; errors are shared within a class."""

    DENSE = 0
    EMBEDDING = 1
    COMMUNICATION = 2
    HOST = 3
    COPY = 4
    ATTENTION = 5
    ELEMENTWISE = 6
    NETWORK = 7
    STORAGE = 8


#: What a step is bound by where most of its critical path comes from a kind of model.
_WORK_OF_CLASS = {
    DurationClass.DENSE: "matrix products",
    DurationClass.EMBEDDING: "embedding lookups and updates",
    DurationClass.COMMUNICATION: "communication",
    DurationClass.HOST: "host",
    DurationClass.COPY: "copies from and to the host",
    DurationClass.ATTENTION: "attention",
    DurationClass.ELEMENTWISE: "elementwise kernels",
    DurationClass.NETWORK: "network",
    DurationClass.STORAGE: "storage",
}

#: The same of tasks of which no model is known.
_WORK_OF_KIND = {
    TaskKind.COMPUTE: "kernels",
    TaskKind.COLLECTIVE: "communication",
    TaskKind.COPY: "copies",
    TaskKind.HOST: "host",
}


class SimulatedStep(NamedTuple):
    """One training step as simulated.

    Attributes:
        time_s: Length of the step.
        breakdown: Where each rank's time goes.
        bound_by: The work with the largest share of the critical path, such as ``embedding
            updates``; empty if nothing takes any time.
        bound_share: That share.
        host_share: Share of the host, whatever it does.
    """

    time_s: float
    breakdown: tuple[RankBreakdown, ...]
    bound_by: str = ""
    bound_share: float = 0.0
    host_share: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class ErrorSource:
    """What the errors of one kind of model do to durations.

    Attributes:
        duration_class: Kind of model.
        share: Share of each duration that comes from it; shape `(rows,)`.
        spread: Standard deviation of the logarithm of actual over expected duration; shape
            `(rows,)`.
        group: Durations with the same number are wrong in the same way; shape `(rows,)`.
    """

    duration_class: DurationClass
    share: NDArray[np.float64]
    spread: NDArray[np.float64]
    group: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Iteration:
    """One training step, ready to be simulated.

    Attributes:
        ranks: The graph of one rank with the scopes of its collectives, or of all ranks (or of one
            representative of each group of equal ranks) where they differ.
        duration_s: Seconds; shape `(tasks, copies)`.
        errors: What is uncertain; shares of a duration add up to one at most.
        row: Row of each task in the arrays of `errors`; shape `(tasks,)`. Tasks of the same row
            have the same durations, as the passes of many micro-batches.
        program_errors: Of the whole step, which remain when every single model is right.
        groups: What each task is for, as explanations name it; where it is empty, what binds the
            step is named by the kinds of models.
    """

    ranks: SymmetricRanks
    duration_s: NDArray[np.float64]
    errors: tuple[ErrorSource, ...]
    row: NDArray[np.int64]
    program_errors: ErrorShape
    groups: tuple[str, ...] = ()

    @cached_property
    def _fingerprint(self) -> int:
        return _fingerprint(self.duration_s)

    @cached_property
    def _folded(self) -> FoldedRanks:
        return self.ranks.folded(self.duration_s)

    def run(self) -> SimulatedStep:
        """Simulates the step."""
        graph = self.ranks.graph
        if self.ranks.copies == 1:
            timeline = simulate(graph, self.duration_s[:, 0])
            path = critical_path(timeline)
            bound_by = self._bound_by(path.tasks, path.seconds)
            return SimulatedStep(timeline.makespan_s, breakdown(timeline), *bound_by)
        ranks, kept, of_copy, _ = self._folded
        times_s = ranks.times_s(self.duration_s[:, kept, None])
        start_s, end_s = (times[..., 0] for times in times_s)
        if len({stream.rank for stream in graph.streams}) == 1:
            of_kept = breakdown_of_copies(graph, start_s, end_s)
            parts = tuple(of_kept[place] for place in of_copy)
        else:
            parts = breakdown(Timeline(graph, start_s[:, 0], start_s[:, 0], end_s[:, 0]))
        bound_by = self._bound_by(*path_over_copies(ranks, end_s))
        return SimulatedStep(float(end_s.max(initial=0.0)), parts, *bound_by)

    def _bound_by(
        self, tasks: NDArray[np.int64], seconds: NDArray[np.float64]
    ) -> tuple[str, float, float]:
        """Returns the work with the largest share of the critical path, its and the host's."""
        length_s = float(seconds.sum())
        if not length_s:
            return "", 0.0, 0.0
        kinds = self.ranks.graph.kind[tasks]
        total_s: dict[str, float] = {}

        def add(work: str, work_s: float) -> None:
            total_s[work] = total_s.get(work, 0.0) + work_s

        if self.groups:
            for task, task_s in zip(tasks.tolist(), seconds.tolist(), strict=True):
                add(self.groups[task], task_s)
        else:
            rest_s = seconds.copy()
            rows = self.row[tasks]
            for source in self.errors:
                own_s = seconds * source.share[rows]
                rest_s -= own_s
                add(_WORK_OF_CLASS[source.duration_class], float(own_s.sum()))
            for kind, work in _WORK_OF_KIND.items():
                add(work, float(rest_s[kinds == kind].sum()))
        most = max(total_s, key=total_s.__getitem__)
        host_s = float(seconds[kinds == TaskKind.HOST].sum())
        return most, total_s[most] / length_s, host_s / length_s

    def sample_times_s(self, *, seed: int = 0) -> NDArray[np.float64]:
        """Draws times of the step under errors of the models and of the program.

        Errors are half shared and half individual (in variance): a model that is wrong about
        lookups is wrong about all of them in the same way, and about each one in its own way as
        well; what the description of a program leaves out touches all of its steps and each one
        in its own way. All ranks run the same model on the same kernel, so its error is the same
        on all of them. Shared errors use the same random numbers for every step, so that samples
        of two steps can be compared pairwise and only what differs between them decides.

        What is drawn says how large errors are and in which order the samples come; the samples
        are evenly spread quantiles of the distribution of that scale
        (:mod:`dse.workload._step_errors`), so that no probability hangs on the luck of a few of
        them. They lie around the predicted time, not around the mean over errors: programs were
        fitted to the prediction, and the latest of many uncertain tasks would otherwise move
        every sample to the same side.

        Args:
            seed: Of the random numbers. It is the same for all that is compared: uncertainty is a
                property of the step, not of the run.

        Returns:
            Seconds; shape `(samples,)`.
        """
        expected_s, errors = self._drawn(seed)
        spread, tail, median = self.program_errors
        scale = math.hypot(float(errors.std()), spread)
        program = np.random.default_rng(2 * seed + 1).standard_normal(_SAMPLES)[: len(errors)]
        program += self._own_stream(seed, kernels=False).standard_normal(len(errors))
        order = (errors + math.sqrt(0.5) * spread * program).argsort().argsort()
        return expected_s * np.exp(scale * error_quantiles(len(errors), tail, median)[order])

    def kernel_errors(self, *, seed: int = 0) -> NDArray[np.float64]:
        """Draws what the errors of kernels and transfers do to the step.

        Args:
            seed: Of the random numbers.

        Returns:
            Logarithms of the step's time over its median; shape `(samples,)`.
        """
        return self._drawn(seed)[1]

    def share_of(self, duration_class: DurationClass) -> NDArray[np.float64]:
        """Returns the share of each task's duration from a kind of model; shape `(tasks,)`."""
        share = np.zeros(self._rows)
        for source in self.errors:
            if source.duration_class is duration_class:
                share += source.share
        return share[self.row]

    @property
    def _rows(self) -> int:
        return int(self.row.max(initial=-1)) + 1

    def _drawn(self, seed: int) -> tuple[float, NDArray[np.float64]]:
        """Returns the time of the step in seconds, and the errors of kernels and transfers."""
        ranks, kept, *_ = self._folded
        duration_s = np.empty((self._rows, len(kept)))
        duration_s[self.row] = self.duration_s[:, kept]
        limit = _MOST_DURATIONS // max(1, len(self.row) * len(kept))
        count = max(_FEWEST_SAMPLES, min(_SAMPLES, limit))
        drawn_s = duration_s[:, :, None] * self._sample_factors(count, seed)[:, None]
        times_s = ranks.last_end_s(drawn_s, self.row)
        expected_s, times_s = float(times_s[-1]), times_s[:-1]
        median_s = float(np.median(times_s))
        if not median_s > 0:
            return expected_s, np.zeros(count)
        return expected_s, np.log(times_s / median_s)

    def _own_stream(self, seed: int, *, kernels: bool) -> np.random.Generator:
        """Returns random numbers of this step: individual errors of two plans differ."""
        return np.random.default_rng((self._fingerprint, seed, kernels))

    def _sample_factors(self, count: int, seed: int) -> NDArray[np.float64]:
        """Returns actual over expected durations under errors, and without any in the end.

        The shape is `(rows, samples + 1)`.
        """
        generator = np.random.default_rng(2 * seed)
        shared = generator.standard_normal((len(DurationClass), _SAMPLES))
        own = self._own_stream(seed, kernels=True)
        factor = np.ones((self._rows, count + 1))
        for source in self.errors:
            rows = np.flatnonzero(source.share)
            if not len(rows):
                continue
            groups, index = np.unique(source.group[rows], return_inverse=True)
            drawn = own.standard_normal((len(groups), count))[index]
            drawn += shared[source.duration_class, :count]
            drawn *= KERNEL_SHARE * math.sqrt(0.5) * source.spread[rows, None]
            factor[rows, :-1] += source.share[rows, None] * np.expm1(drawn)
        return factor


def _fingerprint(durations_s: NDArray[np.float64]) -> int:
    """Returns a number that tells the durations of two steps apart.

    The last bits of a duration differ between versions of libraries and between processors, and
    another random stream for them would move the ends of an interval by percents.
    """
    checksum = 0
    # Of tens of thousands of ranks, not all tasks at once: their logarithms would fill the memory.
    at_once = max(1, _LOGARITHMS_AT_ONCE // max(1, durations_s.shape[1]))
    for first in range(0, len(durations_s), at_once):
        of_tasks = durations_s[first : first + at_once]
        logarithm = np.log(np.maximum(of_tasks, np.finfo(np.float64).tiny))
        rounded = np.round(logarithm / _SAME_DURATION).astype(np.int64)
        checksum = zlib.crc32(rounded.tobytes(), checksum)
    return checksum
