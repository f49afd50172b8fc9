"""Predicted against published times of single kernels: products, causal attention and experts.

A row names its device (`system`, or `device` as the driver calls it), its library (`kernel` or
`kernel_source`) and its precision. It is predicted by the calibration of that library where the
platform has one, else by the platform's first. What cannot be predicted carries its problem and is
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from table_errors import error_figures
from tables import read_table

from dse.calibration.measurements import GEMM_PRECISIONS
from dse.errors import DseError
from dse.machine import Precision
from dse.machine.platforms import Platform, load_platform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Predict = Callable[[Platform, str, "pd.DataFrame"], NDArray[np.float64]]

#: Platforms of devices by the names that published tables use.
_PLATFORMS = {
    "a100_sxm": "a100_sxm_80",
    "gb200": "gb200_nvl72",
    "NVIDIA A100-SXM4-80GB": "a100_sxm_80",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H200": "h200_sxm",
    "NVIDIA B200": "b200_sxm",
}

#: Libraries by the names that published tables use for their kernels.
_LIBRARIES = {
    "torch_flow": "tensorrt_llm",
    "deepgemm": "deepgemm",
    "vllm_default": "vllm",
    "sglang": "sglang",
    "vllm_flash_attn_fa3": "flash_attention_3_vllm",
    "fa3": "flash_attention_3",
    "vllm_flashinfer_trtllmprefill": "flashinfer",
}

#: Precisions by the names that published tables use.
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}

_SECONDS = {"latency_us": 1e-6, "latency": 1e-3, "time_s": 1.0}


@dataclass(frozen=True)
class KernelRows:
    """Rows of one device, library and precision with their prediction.

    Attributes:
        platform: Platform; the file's name of the device where there is none.
        what: Precision and library.
        measured_s: Published times; shape `(rows,)`.
        predicted_s: Predicted times; empty with a problem.
        problem: Why the rows were not predicted; empty if they were.
    """

    platform: str
    what: str
    measured_s: NDArray[np.float64]
    predicted_s: NDArray[np.float64]
    problem: str = ""

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.measured_s)

    @property
    def errors(self) -> NDArray[np.float64]:
        """Absolute relative errors; empty with a problem."""
        if self.problem:
            return np.empty(0)
        return np.asarray(np.abs(self.predicted_s / self.measured_s - 1.0))


def gemm_rows(path: Path, only: Mapping[str, Platform] | None = None) -> list[KernelRows]:
    """Returns every row of a table of products with its prediction.

    Args:
        path: The table.
        only: Predict only these platforms, by name, as they are given.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    return list(_rows(_table(path, ("m", "n", "k")), _predict_gemm, only))


def attention_rows(path: Path, only: Mapping[str, Platform] | None = None) -> list[KernelRows]:
    """Returns every row of a table of causal forward attention with its prediction.

    Args:
        path: The table.
        only: Predict only these platforms, by name, as they are given.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    columns = ("batch", "seq", "heads", "kv_heads", "head_dim")
    return list(_rows(_table(path, columns), _predict_attention, only))


def expert_rows(path: Path, only: Mapping[str, Platform] | None = None) -> list[KernelRows]:
    """Returns every row of a table of blocks of experts with its prediction.

    Rows of one distribution of tokens over experts are predicted together. Where it is uneven and
    several ranks share the experts, the table does not say how many rows the measured one had.

    Args:
        path: The table.
        only: Predict only these platforms, by name, as they are given.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    columns = ("tokens", "hidden", "inter", "topk", "experts", "moe_tp", "moe_ep")
    table = _table(path, (*columns, "distribution"))
    alone = table.moe_ep.eq(1).map({True: "", False: " on several ranks"})
    spread = table.distribution.astype(str) + alone.where(table.distribution != "balanced", "")
    named = table.assign(library=table.library + ", " + spread)
    return list(_rows(named, _predict_experts, only))


