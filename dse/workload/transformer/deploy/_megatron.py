"""Arguments of Megatron-LM, as Megatron-Core of today documents them.

Learning rate, data, tokenizer and checkpoints do not affect speed and are left to the user, as is
what model files do not have: base of the rotary embedding, initialisation, balance of experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.machine import Precision
from dse.model import Activation, AttentionKind, NormKind
from dse.workload.transformer._deploy_format import DeployFormat
from dse.workload.transformer._types import (
    Capture,
    ContextExchange,
    DataSharding,
    ExpertDispatch,
    FlashKernel,
    LossKernels,
    Recompute,
    RecomputeModule,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.model import MixtureOfExperts, TransformerModel
    from dse.workload.transformer._job import TransformerJob

#: A ring is the default.
_EXCHANGE: dict[ContextExchange, tuple[str, ...]] = {
    ContextExchange.RING: (),
    ContextExchange.ALL_GATHER: ("--cp-comm-type all_gather",),
    ContextExchange.ULYSSES: ("--cp-comm-type a2a",),
}

#: The scale of a whole tensor comes from earlier steps by default.
_PRECISION = {
    Precision.FP16: ("--fp16",),
    Precision.BF16: ("--bf16",),
    Precision.FP8: ("--bf16", "--fp8-format hybrid"),
    Precision.FP8_BLOCK: ("--bf16", "--fp8-format e4m3", "--fp8-recipe blockwise"),
    Precision.MXFP8: ("--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"),
    Precision.NVFP4: ("--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"),
}


#: What is recomputed would have other scales than the first time.
_NOT_WITH_EARLIER_SCALES = frozenset({RecomputeModule.NORMS, RecomputeModule.EXPERT_ACTIVATION})


def _text(job: TransformerJob) -> str:
    spread = job.parallelism
    if job.model.kv_heads % spread.tensor:
        raise FORMAT.refusal(
            f"tensor {spread.tensor} with {job.model.kv_heads} heads of keys and values",
            "use a divisor of them",
        )
    _check_experts(job)
    lines = [
        *_architecture(job.model, job.expert_dispatch),
        *_attention(job),
        f"--tensor-model-parallel-size {spread.tensor}",
        f"--pipeline-model-parallel-size {spread.pipeline}",
        f"--context-parallel-size {spread.context}",
        *_EXCHANGE[spread.context_exchange],
        *_expert_degrees(job),
        f"--micro-batch-size {spread.micro_batch_size}",
        f"--global-batch-size {job.global_batch_size}",
        *_schedule(job),
        *_recompute(job),
        *_offload(job),
        *_replicas(job),
        *_PRECISION.get(job.precision, ()),
        *_kernels(job),
    ]
    return "\n".join(lines) + "\n"


def _check_experts(job: TransformerJob) -> None:
    """Refuses combinations with experts at which Megatron-Core stops.

    Raises:
        ConfigError: There is one; what to use instead.
    """
    experts, spread = job.model.experts, job.parallelism
    if experts is None:
        return
    if spread.tensor > 1 and not spread.sequence_parallel:
        raise FORMAT.refusal(
            "training of experts with tensor and without sequence parallelism",
            "use sequence_parallel true",
        )
    if _linear_biases(job.model) and spread.expert_shards > 1:
        raise FORMAT.refusal(
            f"experts with biases over {spread.expert_shards} tensor-parallel ranks",
            "use expert_tensor 1",
        )
    if experts.pads_to_capacity and job.expert_dispatch is ExpertDispatch.DEDUPLICATED:
        raise FORMAT.refusal(
            f"padding of experts' rows with expert_dispatch {job.expert_dispatch}",
            f"use {ExpertDispatch.ALL_TO_ALL}",
        )
    if job.expert_overlap and (job.precision.value_bytes == 4 or job.model.mtp_modules > 1):
        raise FORMAT.refusal(
            "exchanges with experts behind other micro-batches in FP32 or with several "
            "prediction modules",
            "use expert_overlap false",
        )


def _recompute(job: TransformerJob) -> Iterator[str]:
    spread = job.parallelism
    if spread.recompute is Recompute.NONE:
        return
    yield f"--recompute-granularity {spread.recompute}"
    if spread.recompute is Recompute.SELECTIVE:
        if spread.recompute_layers:
            raise FORMAT.refusal(
                f"selective recomputation in {spread.recompute_layers} layers",
                "use recompute_layers 0, or recompute full",
            )
        if RecomputeModule.OPERATORS in spread.recompute_modules:
            raise FORMAT.refusal("recomputation by operator", "use other recompute_modules")
        repeated = _NOT_WITH_EARLIER_SCALES.intersection(spread.recompute_modules)
        if repeated and job.precision is Precision.FP8:
            raise FORMAT.refusal(
                f"recomputation of {' and '.join(sorted(repeated))} in {job.precision} with "
                "scales of earlier steps",
                "use other recompute_modules or another precision",
            )
        if spread.recompute_modules:
            yield f"--recompute-modules {' '.join(spread.recompute_modules)}"
        return
    # A block is the first layers of each stage; uniform units of one layer are all of them.
    yield f"--recompute-method {'block' if spread.recompute_layers else 'uniform'}"
    yield f"--recompute-num-layers {spread.recompute_layers or 1}"


def _offload(job: TransformerJob) -> Iterator[str]:
    spread = job.parallelism
    if spread.offload.activations:
        if spread.pipeline > 1 or spread.recompute is not Recompute.NONE:
            raise FORMAT.refusal(
                "offload of activations with pipeline stages or recomputation", "use one of them"
            )
        if not 0 < spread.offload_layers < job.model.layers:
            raise FORMAT.refusal(
                "offload of the activations of all layers", "use offload_layers below the layers"
            )
        yield f"--cpu-offloading-num-layers {spread.offload_layers}"
    if spread.offload.optimizer:
        if spread.data_sharding is not DataSharding.OPTIMIZER:
            raise FORMAT.refusal(
                f"offload of the optimizer with data sharding {spread.data_sharding}", "use zero1"
            )
        if job.fp8_parameters and not job.gathers_fp8:
            raise FORMAT.refusal(
                f"offload of the optimizer with weights kept in {job.precision}",
                "use fp8_param_gather false",
            )
        yield "--optimizer-cpu-offload"
        yield "--use-precision-aware-optimizer"


def _architecture(model: TransformerModel, dispatch: ExpertDispatch) -> Iterator[str]:
    yield f"--num-layers {model.layers}"
    yield f"--hidden-size {model.hidden}"
    # A model of experts alone has no block of its own; the argument is required all the same.
    inner = model.ffn_hidden
    if model.experts is not None:
        inner = model.experts.dense_ffn_hidden or inner or model.experts.ffn_hidden
    yield f"--ffn-hidden-size {inner}"
    yield f"--num-attention-heads {model.heads}"
    yield from _heads(model)
    if model.mtp_modules:
        yield f"--mtp-num-layers {model.mtp_modules}"
    yield f"--vocab-size {model.vocab}"
    # The vocabulary of a model file is padded already.
    yield "--make-vocab-size-divisible-by 1"
    yield f"--seq-length {model.sequence_length}"
    yield f"--max-position-embeddings {model.sequence_length}"
    if model.experts is not None:
        yield from _experts(model, model.experts, dispatch)
    if not model.learned_positions:
        yield "--position-embedding-type rope"
    if model.norm is NormKind.RMS:
        yield "--normalization RMSNorm"
    yield from _activation(model)
    if not _linear_biases(model):
        yield "--disable-bias-linear"
        if model.attention_output_bias:
            raise FORMAT.refusal(
                "bias of attention's output alone", "use attention_output_bias false"
            )
        if model.qkv_bias:
            yield "--add-qkv-bias"
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights"
    if not model.dropout:
        yield "--attention-dropout 0"
        yield "--hidden-dropout 0"


def _linear_biases(model: TransformerModel) -> bool:
    # Biases of experts come with those of attention.
    return model.biases or (model.experts is not None and model.experts.biases)


def _expert_degrees(job: TransformerJob) -> Iterator[str]:
    if job.model.experts is not None:
        yield f"--expert-model-parallel-size {job.parallelism.expert}"
        if job.parallelism.expert_shards != job.parallelism.tensor:
            yield f"--expert-tensor-parallel-size {job.parallelism.expert_shards}"
        if job.expert_overlap:
            yield "--overlap-moe-expert-parallel-comm"


def _heads(model: TransformerModel) -> Iterator[str]:
    latent, window = model.latent, model.window
    if latent is not None:
        yield "--multi-latent-attention"
        if latent.query_rank:
            yield f"--q-lora-rank {latent.query_rank}"
        yield f"--kv-lora-rank {latent.kv_rank}"
        yield f"--qk-head-dim {model.head_dim - latent.rope_dim}"
        yield f"--qk-pos-emb-head-dim {latent.rope_dim}"
        yield f"--v-head-dim {latent.value_dim}"
    elif model.attention_width != model.hidden:
        yield f"--kv-channels {model.head_dim}"
    if model.kv_heads != model.heads:
        yield "--group-query-attention"
        yield f"--num-query-groups {model.kv_heads}"
    if window is not None:
        # Tokens before its own, and after it.
        yield f"--window-size {window.tokens - 1},0"
        if window.full_every:
            yield f"--window-attn-skip-freq {window.full_every}"


def _experts(
    model: TransformerModel, experts: MixtureOfExperts, dispatch: ExpertDispatch
) -> Iterator[str]:
    yield f"--num-experts {experts.count}"
    yield f"--moe-router-topk {experts.active}"
    if experts.active == 1:
        # A softmax over the one that was chosen is always 1; by default it comes after the choice.
        yield "--moe-router-pre-softmax"
    if experts.router_groups > 1:
        yield f"--moe-router-num-groups {experts.router_groups}"
        yield f"--moe-router-group-topk {experts.active_groups}"
    yield f"--moe-ffn-hidden-size {experts.ffn_hidden}"
    if experts.shared_ffn_hidden:
        yield f"--moe-shared-expert-intermediate-size {experts.shared_ffn_hidden}"
    layers = [int(experts.at(layer)) for layer in range(model.layers)]
    if not all(layers):
        yield f"--moe-layer-freq {layers}".replace(", ", ",")
    yield "--moe-grouped-gemm"
    if dispatch is ExpertDispatch.DEDUPLICATED:
        yield "--moe-token-dispatcher-type flex"
        yield "--moe-flex-dispatcher-backend hybridep"
    else:
        yield f"--moe-token-dispatcher-type {dispatch}"
    if experts.capacity_factor is not None:
        yield f"--moe-expert-capacity-factor {experts.capacity_factor:g}"
    if experts.pads_to_capacity:
        yield "--moe-pad-expert-input-to-capacity"


def _activation(model: TransformerModel) -> Iterator[str]:
    if model.gated_ffn and model.experts is not None and model.experts.limited:
        # That of gpt-oss: a steeper sigmoid, one added to the other half, both limited.
        yield "--quick-geglu"
        yield "--glu-linear-offset 1"
        yield "--activation-func-clamp-value 7"
    elif model.gated_ffn and model.activation is Activation.SILU:
        yield "--swiglu"
    elif model.gated_ffn:
        raise FORMAT.refusal(f"gate with {model.activation}", "a gate with silu is `--swiglu`")
    elif model.activation is Activation.RELU2:
        yield "--squared-relu"
        if _linear_biases(model):
            # The fused kernel of biases is one of GELU, SiLU and quick GELU.
            yield "--no-bias-gelu-fusion"
    elif not model.biases:
        # The fused kernel adds a bias.
        yield "--no-bias-gelu-fusion"


def _attention(job: TransformerJob) -> Iterator[str]:
    if job.model.attention is AttentionKind.UNFUSED:
        yield "--attention-backend unfused"
    elif job.software.flash_kernel is not FlashKernel.CURRENT:
        # By default Transformer Engine takes the fastest of its own.
        yield "--attention-backend flash"


def _schedule(job: TransformerJob) -> Iterator[str]:
    spread, modules, layers = job.parallelism, job.model.mtp_modules, job.layers_by_chunk
    # Embedding and loss may count as a layer each; any other split is written out.
    counted = all(count == max(layers) for count in layers[1:-1])
    counted = counted and min(layers[0], layers[-1]) >= max(layers) - 1
    if spread.pipeline > 1 and (modules or not counted):
        own = [f"t*{count}" if count else "" for count in (*layers[:-1], layers[-1] - modules)]
        yield f"--pipeline-model-parallel-layout E{'|'.join(own)}{'m' * modules}L"
    else:
        if spread.interleave > 1:
            yield f"--num-layers-per-virtual-pipeline-stage {max(layers)}"
        if layers[0] < max(layers):
            yield "--account-for-embedding-in-pipeline-split"
        if layers[-1] < max(layers):
            yield "--account-for-loss-in-pipeline-split"
    if spread.interleave > 1 and spread.pipeline > 2 and not job.software.overlap_pipeline:
        yield "--no-overlap-p2p-communication"
    if spread.sequence_parallel:
        yield "--sequence-parallel"
        if job.overlaps_tensor_products:
            yield "--tp-comm-overlap"


def _replicas(job: TransformerJob) -> Iterator[str]:
    sharding, software = job.parallelism.data_sharding, job.software
    if sharding.shards_gradients:
        yield from _fsdp(job)
        return
    overlaps = job.parallelism.replicas > 1 and software.overlap_gradients
    if overlaps:
        yield "--overlap-grad-reduce"
    if sharding.shards_optimizer:
        yield "--use-distributed-optimizer"
        if job.parallelism.shards < job.parallelism.replicas:
            instances = job.parallelism.replicas // job.parallelism.shards
            yield f"--num-distributed-optimizer-instances {instances}"
        if overlaps:
            yield "--overlap-param-gather"
        if job.weight_remainders:
            # Megatron-Core then keeps remainders by default.
            yield "--use-precision-aware-optimizer"
        if job.fp8_parameters:
            yield "--fp8-param-gather"
            if job.precision is Precision.MXFP8:
                yield "--reuse-grad-buf-for-mxfp8-param-ag"
    if not software.fused_accumulation:
        yield "--no-gradient-accumulation-fusion"
    if job.precision.outside_products is Precision.BF16 and job.gradient_bytes == 2:
        # Megatron-LM sums them in FP32 otherwise.
        yield "--grad-reduce-in-bf16"
    if job.precision is Precision.FP16 and job.gradient_bytes == 4:
        yield "--accumulate-allreduce-grads-in-fp32"


def _fsdp(job: TransformerJob) -> Iterator[str]:
    sharding = job.parallelism.data_sharding
    for wrong, what in (
        (job.parallelism.pipeline > 1, "pipeline stages"),
        (job.parallelism.expert > 1, "expert parallelism"),
        (job.model.tied_embeddings, "tied embeddings"),
        (job.precision is Precision.FP16, "FP16"),
        (job.parallelism.shards < job.parallelism.replicas, "groups of shards"),
    ):
        if wrong:
            raise FORMAT.refusal(f"{sharding} with {what}", f"use {DataSharding.OPTIMIZER}")
    if job.fp8_parameters:
        # It ignores the argument since Transformer Engine 2.0, and gathers BF16.
        raise FORMAT.refusal(
            f"{sharding} with weights kept in {job.precision}", "use fp8_param_gather false"
        )
    yield "--use-torch-fsdp2"
    if sharding is DataSharding.GRADIENTS or not job.parallelism.reshard_after_forward:
        yield "--torch-fsdp2-no-reshard-after-forward"
    # FSDP2 owns the gradients, and saves in the format of torch.distributed.
    yield "--no-gradient-accumulation-fusion"
    yield "--ckpt-format torch_dist"


def _kernels(job: TransformerJob) -> Iterator[str]:
    software = job.software
    if software.loss is LossKernels.FUSED:
        yield "--cross-entropy-loss-fusion"
        yield "--cross-entropy-fusion-impl te"
    if job.captured is Capture.LAYERS:
        yield "--cuda-graph-impl transformer_engine"
        yield f"--cuda-graph-scope {' '.join(_captured(job.model))}"
        yield "--te-rng-tracker"
    # FP8, and transfers that overlap with products, exist in Transformer Engine alone.
    if job.precision.is_low or job.overlaps_tensor_products:
        yield "--transformer-impl transformer_engine"


def _captured(model: TransformerModel) -> Iterator[str]:
    """Yields the parts of layers that are captured: all but the experts themselves."""
    yield "attn"
    if any(one.experts is None for one in model.layer_models):
        yield "mlp"
    if model.experts is not None:
        yield "moe_router"
        yield "moe_preprocess"


FORMAT = DeployFormat(
    name="megatron",
    framework="Megatron-LM",
    text=_text,
    parallelism=frozenset(
        {
            "tensor",
            "pipeline",
            "data",
            "context",
            "expert",
            "expert_tensor",
            "expert_dispatch",
            "expert_overlap",
            "interleave",
            "sequence_parallel",
            "micro_batch_size",
            "recompute",
            "recompute_modules",
            "recompute_layers",
            "offload",
            "offload_layers",
            "data_sharding",
            "sharding_degree",
            "reshard_after_forward",
            "context_exchange",
        }
    ),
    # Imbalance and skew measure the routing and choose nothing.
    model=frozenset(
        {
            "experts",
            "shared_ffn_hidden",
            "imbalance",
            "skew",
            "capacity_factor",
            "pads_to_capacity",
            "biases",
            "qkv_bias",
            "attention_output_bias",
            "limited",
            "router_groups",
            "active_groups",
            "first_dense",
            "every",
            "dense_ffn_hidden",
            "latent",
            "window",
            "mtp_modules",
        }
    ),
    captures=True,
)
