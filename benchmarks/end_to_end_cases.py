"""Published training steps beside what the model and a roofline predict of them.

Recommendation models are published in samples per second and read here, one reader a file;
transformers in seconds a step (`step_figures.py`). A case keeps the quantity of its source.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING, Any

from end_to_end_roofline import dlrm_roofline_s
from published_cases import (
    COLUMNS,
    HIPC22_COLUMNS,
    CaseResult,
    hipc22_cases,
    platform_of,
    precision_of,
    predict_case,
)
from tables import read_table

from dse.errors import ConfigError, DseError
from dse.model import load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from step_errors import StepError

RATE = "samples/s"
TIME = "s"


@dataclass(frozen=True, slots=True)
class EndToEndCase:
    """One published training step beside its predictions.

    Attributes:
        case: Name and setting.
        family: Cases whose figures are reported together.
        source: File of published figures.
        unit: `RATE` or `TIME`, of the five values below.
        measured: As published.
        predicted: By the model; NaN when it could not be predicted.
        low: Lower end of the model's 90 % interval.
        high: Upper end.
        roofline: By the roofline; NaN when it could not be predicted.
        step_error: Error of the step alone; None when it could not be predicted.
        problem: Why the model could not predict it; empty otherwise.
        note: What is known to make the comparison unfair; empty otherwise.
    """

    case: str
    family: str
    source: str
    unit: str
    measured: float
    predicted: float
    low: float
    high: float
    roofline: float
    step_error: StepError | None = None
    problem: str = ""
    note: str = ""

    @property
    def error(self) -> float:
        """Relative error of the model, with its sign."""
        return self.predicted / self.measured - 1


def end_to_end_cases(folder: Path) -> tuple[list[EndToEndCase], list[str]]:
    """Predicts every case of the published files in a folder.

    Returns:
        The cases in the order of the files, and a line for every file that could not be used.

    Raises:
        ConfigError: No file of the folder could be used.
    """
    cases: list[EndToEndCase] = []
    left_out = []
    for name, reader in READERS.items():
        try:
            cases += reader(folder / name)
        except DseError as error:
            left_out.append(f"{name} is left out: {error}")
    if not cases:
        raise ConfigError("\n".join([f"no published cases in {folder}", *left_out]))
    return cases, left_out


def _dlrm_cases(path: Path) -> Iterator[EndToEndCase]:
    for _, row in read_table(path, COLUMNS).iterrows():
        yield _rate_case(predict_case(row), path, row["model"], row)


def _hipc22_cases(path: Path) -> Iterator[EndToEndCase]:
    rows = read_table(path, HIPC22_COLUMNS)
    for (_, row), result in zip(rows.iterrows(), hipc22_cases(path), strict=True):
        named = {"gpu": row["gpu"], "gpus": 1, "precision": "FP32", "global_batch": row["batch"]}
        yield _rate_case(result, path, f"mlpm_{row['model']}", named)


#: How each published file is read.
READERS: dict[str, Callable[[Path], Iterator[EndToEndCase]]] = {
    "dlrm_training_cases.csv": _dlrm_cases,
    "hipc22_dlrm_single_gpu_iteration_ms.csv": _hipc22_cases,
}


def _rate_case(result: CaseResult, path: Path, model: str, row: Any) -> EndToEndCase:
    try:
        cluster = platform_of(str(row["gpu"])).cluster(int(row["gpus"]))
        precision = precision_of(str(row["precision"]))
        batch = int(row["global_batch"])
        roofline = batch / dlrm_roofline_s(load_model(model), cluster, batch, precision)
    except (DseError, ValueError):
        roofline = math.nan
    return EndToEndCase(
        case=result.case,
        family=result.family,
        source=path.name,
        unit=RATE,
        measured=result.published_samples_per_s,
        predicted=result.predicted_samples_per_s,
        low=result.predicted_p5_samples_per_s,
        high=result.predicted_p95_samples_per_s,
        roofline=roofline,
        step_error=result.step_error,
        problem=result.problem,
        note=result.note,
    )
