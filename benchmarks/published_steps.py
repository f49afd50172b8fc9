"""Predicted against published times of training steps of transformers, one row a step.

The file has one column for each parameter: architecture (`layers` … `tied`), machine, degrees of
parallelism, precision, and the name of the training program. A row that cannot be predicted
carries its problem and is counted.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
import json
import math
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import DseError
from dse.machine import Precision
from dse.machine.platforms import Platform, load_platform
from dse.model import AttentionKind, TransformerModel
from dse.workload import load_workload, predict_job
from dse.workload.transformer import TRANSFORMER_PROGRAMS, TransformerWorkload

if TYPE_CHECKING:
    from pathlib import Path

    from dse.workload import ParameterValue, Prediction

#: Programs whose attention keeps the scores on the chip.
_FUSED_ATTENTION = {"nanotron", "nemo", "megatron_bridge", "torchtitan", "composer"}

_PARAMETERS = {
    "gpus": "world_size",
    "tp": "tensor",
    "pp": "pipeline",
    "vp": "interleave",
    "cp": "context",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
}


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """One published step and its prediction.

    Attributes:
        case: Name in the file.
        program: Training program in the file.
        measured_s: Published time; NaN if the run failed.
        predicted_s: Predicted time; NaN with a problem.
        low_s: Lower end of the 90 % interval.
        high_s: Upper end of it.
        predicted_memory_gb: Memory of the fullest rank, in 10⁹ bytes.
        fits: Whether every rank fits; None with a problem.
        problem: Why it was not predicted; empty if it was.
    """

    case: str
    program: str
    measured_s: float
    predicted_s: float = math.nan
    low_s: float = math.nan
    high_s: float = math.nan
    predicted_memory_gb: float = math.nan
    fits: bool | None = None
    problem: str = ""

    @property
    def error(self) -> float:
        """Relative error of the predicted time."""
        return self.predicted_s / self.measured_s - 1


def published_steps(path: Path) -> list[PublishedStep]:
    """Returns every row of a file of published steps with its prediction.

    Raises:
        DseError: The file cannot be read.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise DseError(f"cannot read {path}: {error.strerror or error}") from error
    return [_step(row) for row in rows]


def compare_steps(path: Path, *, as_json: bool) -> None:
    """Prints errors by program, or everything as JSON."""
    cases = published_steps(path)
    if as_json:
        print(json.dumps({"cases": [_finite(asdict(case)) for case in cases]}, indent=1))
        return
    print(
        f"{'program':<20} {'rows':>5} {'predicted':>9} {'median':>7} {'mean':>7} {'bias':>7} "
        f"{'inside 90 %':>11}"
    )
    for program in dict.fromkeys(case.program for case in cases):
        mine = [case for case in cases if case.program == program]
        known = [case for case in mine if not case.problem and not math.isnan(case.measured_s)]
        if not known:
            print(f"{program:<20} {len(mine):5d} {0:9d}  {mine[0].problem}")
            continue
        errors = np.array([case.error for case in known])
        inside = np.mean([case.low_s <= case.measured_s <= case.high_s for case in known])
        print(
            f"{program:<20} {len(mine):5d} {len(known):9d} {100 * np.median(abs(errors)):6.1f}% "
            f"{100 * abs(errors).mean():6.1f}% {100 * np.median(errors):+6.1f}% "
            f"{100 * inside:9.0f} %"
        )
    for problem in dict.fromkeys(case.problem for case in cases if case.problem):
        count = sum(case.problem == problem for case in cases)
        print(f"{count} × {problem}")


def _step(row: dict[str, str]) -> PublishedStep:
    measured_s = float(row["s_per_step"]) if row["s_per_step"] else math.nan
    step = PublishedStep(row["case"], row["program"], measured_s)
    try:
        prediction = _predicted(row)
    except (DseError, ValueError) as error:
        return replace(step, problem=str(error))
    return replace(
        step,
        predicted_s=prediction.iteration_time_s,
        low_s=prediction.iteration_time_p5_s,
        high_s=prediction.iteration_time_p95_s,
        predicted_memory_gb=prediction.peak_memory_bytes / 1e9,
        fits=prediction.feasible,
    )


def _predicted(row: dict[str, str]) -> Prediction:
    if int(row["ep"] or 1) > 1:
        raise DseError("expert parallelism is not modelled")
    program = row["program"]
    if program not in TRANSFORMER_PROGRAMS:
        known = ", ".join(TRANSFORMER_PROGRAMS)
        raise DseError(f"no program is called `{program}`; those there are: {known}")
    parameters: dict[str, ParameterValue] = {
        name: int(float(row[column] or 1)) for column, name in _PARAMETERS.items()
    }
    parameters |= {
        "precision": row["precision"],
        "program": program,
        # One rank has nothing to share.
        "sequence_parallel": row["sequence_parallel"] == "1" and parameters["tensor"] != 1,
        "data_sharding": row["sharding"] if int(row["dp"]) > 1 else "none",
    }
    job_of = TransformerWorkload(_model(row)).job
    platform = _platform(row["platform"])
    if row["recompute"]:
        return predict_job(job_of(platform, {**parameters, "recompute": row["recompute"]}))
    # Not stated: the least that fits.
    for recompute in ("none", "selective", "full"):
        prediction = predict_job(job_of(platform, {**parameters, "recompute": recompute}))
        if prediction.feasible:
            break
    return prediction


def _model(row: dict[str, str]) -> TransformerModel:
    if row["model"]:
        workload = load_workload(row["model"])
        if not isinstance(workload, TransformerWorkload):
            raise DseError(f"`{row['model']}` is not a transformer")
        depth = int(row["layers"]) if row["layers"] else workload.model.layers
        return replace(workload.model, layers=depth, sequence_length=int(float(row["seq"])))
    fused = row["program"] in _FUSED_ATTENTION
    base = load_workload("gpt_175b")
    if not isinstance(base, TransformerWorkload):
        raise DseError("`gpt_175b` is not a transformer")
    sizes = {
        name: int(row[name])
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
    }
    return replace(
        base.model,
        name=row["case"],
        sequence_length=int(row["seq"]),
        gated_ffn=row["gated_ffn"] == "1",
        tied_embeddings=row["tied"] == "1",
        attention=AttentionKind.FLASH if fused else AttentionKind.UNFUSED,
        biases=row["gated_ffn"] != "1",
        dropout=not fused,
        learned_positions=row["gated_ffn"] != "1",
        precision=Precision(row["precision"]),
        **sizes,
    )


@lru_cache
def _platform(name: str) -> Platform:
    return load_platform(name)


def _finite(case: dict[str, object]) -> dict[str, object]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in case.items()
    }
