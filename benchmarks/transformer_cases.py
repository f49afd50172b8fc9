"""Published steps of transformers whose tables leave open what the form of published steps states.

Two families: GPT under Megatron-LM (tensor, pipeline and data parallel; Korthikanti et al.,
arXiv 2205.05198, and Narayanan et al., arXiv 2104.04473), and MPT under FSDP (LLM Foundry). Each
row becomes a row of `published_steps.py`, with the version of the program that it ran.

What the first table leaves open is taken from the run script that the authors published for it.
Where that does not know a model either, a rule decides that looks at no measurement: of
micro-batch sizes (powers of two up to 16) and virtual pipeline stages (up to 4) the fastest by
the model that fits.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from published_cases import platform_of
from published_steps import (
    PublishedStep,
    check_columns,
    published_job,
    published_step,
)
from tables import read_rows

from dse.errors import ConfigError, DseError
from dse.workload import predict_job
from dse.workload.transformer import COMPOSER, MEGATRON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from dse.workload import Prediction
    from dse.workload.transformer import TransformerJob

_MICRO_BATCHES = (1, 2, 4, 8, 16)
_MAX_INTERLEAVE = 4


class Settings(NamedTuple):
    """What Narayanan et al. ran a model with, besides what their Table 1 says.

    Attributes:
        micro_batch: Samples of one pass.
        interleave: Virtual pipeline stages of a rank.
        overlaps: Whether PyTorch's DDP reduced gradients during the backward pass; Megatron-LM's
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


def transformer_cases(path: Path) -> Iterator[PublishedStep]:
    """Yields the rows of a table of steps of transformers with their predictions.

    Three forms are known by their columns: that of `published_steps.py`, the table of GPT under
    Megatron-LM (source, model, layers, hidden, heads, seq, vocab, gpu, gpus, tp, pp, dp,
    interleave, global_batch, micro_batch, recompute, sequence_parallel, precision, s_per_iter),
    and LLM Foundry's table of MPT under FSDP.

    Raises:
        DseError: The file cannot be read, or has none of these forms.
    """
    rows = read_rows(path)
    if not rows:
        raise DseError(f"{path} has no rows")
    for column, predicted in _FORMS.items():
        if column in rows[0]:
            if predicted is published_step:
                check_columns(path, rows[0])
            yield from map(predicted, rows)
            return
    raise DseError(f"{path} has no column {', '.join(_FORMS)}; give a table of published steps")


def _gpt_case(row: Mapping[str, str]) -> PublishedStep:
    name = f"{row['source'].split(' et')[0]} {row['model']} {row['gpus']} {row['recompute']}"
    stated = {
        **row,
        "case": name,
        "model": "",
        "kv_heads": row["heads"],
        "ffn_hidden": str(4 * int(row["hidden"])),
        "gated_ffn": "0",
        "tied": "1",
        "platform": platform_of(row["gpu"]).name,
        "cp": "1",
        "ep": "1",
        "sharding": "none",
        "sequence_parallel": "1" if row["sequence_parallel"] == "yes" else "0",
        "program": "megatron",
    }
    first = "2021" in row["source"]
    known = _SETTINGS.get((int(row["layers"]), int(row["hidden"]))) if first else None
    # Between the two papers the backward pass got its asynchronous all-reduce and products that
    # accumulate gradients.
    software = replace(
        MEGATRON,
        overlap_tensor=not first,
        fused_accumulation=not first,
        overlap_gradients=known is not None and known.overlaps,
    )
    stages = _stated(row["interleave"], known and known.interleave, range(1, _MAX_INTERLEAVE + 1))
    sizes = _stated(row["micro_batch"], known and known.micro_batch, _MICRO_BATCHES)
    candidates = [
        published_job(stated | {"vp": str(interleave), "micro_batch": str(size)})
        for interleave, size in product(stages, sizes)
    ]
    job, prediction = _fastest(replace(job, software=software) for job in candidates)
    measured_s = float(row["s_per_iter"])
    return PublishedStep(name, "megatron", measured_s, job, prediction, row=stated)


def _stated(text: str, known: int | None, otherwise: Iterable[int]) -> tuple[int, ...]:
    """Returns the table's value, else the authors' setting, else all that may be chosen."""
    if text:
        return (int(float(text)),)
    return (known,) if known is not None else tuple(otherwise)


def _mpt_case(row: Mapping[str, str]) -> PublishedStep:
    length, gpus = row["SeqLen (T)"], row["# GPUs"]
    stated = {
        "model": f"mpt_{row['Model']}",
        "layers": "",
        "seq": length,
        "platform": platform_of(row["GPU"]).name,
        "gpus": gpus,
        **dict.fromkeys(("tp", "pp", "vp", "cp", "ep"), "1"),
        "dp": gpus,
        "sharding": "zero3",
        "micro_batch": row["MicroBatchSize"],
        "global_batch": row["GlobalBatchSize"],
        "recompute": "full" if row["Activation Checkpointing"] == "True" else "none",
        "sequence_parallel": "0",
        "precision": "fp8" if row.get("Precision", "").endswith("fp8") else "bf16",
        "program": "composer",
    }
    pure = row["MP Mode"] == "PURE"
    software = replace(COMPOSER, gradient_bytes=2 if pure else 4, stops_recomputing_early=not pure)
    job = replace(published_job(stated), software=software)
    measured_s = int(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"])
    name = f"{row['Model']} {length} {gpus}×{row['GPU']}"
    return PublishedStep(name, "composer", measured_s, job, predict_job(job), row=stated)


#: How a row is predicted, by the column that only tables of its form have.
_FORMS: Mapping[str, Callable[[Mapping[str, str]], PublishedStep]] = {
    "s_per_step": published_step,
    "s_per_iter": _gpt_case,
    "Throughput (T/s)": _mpt_case,
}


def _fastest(candidates: Iterable[TransformerJob]) -> tuple[TransformerJob, Prediction]:
    best: tuple[TransformerJob, Prediction] | None = None
    reason = ""
    for job in candidates:
        try:
            prediction = predict_job(job)
        except ConfigError as error:
            reason = str(error)
            continue
        if best is None or _rank(prediction) < _rank(best[1]):
            best = job, prediction
    if best is None:
        raise DseError(f"no micro-batch size or interleaving is possible: {reason}")
    return best


def _rank(prediction: Prediction) -> tuple[bool, float]:
    return not prediction.feasible, prediction.iteration_time_s
