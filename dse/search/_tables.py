"""Trials as tables: one row a configuration, for CSV and Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.search._evaluate import metric_values
from dse.space import Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from dse.search._records import TrialRecord
    from dse.space import Parameter

_BREAKDOWN = ("compute_s", "exposed_communication_s", "host_s", "idle_s")


def trial_table(records: Sequence[TrialRecord], parameters: Sequence[Parameter]) -> pd.DataFrame:
    """Returns records as a table.

    Columns: `number`, `status`, `on_front`, one per outer parameter, one per metric,
    `iteration_time_p5_s` and `_p95_s`, mean over ranks of each breakdown part, memory of the
    fullest rank, `planner`, `reason`. Cells of what was not evaluated are empty.

    Args:
        records: Trials in the order of the rows.
        parameters: Outer parameters in the order of their columns.
    """
    import pandas as pd

    names = [parameter.name for parameter in parameters]
    columns = _columns(names)
    frame = pd.DataFrame([_row(record, names) for record in records], columns=columns)
    for parameter in parameters:
        kinds = {type(choice) for choice in parameter.choices}
        if kinds == {int}:
            frame[parameter.name] = frame[parameter.name].astype("int64")
        elif kinds == {str}:
            frame[parameter.name] = frame[parameter.name].astype("string")
    return frame


def _columns(names: Sequence[str]) -> list[str]:
    metrics = [metric.value for metric in Metric if metric.value not in names]
    return [
        "number",
        "status",
        "on_front",
        *names,
        *metrics,
        "iteration_time_p5_s",
        "iteration_time_p95_s",
        *(f"mean_{part}" for part in _BREAKDOWN),
        "peak_memory_bytes",
        "planner",
        "reason",
    ]


def _row(record: TrialRecord, names: Sequence[str]) -> dict[str, object]:
    row: dict[str, object] = {
        "number": record.number,
        "status": record.status.value,
        "on_front": record.on_front,
        "planner": record.planner,
        "reason": record.reason,
    }
    prediction = record.prediction
    if prediction is not None and record.configuration is not None:
        for metric, value in metric_values(record.configuration, prediction).items():
            row[metric.value] = value
        row["iteration_time_p5_s"] = prediction.iteration_time_p5_s
        row["iteration_time_p95_s"] = prediction.iteration_time_p95_s
        for part in _BREAKDOWN:
            shares = [getattr(rank, part) for rank in prediction.breakdown]
            row[f"mean_{part}"] = sum(shares) / len(shares)
        row["peak_memory_bytes"] = max(prediction.memory_bytes_per_rank)
    row.update(record.parameters)
    return row
