"""Arguments of Megatron-LM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.machine import Precision
from dse.model import AttentionKind
from dse.workload.transformer._schedule import layers_by_chunk
from dse.workload.transformer._types import DataSharding, Recompute

if TYPE_CHECKING:
    from dse.model import TransformerModel
    from dse.workload.transformer._types import Parallelism

_RECOMPUTE_FLAGS: dict[Recompute, tuple[str, ...]] = {
    Recompute.NONE: (),
    Recompute.SELECTIVE: ("--recompute-granularity selective",),
    Recompute.FULL: (
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
    ),
}

#: Megatron-Core's; the scale of a whole tensor comes from earlier steps by default.
_PRECISION_FLAGS = {
    Precision.FP16: ("--fp16",),
    Precision.BF16: ("--bf16",),
    Precision.FP8: ("--bf16", "--fp8-format hybrid"),
    Precision.FP8_BLOCK: ("--bf16", "--fp8-format e4m3", "--fp8-recipe blockwise"),
    Precision.MXFP8: ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    Precision.NVFP4: ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}


def megatron_arguments(
    model: TransformerModel,
    parallelism: Parallelism,
    global_batch_size: int,
    precision: Precision,
) -> str:
    """Returns the arguments of Megatron-LM's `pretrain_gpt.py` or `pretrain_bert.py`.

    Learning rate, data and checkpoints do not affect speed and are left to the user. Megatron-LM
    has no ZeRO-2; such a configuration gets the flag of ZeRO-1.

    Args:
        model: What is trained.
        parallelism: How it is spread over the ranks.
        global_batch_size: Samples of one iteration over all ranks.
        precision: Arithmetic.

    Returns:
        One argument a line.
    """
    lines = [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {model.ffn_hidden}",
        f"--num-attention-heads {model.heads}",
        f"--seq-length {model.sequence_length}",
        f"--max-position-embeddings {model.sequence_length}",
        f"--tensor-model-parallel-size {parallelism.tensor}",
        f"--pipeline-model-parallel-size {parallelism.pipeline}",
        f"--context-parallel-size {parallelism.context}",
        f"--micro-batch-size {parallelism.micro_batch_size}",
        f"--global-batch-size {global_batch_size}",
    ]
    if model.kv_heads != model.heads:
        lines += ["--group-query-attention", f"--num-query-groups {model.kv_heads}"]
    if model.gated_ffn:
        lines.append("--swiglu")
    if not model.tied_embeddings:
        lines.append("--untie-embeddings-and-output-weights")
    if model.attention is AttentionKind.FLASH:
        lines.append("--use-flash-attn")
    layers = layers_by_chunk(model.layers, parallelism.pipeline, parallelism.interleave)
    if parallelism.interleave > 1:
        lines.append(f"--num-layers-per-virtual-pipeline-stage {max(layers)}")
    if layers[0] < max(layers):
        lines.append("--account-for-embedding-in-pipeline-split")
    if layers[-1] < max(layers):
        lines.append("--account-for-loss-in-pipeline-split")
    if parallelism.sequence_parallel:
        lines.append("--sequence-parallel")
    lines += _RECOMPUTE_FLAGS[parallelism.recompute]
    if parallelism.data_sharding is DataSharding.PARAMETERS:
        lines.append("--use-torch-fsdp2")
    elif parallelism.data_sharding.shards_optimizer:
        lines.append("--use-distributed-optimizer")
    lines += _PRECISION_FLAGS.get(precision, ())
    if precision.is_low:
        lines.append("--transformer-impl transformer_engine")
    return "\n".join(lines) + "\n"
