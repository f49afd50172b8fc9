"""A Python module that spreads a model in PyTorch's own terms: FSDP2, HSDP, tensor parallelism."""

from __future__ import annotations

from dataclasses import fields
import json
from typing import TYPE_CHECKING

from dse.machine import Precision
from dse.model import MixtureOfExperts, TransformerModel
from dse.workload.transformer._deploy_format import DeployFormat
from dse.workload.transformer._types import DataSharding, Recompute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.workload.transformer._job import TransformerJob

_DTYPES = {
    Precision.BF16: "torch.bfloat16",
    Precision.FP16: "torch.float16",
    Precision.TF32: "torch.float32",
    Precision.FP32: "torch.float32",
}

_CHECKPOINT = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def _text(job: TransformerJob) -> str:
    if job.precision not in _DTYPES:
        raise FORMAT.refusal(f"precision {job.precision}", f"use {', '.join(_DTYPES)}")
    if job.parallelism.recompute is Recompute.SELECTIVE:
        raise FORMAT.refusal("recomputation of attention alone", "use recompute none or full")
    parts = [
        ['"""' + "\n".join(_head(job)), '"""', ""],
        [*_imports(job), ""],
        [f"{name} = {value}" for name, value in _constants(job).items()],
        *([["", "", _PLANS.strip()]] if job.parallelism.tensor > 1 else []),
        ["", "", *_parallelize(job)],
        ["", "", *_train_step(job)],
    ]
    return "".join(f"{line}\n" for part in parts for line in part)


def _head(job: TransformerJob) -> Iterator[str]:
    yield f"A transformer on {job.parallelism.world_size} ranks with FSDP2 of PyTorch."
    yield ""
    yield f"Predicted for the program {job.program or 'that was given'}; kernels are your model's."
    yield "`model.layers` has the transformer layers; build the optimizer after `parallelize`."
    yield "Data, optimizer and checkpoints are yours to add."
    if job.precision is Precision.FP16:
        yield "FP16 needs a scaled loss (torch.amp.GradScaler)."


def _imports(job: TransformerJob) -> Iterator[str]:
    spread = job.parallelism
    if _is_ddp(job):
        yield "from contextlib import nullcontext"
        yield ""
    yield "import torch"
    if spread.recompute is Recompute.FULL:
        yield f"from {_CHECKPOINT} import checkpoint_wrapper"
    if _is_ddp(job):
        yield "from torch.nn.parallel import DistributedDataParallel"
    else:
        yield "from torch.distributed.device_mesh import init_device_mesh"
    if _is_wrapped(job):
        yield "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard"
    if spread.tensor > 1:
        yield "from torch.distributed.tensor import Replicate, Shard"
        yield "from torch.distributed.tensor.parallel import ("
        yield from (f"    {name}," for name in _STYLES)
        yield ")"
    if job.precision is Precision.TF32:
        yield ""
        yield 'torch.set_float32_matmul_precision("high")'


def _constants(job: TransformerJob) -> dict[str, object]:
    spread = job.parallelism
    sharded = spread.data_sharding is not DataSharding.NONE
    return {
        "MODEL": json.dumps(job.model.name),
        "SEQUENCE_LENGTH": job.model.sequence_length,
        "MICRO_BATCH_SIZE": spread.micro_batch_size,
        "MICRO_BATCHES": job.micro_batches,
        "REPLICATE": spread.data // spread.shards if sharded else spread.data,
        "SHARD": spread.shards if sharded else 1,
        "TENSOR": spread.tensor,
        **(_tensor_constants(job) if spread.tensor > 1 else {}),
    }


def _tensor_constants(job: TransformerJob) -> dict[str, object]:
    return {
        "SEQUENCE_PARALLEL": job.parallelism.sequence_parallel,
        "FEED_FORWARD_INPUTS": ("w1", "w3") if job.model.gated_ffn else ("w1",),
    }


def _is_ddp(job: TransformerJob) -> bool:
    """Whether whole replicas keep master weights, so that DDP is enough."""
    spread = job.parallelism
    whole = spread.data_sharding is DataSharding.NONE and spread.tensor == 1
    return whole and spread.data > 1 and job.precision.value_bytes == 4


def _is_wrapped(job: TransformerJob) -> bool:
    """Whether FSDP2 has anything to do: replicas to share with, or weights to cast."""
    return not _is_ddp(job) and (job.parallelism.data > 1 or job.precision.value_bytes < 4)


_STYLES = (
    "ColwiseParallel",
    "PrepareModuleInput",
    "RowwiseParallel",
    "SequenceParallel",
    "loss_parallel",
    "parallelize_module",
)

