"""Trials as tables: one row a configuration, for CSV and Parquet."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING

from dse.workload import workload_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arro3.core import Array

    from dse.search._records import TrialRecord

    #: Values by the name of the column, a row of the table at each index.
    Columns = Mapping[str, Sequence[object]]

_BREAKDOWN = ("compute_s", "exposed_communication_s", "host_s", "idle_s")
#: What spreadsheets take for the beginning of a formula, some after a blank.
_FORMULA = ("=", "+", "-", "@", "\t", "\n")


def trial_table(
    records: Sequence[TrialRecord],
    names: Sequence[str],
    *,
    kind: str = "dlrm",
) -> dict[str, list[object]]:
    """Returns records as a table: the values of each column by its name.

    Columns: `number`, `status`, `on_front`, `equal_configurations` (others of the space with the
    same outcome), one per outer parameter, one per metric, mean over ranks (of a transformer:
    pipeline stages) of each breakdown part, the work with the largest share of the critical path
    (`bound_by`) and that share, what the price is of (`rented`), the network between nodes or pods
    (`connected_by`; empty inside one), `reason`; of a model also `iteration_time_p5_s` and
    `_p95_s` and the memory of the fullest rank; of a recommendation model `lower_bound_s` and
    `plan_gap` (of the front only) and `planner`.
    Values of what was not evaluated are None.

    Args:
        records: Trials in the order of the rows.
        names: Outer parameters in the order of their columns.
        kind: What kind of workload the study is of.
    """
    rows = [_row(record) for record in records]
    return {name: [row.get(name) for row in rows] for name in _columns(names, kind)}


def csv_text(table: Columns) -> str:
    """Returns a table as CSV that a spreadsheet does not take for formulas.

    Text that begins like one (`=`, `+`, `-`, `@`, a tabulator or a line end; names come from files
    of others) gets an apostrophe in front. Numbers, and the Parquet file, stay as they are.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_plain_cell, table))
    writer.writerows(map(_plain_cell, row) for row in zip(*table.values(), strict=True))
    return text.getvalue()


def parquet_bytes(table: Columns) -> bytes:
    """Returns a table as a Parquet file."""
    from arro3.core import Table
    from arro3.io import write_parquet

    file = io.BytesIO()
    write_parquet(Table.from_pydict({name: _arrow(table[name]) for name in table}), file)
    return file.getvalue()


def _arrow(values: Sequence[object]) -> Array:
    """Returns a column of Arrow; numbers where nothing is known, text where kinds differ."""
    from arro3.core import Array, DataType

    known = [None if value is None or value != value else value for value in values]
    kinds = {type(value) for value in known if value is not None}
    if kinds == {bool}:
        return Array(known, DataType.bool())
    if kinds == {int}:
        return Array(known, DataType.int64())
    if kinds <= {int, float}:
        return Array(known, DataType.float64())
    texts = [None if value is None else str(value) for value in known]
    return Array(texts, DataType.string())


def _plain_cell(value: object) -> object:
    if not isinstance(value, str):
        return None if isinstance(value, float) and math.isnan(value) else value
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


def _row(record: TrialRecord) -> dict[str, object]:
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
