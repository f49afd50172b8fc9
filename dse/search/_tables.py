"""Trials as tables: one row a configuration, for CSV and Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.workload import workload_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from dse.search._records import TrialRecord

_BREAKDOWN = ("compute_s", "exposed_communication_s", "host_s", "idle_s")
#: What spreadsheets take for the beginning of a formula, some after a blank.
_FORMULA = ("=", "+", "-", "@", "\t", "\n")


def trial_table(
    records: Sequence[TrialRecord],
    names: Sequence[str],
    *,
    kind: str = "dlrm",
) -> pd.DataFrame:
    """Returns records as a table.

    Columns: `number`, `status`, `on_front`, `equal_configurations` (others of the space with the
    same outcome), one per outer parameter, one per metric, mean over ranks (of a transformer:
    pipeline stages) of each breakdown part, the work with the largest share of the critical path
    (`bound_by`) and that share, what the price is of (`rented`), the network between nodes or pods
    (`connected_by`; empty inside one), `reason`; of a model also `iteration_time_p5_s` and
    `_p95_s` and the memory of the fullest rank; of a recommendation model `lower_bound_s` and
    `plan_gap` (of the front only) and `planner`.
    Cells of what was not evaluated are empty.

    Args:
        records: Trials in the order of the rows.
        names: Outer parameters in the order of their columns.
        kind: What kind of workload the study is of.
    """
    import pandas as pd

    columns = _columns(names, kind)
    frame = pd.DataFrame([_row(record, names) for record in records], columns=columns)
    for name in {"lower_bound_s", "plan_gap"} & set(columns):
        # A column without any value would have no type of its own.
        frame[name] = frame[name].astype("float64")
    for name in names:
        types = {type(value) for value in frame[name]}
        if types == {int}:
            frame[name] = frame[name].astype("int64")
        elif types <= {str}:
            frame[name] = frame[name].astype("string")
    return frame


def csv_text(frame: pd.DataFrame) -> str:
    """Returns a table as CSV that a spreadsheet does not take for formulas.

    Text that begins like one (`=`, `+`, `-`, `@`, a tabulator or a line end; names come from files
    of others) gets an apostrophe in front. Numbers, and the Parquet file, stay as they are.
    """
    import pandas as pd

    safe = frame.rename(columns=_plain_cell)
    for name in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[name].dtype):
            safe[name] = safe[name].map(_plain_cell, na_action="ignore")
    return str(safe.to_csv(index=False, lineterminator="\n"))


def _plain_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    # Only line feeds are quoted; the other end of a line would begin a row of its own.
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if text.startswith(_FORMULA) else text


def _columns(names: Sequence[str], kind: str) -> list[str]:
    workload = workload_kind(kind)
    metrics = [metric.name for metric in workload.metrics if metric.name not in names]
    first = ["number", "status", "on_front", "equal_configurations", *names, *metrics]
    parts = [*(f"mean_{part}" for part in _BREAKDOWN), "bound_by", "bound_share"]
    parts += ["rented", "connected_by"]
    if workload.brings_machine:
        # A captured step says neither how it varies nor what memory holds.
        return [*first, *parts, "reason"]
    interval = ["iteration_time_p5_s", "iteration_time_p95_s"]
    plan = ["lower_bound_s", "plan_gap", "planner"] if workload.finds_plans else []
    columns = [*first, *interval, *parts, "peak_memory_bytes", *plan, "reason"]
    return list(dict.fromkeys(columns))


def _row(record: TrialRecord, names: Sequence[str]) -> dict[str, object]:
    row: dict[str, object] = {
        "number": record.number,
        "status": record.status.value,
        "on_front": record.on_front,
        "equal_configurations": record.equal_count,
        "planner": record.planner,
        "reason": record.reason,
    }
    row |= record.metrics
    prediction = record.prediction
    if prediction is not None:
        row["iteration_time_p5_s"] = prediction.iteration_time_p5_s
        row["iteration_time_p95_s"] = prediction.iteration_time_p95_s
        for part in _BREAKDOWN:
            shares = [getattr(rank, part) for rank in prediction.breakdown]
            # Cost models of others may not say where the time goes.
            row[f"mean_{part}"] = sum(shares) / len(shares) if shares else None
        row["bound_by"], row["bound_share"] = prediction.bound_by, prediction.bound_share
        row["rented"], row["connected_by"] = prediction.rented, prediction.network
        row["lower_bound_s"] = record.lower_bound_s
        row["plan_gap"] = record.plan_gap
        row["peak_memory_bytes"] = prediction.peak_memory_bytes
    row.update(record.parameters)
    return row
