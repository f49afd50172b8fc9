"""Training steps of one device beside their predictions: two DLRMs and two transformers.

Each runs eagerly and, on a GPU, as a captured CUDA graph. DLRMs are trained by the reference
trainer, transformers by :mod:`kit.transformer`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dse.launch import RankContext
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.sharding import ShardingPlan, ShardingType, TablePlan
from dse.validation import Candidate, TrainerOptions, scale_model
from dse.validation.trainer.reference import ReferenceTrainer
from dse.workload import LaunchMode, find_program
from dse.workload.dlrm import DLRM_PROGRAMS, DlrmJob, DlrmProblem
from dse.workload.transformer import (
    FlashKernel,
    LossKernels,
    Parallelism,
    TransformerJob,
    TransformerRuntime,
)
from kit.log import append, read_log
from kit.timing import captured, step_time
from kit.transformer import transformer_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dse.machine.platforms import Platform
    from dse.model import DlrmModel, TransformerModel
    from dse.workload import Job

FILE = "steps.jsonl"

#: Plain PyTorch: an operator each for activation and residual, PyTorch's loss. The fused optimizer
#: reads gradient, weight and two moments and writes the last three (28 bytes a parameter);
#: autocast then reads weights and writes them in BF16 (6).
PYTORCH = TransformerRuntime(
    fused_elementwise=False,
    fused_accumulation=False,
    loss=LossKernels.TORCH,
    gradient_bytes=4,
    optimizer_traffic_bytes=34.0,
    flash_kernel=FlashKernel.FLASH2,
)


@dataclass(frozen=True, slots=True)
class StepCase:
    """One step that is timed.

    Attributes:
        name: Name in the file.
        launch: How kernels are launched.
        job: The same step as a job, on a platform; small in rehearsals.
        build: Makes the step on a device, ``cpu`` or ``cuda``; small on the CPU.
    """

    name: str
    launch: LaunchMode
    job: Callable[[Platform, bool], Job]
    build: Callable[[str], Callable[[], object]]


def cases(device: str) -> tuple[StepCase, ...]:
    """Returns the steps of a device, the smaller ones first; a rehearsal has two."""
    made = (
        (_transformer_case, "mpt_1b"),
        (_dlrm_case, "dlrm_criteo"),
        (_transformer_case, "llama3_8b"),
        (_dlrm_case, "dlrm_dcnv2"),
    )
    if device == "cpu":
        return tuple(make(name, LaunchMode.EAGER) for make, name in made[:2])
    return tuple(make(name, launch) for make, name in made for launch in LaunchMode)


def run(out: Path, device: str, budget_s: float) -> None:
    """Times the steps that are not in the file yet; one that cannot run is recorded with why."""
    import torch

    done = {(row["case"], row["launch"]) for row in read_log(out / FILE)}
    todo = [case for case in cases(device) if (case.name, case.launch.value) not in done]
    for case in todo:
        row: dict[str, Any] = {"case": case.name, "launch": case.launch.value, "device": device}
        try:
            step = case.build(device)
            if case.launch is LaunchMode.CUDA_GRAPHS:
                step = captured(step)
            row |= asdict(step_time(step, device, 0.5 * budget_s / len(todo)))
            if device == "cuda":
                row["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        except RuntimeError as error:
            row["skipped"] = (str(error).splitlines() or [type(error).__name__])[0]
        append(out / FILE, row)
        del step
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


# --- DLRM -------------------------------------------------------------------------------------


def _dlrm_model(name: str, small: bool) -> DlrmModel:
    model = load_model(name)
    memory, lookups = (2e6, 2e6) if small else (16e9, 2e9)
    scaled = scale_model(model, memory_bytes=memory, lookup_bytes=lookups, world_size=1)
    return replace(scaled, precision=Precision.FP32)


def _dlrm_job(model: DlrmModel, platform: Platform, launch: LaunchMode) -> DlrmJob:
    software = replace(find_program(DLRM_PROGRAMS, "dse_trainer").software, launch=launch)
    cluster = platform.cluster(1)
    problem = DlrmProblem(model, cluster, model.global_batch_size, Precision.FP32, software)
    plan = ShardingPlan(
        1, tuple(TablePlan(table.name, ShardingType.TABLE_WISE, (0,)) for table in model.tables)
    )
    return DlrmJob(problem).with_plan(plan)


def _dlrm_case(name: str, launch: LaunchMode) -> StepCase:
    def build(device: str) -> Callable[[], object]:
        small = device == "cpu"
        job = _dlrm_job(_dlrm_model(name, small), load_platform("cpu"), LaunchMode.EAGER)
        assert job.plan is not None
        trainer = ReferenceTrainer()
        candidate = trainer.checked(Candidate(name, job.problem, job.plan), device)
        options = TrainerOptions(batches=2)
        return trainer.rank(candidate, options, RankContext(0, 1, device)).step

    return StepCase(
        name,
        launch,
        lambda platform, small: _dlrm_job(_dlrm_model(name, small), platform, launch),
        build,
    )


# --- transformers -----------------------------------------------------------------------------

#: Layers that leave room on a card of 80 GB, and sequences of a step.
_LAYERS, _SEQUENCES = {"mpt_1b": 24, "llama3_8b": 4}, {"mpt_1b": 4, "llama3_8b": 1}


def _transformer_model(name: str, small: bool) -> TransformerModel:
    model = replace(load_model(name), layers=_LAYERS[name])
    if small:
        model = replace(
            model, layers=2, hidden=64, heads=4, kv_heads=2 if model.kv_heads < model.heads else 4
        )
        model = replace(model, head_dim=16, ffn_hidden=128, vocab=512, sequence_length=32)
    return model


def _transformer_case(name: str, launch: LaunchMode) -> StepCase:
    batch = _SEQUENCES[name]

    def job(platform: Platform, small: bool) -> TransformerJob:
        return TransformerJob(
            model=_transformer_model(name, small),
            cluster=platform.cluster(1),
            global_batch_size=batch,
            precision=Precision.FP32 if small else Precision.BF16,
            parallelism=Parallelism(micro_batch_size=batch),
            software=replace(PYTORCH, launch=launch),
            program="",
        )

    def build(device: str) -> Callable[[], object]:
        model = _transformer_model(name, device == "cpu")
        graphed = launch is LaunchMode.CUDA_GRAPHS
        return transformer_step(model, batch, device, graphed=graphed)

    return StepCase(name, launch, job, build)