def compare_kernels(
    read: Callable[[Path], list[KernelRows]], path: Path, *, as_json: bool
) -> None:
    """Prints errors of one kind of kernel by platform and by library, or the same as JSON.

    Args:
        read: `gemm_rows`, `attention_rows` or `expert_rows`.
        path: The table.
        as_json: Print everything as JSON.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    rows = read(path)
    document = kernels_document(rows)
    if as_json:
        print(json.dumps(document, indent=1))
        return
    print(f"{'platform':<14} {'what':<36} {'points':>8} {'MAPE':>7} {'median':>7}")
    for row in rows:
        if row.problem:
            print(f"{row.platform:<14} {row.what:<36} {0:8} {row.count:,} × {row.problem}")
            continue
        errors = row.errors
        print(
            f"{row.platform:<14} {row.what:<36} {len(errors):8,} {100 * errors.mean():6.1f}% "
            f"{100 * np.median(errors):6.1f}%"
        )


def kernels_document(rows: list[KernelRows]) -> dict[str, object]:
    """Returns the errors of all rows and of each platform, and what was not predicted.

    `points` are the predicted rows, as in every table of `table_errors.py`.
    """
    platforms = list(dict.fromkeys(row.platform for row in rows))
    return {
        "overall": _figures(rows),
        "by": {
            name: {
                **_figures([row for row in rows if row.platform == name]),
                "kernels": {row.what: _figures([row]) for row in rows if row.platform == name},
            }
            for name in platforms
        },
        "rows": sum(row.count for row in rows),
        "problems": [
            {
                "platform": row.platform,
                "what": row.what,
                "rows": row.count,
                "problem": row.problem,
            }
            for row in rows
            if row.problem
        ],
    }


def _figures(rows: list[KernelRows]) -> dict[str, int | float | None]:
    errors = np.concatenate([np.empty(0), *(row.errors for row in rows)])
    return error_figures(errors, sum(row.count for row in rows) - len(errors))


def _table(path: Path, sizes: tuple[str, ...]) -> pd.DataFrame:
    """Reads a table; adds the columns `device_name`, `library`, `type` and `measured_s`.

    Raises:
        DseError: The file cannot be read, or lacks a column.
    """
    table = read_table(path, sizes)

    def first(*names: str) -> str:
        return next((name for name in names if name in table), "")

    device, time = first("system", "device", "platform"), first(*_SECONDS)
    if not device or not time:
        raise DseError(
            f"{path}: expected a column `system` or `device`, and one of {', '.join(_SECONDS)}"
        )
    library, kind = first("kernel", "kernel_source"), first("dtype", "gemm_dtype")
    return table.assign(
        device_name=table[device].astype(str),
        library=table[library].astype(str) if library else "",
        type=table[kind].astype(str) if kind else "bf16",
        measured_s=pd.to_numeric(table[time], errors="coerce") * _SECONDS[time],
    )


def _rows(
    table: pd.DataFrame, predict: Predict, only: Mapping[str, Platform] | None
) -> Iterator[KernelRows]:
    for (device, library, kind), part in table.groupby(["device_name", "library", "type"]):
        name = _PLATFORMS.get(str(device), str(device))
        if only is not None and name not in only:
            continue
        precision = _PRECISIONS.get(str(kind), str(kind))
        what = " ".join(word for word in (precision, str(library)) if word)
        possible = (part.measured_s > 0).to_numpy()
        if not possible.all():
            wrong = part[~possible]
            yield _problem(name, what, wrong, "the time is missing, zero or negative")
            part = part[possible]
        if not len(part):
            continue
        try:
            platform = load_platform(name) if only is None else only[name]
            predicted_s = predict(platform, _precision(precision), part)
        except DseError as error:
            yield _problem(name, what, part, str(error))
            continue
        yield KernelRows(name, what, part.measured_s.to_numpy(np.float64), predicted_s)


def _precision(name: str) -> str:
    """Returns the name of a precision.

    Raises:
        DseError: It is not one of dse's.
    """
    if name not in set(Precision):
        reason = "is not modelled" if name in GEMM_PRECISIONS else "is not known"
        raise DseError(f"precision `{name}` {reason}")
    return name


def _problem(platform: str, what: str, part: pd.DataFrame, problem: str) -> KernelRows:
    times_s = part.measured_s.to_numpy(np.float64)
    return KernelRows(platform, what, times_s, np.empty(0), problem)


def _predict_gemm(platform: Platform, precision: str, part: pd.DataFrame) -> NDArray[np.float64]:
    return platform.kernel_time(
        "gemm",
        **{name: part[name].to_numpy(np.float64) for name in ("m", "n", "k")},
        precision=precision,
        implementation=_measured(platform, "gemm", precision, part),
    )


def _predict_attention(
    platform: Platform, precision: str, part: pd.DataFrame
) -> NDArray[np.float64]:
    columns = {
        "batch": "batch",
        "heads": "heads",
        "kv_heads": "kv_heads",
        "queries": "seq",
        "keys": "seq",
        "dim": "head_dim",
    }
    return platform.kernel_time(
        "attention",
        **{name: part[column].to_numpy(np.float64) for name, column in columns.items()},
        causal=True,
        precision=precision,
        implementation=_measured(platform, "attention", precision, part),
    )


def _predict_experts(
    platform: Platform, precision: str, part: pd.DataFrame
) -> NDArray[np.float64]:
    library = part.library.iloc[0]
    if "nongated" in library:
        raise DseError("experts without a gate are not modelled")
    if library.endswith("on several ranks"):
        raise DseError("the rows of a rank are not stated")
    tokens, ranks = part.tokens.to_numpy(np.float64), part.moe_ep.to_numpy(np.float64)
    rows = tokens * part.topk.to_numpy(np.float64) / ranks
    return platform.kernel_time(
        "experts",
        tokens=np.minimum(tokens, rows),
        rows=rows,
        experts=part.experts.to_numpy(np.float64) / ranks,
        hidden=part.hidden.to_numpy(np.float64),
        inner=part.inter.to_numpy(np.float64) / part.moe_tp.to_numpy(np.float64),
        precision=precision,
    )


def _measured(platform: Platform, op: str, precision: str, part: pd.DataFrame) -> str:
    """Returns the library of the rows if the platform has its kernels, else nothing."""
    library = _LIBRARIES.get(part.library.iloc[0], "")
    found = platform.device.calibration(op, Precision(precision), library)
    return library if library and found is not None else ""
