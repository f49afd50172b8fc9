"""Fitting what FBGEMM's kernels take, and errors of rows that a fit did not see.

The constants of `HostRowsKernels` and of its `order` are fitted on the rows of one source
(`published_embeddings.FITTED`) by least squares of the logarithm of predicted over measured times
with a soft L1 loss, and rounded. The same fit without one shape, or on another source, tells what
they are worth where nothing was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from published_embeddings import FITTED, SHIPPED, embedding_rows, embedding_table, predicted
from table_errors import print_errors

from dse.machine.kernels import HostRowsKernels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    import pandas as pd

#: Source of another H100 with which the constants are fitted once more.
_OTHER = "benchmark_results.json"

#: Residual from which errors count less than their square.
_SOFT = 0.03

#: Weight of the logarithm of a constant's change; keeps those that no row decides.
_STAY = 0.02


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Errors on rows that a fit did not see.

    Attributes:
        what: Which rows.
        kernels: The fit on others.
        errors: Absolute relative errors; shape `(rows,)`.
    """

    what: str
    kernels: HostRowsKernels
    errors: NDArray[np.float64]


def fit_kernels(table: pd.DataFrame) -> HostRowsKernels:
    """Returns what kernels take, fitted on rows of a table.

    Args:
        table: Rows of `published_embeddings.embedding_table`, all of them times of such kernels.
    """
    from scipy.optimize import least_squares

    measured_s = 1e-3 * table.time_ms.to_numpy(np.float64)

    def residuals(change: NDArray[np.float64]) -> NDArray[np.float64]:
        logs = np.log(_predicted_s(table, _changed(change)) / measured_s)
        return np.concatenate([logs, _STAY * change])

    found = least_squares(residuals, np.zeros(6), loss="soft_l1", f_scale=_SOFT)
    return _changed(found.x)


def left_out(table: pd.DataFrame) -> Iterator[LeftOut]:
    """Yields each shape of the fitted source left out, then that source by a fit on the other."""
    fitted = table[table.source.str.contains(FITTED)]
    shapes = fitted[["lookups", "rows_per_table"]].drop_duplicates()
    for lookups, rows in shapes.itertuples(index=False):
        chosen = (fitted.lookups == lookups) & (fitted.rows_per_table == rows)
        if not chosen.all():
            what = f"without {lookups:,.0f} lookups of {rows:,} rows"
            yield _errors(what, fit_kernels(fitted[~chosen]), fitted[chosen])
    other = table[table.source.str.contains(_OTHER)]
    if len(other) and len(fitted):
        yield _errors(f"on {_OTHER} alone", fit_kernels(other), fitted)


def compare_embedding(path: Path, *, as_json: bool) -> None:
    """Prints errors of embedding kernels, or the same as JSON.

    Errors are split into fitted and held-out rows, then by source, placement and phase. As text,
    errors of fits that did not see some rows follow.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    print_errors(embedding_rows(path), as_json=as_json)
    if as_json:
        return
    for one in left_out(embedding_table(path)):
        print(f"refitted {one.what}: {_figures(one.errors)}")


def _figures(errors: NDArray[np.float64]) -> str:
    mean, median = 100 * errors.mean(), 100 * np.median(errors)
    return f"{len(errors)} rows, mean {mean:.1f}%, median {median:.1f}%"


def _errors(what: str, kernels: HostRowsKernels, rows: pd.DataFrame) -> LeftOut:
    measured_s = 1e-3 * rows.time_ms.to_numpy(np.float64)
    return LeftOut(what, kernels, np.abs(_predicted_s(rows, kernels) / measured_s - 1.0))


def _predicted_s(table: pd.DataFrame, kernels: HostRowsKernels) -> NDArray[np.float64]:
    return np.array([predicted(row, kernels)[0] for row in table.itertuples()])


def _changed(change: NDArray[np.float64]) -> HostRowsKernels:
    """Shipped constants, times the exponential of a change of each."""
    now, factor = SHIPPED, np.exp(change).tolist()
    return HostRowsKernels(
        order=replace(
            now.order,
            index_bytes=now.order.index_bytes * factor[0],
            update_floor_kernels=now.order.update_floor_kernels * factor[1],
        ),
        link_efficiency=now.link_efficiency * factor[2],
        written_back=now.written_back * factor[3],
        probe_unit_s=now.probe_unit_s * factor[4],
        prefetch_floor_kernels=now.prefetch_floor_kernels * factor[5],
    )
