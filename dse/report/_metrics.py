"""Metrics as tables and pages show them."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING

from dse._text.digits import decimals, dollars, significant
from dse.report.console import UNKNOWN
from dse.workload import COST, workload_kind

if TYPE_CHECKING:
    from dse.search import StudyResult
    from dse.search.analyse import Choice
    from dse.workload import Metric, ParameterValue, Prediction

#: Rates from here on are written in millions.
_MILLIONS_FROM = 1e6


def metric_formats(study: StudyResult, beside: StudyResult | None = None) -> dict[str, Metric]:
    """Returns what each metric of a study is, in the order of columns.

    Costs are of a billion samples or tokens, with three digits of the least on the front.

    Args:
        study: The study.
        beside: One that is shown in the same units. If its samples have another number of tokens,
            or none, costs are of a billion samples.
    """
    formats = {metric.name: metric for metric in workload_kind(study.kind).metrics}
    fronts = [*study.front, *(() if beside is None else beside.front)]
    predictions = [record.prediction for record in fronts if record.prediction is not None]
    priced = [(each, cost) for each in predictions if (cost := each.cost_usd_per_billion)]
    if not priced or COST.name not in formats:
        return formats
    # All samples of a study have the same number of tokens.
    scales = [cost / (each.cost_usd_per_million_samples or 1.0) for each, cost in priced]
    form = formats[COST.name]
    if len({each.counts for each, _ in priced}) == 1 and math.isclose(min(scales), max(scales)):
        unit = f"USD per billion {priced[0][0].counts}"
        form = replace(form, unit=unit, scale=scales[0])
    least = min(each.cost_usd_per_million_samples or 0.0 for each, _ in priced)
    formats[COST.name] = replace(form, digits=decimals(form.scale * least))
    return formats


def front_table(study: StudyResult) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Returns headings and rows of the front: objectives, and what was chosen among several."""
    chosen = [one.name for one in study.parameters if len(set(one.choices)) > 1]
    metrics = [metric_formats(study)[objective.metric] for objective in study.objectives]
    heads = (
        "#",
        *(metric.title_with_unit for metric in metrics),
        *(name.replace("_", " ").capitalize() for name in chosen),
    )
    rows = []
    for record in study.front:
        given, values = dict(record.parameters), zip(metrics, record.values, strict=True)
        figures = [metric.text(value) for metric, value in values]
        rows.append((f"{record.number}", *figures, *(_choice(given[name]) for name in chosen)))
    return heads, tuple(rows)


def _choice(value: ParameterValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def with_number(metric: Metric, number: int | None, value: float) -> str:
    """Formats a value with the number of its candidate; None stands for no candidate."""
    return UNKNOWN if number is None else f"{metric.text(value)} (#{number})"


def format_price(usd_per_hour: float | None, rented: str) -> str:
    """Returns the price of all machines and whose it is; `no price` where it is not known."""
    if usd_per_hour is None:
        return "no price"
    return f"{dollars(usd_per_hour, grouped=True)} USD/h" + (f", {rented}" if rented else "")


def format_cost(of: Prediction | Choice) -> str:
    """Returns the cost of a billion samples or tokens; `no price` where it is not known."""
    cost = of.cost_usd_per_billion
    return "no price" if cost is None else f"{significant(cost)} USD per billion {of.counts}"


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
    return f"{scale * per_s:,.{decimals(scale * scale_of)}f}", prefix


def rate_scale(per_s: float) -> tuple[float, str]:
    """Returns the factor by which a throughput is shown, and the prefix of its unit."""
    return (1e-6, "M ") if per_s >= _MILLIONS_FROM else (1.0, "")
