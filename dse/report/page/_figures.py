"""Figures of candidates, side by side."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse.report._metrics import metric_formats
from dse.report.page._payload import finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dse.search import StudyResult, TrialRecord


@dataclass(frozen=True, slots=True)
class FigureView:
    """One figure of a candidate.

    Attributes:
        title: Name with unit.
        noun: Name inside a sentence.
        unit: Unit; may be empty.
        digits: Decimal places.
    """

    title: str
    noun: str
    unit: str
    digits: int


@dataclass(frozen=True, slots=True)
class FiguresView:
    """Figures of the candidates that have details.

    Attributes:
        figures: What they are.
        values: `(trial number, values)` in shown units, in the order of `figures`; None where a
            value is not known.
    """

    figures: tuple[FigureView, ...]
    values: tuple[tuple[int, tuple[float | None, ...]], ...]


def figures_view(
    study: StudyResult, records: Sequence[TrialRecord], captured_number: int
) -> FiguresView:
    """Extracts every metric of some candidates and the memory of their fullest rank.

    Args:
        study: The study.
        records: Candidates that were evaluated.
        captured_number: Number that stands for the step as captured, in studies of a trace.
    """
    known: list[tuple[int, Mapping[str, float], float | None]] = [
        (record.number, record.metrics, _fullest_gib(record)) for record in records
    ]
    if study.trace is not None:
        known.append((captured_number, study.trace.metrics, None))
    # Some metrics are parameters too, which the page shows side by side anyway.
    parameters = {name for record in records for name, _ in record.parameters}
    metrics = [
        metric
        for name, metric in metric_formats(study).items()
        if name not in parameters and any(name in values for _, values, _ in known)
    ]
    has_memory = any(gib is not None for _, _, gib in known)
    memory = (
        [FigureView("Memory of the fullest rank (GiB)", "memory of the fullest rank", "GiB", 2)]
        if has_memory
        else []
    )
    return FiguresView(
        (
            *(
                FigureView(metric.title_with_unit, metric.noun, metric.unit, metric.digits)
                for metric in metrics
            ),
            *memory,
        ),
        tuple(
            (
                number,
                (
                    *(
                        finite(values.get(metric.name, math.nan) * metric.scale)
                        for metric in metrics
                    ),
                    *([None if gib is None else finite(gib)] if has_memory else []),
                ),
            )
            for number, values, gib in known
        ),
    )


def _fullest_gib(record: TrialRecord) -> float | None:
    if record.prediction is None or not record.prediction.memory:
        return None
    return record.prediction.peak_memory_bytes / 2**30
