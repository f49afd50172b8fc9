"""One training step: its graph, the duration of each task, and how far off each may be."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum
from functools import cached_property
import math
from typing import TYPE_CHECKING, NamedTuple
import zlib

import numpy as np

from dse.graph import TaskKind
from dse.simulate import (
    RankBreakdown,
    Timeline,
    breakdown,
    breakdown_of_copies,
    critical_path,
    path_over_copies,
    simulate,
)
from dse.workload._step_errors import KERNEL_SHARE, ErrorShape, error_quantiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dse.simulate import FoldedRanks, SymmetricRanks

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


class StepFigures(NamedTuple):
    """What a simulation says of one training step, all in seconds.

    Attributes:
        time_s: Length of the step.
        breakdown: Where each rank's time goes.
        work_s: What the critical path consists of.
        host_s: The part of it that the host takes, whatever it does.
    """

    time_s: float
    breakdown: tuple[RankBreakdown, ...]
    work_s: Mapping[str, float]
    host_s: float

    def repeated(self, shorter: StepFigures, rounds: float) -> StepFigures:
        """Returns the figures of a step with more rounds.

        Args:
            shorter: Those of a step with one round less.
            rounds: How many more.
        """

        def more(longer_s: float, shorter_s: float) -> float:
            return max(0.0, longer_s + rounds * (longer_s - shorter_s))

        return StepFigures(
            more(self.time_s, shorter.time_s),
            tuple(
                RankBreakdown(*map(more, astuple(longer), astuple(less)))
                for longer, less in zip(self.breakdown, shorter.breakdown, strict=True)
            ),
            {
                work: more(self.work_s.get(work, 0.0), shorter.work_s.get(work, 0.0))
                for work in {**self.work_s, **shorter.work_s}
            },
            more(self.host_s, shorter.host_s),
        )

    def step(self) -> SimulatedStep:
        """Returns them with the work that has the largest share of the critical path."""
        length_s = sum(self.work_s.values())
        if not length_s:
            return SimulatedStep(self.time_s, self.breakdown)
        most = max(self.work_s, key=self.work_s.__getitem__)
        shares = self.work_s[most] / length_s, self.host_s / length_s
        return SimulatedStep(self.time_s, self.breakdown, most, *shares)


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
        return self.figures().step()

    def figures(self) -> StepFigures:
        """Simulates the step; returns all that :meth:`run` needs of it."""
        graph = self.ranks.graph
        if self.ranks.copies == 1:
            timeline = simulate(graph, self.duration_s[:, 0])
            path = critical_path(timeline)
            parts = breakdown(timeline)
            return StepFigures(
                timeline.makespan_s, parts, *self._of_path(path.tasks, path.seconds)
            )
        ranks, kept, of_copy, _ = self._folded
        times_s = ranks.times_s(self.duration_s[:, kept, None])
        start_s, end_s = (times[..., 0] for times in times_s)
        if len({stream.rank for stream in graph.streams}) == 1:
            of_kept = breakdown_of_copies(graph, start_s, end_s)
            parts = tuple(of_kept[place] for place in of_copy)
        else:
            parts = breakdown(Timeline(graph, start_s[:, 0], start_s[:, 0], end_s[:, 0]))
        of_path = self._of_path(*path_over_copies(ranks, end_s))
        return StepFigures(float(end_s.max(initial=0.0)), parts, *of_path)

    def _of_path(
        self, tasks: NDArray[np.int64], seconds: NDArray[np.float64]
    ) -> tuple[dict[str, float], float]:
        """Returns what the critical path consists of, and how much of it the host takes."""
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
        return total_s, float(seconds[kinds == TaskKind.HOST].sum())

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
        kept = self._folded.kept
        duration_s = np.empty((self._rows, len(kept)))
        duration_s[self.row] = self.duration_s[:, kept]
        limit = _MOST_DURATIONS // max(1, len(self.row) * len(kept))
        count = max(_FEWEST_SAMPLES, min(_SAMPLES, limit))
        drawn_s = duration_s[:, :, None] * self._sample_factors(count, seed)[:, None]
        times_s = self._last_end_s(drawn_s)
        expected_s, times_s = float(times_s[-1]), times_s[:-1]
        median_s = float(np.median(times_s))
        if not median_s > 0:
            return expected_s, np.zeros(count)
        return expected_s, np.log(times_s / median_s)

    def _last_end_s(self, drawn_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the length of the step for drawn durations of its rows."""
        return self._folded.ranks.last_end_s(drawn_s, self.row)

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


@dataclass(frozen=True, eq=False, kw_only=True)
class RepeatedIteration(Iteration):
    """A training step of so many equal rounds that a few of them are enough to know all.

    The graph has the first rounds and the last ones. Each further round makes the step as much
    longer as the last one of the graph does: a graph whose rounds wait for each other in the same
    way ends up with a constant period (Baccelli et al., Synchronization and Linearity, § 3.7).

    Attributes:
        shorter: The step with one round less than the graph has, with the same rows.
        rounds: How many rounds the step has beyond the graph.
    """

    shorter: Iteration
    rounds: float

    def figures(self) -> StepFigures:
        """Simulates both graphs; returns the figures of all rounds."""
        return super().figures().repeated(self.shorter.figures(), self.rounds)

    def _last_end_s(self, drawn_s: NDArray[np.float64]) -> NDArray[np.float64]:
        longer_s = super()._last_end_s(drawn_s)
        return longer_s + self.rounds * (longer_s - self.shorter._last_end_s(drawn_s))


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
