"""How each metric is called and printed."""

from __future__ import annotations

from dataclasses import dataclass

from dse.space import Metric


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
        """Prints a value without its unit."""
        return f"{value * self.scale:,.{self.digits}f}"


METRIC_FORMATS: dict[Metric, MetricFormat] = {
    Metric.THROUGHPUT: MetricFormat("Throughput", "M samples/s", 1e-6, 2),
    Metric.ITERATION_TIME: MetricFormat("Iteration time", "ms", 1e3, 3),
    Metric.COST: MetricFormat("Cost", "USD per million samples", 1.0, 5),
    Metric.PRICE: MetricFormat("Price", "USD/h", 1.0, 2),
    Metric.MEMORY_HEADROOM: MetricFormat("Memory left", "%", 100.0, 1),
    Metric.WORLD_SIZE: MetricFormat("Devices", "", 1.0, 0),
    Metric.GLOBAL_BATCH_SIZE: MetricFormat("Global batch", "samples", 1.0, 0),
}


def title_with_unit(metric: Metric) -> str:
    """Returns a column title."""
    form = METRIC_FORMATS[metric]
    return f"{form.title} ({form.unit})" if form.unit else form.title


def milliseconds(seconds: float) -> str:
    """Prints a duration in milliseconds."""
    return f"{seconds * 1e3:.3f} ms"


def gibibytes(size_bytes: float) -> str:
    """Prints a size in GiB."""
    return f"{size_bytes / 2**30:.2f} GiB"
