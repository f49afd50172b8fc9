"""How each metric is called and printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.search.space import Metric, WorkloadKind

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
    Metric.SPEEDUP: MetricFormat("Speed-up", "×", 1.0, 3),
    Metric.TOKEN_THROUGHPUT: MetricFormat("Throughput", "tokens/s", 1.0, 0),
    Metric.UTILIZATION: MetricFormat("Use of peak arithmetic", "%", 100.0, 1),
}

#: Of transformers: few samples a second, steps of seconds.
_TRANSFORMER_FORMATS = {
    **METRIC_FORMATS,
    Metric.THROUGHPUT: MetricFormat("Throughput", "samples/s", 1.0, 2),
    Metric.ITERATION_TIME: MetricFormat("Iteration time", "s", 1.0, 3),
    Metric.COST: MetricFormat("Cost", "USD per million samples", 1.0, 2),
}

#: Of captured jobs: they may be of any size.
_TRACE_FORMATS = {
    **METRIC_FORMATS,
    Metric.THROUGHPUT: MetricFormat("Throughput", "samples/s", 1.0, 0),
    Metric.ITERATION_TIME: MetricFormat("Step", "ms", 1e3, 3),
}

_FORMATS = {
    WorkloadKind.DLRM: METRIC_FORMATS,
    WorkloadKind.TRANSFORMER: _TRANSFORMER_FORMATS,
    WorkloadKind.TRACE: _TRACE_FORMATS,
}


def metric_formats(study: StudyResult) -> dict[Metric, MetricFormat]:
    """Returns how a study's metrics are printed."""
    return _FORMATS[study.kind]


def title_with_unit(form: MetricFormat) -> str:
    """Returns a column title."""
    return f"{form.title} ({form.unit})" if form.unit else form.title


def milliseconds(seconds: float) -> str:
    """Prints a duration in milliseconds, from ten seconds on in seconds."""
    return f"{seconds:.3f} s" if seconds >= 10 else f"{seconds * 1e3:.3f} ms"


def gibibytes(size_bytes: float) -> str:
    """Prints a size in GiB."""
    return f"{size_bytes / 2**30:.2f} GiB"
