"""Scaling of the platforms of a study, for its table and plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report._metrics import rate_parts, rate_scale
from dse.report.page._payload import rounded
from dse.search.analyse import decide, scaling

if TYPE_CHECKING:
    from dse.search import StudyResult
    from dse.search.analyse import Scaling


@dataclass(frozen=True, slots=True)
class ScalingPointView:
    """The fastest trial with one number of ranks and one batch.

    Attributes:
        number: Trial number.
        ranks: Number of ranks.
        batch: Global batch.
        speed: Throughput in the unit of the platform.
        text: The same, formatted.
        efficiency: Throughput of a rank over that of the fastest point with the fewest ranks.
        bound_by: What most of its iteration waits for; may be empty.
    """

    number: int
    ranks: int
    batch: int
    speed: float
    text: str
    efficiency: float
    bound_by: str


@dataclass(frozen=True, slots=True)
class ScalingView:
    """One platform.

    Attributes:
        platform: Its name.
        unit: Unit of the throughput.
        points: By ranks, then by batch.
    """

    platform: str
    unit: str
    points: tuple[ScalingPointView, ...]


def scaling_view(study: StudyResult) -> tuple[ScalingView, ...]:
    """Extracts how platforms scale, that of the recommended candidate first."""
    decision = decide(study)
    if decision is None:
        return ()
    platforms = {
        record.number: record.configuration.platform
        for record in study.front
        if record.configuration is not None
    }
    taken = platforms[decision.take.number]
    found = sorted(scaling(study), key=lambda each: each.platform != taken)
    return tuple(_platform(each) for each in found)


def _platform(found: Scaling) -> ScalingView:
    largest = max(point.throughput_per_s for point in found.points)
    scale, prefix = rate_scale(largest)
    return ScalingView(
        found.platform or "as captured",
        f"{prefix}{found.counts}/s",
        tuple(
            ScalingPointView(
                point.number,
                point.world_size,
                point.global_batch_size,
                rounded(point.throughput_per_s * scale),
                rate_parts(point.throughput_per_s, largest)[0],
                rounded(point.efficiency, 4),
                point.bound_by,
            )
            for point in found.points
        ),
    )
