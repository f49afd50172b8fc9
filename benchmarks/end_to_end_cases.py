"""Published training steps beside what the model and a roofline predict of them.

Each file of published figures has one reader, which joins the predictions of the full model with
those of the roofline row by row. Recommendation models are published in samples per second,
transformers in seconds a step; a case keeps the quantity of its source.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
import re
from typing import TYPE_CHECKING, Any

from end_to_end_roofline import TransformerStep, dlrm_roofline_s, transformer_roofline_s
import pandas as pd
from published_cases import CaseResult, hipc22_cases, platform_of, precision_of, predict_case
from transformer_cases import gpt_cases, mpt_cases

from dse.errors import ConfigError, DseError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import load_dlrm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from published_steps import PublishedStep

_FAMILIES = {"megatron": "gpt", "composer": "mpt fsdp"}

RATE = "samples/s"
TIME = "s"

#: Depth and width of the MPT models by name (llm-foundry's configurations); their parameter
#: counts follow as 12 · layers · hidden² + 50,368 · hidden.
_MPT_SIZES = {
    "125m": (12, 768),
    "350m": (24, 1024),
    "760m": (24, 1536),
    "1b": (24, 2048),
    "3b": (32, 2560),
    "7b": (32, 4096),
    "13b": (40, 5120),
    "30b": (48, 7168),
    "70b": (80, 8192),
}
_MPT_VOCABULARY = 50_368


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
        share_faster: Share of the model's drawn step times that are below the measured one; NaN
            when it could not be predicted.
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
    share_faster: float = math.nan
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
    for _, row in _read(path).iterrows():
        yield _rate_case(predict_case(row), path, row["model"], row)


def _hipc22_cases(path: Path) -> Iterator[EndToEndCase]:
    rows = _read(path)
    for (_, row), result in zip(rows.iterrows(), hipc22_cases(path), strict=True):
        named = {"gpu": row["gpu"], "gpus": 1, "precision": "FP32", "global_batch": row["batch"]}
        yield _rate_case(result, path, f"mlpm_{row['model']}", named)


def _gpt_cases(path: Path) -> Iterator[EndToEndCase]:
    rows = _read(path)
    for (_, row), result in zip(rows.iterrows(), gpt_cases(path), strict=True):
        micro_batch = row["micro_batch"]
        step = TransformerStep(
            layers=int(row["layers"]),
            hidden=int(row["hidden"]),
            sequence=int(row["seq"]),
            vocabulary=int(row["vocab"]),
            global_batch=int(row["global_batch"]),
            micro_batch=1 if pd.isna(micro_batch) else int(micro_batch),
            tensor=int(row["tp"]),
            pipeline=int(row["pp"]),
            recomputed=row["recompute"] == "full",
        )
        yield _time_case(result, path, step, "a100_sxm_80", int(row["gpus"]))


def _mpt_cases(path: Path) -> Iterator[EndToEndCase]:
    rows = _read(path)
    for (_, row), result in zip(rows.iterrows(), mpt_cases(path), strict=True):
        layers, hidden = _MPT_SIZES[str(row["Model"])]
        step = TransformerStep(
            layers=layers,
            hidden=hidden,
            sequence=int(row["SeqLen (T)"]),
            vocabulary=_MPT_VOCABULARY,
            global_batch=int(row["GlobalBatchSize"]),
            micro_batch=int(row["MicroBatchSize"]),
            sharded=True,
            recomputed=bool(row["Activation Checkpointing"]),
        )
        size = re.sub(r"\D", "", str(row["GPU"]).removeprefix("a100"))
        yield _time_case(result, path, step, f"a100_sxm_{size}", int(row["# GPUs"]))


#: How each published file is read.
READERS: dict[str, Callable[[Path], Iterator[EndToEndCase]]] = {
    "dlrm_training_cases.csv": _dlrm_cases,
    "hipc22_dlrm_single_gpu_iteration_ms.csv": _hipc22_cases,
    "transformer_training_cases.csv": _gpt_cases,
    "mpt_fsdp_training_cases.csv": _mpt_cases,
}


def _read(path: Path) -> pd.DataFrame:
    try:
        rows = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not len(rows):
        raise ConfigError(f"{path} has no cases")
    return rows


def _rate_case(result: CaseResult, path: Path, model: str, row: Any) -> EndToEndCase:
    try:
        cluster = platform_of(str(row["gpu"])).cluster(int(row["gpus"]))
        precision = precision_of(str(row["precision"]))
        batch = int(row["global_batch"])
        roofline = batch / dlrm_roofline_s(load_dlrm(model), cluster, batch, precision)
    except DseError:
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
        share_faster=result.share_faster,
        problem=result.problem,
        note=result.note,
    )


def _time_case(
    result: PublishedStep, path: Path, step: TransformerStep, platform: str, ranks: int
) -> EndToEndCase:
    assert result.job is not None
    cluster = load_platform(platform).cluster(ranks)
    return EndToEndCase(
        case=f"{result.case}, micro batch {result.job.parallelism.micro_batch_size}",
        family=_FAMILIES[result.program],
        source=path.name,
        unit=TIME,
        measured=result.measured_s,
        predicted=result.predicted_s,
        low=result.low_s,
        high=result.high_s,
        roofline=transformer_roofline_s(step, cluster, Precision.BF16),
        share_faster=result.share_faster,
    )
