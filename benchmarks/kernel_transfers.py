"""Errors of kernel models that are lent to a device that they were not fitted on.

A measured device is taken as if it had no table: the calibration of another one serves, with the
spread that platforms add for such a pair. The error is that of all rows of the left-out device's
table, beside the share of rows inside the 90 % interval.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
import math
from typing import TYPE_CHECKING

import numpy as np
from published_kernels import KernelRows, attention_rows, gemm_rows

from dse.machine.platforms import builtin_calibrations, load_platform

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dse.machine.platforms import Platform

#: Quantile of the normal distribution that bounds the 90 % interval.
_QUANTILE = 1.645

_LOW = "gemm/blackwell_and_low_precision.parquet"
_ATTENTION = "attention/causal_bf16.parquet"


@dataclass(frozen=True)
class Transfer:
    """A calibration that serves for another device.

    Attributes:
        target: Platform that is taken as if it had no table.
        file: Calibration of another device.
        added_spread: What platforms add to its spread for such a pair.
        table: Table of the left-out device.
        what: Precision and library of its rows.
    """

    target: str
    file: str
    added_spread: float
    table: str
    what: str


#: One generation of a chip on another board; one architecture to the next.
TRANSFERS = (
    Transfer("h200_sxm", "h100_sxm_gemm_bf16", 0.12, "gemm/h200_sxm.parquet", "bf16 sglang"),
    Transfer("h200_sxm", "h100_sxm_gemm_fp8", 0.30, "gemm/h200_sxm.parquet", "fp8 sglang"),
    Transfer(
        "h200_sxm", "h100_sxm_gemm_fp8_block", 0.30, "gemm/h200_sxm.parquet", "fp8_block sglang"
    ),
    Transfer("gb200_nvl72", "b200_sxm_gemm_bf16", 0.04, _LOW, "bf16 torch_flow"),
    Transfer("gb200_nvl72", "b200_sxm_gemm_fp8", 0.12, _LOW, "fp8 torch_flow"),
    Transfer("gb200_nvl72", "b200_sxm_gemm_fp8_block", 0.12, _LOW, "fp8_block deepgemm"),
    Transfer("gb200_nvl72", "b200_sxm_gemm_nvfp4", 0.12, _LOW, "nvfp4 torch_flow"),
    Transfer("b200_sxm", "h200_sxm_gemm_bf16", 0.20, _LOW, "bf16 torch_flow"),
    Transfer("b200_sxm", "h100_sxm_gemm_fp8_tensorrt_llm", 0.20, _LOW, "fp8 torch_flow"),
    Transfer("b200_sxm", "h100_sxm_gemm_fp8_block_tensorrt_llm", 0.20, _LOW, "fp8_block deepgemm"),
    Transfer("h100_sxm", "a100_sxm_80_gemm_bf16", 0.20, _LOW, "bf16 torch_flow"),
    Transfer("b200_sxm", "h100_sxm_attention_tensorrt_llm", 0.20, _ATTENTION, "bf16 torch_flow"),
    Transfer("h100_sxm", "b200_sxm_attention_tensorrt_llm", 0.20, _ATTENTION, "bf16 torch_flow"),
    Transfer("h100_sxm", "a100_sxm_80_attention", 0.20, _ATTENTION, "bf16 torch_flow"),
)


@dataclass(frozen=True)
class KernelTransferRow:
    """Errors of one transfer.

    Attributes:
        target: Platform that is taken as if it had no table.
        what: Precision and library of its rows.
        file: Calibration that served.
        points: Rows.
        mape: Mean absolute relative error.
        median_abs_error: Median absolute relative error.
        bias: Median of the logarithm of predicted over measured time.
        coverage: Share of rows inside the 90 % interval.
    """

    target: str
    what: str
    file: str
    points: int
    mape: float
    median_abs_error: float
    bias: float
    coverage: float

    def as_json(self) -> dict[str, str | int | float]:
        """Returns the row as plain values, with what names other rows of the program."""
        return {"device": self.target, "model": self.file, **asdict(self)}


def kernel_transfer_rows(data: Path) -> Iterator[KernelTransferRow]:
    """Yields the errors of each transfer whose table lies in a folder."""
    files = dict(builtin_calibrations())
    for one in TRANSFERS:
        if not (data / one.table).is_file():
            continue
        (kernel,) = files[one.file].kernels
        precision = one.what.split()[0]
        lent = replace(kernel, precisions=(precision,), implementation="")
        platform = load_platform(one.target)
        bare = replace(platform, device=replace(platform.device, calibrations=(lent,)))
        spread = math.hypot(kernel.spread, one.added_spread)
        (rows,) = _rows(data / one.table, bare, one)
        ratio = np.log(rows.predicted_s / rows.measured_s)
        yield KernelTransferRow(
            one.target,
            one.what,
            one.file,
            len(ratio),
            float(rows.errors.mean()),
            float(np.median(rows.errors)),
            float(np.median(ratio)),
            float((np.abs(ratio) <= _QUANTILE * spread).mean()),
        )


def _rows(table: Path, platform: Platform, one: Transfer) -> list[KernelRows]:
    predict = attention_rows if one.table == _ATTENTION else gemm_rows
    found = predict(table, {one.target: platform})
    return [rows for rows in found if (rows.platform, rows.what) == (one.target, one.what)]
