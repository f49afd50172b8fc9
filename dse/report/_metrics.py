"""Titles, units and digits of metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse.report.console import UNKNOWN
from dse.workload import Metric, workload_kind

if TYPE_CHECKING:
    from dse.search import StudyResult
    from dse.workload import Prediction


@dataclass(frozen=True, slots=True)
class MetricFormat:
    """Title, unit and scale of a metric for people.

    Attributes:
        title: Column and axis title.
        unit: Unit after scaling.
        scale: Factor from SI to that unit.
        digits: Decimal places.
        column: Heading of a narrow column.
    """

    title: str
    unit: str
    scale: float
    digits: int
    column: str

    def text(self, value: float) -> str:
        """Formats a value without its unit."""
        return f"{value * self.scale:,.{self.digits}f}"

    def with_number(self, number: int | None, value: float) -> str:
        """Formats a value with the number of its candidate; None stands for no candidate."""
        return UNKNOWN if number is None else f"{self.text(value)} (#{number})"


METRIC_FORMATS: dict[Metric, MetricFormat] = {
    Metric.THROUGHPUT: MetricFormat("Throughput", "M samples/s", 1e-6, 2, "M samples/s"),
    Metric.ITERATION_TIME: MetricFormat("Iteration time", "ms", 1e3, 3, "ms"),
    Metric.COST: MetricFormat("Cost", "USD per billion samples", 1e3, 3, "USD per billion"),
    Metric.PRICE: MetricFormat("Price", "USD/h", 1.0, 2, "USD/h"),
    Metric.MEMORY_HEADROOM: MetricFormat("Memory left", "%", 100.0, 1, "% free"),
    Metric.WORLD_SIZE: MetricFormat("Devices", "", 1.0, 0, "devices"),
    Metric.GLOBAL_BATCH_SIZE: MetricFormat("Global batch", "samples", 1.0, 0, "batch"),
    Metric.SPEEDUP: MetricFormat("Speed-up", "×", 1.0, 3, "speed-up"),
    Metric.TOKEN_THROUGHPUT: MetricFormat("Throughput", "tokens/s", 1.0, 0, "tokens/s"),
    Metric.UTILIZATION: MetricFormat("MFU", "%", 100.0, 1, "MFU %"),
}

#: Transformers train few samples a second; their steps take seconds.
_TRANSFORMER_FORMATS = {
    **METRIC_FORMATS,
    Metric.THROUGHPUT: MetricFormat("Throughput", "samples/s", 1.0, 2, "samples/s"),
    Metric.ITERATION_TIME: MetricFormat("Iteration time", "s", 1.0, 3, "s"),
}

#: Rates from here on are written in millions.
_MILLIONS_FROM = 1e5

#: Captured jobs may be of any size.
_TRACE_FORMATS = {
    **METRIC_FORMATS,
    Metric.THROUGHPUT: MetricFormat("Throughput", "samples/s", 1.0, 0, "samples/s"),
    Metric.ITERATION_TIME: MetricFormat("Step", "ms", 1e3, 3, "ms"),
}


def metric_formats(study: StudyResult) -> dict[Metric, MetricFormat]:
    """Returns the formats of a study's metrics; costs with three digits of the least."""
    workload = workload_kind(study.kind)
    formats = METRIC_FORMATS
    if workload.brings_machine:
        formats = _TRACE_FORMATS
    elif Metric.TOKEN_THROUGHPUT in workload.metrics:
        formats = _TRANSFORMER_FORMATS
    predictions = [record.prediction for record in study.front if record.prediction is not None]
    costs = [cost for each in predictions if (cost := each.cost_usd_per_billion)]
    if not costs:
        return formats
    # All samples of a study have the same number of tokens.
    first = next(each for each in predictions if each.cost_usd_per_billion)
    scale = (first.cost_usd_per_billion or 0.0) / (first.cost_usd_per_million_samples or 1.0)
    unit = f"USD per billion {first.counts}"
    cost = replace(formats[Metric.COST], unit=unit, scale=scale, digits=_digits(min(costs)))
    return {**formats, Metric.COST: cost}


def cost_words(prediction: Prediction) -> str:
    """Returns the cost of a billion samples or tokens; `no price` where it is not known."""
    cost = prediction.cost_usd_per_billion
    return "no price" if cost is None else f"{usd(cost)} USD per billion {prediction.counts}"


def usd(amount: float) -> str:
    """Formats an amount of money with three significant digits, large ones with all digits."""
    return f"{amount:,.{_digits(amount)}f}"


def rate(per_s: float, counts: str) -> str:
    """Formats a throughput, large ones in millions.

    Args:
        per_s: Samples or tokens a second.
        counts: What is counted.
    """
    text, unit = rate_parts(per_s, per_s)
    return f"{text} {unit}{counts}/s"


def rate_parts(per_s: float, scale_of: float) -> tuple[str, str]:
    """Formats a throughput in the scale of another; returns the figure, and ``M `` of millions."""
    scale, prefix = rate_scale(scale_of)
    return f"{scale * per_s:,.{_digits(scale * scale_of)}f}", prefix


def rate_scale(per_s: float) -> tuple[float, str]:
    """Returns the factor by which a throughput is shown, and the prefix of its unit."""
    return (1e-6, "M ") if per_s >= _MILLIONS_FROM else (1.0, "")


def _digits(value: float) -> int:
    """Returns decimal places that show three significant digits."""
    return 0 if not value > 0 else max(0, 2 - math.floor(math.log10(value)))


def title_with_unit(form: MetricFormat) -> str:
    """Returns a column title."""
    return f"{form.title} ({form.unit})" if form.unit else form.title
