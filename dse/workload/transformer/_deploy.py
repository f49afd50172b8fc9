"""Arguments of Megatron-LM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import Activation, AttentionKind, NormKind
from dse.workload.transformer._schedule import layers_by_chunk
from dse.workload.transformer._types import (
    ContextExchange,
    DataSharding,
    Recompute,
    Schedule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.model import MixtureOfExperts, TransformerModel
    from dse.workload.transformer._types import Parallelism, TransformerRuntime

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
    software: TransformerRuntime,
) -> str:
    """Returns the arguments of Megatron-LM's `pretrain_gpt.py` or `pretrain_bert.py`.

    Learning rate, data, tokenizer and checkpoints do not affect speed and are left to the user.
    Megatron-LM has no ZeRO-2 of its own; such a configuration gets the flag of ZeRO-1. Groups of
    ranks that share an optimizer are what it calls instances of the distributed optimizer.

    Args:
        model: What is trained.
        parallelism: How it is spread over the ranks.
        global_batch_size: Samples of one iteration over all ranks.
        precision: Arithmetic.
        software: How the program is written that the configuration was predicted with.

    Returns:
        One argument a line.

    Raises:
        ConfigError: The model or its spread has a part for which there is no argument.
    """
    lines = [
        *_architecture(model),
        f"--tensor-model-parallel-size {parallelism.tensor}",
        f"--pipeline-model-parallel-size {parallelism.pipeline}",
        f"--context-parallel-size {parallelism.context}",
        *_context_exchange(parallelism),
        *_expert_degree(model, parallelism),
        f"--micro-batch-size {parallelism.micro_batch_size}",
        f"--global-batch-size {global_batch_size}",
        *_schedule(model, parallelism),
        *_RECOMPUTE_FLAGS[parallelism.recompute],
        *_replicas(parallelism, precision, software),
        *_PRECISION_FLAGS.get(precision, ()),
    ]
    if parallelism.sequence_parallel and software.overlap_tensor_products:
        lines.append("--tp-comm-overlap")
    # FP8, and transfers beside products, exist in Transformer Engine alone.
    if precision.is_low or "--tp-comm-overlap" in lines:
        lines.append("--transformer-impl transformer_engine")
    return "\n".join(lines) + "\n"


def _architecture(model: TransformerModel) -> Iterator[str]:
    yield f"--num-layers {model.layers}"
    yield f"--hidden-size {model.hidden}"
    # A model of experts alone has no block of its own; the argument is required all the same.
    inner = model.ffn_hidden or (model.experts.ffn_hidden if model.experts else 0)
    yield f"--ffn-hidden-size {inner}"
    yield f"--num-attention-heads {model.heads}"
    if model.attention_width != model.hidden:
        yield f"--kv-channels {model.head_dim}"
    if model.kv_heads != model.heads:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.kv_heads}"
    yield f"--vocab-size {model.vocab}"
    yield f"--seq-length {model.sequence_length}"
    yield f"--max-position-embeddings {model.sequence_length}"
    if model.experts is not None:
        yield from _experts(model.experts)
    if not model.learned_positions:
        yield "--position-embedding-type rope"
    if model.norm is NormKind.RMS:
        yield "--normalization RMSNorm"
    yield from _activation(model)
    if not model.biases:
        yield "--disable-bias-linear"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    if not model.dropout:
        yield "--attention-dropout 0"
        yield "--hidden-dropout 0"
    if model.attention is AttentionKind.FLASH:
        yield "--use-flash-attn"


def _experts(experts: MixtureOfExperts) -> Iterator[str]:
    yield f"--num-experts {experts.count}"
    yield f"--moe-router-topk {experts.active}"
    yield f"--moe-ffn-hidden-size {experts.ffn_hidden}"
    if experts.shared_ffn_hidden:
        yield f"--moe-shared-expert-intermediate-size {experts.shared_ffn_hidden}"
    yield "--moe-grouped-gemm"
    yield "--moe-token-dispatcher-type alltoall"


def _activation(model: TransformerModel) -> Iterator[str]:
    if model.gated_ffn and model.activation is Activation.SILU:
        yield "--swiglu"
    elif model.gated_ffn:
        raise ConfigError(
            f"{model.name} has a gate with {model.activation}, for which Megatron-LM has no "
            "argument; a gate with silu is `--swiglu`"
        )
    elif model.activation is Activation.RELU2:
        yield "--squared-relu"
    elif not model.biases:
        # The fused kernel adds a bias.
        yield "--no-bias-gelu-fusion"


def _expert_degree(model: TransformerModel, parallelism: Parallelism) -> Iterator[str]:
    if model.experts is not None:
        yield f"--expert-model-parallel-size {parallelism.expert}"


def _context_exchange(parallelism: Parallelism) -> Iterator[str]:
    names = {ContextExchange.ALL_GATHER: "all_gather", ContextExchange.ULYSSES: "a2a"}
    if parallelism.context_exchange in names:
        yield f"--cp-comm-type {names[parallelism.context_exchange]}"


def _schedule(model: TransformerModel, parallelism: Parallelism) -> Iterator[str]:
    if parallelism.schedule is not Schedule.ONE_F_ONE_B:
        raise ConfigError(
            f"Megatron-LM has no argument for schedule {parallelism.schedule}; it runs "
            f"{Schedule.ONE_F_ONE_B}, interleaved or not"
        )
    layers = layers_by_chunk(model.layers, parallelism.pipeline, parallelism.interleave)
    if parallelism.interleave > 1:
        yield f"--num-layers-per-virtual-pipeline-stage {max(layers)}"
    if layers[0] < max(layers):
        yield "--account-for-embedding-in-pipeline-split"
    if layers[-1] < max(layers):
        yield "--account-for-loss-in-pipeline-split"
    if parallelism.sequence_parallel:
        yield "--sequence-parallel"


def _replicas(
    parallelism: Parallelism, precision: Precision, software: TransformerRuntime
) -> Iterator[str]:
    sharding = parallelism.data_sharding
    if sharding is DataSharding.PARAMETERS:
        if parallelism.pipeline > 1:
            raise ConfigError(
                f"--use-torch-fsdp2 of Megatron-LM does not work with pipeline parallelism, and "
                f"there are {parallelism.pipeline} stages; use one stage, or data sharding "
                f"{DataSharding.OPTIMIZER}"
            )
        yield "--use-torch-fsdp2"
        # FSDP2 owns the gradients, and saves in the format of torch.distributed.
        yield "--no-gradient-accumulation-fusion"
        yield "--ckpt-format torch_dist"
        return
    if parallelism.replicas > 1 and software.overlap_gradients:
        yield "--overlap-grad-reduce"
    if sharding.shards_optimizer:
        yield "--use-distributed-optimizer"
        if parallelism.shards < parallelism.replicas:
            instances = parallelism.replicas // parallelism.shards
            yield f"--num-distributed-optimizer-instances {instances}"
        if software.overlap_gradients:
            yield "--overlap-param-gather"
    bf16 = precision.outside_products is Precision.BF16
    four_bytes = software.gradient_bytes == 4 or (bf16 and software.sums_bf16_in_fp32)
    if bf16 and not four_bytes:
        # Megatron-LM sums them in FP32 otherwise.
        yield "--grad-reduce-in-bf16"
    if precision.outside_products is Precision.FP16 and four_bytes:
        yield "--accumulate-allreduce-grads-in-fp32"
