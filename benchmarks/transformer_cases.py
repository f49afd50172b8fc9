"""Predicted against published times of training steps of transformers, case by case.

Two families: GPT under Megatron-LM (tensor, pipeline and data parallel; Korthikanti et al.,
arXiv 2205.05198, and Narayanan et al., arXiv 2104.04473), and MPT under FSDP (LLM Foundry).

What the first table leaves open is taken from the run script that the authors published for it.
Where that does not know a model either, a rule decides that looks at no measurement: of
micro-batch sizes (powers of two up to 16) and chunks of a stage (up to 4) the fastest by the model
that fits.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from published_cases import platform_of
from scipy.stats import kendalltau

from dse.errors import ConfigError, DseError
from dse.machine import Precision
from dse.model import TransformerModel, load_model
from dse.workload import predict_job
from dse.workload.transformer import (
    COMPOSER,
    MEGATRON,
    DataSharding,
    Parallelism,
    Recompute,
    TransformerJob,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dse.workload import Prediction

_MICRO_BATCHES = (1, 2, 4, 8, 16)
_MAX_INTERLEAVE = 4


class Settings(NamedTuple):
    """What Narayanan et al. ran a model with, besides what their Table 1 says.

    Attributes:
        micro_batch: Samples of one pass.
        interleave: Chunks of a pipeline stage.
        overlaps: Whether PyTorch's DDP reduced gradients beside the backward pass; Megatron-LM's
            own reduces them after it.
    """

    micro_batch: int
    interleave: int
    overlaps: bool


#: By layers and width; from `examples/sc21/run_table_1.sh` of Megatron-LM.
_SETTINGS = {
    (24, 2304): Settings(16, 1, True),
    (30, 3072): Settings(16, 1, True),
    (36, 4096): Settings(16, 1, True),
    (40, 6144): Settings(8, 1, True),
    (48, 8192): Settings(4, 1, False),
    (60, 10240): Settings(2, 3, False),
    (80, 12288): Settings(2, 2, False),
    (96, 16384): Settings(1, 2, False),
    (105, 20480): Settings(1, 3, False),
    (128, 25600): Settings(1, 1, False),
}


@dataclass(frozen=True, slots=True)
class StepCase:
    """One published step beside its prediction.

    Attributes:
        case: Name and setting.
        family: `gpt_megatron` or `mpt_fsdp`.
        measured_s: Published time of an iteration.
        predicted_s: By the model.
        predicted_p5_s: Lower end of the 90 % interval.
        predicted_p95_s: Upper end of it.
        problem: What was predicted.
    """

    case: str
    family: str
    measured_s: float
    predicted_s: float
    predicted_p5_s: float
    predicted_p95_s: float
    problem: TransformerJob

    @property
    def error(self) -> float:
        """Relative error of the predicted time."""
        return self.predicted_s / self.measured_s - 1


def gpt_cases(path: Path) -> list[StepCase]:
    """Returns the cases of a table of GPT trained with Megatron-LM.

    Columns: source, model, layers, hidden, heads, seq, vocab, gpu, gpus, tp, pp, dp, interleave,
    global_batch, micro_batch, recompute, sequence_parallel, precision, s_per_iter.
    """
    return [_gpt_case(row) for row in _rows(path)]


def mpt_cases(path: Path) -> list[StepCase]:
    """Returns the cases of LLM Foundry's table of MPT under FSDP."""
    return [_mpt_case(row) for row in _rows(path)]


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise DseError(f"cannot read {path}: {error.strerror or error}") from error


def _gpt_case(row: dict[str, str]) -> StepCase:
    model = _transformer("gpt_175b")
    hidden = int(row["hidden"])
    model = replace(
        model,
        name=row["model"],
        layers=int(row["layers"]),
        hidden=hidden,
        heads=int(row["heads"]),
        kv_heads=int(row["heads"]),
        ffn_hidden=4 * hidden,
        vocab=int(row["vocab"]),
        sequence_length=int(row["seq"]),
    )
    cluster = platform_of(row["gpu"]).cluster(int(row["gpus"]))
    batch, stages = int(row["global_batch"]), int(row["pp"])
    stated = Parallelism(
        tensor=int(row["tp"]),
        pipeline=stages,
        data=int(row["dp"]),
        sequence_parallel=row["sequence_parallel"] == "yes",
        recompute=Recompute(row["recompute"]),
    )
    first = "2021" in row["source"]
    known = _SETTINGS.get((model.layers, hidden)) if first else None
    # Between the two papers the backward pass got its asynchronous all-reduce and products that
    # accumulate gradients.
    software = replace(
        MEGATRON,
        overlap_tensor=not first,
        fused_accumulation=not first,
        overlap_gradients=known is not None and known.overlaps,
    )
    chunks = _stated(row["interleave"], known and known.interleave, range(1, _MAX_INTERLEAVE + 1))
    sizes = _stated(row["micro_batch"], known and known.micro_batch, _MICRO_BATCHES)
    candidates = [
        TransformerJob(
            model,
            cluster,
            batch,
            Precision(row["precision"]),
            replace(stated, interleave=interleave, micro_batch_size=size),
            software,
        )
        for interleave, size in product(chunks, sizes)
    ]
    problem, prediction = _fastest(candidates)
    name = f"{row['source'].split(' et')[0]} {row['model']} {row['gpus']} {row['recompute']}"
    return _case(name, "gpt_megatron", float(row["s_per_iter"]), problem, prediction)


