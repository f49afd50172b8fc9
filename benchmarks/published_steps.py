"""Predicted against published times of training steps of transformers, one row a step.

The file has one column for each parameter: architecture (`layers` … `tied`), machine, degrees of
parallelism, precision, and the name of the training program. A row that cannot be predicted
carries its problem and is counted. Tables of other forms become such rows in
`transformer_cases.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
import math
from typing import TYPE_CHECKING

from step_errors import StepError

from dse.errors import DseError
from dse.machine import Precision
from dse.machine.platforms import Platform, load_platform, override_platform
from dse.model import AttentionKind, TransformerModel
from dse.workload import load_workload, predict_job
from dse.workload.transformer import (
    TRANSFORMER_PROGRAMS,
    Offload,
    RecomputeModule,
    TransformerWorkload,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from dse.workload import ParameterValue, Prediction
    from dse.workload.transformer import TransformerJob

#: Programs whose attention keeps the scores on the chip.
_FUSED_ATTENTION = {"nanotron", "nemo", "megatron_bridge", "torchtitan", "composer"}

#: Programs whose recipes cut no expert by tensor parallelism (`expert_tensor_parallel_size` 1).
_WHOLE_EXPERTS = {"megatron_bridge"}

#: First release whose recipes for mixtures of experts in MXFP8 hide exchanges behind the pass of
#: another micro-batch (pull requests 4249 and 4606 of NVIDIA-NeMo/Megatron-Bridge).
_HIDES_EXCHANGES = "26.06"

#: Recipes of scale factors that are the precisions of dse: scales of the present tensor, and of
#: blocks of 32 values.
_PRECISIONS = {"fp8_cs": "fp8", "fp8_mx": "mxfp8"}

#: Networks between nodes that are not their platform's default: nanotron ran on AWS p5.
_NETWORKS = {"nanotron": "efa_3200g"}

#: What sources state of their machines that their platform has otherwise: vTrain's configurations
#: for 64 to 512 GPUs (`config/validation/multi`) have 800 Gbit/s for each node.
_MACHINES = {("megatron_deepspeed", "a100_sxm_80"): ("networks.infiniband_hdr200.nics=4",)}

#: Programs whose recipes keep activations of some layers in host memory rather than computing them
#: again (`cpu_offloading_num_layers` of NVIDIA-NeMo/Megatron-Bridge's Llama 3 70B).
_OFFLOADING = {"megatron_bridge"}

_PARAMETERS = {
    "gpus": "world_size",
    "tp": "tensor",
    "pp": "pipeline",
    "vp": "interleave",
    "cp": "context",
    "ep": "expert",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
}

#: Columns that predictions need.
_COLUMNS = (
    *("case", "program", "platform", "model", "layers", "hidden", "heads", "kv_heads"),
    *("ffn_hidden", "vocab", "seq", "gated_ffn", "tied", "dp", *_PARAMETERS),
    *("precision", "recompute", "sequence_parallel", "sharding", "s_per_step"),
)

#: Parts of layers with experts that recipes of Megatron-Core repeat, the cheapest first, and which
#: models have them.
_REPEATED: tuple[tuple[RecomputeModule, Callable[[TransformerModel], bool]], ...] = (
    (RecomputeModule.NORMS, lambda _: True),
    (RecomputeModule.EXPERT_ACTIVATION, lambda _: True),
    (RecomputeModule.LATENT_UP, lambda model: model.latent is not None),
)


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """One published step and its prediction.

    Attributes:
        case: Name in the file.
        program: Training program in the file.
        measured_s: Published time; NaN if the run failed, or the file's is none.
        job: What was predicted; None with a problem.
        prediction: Its prediction; None with a problem, and where the run failed.
        problem: Why it was not predicted; empty if it was.
        row: The row by column.
    """

    case: str
    program: str
    measured_s: float
    job: TransformerJob | None = None
    prediction: Prediction | None = None
    problem: str = ""
    row: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def ran(self) -> bool:
        """Whether it has a time."""
        return not math.isnan(self.measured_s)

    @property
    def failed(self) -> bool:
        """Whether the run failed, most of them out of memory."""
        return not self.ran and _failed(self.row)

    @property
    def predicted_s(self) -> float:
        """Predicted time; NaN with a problem."""
        return math.nan if self.prediction is None else self.prediction.iteration_time_s

    @property
    def low_s(self) -> float:
        """Lower end of the 90 % interval."""
        return math.nan if self.prediction is None else self.prediction.iteration_time_p5_s

    @property
    def high_s(self) -> float:
        """Upper end of the 90 % interval."""
        return math.nan if self.prediction is None else self.prediction.iteration_time_p95_s

    @property
    def fits(self) -> bool:
        """Whether every rank is predicted to fit; false with a problem."""
        return self.job is not None and not self.job.cannot_fit()

    @property
    def measured_memory_bytes(self) -> float:
        """Published memory that the allocator held on the first rank; NaN if not stated.

        The files say GB, which nanotron, whose steps alone have it, counts as 2³⁰ bytes.
        """
        stated = self.row.get("peak_memory_gb", "")
        return float(stated) * 2**30 if stated else math.nan

    @property
    def predicted_memory_bytes(self) -> float:
        """Predicted memory that the allocator holds on the first rank; NaN if not known."""
        return math.nan if self.prediction is None else self.prediction.memory[0].total_bytes

    @property
    def step_error(self) -> StepError | None:
        """Error of the predicted time; None if one is not known."""
        if self.job is None or not self.ran:
            return None
        model = self.row.get("model") or f"{self.job.model.parameter_count / 1e9:.3g}B"
        return StepError.of(self.job, model, self.measured_s)

    @property
    def error(self) -> float:
        """Relative error of the predicted time."""
        return self.predicted_s / self.measured_s - 1

    @property
    def inside(self) -> bool:
        """Whether the published time lies in the interval."""
        return self.low_s <= self.measured_s <= self.high_s

    def document(self) -> dict[str, object]:
        """Returns the step for machines; what is not known is null."""
        times_s = {
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
        }
        sizes = {
            "measured_memory_bytes": self.measured_memory_bytes,
            "predicted_memory_bytes": self.predicted_memory_bytes,
            # In the unit of `peak_memory_gb`, next to which scripts read it.
            "predicted_memory_gb": self.predicted_memory_bytes / 2**30,
        }
        return {
            "case": self.case,
            "program": self.program,
            **{name: None if math.isnan(time_s) else time_s for name, time_s in times_s.items()},
            # What the allocator holds on the first rank.
            **{name: None if math.isnan(size) else size for name, size in sizes.items()},
            "fits": self.fits,
            "problem": self.problem,
        }


def check_columns(path: Path, found: Iterable[str]) -> None:
    """Raises an error if a table of steps lacks a column that predictions need.

    Raises:
        DseError: It does.
    """
    missing = [name for name in _COLUMNS if name not in set(found)]
    if missing:
        raise DseError(f"{path}: column `{missing[0]}` is missing; found {', '.join(found)}")


def published_step(row: Mapping[str, str]) -> PublishedStep:
    """Returns a row with its prediction, or with the reason why there is none."""
    measured_s = math.nan
    try:
        measured_s = _measured_s(row)
        for job in _ways_to_fit(row):
            job.check()
            if not job.cannot_fit():
                break
        # A run that failed has no time to compare with.
        prediction = None if math.isnan(measured_s) else predict_job(job)
    except (DseError, ValueError) as error:
        return PublishedStep(row["case"], row["program"], measured_s, problem=str(error), row=row)
    return PublishedStep(row["case"], row["program"], measured_s, job, prediction, row=row)


def _measured_s(row: Mapping[str, str]) -> float:
    """Returns the published time; NaN of a run that failed.

    Raises:
        DseError: It is not a positive number, or is missing though the run did not fail.
    """
    if _failed(row):
        return math.nan
    text = row["s_per_step"]
    if not text:
        raise DseError("`s_per_step` is missing, and `status` is ok; expected `failed`, or a time")
    if not 0 < float(text) < math.inf:
        raise DseError(f"`s_per_step` is {text}; expected a positive number")
    return float(text)


def _failed(row: Mapping[str, str]) -> bool:
    """Returns whether a row is a run without a time, and says nothing else."""
    return not row.get("s_per_step") and row.get("status") != "ok"


def _whole(row: Mapping[str, str], column: str) -> int:
    """Returns a number of a row; 1 where it states none.

    Raises:
        DseError: It is not whole. Tables may write whole numbers as `256.0`.
    """
    text = row[column] or "1"
    if not float(text).is_integer():
        raise DseError(f"`{column}` is {text}; expected a whole number")
    return int(float(text))


def _ways_to_fit(row: Mapping[str, str]) -> Iterator[TransformerJob]:
    """Yields the job of a row; with less and less memory where recomputation is not stated.

    Raises:
        DseError: The row describes something that is not modelled.
    """
    if row["recompute"]:
        yield published_job(row)
        return
    for recompute in ("none", "selective"):
        yield published_job({**row, "recompute": recompute})
    job = published_job({**row, "recompute": "selective"})
    for count in range(1, len(_REPEATED) + 1):
        modules = tuple(module for module, has in _REPEATED[:count] if has(job.model))
        if job.model.experts is not None:
            yield replace(job, parallelism=replace(job.parallelism, recompute_modules=modules))
    if row["program"] in _OFFLOADING:
        job = published_job({**row, "recompute": "none"})
        parallelism = job.parallelism
        # Of a virtual stage, as the parameter counts.
        layers = job.model.layers / (parallelism.pipeline * parallelism.interleave)
        for count in sorted({math.ceil(layers * eighths / 8) for eighths in range(1, 9)}):
            spread = replace(parallelism, offload=Offload.ACTIVATIONS, offload_layers=count)
            yield replace(job, parallelism=spread)
    yield published_job({**row, "recompute": "full"})


def published_job(row: Mapping[str, str]) -> TransformerJob:
    """Returns the job that a row describes.

    Raises:
        DseError: The row describes something that is not modelled.
    """
    program = row["program"]
    if program not in TRANSFORMER_PROGRAMS:
        known = ", ".join(TRANSFORMER_PROGRAMS)
        raise DseError(f"no program is called `{program}`; choose from {known}")
    parameters: dict[str, ParameterValue] = {
        name: _whole(row, column) for column, name in _PARAMETERS.items()
    }
    parameters |= {
        "precision": _PRECISIONS.get(row["precision"], row["precision"]),
        "program": program,
        "network": _NETWORKS.get(program, "default"),
        "recompute": row["recompute"] or "none",
        # A single rank shares nothing.
        "sequence_parallel": row["sequence_parallel"] == "1" and parameters["tensor"] != 1,
        "data_sharding": row["sharding"] if int(row["dp"]) > 1 else "none",
    }
    if program in _WHOLE_EXPERTS and int(row["ep"] or 1) > 1:
        parameters["expert_tensor"] = 1
        if parameters["precision"] == "mxfp8" and _release(row) >= _HIDES_EXCHANGES:
            parameters["expert_overlap"] = True
    return TransformerWorkload(_model(row)).job(_platform(row["platform"], program), parameters)


def _release(row: Mapping[str, str]) -> str:
    """Returns the release that a row is of, as its source ends: `26.06.01`; empty without one."""
    last = row.get("source", "").rpartition(" ")[2]
    return last if last[:1].isdigit() else ""


def _model(row: Mapping[str, str]) -> TransformerModel:
    fused = row["program"] in _FUSED_ATTENTION
    if row["model"]:
        model = _transformer(row["model"])
        if fused and model.attention is not AttentionKind.FLASH:
            # The same architecture as these programs run it.
            model = replace(model, attention=AttentionKind.FLASH, dropout=False)
        depth = _whole(row, "layers") if row["layers"] else model.layers
        return replace(model, layers=depth, sequence_length=_whole(row, "seq"))
    sizes = {
        name: int(row[name])
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
    }
    return replace(
        _transformer("gpt_175b"),
        name=row["case"],
        sequence_length=int(row["seq"]),
        head_dim=sizes["hidden"] // sizes["heads"],
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
def _transformer(name: str) -> TransformerModel:
    workload = load_workload(name)
    if not isinstance(workload, TransformerWorkload):
        raise DseError(f"`{name}` is not a transformer")
    return workload.model


@lru_cache
def _platform(name: str, program: str) -> Platform:
    return override_platform(load_platform(name), _MACHINES.get((program, name), ()))[0]
