"""Scaling: the best configuration of every number of ranks and batch that a study looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.search._records import TrialStatus

if TYPE_CHECKING:
    from dse.search._records import StudyResult


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """The fastest trial of a platform with one number of ranks and one batch.

    Attributes:
        number: Trial number.
        world_size: Ranks.
        global_batch_size: Samples of one iteration.
        throughput_per_s: Samples or tokens a second.
        efficiency: Throughput of a rank over that of the fastest point with the fewest ranks.
        bound_by: What most of the iteration waits for, with its share; empty if not known.
    """

    number: int
    world_size: int
    global_batch_size: int
    throughput_per_s: float
    efficiency: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """How one platform scales, as far as a study looked.

    Attributes:
        platform: Name of the platform.
        counts: What throughput counts: ``samples`` or ``tokens``.
        points: By ranks, then by batch; what is missing was not evaluated or is not feasible.
    """

    platform: str
    counts: str
    points: tuple[ScalingPoint, ...]

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Numbers of ranks, ascending."""
        return tuple(sorted({point.world_size for point in self.points}))

    @property
    def batches(self) -> tuple[int, ...]:
        """Global batch sizes, ascending."""
        return tuple(sorted({point.global_batch_size for point in self.points}))

    def at(self, world_size: int, global_batch_size: int) -> ScalingPoint | None:
        """Returns the point of one number of ranks and one batch; None where there is none."""
        for point in self.points:
            if (point.world_size, point.global_batch_size) == (world_size, global_batch_size):
                return point
        return None

    def best(self, world_size: int) -> ScalingPoint:
        """Returns the fastest point of one number of ranks.

        Raises:
            ValueError: There is no point with that many ranks.
        """
        return max(
            (point for point in self.points if point.world_size == world_size),
            key=lambda point: (point.throughput_per_s, -point.global_batch_size),
        )


def scaling(study: StudyResult) -> tuple[Scaling, ...]:
    """Returns how each platform of a study scales, in the order in which they were tried.

    Platforms with a single number of ranks and a single batch are left out, and so are trials
    whose throughput is not known.
    """
    best: dict[str, dict[tuple[int, int], ScalingPoint]] = {}
    counts = "samples"
    for record in study.records:
        configuration, prediction = record.configuration, record.prediction
        if record.status is not TrialStatus.FEASIBLE or configuration is None:
            continue
        if prediction is None or not math.isfinite(prediction.throughput_per_s):
            continue
        counts, per_s = prediction.counts, prediction.throughput_per_s
        place = configuration.world_size, configuration.global_batch_size
        points = best.setdefault(configuration.platform, {})
        if place not in points or per_s > points[place].throughput_per_s:
            points[place] = ScalingPoint(
                record.number,
                *place,
                per_s,
                math.nan,
                prediction.bound_text,
            )
    return tuple(
        Scaling(platform, counts, _with_efficiency(points))
        for platform, points in best.items()
        if len(points) > 1
    )


def _with_efficiency(points: dict[tuple[int, int], ScalingPoint]) -> tuple[ScalingPoint, ...]:
    fewest = min(world_size for world_size, _ in points)
    base = max(
        point.throughput_per_s / fewest
        for (world_size, _), point in points.items()
        if world_size == fewest
    )
    return tuple(
        replace(point, efficiency=point.throughput_per_s / point.world_size / base)
        for _, point in sorted(points.items())
    )
