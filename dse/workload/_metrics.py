"""Metrics: figures of a job that objectives, constraints, tables and the report may name.

One :class:`Metric` says all there is to say about one figure. Those that every kind of workload
has are in :data:`COMMON_METRICS`; a kind lists its own in :attr:`Workload.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import TYPE_CHECKING

from dse._text.digits import significant
from dse.config import UnitKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dse.workload._configuration import Configuration
    from dse.workload._prediction import Prediction


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures that all jobs have in common, from which metrics follow; NaN where not known.

    Attributes:
        world_size: Ranks.
        global_batch_size: Samples of one iteration over all ranks.
        price_usd_per_hour: Price of the whole cluster.
        iteration_time_s: Expected time of one iteration.
        iteration_time_p5_s: Lower end of its 90 % interval.
        iteration_time_p95_s: Upper end of its 90 % interval.
        throughput_samples_per_s: Samples per second.
        cost_usd_per_million_samples: Price of a million samples.
        peak_memory_bytes: Device memory of the fullest rank.
        memory_headroom_fraction: Free share of the usable memory on the fullest rank.
        fit_probability: Probability that every rank fits its memory.
    """

    world_size: float = math.nan
    global_batch_size: float = math.nan
    price_usd_per_hour: float = math.nan
    iteration_time_s: float = math.nan
    iteration_time_p5_s: float = math.nan
    iteration_time_p95_s: float = math.nan
    throughput_samples_per_s: float = math.nan
    cost_usd_per_million_samples: float = math.nan
    peak_memory_bytes: float = math.nan
    memory_headroom_fraction: float = math.nan
    fit_probability: float = math.nan

    @staticmethod
    def of(configuration: Configuration, prediction: Prediction) -> Figures:
        """Returns the figures of a predicted configuration."""
        price, cost = prediction.price_usd_per_hour, prediction.cost_usd_per_million_samples
        return Figures(
            world_size=configuration.world_size,
            global_batch_size=configuration.global_batch_size or math.nan,
            price_usd_per_hour=math.nan if price is None else price,
            iteration_time_s=prediction.iteration_time_s,
            iteration_time_p5_s=prediction.iteration_time_p5_s,
            iteration_time_p95_s=prediction.iteration_time_p95_s,
            throughput_samples_per_s=prediction.throughput_samples_per_s,
            cost_usd_per_million_samples=math.nan if cost is None else cost,
            peak_memory_bytes=prediction.peak_memory_bytes if prediction.memory else math.nan,
            memory_headroom_fraction=prediction.memory_headroom_fraction,
            fit_probability=prediction.fit_probability,
        )


#: Figures of an ordinary job, to find out which of them a metric uses.
_EXAMPLE = Figures(8, 8192, 24.0, 0.010, 0.009, 0.012, 819_200, 0.008, 40e9, 0.45, 1.0)

#: Figures that are not known without a price, and without the samples of a step.
PRICE_FIGURES = ("price_usd_per_hour", "cost_usd_per_million_samples")
SAMPLE_FIGURES = (
    "global_batch_size",
    "throughput_samples_per_s",
    "cost_usd_per_million_samples",
)