#: Plans for modules that are named as in PyTorch's tutorial of tensor parallelism.
_PLANS = """
# Names of modules as in PyTorch's tutorial of tensor parallelism; change them to your model's.
# Attention has to count its heads by the columns that it is given.
def layer_plan():
    shared = Shard(1) if SEQUENCE_PARALLEL else Replicate()
    plan = {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
    plan |= {f"feed_forward.{name}": ColwiseParallel() for name in FEED_FORWARD_INPUTS}
    for name in ("attention.wo", "feed_forward.w2"):
        plan[name] = RowwiseParallel(output_layouts=shared)
    # The gradients of a block's input are summed once for all of its first matrices.
    for name in ("attention", "feed_forward"):
        plan[name] = PrepareModuleInput(
            input_layouts=(shared,), desired_input_layouts=(Replicate(),)
        )
    if SEQUENCE_PARALLEL:
        for name in ("attention_norm", "ffn_norm"):
            plan[name] = SequenceParallel()
    return plan


def model_plan():
    shared = Shard(1) if SEQUENCE_PARALLEL else Replicate()
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=shared),
        # Logits stay where they are made: `loss_parallel` takes the cross entropy of the parts.
        "output": ColwiseParallel(
            input_layouts=shared, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    return plan | ({"norm": SequenceParallel()} if SEQUENCE_PARALLEL else {})
"""


def _parallelize(job: TransformerJob) -> Iterator[str]:
    spread = job.parallelism
    wrapped = _is_wrapped(job)
    yield 'def parallelize(model, device="cuda"):'
    if not _is_ddp(job):
        yield '    names = ("replicate", "shard", "tensor")'
        yield "    sizes = (REPLICATE, SHARD, TENSOR)"
        yield "    mesh = init_device_mesh(device, sizes, mesh_dim_names=names)"
    if wrapped:
        yield from _sharding(job)
    if spread.tensor > 1:
        yield '    parallelize_module(model, mesh["tensor"], model_plan())'
    changes = list(_layer_changes(job))
    if changes:
        yield "    for name, layer in list(model.layers.named_children()):"
        yield from changes
        yield "        model.layers.register_module(name, layer)"
    if _is_ddp(job):
        yield "    return DistributedDataParallel(model, gradient_as_bucket_view=True)"
    elif wrapped:
        yield "    # The backward pass begins with what the forward pass ends with."
        yield '    return fully_shard(model, **{**sharding, "reshard_after_forward": False})'
    else:
        yield "    return model"


def _sharding(job: TransformerJob) -> Iterator[str]:
    spread = job.parallelism
    dtype = _DTYPES[job.precision]
    reduced = "torch.float32" if job.gradient_bytes == 4 else dtype
    reshard = spread.data_sharding is DataSharding.PARAMETERS and spread.reshard_after_forward
    yield f"    policy = MixedPrecisionPolicy(param_dtype={dtype}, reduce_dtype={reduced})"
    yield "    sharding = {"
    yield '        "mesh": mesh["replicate", "shard"],'
    yield '        "mp_policy": policy,'
    yield f'        "reshard_after_forward": {reshard},'
    yield "    }"


def _layer_changes(job: TransformerJob) -> Iterator[str]:
    spread = job.parallelism
    if spread.tensor > 1:
        yield '        parallelize_module(layer, mesh["tensor"], layer_plan())'
    if spread.recompute is Recompute.FULL:
        early = job.software.stops_recomputing_early
        yield f"        layer = checkpoint_wrapper(layer, early_stop={early})"
    if job.software.fused_elementwise:
        yield "        layer.compile()"
    if _is_wrapped(job):
        yield "        layer = fully_shard(layer, **sharding)"


def _train_step(job: TransformerJob) -> Iterator[str]:
    whole = not job.parallelism.data_sharding.shards_gradients
    once = whole or job.parallelism.no_sync
    yield "def train_step(model, micro_batches, loss_of, optimizer):"
    yield "    for index, batch in enumerate(micro_batches):"
    if once and (_is_ddp(job) or _is_wrapped(job)):
        yield "        # Gradients are summed here and reduced once a step."
        yield "        last = index + 1 == MICRO_BATCHES"
    if once and _is_wrapped(job):
        yield "        model.set_requires_gradient_sync(last)"
        if whole:
            yield "        model.set_reshard_after_backward(last)"
    step = "(loss_of(model, batch) / MICRO_BATCHES).backward()"
    if job.parallelism.tensor > 1:
        yield "        with loss_parallel():"
        step = f"    {step}"
    elif _is_ddp(job):
        yield "        with nullcontext() if last else model.no_sync():"
        step = f"    {step}"
    yield f"        {step}"
    yield "    optimizer.step()"
    yield "    optimizer.zero_grad()"


FORMAT = DeployFormat(
    name="fsdp",
    framework="FSDP2",
    text=_text,
    parallelism=frozenset(
        {
            "tensor",
            "data",
            "sequence_parallel",
            "micro_batch_size",
            "recompute",
            "data_sharding",
            "sharding_degree",
            "reshard_after_forward",
            "no_sync",
        }
    ),
    # The model is the user's own.
    model=frozenset(
        field.name for part in (TransformerModel, MixtureOfExperts) for field in fields(part)
    ),
)
