"""Predicted against published training throughput, case by case.

A file of cases needs the columns case, model, gpu, gpus, nodes, interconnect, global_batch,
precision, samples_per_s, source and note. Models are named by built-in name or alias. Each case
becomes a configuration by the rules below, which look at the stated hardware and software only;
the sharding plan is the solver's, because the sources do not state theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
import math
import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from dse.errors import DseError
from dse.hardware import Precision
from dse.platforms import Platform, load_platform
from dse.prediction import LaunchMode, PlanScorer, Problem, Software
from dse.sharding import ShardingType
from dse.solver import SolverSettings, solve
from dse.workloads import load_model

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ("case", "model", "gpu", "gpus", "global_batch", "precision", "samples_per_s")

#: First matching pattern of the device name (spaces and case ignored) decides the platform.
PLATFORM_PATTERNS = (
    (r"v100.*sxm3|dgx-?2", "v100_dgx2"),
    (r"v100", "v100_dgx1"),
    (r"a100.*pcie", "a100_pcie"),
    (r"a100.*40gb", "a100_sxm_40"),
    (r"a100", "a100_sxm_80"),
    (r"h100.*pcie", "h100_pcie"),
    (r"h200", "h200_sxm"),
    (r"h100", "h100_sxm"),
    (r"b200", "b200_sxm"),
    (r"l40s", "l40s_pcie"),
)


@dataclass(frozen=True)
class CaseResult:
    """One published case beside its prediction.

    Attributes:
        case: Name and setting of the case.
        published_samples_per_s: As published.
        predicted_samples_per_s: By the model; NaN when it could not be predicted.
        problem: Why it could not be predicted; empty otherwise.
    """

    case: str
    published_samples_per_s: float
    predicted_samples_per_s: float
    problem: str = ""

    @property
    def error(self) -> float:
        """Relative error of the predicted throughput."""
        return self.predicted_samples_per_s / self.published_samples_per_s - 1


def platform_of(gpu: str) -> Platform:
    """Returns the platform of a device name as the sources write it."""
    squeezed = gpu.lower().replace(" ", "")
    for pattern, name in PLATFORM_PATTERNS:
        if re.search(pattern, squeezed):
            return load_platform(name)
    raise DseError(f"no platform is known for the device `{gpu}`")


def precision_of(text: str) -> Precision:
    """Returns the arithmetic of a case: AMP and half precision, TF32 where named, else FP32."""
    lowered = text.lower()
    if "amp" in lowered and "no --amp" not in lowered:
        return Precision.FP16
    if "fp16" in lowered or "half" in lowered:
        return Precision.FP16
    if "bf16" in lowered:
        return Precision.BF16
    return Precision.TF32 if "tf32" in lowered else Precision.FP32


def software_of(case: str, note: str, precision: Precision) -> Software:
    """Returns the software of a case: captured graphs where the source says or is known to."""
    words = f"{case} {note}".lower()
    captured = any(name in words for name in ("cuda graphs", "hugectr", "mlperf"))
    half = precision in (Precision.FP16, Precision.BF16)
    return Software(
        launch=LaunchMode.CUDA_GRAPHS if captured else LaunchMode.EAGER,
        communication_precision_bytes=2 if half else 4,
    )


def predict_case(row: pd.Series) -> CaseResult:
    """Predicts one row of the file."""
    name = (
        f"{row['case']} {row['gpus']}×{row['gpu']} batch {row['global_batch']} {row['precision']}"
    )
    published = float(row["samples_per_s"])
    try:
        model = load_model(str(row["model"]))
        world_size = int(row["gpus"])
        precision = precision_of(str(row["precision"]))
        software = software_of(str(row["case"]), str(row.get("note", "")), precision)
        # The last batch of an uneven split is smaller; the nearest even split is predicted.
        batch = math.ceil(int(row["global_batch"]) / world_size) * world_size
        cluster = platform_of(str(row["gpu"])).cluster(world_size)
        scorer = PlanScorer(Problem(model, cluster, batch, precision, software))
        solved = solve(scorer, frozenset(ShardingType), SolverSettings())
        seconds = float(scorer.score([solved.plan]).iteration_time_s[0])
        return CaseResult(name, published, batch / seconds)
    except DseError as error:
        return CaseResult(name, published, math.nan, str(error))


def overall(results: list[CaseResult]) -> dict[str, float]:
    """Returns the figures over all cases that could be predicted."""
    done = [result for result in results if not result.problem]
    errors = np.array([abs(result.error) for result in done])
    tau = kendalltau(
        [result.predicted_samples_per_s for result in done],
        [result.published_samples_per_s for result in done],
    ).statistic
    return {
        "cases": len(done),
        "not_predicted": len(results) - len(done),
        "median_abs_error": float(np.median(errors)),
        "mean_abs_error": float(errors.mean()),
        "kendall_tau": float(tau),
    }


def compare_published(path: Path, *, as_json: bool) -> None:
    """Predicts every case of a file and prints the errors.

    Raises:
        DseError: The file cannot be read or lacks a column.
    """
    try:
        cases = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DseError(f"cannot read {path}: {error}") from error
    missing = [column for column in COLUMNS if column not in cases.columns]
    if missing:
        raise DseError(f"{path} lacks the column {missing[0]}")
    if not len(cases):
        raise DseError(f"{path} has no cases")
    results = [predict_case(row) for _, row in cases.iterrows()]
    figures = overall(results)
    if as_json:
        listed = [
            {
                "case": result.case,
                "published_samples_per_s": result.published_samples_per_s,
                "predicted_samples_per_s": None
                if result.problem
                else result.predicted_samples_per_s,
                "error": None if result.problem else result.error,
                "problem": result.problem,
            }
            for result in results
        ]
        print(json.dumps({"cases": listed, "overall": figures}, indent=1))
        return
    print(f"{'published':>12} {'predicted':>12} {'error':>8}  case (samples/s)")
    for result in results:
        if result.problem:
            print(
                f"{result.published_samples_per_s:12,.0f} {'–':>12} {'–':>8}  {result.case}: "
                f"{result.problem}"
            )
            continue
        print(
            f"{result.published_samples_per_s:12,.0f} {result.predicted_samples_per_s:12,.0f} "
            f"{100 * result.error:+7.1f}%  {result.case}"
        )
    print(
        f"{figures['cases']} cases: median error {100 * figures['median_abs_error']:.1f} %, "
        f"mean {100 * figures['mean_abs_error']:.1f} %, Kendall tau {figures['kendall_tau']:.2f}"
    )
