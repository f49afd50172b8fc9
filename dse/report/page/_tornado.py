"""Sensitivity of the recommended candidate to single assumptions."""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from dse.errors import DseError
from dse.report._metrics import metric_formats
from dse.report.page._payload import rounded
from dse.search.revise import sensitivity

if TYPE_CHECKING:
    from dse.search import StudyResult, TrialRecord
    from dse.search.revise import SensitivityBar
    from dse.workload import Metric

#: Relative change of each input.
STEP = 0.1

#: Shown in addition to the study's own objectives.
_ALWAYS = ("iteration_time_s", "throughput_samples_per_s", "cost_usd_per_million_samples")


@dataclass(frozen=True, slots=True)
class TornadoBarView:
    """One input, lower and higher; pairs are `(with the lower input, with the higher input)`.

    Attributes:
        name: The input.
        steps: Relative change of the input, for example `(-0.1, 0.1)`.
        values: The metric in shown units.
        changes: Relative change of the metric from the candidate's own.
        fits: Whether the candidate fits the memory.
    """

    name: str
    steps: tuple[float, float]
    values: tuple[float, float]
    changes: tuple[float, float]
    fits: tuple[bool, bool]


@dataclass(frozen=True, slots=True)
class TornadoAxisView:
    """All inputs for one metric.

    Attributes:
        title: The metric with its unit.
        noun: Its name inside a sentence.
        unit: Its unit; may be empty.
        maximize: Whether more of it is better.
        digits: Decimal places of values.
        base: The candidate's own value in shown units.
        bars: Inputs, the one with the largest span first.
    """

    title: str
    noun: str
    unit: str
    maximize: bool
    digits: int
    base: float
    bars: tuple[TornadoBarView, ...]


@dataclass(frozen=True, slots=True)
class TornadoView:
    """The recommended candidate with one input at a time a little lower and higher.

    Attributes:
        number: Its number, if there is a candidate.
        axes: One a metric, the study's objectives first; empty where nothing could be computed.
        reason: Why `axes` is empty; else empty.
    """

    number: int | None
    axes: tuple[TornadoAxisView, ...]
    reason: str


def tornado_view(study: StudyResult, number: int | None) -> TornadoView:
    """Predicts a candidate again, with each input lower and higher.

    Args:
        study: The study.
        number: Number of the candidate, which is on the front; None where the front is empty.
    """
    first = next((record for record in study.front if record.number == number), None)
    if first is None:
        return TornadoView(None, (), "No candidate is on the front.")
    if study.trace is not None:
        return TornadoView(
            number,
            (),
            "A study of a captured trace does not keep the trace, so single inputs cannot be "
            "changed here; “dse trace whatif TRACE” changes them.",
        )
    try:
        bars = sensitivity(study, first.number, step=STEP)
    except DseError as error:
        return TornadoView(first.number, (), f"It could not be computed: {error}")
    own = {axis.metric: axis.maximize for axis in study.objectives}
    metrics = metric_formats(study)
    axes = (
        _axis(metrics[name], first, bars, own.get(name, metrics[name].maximize))
        for name in dict.fromkeys((*own, *_ALWAYS))
    )
    shown = tuple(axis for axis in axes if axis is not None)
    reason = "" if shown else "None of its metrics depends on these inputs."
    return TornadoView(first.number, shown, reason)


def _axis(
    metric: Metric,
    record: TrialRecord,
    bars: tuple[SensitivityBar, ...],
    maximize: bool,
) -> TornadoAxisView | None:
    """Returns None of metrics that are not known at the ends, or that no input moves."""
    base = record.metrics.get(metric.name, math.nan)
    if not math.isfinite(base) or base == 0:
        return None
    views = []
    for bar in bars:
        ends = bar.values(metric.name)
        if ends is None:
            return None
        low, high = ends
        views.append(
            TornadoBarView(
                name=bar.name,
                steps=(_rounded(bar.steps[0]), _rounded(bar.steps[1])),
                values=(_rounded(low * metric.scale), _rounded(high * metric.scale)),
                changes=(_rounded(low / base - 1), _rounded(high / base - 1)),
                fits=bar.feasible,
            )
        )
    if not any(change for view in views for change in view.changes):
        return None
    # The candidate itself belongs to the span: both ends may lie on the same side of it.
    views.sort(key=lambda view: min(0.0, *view.changes) - max(0.0, *view.changes))
    return TornadoAxisView(
        metric.title_with_unit,
        metric.noun,
        metric.unit,
        maximize,
        metric.digits,
        _rounded(base * metric.scale),
        tuple(views),
    )


def _rounded(value: float) -> float:
    """Rounds to six significant digits; what rounding leaves of a difference becomes 0."""
    return 0.0 if abs(value) < 1e-9 else rounded(value)