def _stated(text: str, known: int | None, otherwise: Iterable[int]) -> tuple[int, ...]:
    """What may be chosen: the table's value, else the authors' setting, else all that is tried."""
    if text:
        return (int(float(text)),)
    return (known,) if known is not None else tuple(otherwise)


def _mpt_case(row: dict[str, str]) -> StepCase:
    sequence = int(row["SeqLen (T)"])
    model = replace(_transformer(f"mpt_{row['Model']}"), sequence_length=sequence)
    gpus = int(row["# GPUs"])
    checkpointed = row["Activation Checkpointing"] == "True"
    pure = row["MP Mode"] == "PURE"
    problem = TransformerJob(
        model,
        platform_of(row["GPU"]).cluster(gpus),
        int(row["GlobalBatchSize"]),
        Precision.BF16,
        Parallelism(
            data=gpus,
            micro_batch_size=int(row["MicroBatchSize"]),
            recompute=Recompute.FULL if checkpointed else Recompute.NONE,
            data_sharding=DataSharding.PARAMETERS,
        ),
        replace(COMPOSER, gradient_bytes=2 if pure else 4, stops_recomputing_early=not pure),
    )
    measured_s = int(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"])
    name = f"{row['Model']} {sequence} {gpus}×{row['GPU']}"
    return _case(name, "mpt_fsdp", measured_s, problem, predict_job(problem))


def _transformer(name: str) -> TransformerModel:
    model = load_model(name)
    if not isinstance(model, TransformerModel):
        raise DseError(f"`{name}` is no transformer")
    return model


def _fastest(candidates: Iterable[TransformerJob]) -> tuple[TransformerJob, Prediction]:
    best: tuple[TransformerJob, Prediction] | None = None
    reason = ""
    for problem in candidates:
        try:
            prediction = predict_job(problem)
        except ConfigError as error:
            reason = str(error)
            continue
        if best is None or _rank(prediction) < _rank(best[1]):
            best = problem, prediction
    if best is None:
        raise DseError(f"no micro-batch size or interleaving is possible: {reason}")
    return best


def _rank(prediction: Prediction) -> tuple[bool, float]:
    return not prediction.feasible, prediction.iteration_time_s


def _case(
    name: str, family: str, measured_s: float, problem: TransformerJob, prediction: Prediction
) -> StepCase:
    return StepCase(
        case=name,
        family=family,
        measured_s=measured_s,
        predicted_s=prediction.iteration_time_s,
        predicted_p5_s=prediction.iteration_time_p5_s,
        predicted_p95_s=prediction.iteration_time_p95_s,
        problem=problem,
    )


def figures(cases: list[StepCase]) -> dict[str, float]:
    """Returns the errors over cases; tau compares tokens per second."""
    errors = np.array([case.error for case in cases])
    inside = [case.predicted_p5_s <= case.measured_s <= case.predicted_p95_s for case in cases]
    tokens = [
        case.problem.global_batch_size * case.problem.model.sequence_length for case in cases
    ]
    tau = kendalltau(
        [count / case.predicted_s for count, case in zip(tokens, cases, strict=True)],
        [count / case.measured_s for count, case in zip(tokens, cases, strict=True)],
    ).statistic
    return {
        "cases": len(cases),
        "mean_abs_error": float(np.abs(errors).mean()),
        "max_abs_error": float(np.abs(errors).max()),
        "median_abs_error": float(np.median(np.abs(errors))),
        "bias": float(np.log1p(errors).mean()),
        "kendall_tau": float(tau),
        "coverage": float(np.mean(inside)),
    }


def main() -> None:
    """Prints every case of both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpt", type=Path, help="table of GPT cases")
    parser.add_argument("--mpt", type=Path, help="table of MPT cases")
    arguments = parser.parse_args()
    families = [(gpt_cases, arguments.gpt), (mpt_cases, arguments.mpt)]
    try:
        for read, path in families:
            if path is None:
                continue
            begin = time.process_time()
            cases = read(path)
            spent = time.process_time() - begin
            print(f"{'measured s':>10} {'predicted':>10} {'error':>8}  case")
            for case in cases:
                outside = not case.predicted_p5_s <= case.measured_s <= case.predicted_p95_s
                parallelism = case.problem.parallelism
                print(
                    f"{case.measured_s:10.3f} {case.predicted_s:10.3f} {100 * case.error:+7.1f}%"
                    f"{'*' if outside else ' '} {case.case} micro batch "
                    f"{parallelism.micro_batch_size} interleave {parallelism.interleave}"
                )
            listed = ", ".join(f"{key} {value:.3f}" for key, value in figures(cases).items())
            print(f"{listed}; {spent:.2f} s of CPU time\n")
    except DseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