#: Figures that only a prediction gives.
PREDICTED_FIGURES = (
    "iteration_time_s",
    "iteration_time_p5_s",
    "iteration_time_p95_s",
    "throughput_samples_per_s",
    "cost_usd_per_million_samples",
    "peak_memory_bytes",
    "memory_headroom_fraction",
    "fit_probability",
)


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a job: its name, where its value comes from, and how people see it.

    Attributes:
        name: As in search spaces, `trials.csv` and `--json`; says the unit of its values.
        title: Title of columns and axes.
        value: The value from the common figures, NaN if one that it needs is; None where the
            job gives it, in :meth:`Job.metrics`. What needs no prediction is checked against
            limits before anything is predicted.
        maximize: Whether more is better unless a search space says otherwise.
        unit: Unit in which people see it; empty for none.
        scale: Factor from the value to that unit.
        digits: Decimal places in that unit.
        column: Heading of a narrow column; the unit if empty, or the title where there is none.
        limit_unit: What limits in search spaces have to be written with; None for plain numbers.
        time_exponent: 1 if it is proportional to the iteration time, -1 if inversely, so that the
            interval of the time gives its own; 0 if neither.
    """

    name: str
    title: str
    value: Callable[[Figures], float] | None = None
    maximize: bool = False
    unit: str = ""
    scale: float = 1.0
    digits: int = 3
    column: str = ""
    limit_unit: UnitKind | None = None
    time_exponent: int = 0

    def of(self, figures: Figures, own: Mapping[str, float] | None = None) -> float:
        """Returns the value for a job; NaN if it is not known.

        Args:
            figures: What is known of the job.
            own: Values that the job itself gives, by name.
        """
        if own is not None and self.name in own:
            return own[self.name]
        if self.value is None:
            return math.nan
        try:
            return float(self.value(figures))
        except ZeroDivisionError:
            return math.nan

    def needs(self, *names: str) -> bool:
        """Returns whether the value follows from the common figures, but not without these.

        Args:
            names: Fields of :class:`Figures`.
        """
        unknown = dict.fromkeys(names, math.nan)
        return self.value is not None and math.isnan(self.of(replace(_EXAMPLE, **unknown)))

    @property
    def noun(self) -> str:
        """The title inside a sentence."""
        return self.title if self.title.isupper() else self.title.lower()

    @property
    def title_with_unit(self) -> str:
        """The title of a column."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def heading(self) -> str:
        """The heading of a narrow column."""
        return self.column or self.unit or self.title

    def text(self, value: float) -> str:
        """Formats a value in the unit for people, without the unit.

        A value that these decimal places would show as zero has two significant digits.
        """
        shown = value * self.scale
        if 0.0 < abs(shown) < 0.5 * 10.0**-self.digits:
            return significant(shown, 2)
        return f"{shown:,.{self.digits}f}"


THROUGHPUT = Metric(
    "throughput_samples_per_s",
    "Throughput",
    lambda figures: figures.throughput_samples_per_s,
    maximize=True,
    unit="M samples/s",
    scale=1e-6,
    digits=2,
    time_exponent=-1,
)
ITERATION_TIME = Metric(
    "iteration_time_s",
    "Iteration time",
    lambda figures: figures.iteration_time_s,
    unit="ms",
    scale=1e3,
    limit_unit=UnitKind.TIME,
    time_exponent=1,
)
COST = Metric(
    "cost_usd_per_million_samples",
    "Cost",
    lambda figures: figures.cost_usd_per_million_samples,
    unit="USD per billion samples",
    scale=1e3,
    column="USD per billion",
    time_exponent=1,
)
MEMORY_HEADROOM = Metric(
    "memory_headroom_fraction",
    "Memory left",
    lambda figures: figures.memory_headroom_fraction,
    maximize=True,
    unit="%",
    scale=100.0,
    digits=1,
    column="% free",
    limit_unit=UnitKind.FRACTION,
)
FIT_PROBABILITY = Metric(
    "fit_probability",
    "Fit probability",
    lambda figures: figures.fit_probability,
    maximize=True,
    unit="%",
    scale=100.0,
    digits=0,
    column="% fits",
    limit_unit=UnitKind.FRACTION,
)

#: Metrics that every kind of workload has, in the order of columns. A metric that follows from
#: the common figures needs an entry here and nothing else.
COMMON_METRICS: tuple[Metric, ...] = (
    THROUGHPUT,
    ITERATION_TIME,
    COST,
    Metric(
        "price_usd_per_hour",
        "Price",
        lambda figures: figures.price_usd_per_hour,
        unit="USD/h",
        digits=2,
        limit_unit=UnitKind.PRICE,
    ),
    MEMORY_HEADROOM,
    FIT_PROBABILITY,
    Metric(
        "world_size",
        "Devices",
        lambda figures: figures.world_size,
        digits=0,
    ),
    Metric(
        "global_batch_size",
        "Global batch",
        lambda figures: figures.global_batch_size,
        maximize=True,
        unit="samples",
        digits=0,
        column="Batch",
    ),
)


def metrics_with(*own: Metric, unknown: tuple[str, ...] = ()) -> tuple[Metric, ...]:
    """Returns the common metrics with those of one kind of workload.

    Args:
        own: One with the name of a common metric takes its place; others follow.
        unknown: Fields of :class:`Figures` that this kind does not have; metrics that need them
            are left out.
    """
    found = {metric.name: metric for metric in (*COMMON_METRICS, *own)}
    return tuple(metric for metric in found.values() if not metric.needs(*unknown))
