"""Folder for TorchRec: plan, job, two scripts, and the recipe in words.

`load_plan.py` and `train.py` are copied as they are and need torch and torchrec only; what differs
between jobs is in `plan.json` and `job.json`.
"""

from __future__ import annotations

from importlib.resources import files
import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from dse._text.terminal import visible
from dse.errors import ConfigError
from dse.indices import Zipf
from dse.sharding import (
    OPTIMIZER_TYPES,
    ComputeKernel,
    ShardingType,
    column_widths,
    format_size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dse.model import DlrmModel, EmbeddingTable
    from dse.workload._prediction import Prediction
    from dse.workload.dlrm._job import DlrmJob

#: Of both optimizers; a script of one's own has its own.
_LEARNING_RATE = 0.01

#: Columns below which TorchRec's planner cuts no table.
_TORCHREC_COLUMNS = 128


def torchrec_files(
    job: DlrmJob, plan_text: str, module_path: str, prediction: Prediction | None
) -> Mapping[str, str]:
    """Returns the files of a folder by name.

    Args:
        job: A job with its plan.
        plan_text: The plan in TorchRec's form.
        module_path: Path of the module that holds the tables.
        prediction: What is predicted, if that is known.

    Raises:
        ConfigError: `train.py` has no network for a part of the model.
    """
    if missing := missing_from_script(job.problem.model):
        raise ConfigError(
            f"--format torchrec to a folder: train.py has no {', '.join(missing)}; give a file "
            "(--out plan.json) for the plan alone"
        )
    per_node = min(job.problem.cluster.devices_per_node, job.problem.cluster.world_size)
    train = _script("train")
    return {
        "plan.json": plan_text,
        "job.json": json.dumps(torchrec_job(job, module_path, prediction), indent=1) + "\n",
        "load_plan.py": _script("load_plan"),
        "train.py": train.replace("{DEVICES_PER_NODE}", str(per_node)),
        "recipe.md": "\n".join(_recipe(job, prediction, per_node)) + "\n",
    }


def _script(name: str) -> str:
    folder = files("dse.workload.dlrm.deploy") / "scripts"
    return (folder / f"{name}.py.txt").read_text(encoding="utf-8")


def load_train_script() -> ModuleType:
    """Returns `train.py` as a module, for real runs of what the folder trains.

    Raises:
        ImportError: torch or torchrec is not installed.
    """
    load_plan = ModuleType("load_plan")
    exec(compile(_script("load_plan"), "load_plan.py", "exec"), load_plan.__dict__)
    train = ModuleType("train")
    train.__file__ = "train.py"
    before = sys.modules.get("load_plan")
    sys.modules["load_plan"] = load_plan
    try:
        exec(compile(_script("train"), "train.py", "exec"), train.__dict__)
    finally:
        del sys.modules["load_plan"]
        if before is not None:
            sys.modules["load_plan"] = before
    return train


def missing_from_script(model: DlrmModel) -> list[str]:
    """Returns parts of a model, and kinds of lookups, that `train.py` does not have."""
    parts = {
        "sequence": model.sequence,
        "towers": model.towers,
        "experts": model.experts,
        "tasks": model.tasks,
        "dense part of traced operators": model.traced,
        f"{model.interaction.kind} interaction": model.interaction.kind not in _INTERACTIONS,
        "tables without pooling": any(not table.pooled for table in model.tables),
        "weighted lookups": any(table.weighted for table in model.tables),
    }
    return [name for name, part in parts.items() if part]


_INTERACTIONS = ("dot", "concat", "dcnv2", "dcnv2_low_rank")


def torchrec_job(
    job: DlrmJob, module_path: str, prediction: Prediction | None = None
) -> dict[str, object]:
    """Returns what `job.json` holds: everything but the plan that `train.py` needs.

    Args:
        job: A job.
        module_path: Path of the module that holds the tables.
        prediction: What is predicted, if that is known.
    """
    problem = job.problem
    model = problem.model
    kind = "cpu" if problem.cluster.device.kind == "cpu" else "cuda"
    return {
        "model": model.name,
        "device_kind": kind,
        "module_path": module_path,
        "world_size": problem.cluster.world_size,
        "batch_size_per_rank": problem.local_batch_size,
        "precision": problem.precision.value,
        "train_pipeline": problem.software.pipeline.value,
        "dense_optimizer": model.dense_optimizer.value,
        "sparse_optimizer": OPTIMIZER_TYPES[model.sparse_optimizer],
        "sparse_learning_rate": _LEARNING_RATE,
        "dense_learning_rate": _LEARNING_RATE,
        "dense_features": model.dense_features,
        "bottom_mlp": list(model.bottom_mlp),
        "interaction": {
            "kind": model.interaction.kind.value,
            "layers": model.interaction.layers,
            "low_rank": model.interaction.low_rank,
            "stride": model.interaction.stride,
        },
        "top_mlp": list(model.top_mlp),
        "predicted_ms": None if prediction is None else round(_ms(prediction), 3),
        "tables": [_table(table) for table in model.tables],
    }


def _ms(prediction: Prediction) -> float:
    return 1e3 * prediction.iteration_time_s


def _table(table: EmbeddingTable) -> dict[str, object]:
    return {
        "name": table.name,
        "rows": table.rows,
        "dim": table.dim,
        "features": [f"{table.name}_{number}" for number in range(table.feature_count)],
        "pooling": list(table.pooling_factors),
        "data_type": table.data_type.value,
        "alpha": table.indices.alpha if isinstance(table.indices, Zipf) else 0.0,
    }


def _recipe(job: DlrmJob, prediction: Prediction | None, per_node: int) -> Iterator[str]:
    problem, plan = job.problem, job.plan
    assert plan is not None
    nodes = -(-problem.cluster.world_size // per_node)
    launch = f"torchrun --nproc-per-node {per_node}"
    if nodes > 1:
        launch += f" --nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    model, device = map(_plain, (problem.model.name, problem.cluster.device.name))
    yield f"# {model} on {problem.cluster.world_size} × {device}"
    yield ""
    if prediction is not None:
        low, high = (
            1e3 * end for end in (prediction.iteration_time_p5_s, prediction.iteration_time_p95_s)
        )
        held = format_size(max(prediction.memory_bytes_per_rank))
        yield (
            f"Predicted: {_ms(prediction):.3f} ms a step (90 %: {low:.3f} to {high:.3f}), "
            f"{held} on the fullest rank. These settings belong to it:"
        )
        yield ""
    samples = f"{problem.local_batch_size:,} ({problem.global_batch_size:,} in all)"
    yield f"* samples of a rank: {samples}"
    yield f"* arithmetic of the dense part: {problem.precision.value}"
    yield f"* train pipeline: `{problem.software.pipeline.value}`"
    rule = OPTIMIZER_TYPES[problem.model.sparse_optimizer]
    yield f"* update rule of the tables: `EmbOptimType.{rule}`"
    wire = problem.software.wire
    yield f"* on the wire: {wire.forward} forward, {wire.backward} backward (plan.json, `qcomms`)"
    yield from _narrow(job)
    yield ""
    yield "```sh"
    yield f"{launch} train.py --steps 50"
    yield "```"
    yield ""
    yield (
        'In a script of your own: `load_plan("plan.json", model)` of load_plan.py returns the '
        "plan for `DistributedModelParallel`, and raises an error that names every module and "
        "table in which the model differs."
    )


def _narrow(job: DlrmJob) -> Iterator[str]:
    """Names tables whose columns are cut more narrowly than TorchRec's planner cuts them."""
    assert job.plan is not None
    cut = (ShardingType.COLUMN_WISE, ShardingType.TABLE_COLUMN_WISE, ShardingType.GRID_SHARD)
    for placement, table in zip(job.plan.tables, job.problem.model.tables, strict=True):
        if placement.sharding_type in cut:
            widths = column_widths(table.dim, len(placement.ranks))
            if min(widths) < _TORCHREC_COLUMNS:
                yield (
                    f"* table `{_plain(table.name)}` is cut into columns of {min(widths)}; "
                    f"TorchRec's planner cuts no narrower than {_TORCHREC_COLUMNS}, but trains "
                    "under this"
                )
        if placement.compute_kernel is ComputeKernel.FUSED_UVM_CACHING:
            yield f"* table `{_plain(table.name)}` is in host memory with a cache on the device"


def _plain(name: str) -> str:
    """A name as one line of Markdown in which it opens no block, code or element."""
    return " ".join(visible(name).split()).translate(str.maketrans("`<>", "'‹›"))
