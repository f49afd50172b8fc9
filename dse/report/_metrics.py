"""Titles, units and digits of metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.report.console import UNKNOWN
from dse.workload import Metric, workload_kind

if TYPE_CHECKING:
    from dse.search import StudyResult


@dataclass(frozen=True, slots=True)
class MetricFormat:
    """Title, unit and scale of a metric for people.

    Attributes:
        title: Column and axis title.
        unit: Unit after scaling.
        scale: Factor from SI to that unit.
        digits: Decimal places.
    """

    title: str
    unit: str
    scale: float
    digits: int

    def text(self, value: float) -> str:
        """Formats a value without its unit."""
        return f"{value * self.scale:,.{self.digits}f}"

    def with_number(self, number: int | None, value: float) -> str:
        """Formats a value with the number of its candidate; None stands for no candidate."""
        return UNKNOWN if number is None else f"{self.text(value)} (#{number})"


METRIC_FORMATS: dict[Metric, MetricFormat] = {
    Metric.THROUGHPUT: MetricFormat("Throughput", "M samples/s", 1e-6, 2),
    Metric.ITERATION_TIME: MetricFormat("Iteration time", "ms", 1e3, 3),
    Metric.COST: MetricFormat("Cost", "USD per million samples", 1.0, 5),
    Metric.PRICE: MetricFormat("Price", "USD/h", 1.0, 2),
    Metric.MEMORY_HEADROOM: MetricFormat("Memory left", "%", 100.0, 1),
    Metric.WORLD_SIZE: MetricFormat("Devices", "", 1.0, 0),
    Metric.GLOBAL_BATCH_SIZE: MetricFormat("Global batch", "samples", 1.0, 0),
    Metric.SPEEDUP: MetricFormat("Speed-up", "×", 1.0, 3),
    Metric.TOKEN_THROUGHPUT: MetricFormat("Throughput", "tokens/s", 1.0, 0),
    Metric.UTILIZATION: MetricFormat("MFU", "%", 100.0, 1),
}

#: Transformers train few samples a second; their steps take seconds.
_TRANSFORMER_FORMATS = {
    **METRIC_FORMATS,
    Metric.THROUGHPUT: MetricFormat("Throughput", "samples/s", 1.0, 2),
    Metric.ITERATION_TIME: MetricFormat("Iteration time", "s", 1.0, 3),
    Metric.COST: MetricFormat("Cost", "USD per million samples", 1.0, 2),
}

#: Captured jobs may be of any size.
_TRACE_FORMATS = {
    **METRIC_FORMATS,
    Metric.THROUGHPUT: MetricFormat("Throughput", "samples/s", 1.0, 0),
    Metric.ITERATION_TIME: MetricFormat("Step", "ms", 1e3, 3),
}


def metric_formats(study: StudyResult) -> dict[Metric, MetricFormat]:
    """Returns the formats of a study's metrics."""
    workload = workload_kind(study.kind)
    if workload.brings_machine:
        return _TRACE_FORMATS
    trains_tokens = Metric.TOKEN_THROUGHPUT in workload.metrics
    return _TRANSFORMER_FORMATS if trains_tokens else METRIC_FORMATS


def title_with_unit(form: MetricFormat) -> str:
    """Returns a column title."""
    return f"{form.title} ({form.unit})" if form.unit else form.title
