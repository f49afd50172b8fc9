"""Arguments of Megatron-LM: each with what its documentation says, and what of a job it states.

The meanings are those of `megatron/training/arguments.py` of Megatron-Core 0.15.
"""

from __future__ import annotations

from math import ceil

from dse.machine import Precision
from dse.model import Activation, AttentionKind, NormKind
from dse.workload import LaunchMode
from dse.workload.transformer import (
    DataSharding,
    FlashKernel,
    LossKernels,
    Recompute,
)


def virtual_layers(job):
    """Layers of a virtual stage, embedding and loss counted where they are treated as layers."""
    spread = job.parallelism
    return ceil(job.model.layers / (spread.pipeline * spread.interleave))


def uneven(job):
    spread = job.parallelism
    chunks = spread.pipeline * spread.interleave
    balanced = job.software.balances_stages
    return job.model.layers % chunks > 0 and not job.model.mtp_modules and not balanced


def fsdp(job):
    return job.parallelism.data_sharding in (DataSharding.GRADIENTS, DataSharding.PARAMETERS)


def overlapped_tensor(job):
    return job.overlaps_tensor_products


def overlapped_data(job):
    return not fsdp(job) and job.software.overlap_gradients and job.parallelism.replicas > 1


def grouped(job, field):
    return experts(job, field) if (experts(job, "router_groups") or 1) > 1 else None


def experts(job, field):
    return getattr(job.model.experts, field) if job.model.experts else None


def recompute_method(job):
    if job.parallelism.recompute is not Recompute.FULL:
        return None
    return "block" if job.parallelism.recompute_layers else "uniform"


def captured_parts(job):
    if job.software.launch is not LaunchMode.CUDA_GRAPHS:
        return None
    if job.model.experts is None:
        return "attn mlp"
    first = "attn mlp" if not job.model.experts.at(0) else "attn"
    return f"{first} moe_router moe_preprocess"


def four_bytes(job):
    return job.software.gradient_bytes == 4 or job.software.sums_bf16_in_fp32


#: Argument, what its documentation says, and its value for a job: None or False where it is left
#: out, True for one without a value.
TABLE = [
    ("--num-layers", "Number of transformer layers.", lambda job: job.model.layers),
    ("--hidden-size", "Transformer hidden size.", lambda job: job.model.hidden),
    (
        "--ffn-hidden-size",
        "Transformer Feed-Forward Network hidden size.",
        lambda job: (
            experts(job, "dense_ffn_hidden")
            or job.model.ffn_hidden
            or job.model.experts.ffn_hidden
        ),
    ),
    (
        "--num-attention-heads",
        "Number of transformer attention heads.",
        lambda job: job.model.heads,
    ),
    (
        "--kv-channels",
        "Projection weights dimension in multi-head attention; hidden_size // "
        "num_attention_heads if not provided.",
        lambda job: (
            job.model.head_dim
            if job.model.head_dim * job.model.heads != job.model.hidden and not job.model.latent
            else None
        ),
    ),
    (
        "--group-query-attention",
        "Use group-query attention.",
        lambda job: job.model.kv_heads < job.model.heads,
    ),
    (
        "--num-query-groups",
        "Groups of group-query attention, 1 by default.",
        lambda job: job.model.kv_heads if job.model.kv_heads < job.model.heads else None,
    ),
    (
        "--multi-latent-attention",
        "Use multi-latent attention for model.",
        lambda job: job.model.latent is not None,
    ),
    (
        "--q-lora-rank",
        "Rank of Query tensor's low rank representation.",
        lambda job: job.model.latent and job.model.latent.query_rank,
    ),
    (
        "--kv-lora-rank",
        "Rank of Key and Value tensors' low rank representation.",
        lambda job: job.model.latent and job.model.latent.kv_rank,
    ),
    (
        "--qk-head-dim",
        "Dimension of the head in the QK projection. q_head_dim = qk_head_dim + "
        "qk_pos_emb_head_dim",
        lambda job: job.model.latent and job.model.head_dim - job.model.latent.rope_dim,
    ),
    (
        "--qk-pos-emb-head-dim",
        "Dimension of the position embedding in the QK projection.",
        lambda job: job.model.latent and job.model.latent.rope_dim,
    ),
    (
        "--v-head-dim",
        "Dimension of the head in the V projection.",
        lambda job: job.model.latent and job.model.latent.value_dim,
    ),
    (
        "--window-size",
        "Window size for window attention: tokens before and after a token's own.",
        lambda job: f"{job.model.window.tokens - 1},0" if job.model.window else None,
    ),
    (
        "--window-attn-skip-freq",
        "An integer N: represents a (N-1):1 ratio, meaning one full attention layer after (N-1) "
        "SWA layers.",
        lambda job: (job.model.window and job.model.window.full_every) or None,
    ),
    (
        "--mtp-num-layers",
        "Number of Multi-Token Prediction (MTP) Layers.",
        lambda job: job.model.mtp_modules or None,
    ),
    (
        "--moe-layer-freq",
        "Frequency between MoE layers and Dense layers: a Python list expression, where 1 "
        "indicates an expert layer and 0 indicates a dense layer.",
        lambda job: (
            "[0,0,0,1,1,1,1]"
            if experts(job, "first_dense")
            else f"[{','.join(['0,1'] * 24)}]"
            if experts(job, "every") == 2
            else None
        ),
    ),
    (
        "--pipeline-model-parallel-layout",
        "Layers of each stage and virtual stage: E embedding, t transformer layer, m MTP layer, "
        "L loss; | divides stages.",
        lambda job: (
            "Et*4|t*3mL"
            if job.model.mtp_modules
            else "Et*32|t*32|t*31|t*31L"
            if job.software.balances_stages
            else None
        ),
    ),
    ("--vocab-size", "Size of vocab before EOD or padding.", lambda job: job.model.vocab),
    (
        "--make-vocab-size-divisible-by",
        "Pad the vocab size to be divisible by this value (times the tensor degree).",
        lambda job: 1,
    ),
    (
        "--seq-length",
        "Maximum sequence length to process.",
        lambda job: job.model.sequence_length,
    ),
    (
        "--max-position-embeddings",
        "Maximum number of position embeddings to use.",
        lambda job: job.model.sequence_length,
    ),
    (
        "--position-embedding-type",
        "Position embedding type; learned_absolute by default.",
        lambda job: None if job.model.learned_positions else "rope",
    ),
    (
        "--normalization",
        "Which normalization technique to use; LayerNorm by default.",
        lambda job: "RMSNorm" if job.model.norm is NormKind.RMS else None,
    ),
    (
        "--swiglu",
        "Use gated linear units and SiLU activation instead of default gelu",
        lambda job: job.model.gated_ffn and not (job.model.experts and job.model.experts.limited),
    ),
    (
        "--quick-geglu",
        "Use quick geglu activation instead of default gelu",
        lambda job: job.model.experts is not None and job.model.experts.limited,
    ),
    (
        "--glu-linear-offset",
        "Offset term in the GLU activation function: activation_func(x[0]) * (x[1] + offset).",
        lambda job: 1 if job.model.experts and job.model.experts.limited else None,
    ),
    (
        "--activation-func-clamp-value",
        "Clamp the output of the linear_fc1 in the activation function. Only used when "
        "activation_func is quick_gelu.",
        lambda job: 7 if job.model.experts and job.model.experts.limited else None,
    ),
    (
        "--squared-relu",
        "Use squared relu activation instead of default gelu",
        lambda job: job.model.activation is Activation.RELU2,
    ),
    (
        "--no-bias-gelu-fusion",
        "Disable bias and gelu fusion (demanded with biases and other activations than GELU).",
        lambda job: (
            not job.model.gated_ffn
            and job.model.biases == (job.model.activation is Activation.RELU2)
        ),
    ),
    (
        "--disable-bias-linear",
        "Disable bias in the linear layers",
        lambda job: not job.model.biases and not (job.model.experts and job.model.experts.biases),
    ),
    (
        "--add-qkv-bias",
        "Enable bias only in the QKV linear layers",
        lambda job: job.model.qkv_bias and not (job.model.experts and job.model.experts.biases),
    ),
    (
        "--untie-embeddings-and-output-weights",
        "Untie embeddings and output weights.",
        lambda job: not job.model.tied_embeddings,
    ),
    (
        "--attention-dropout",
        "Post attention dropout probability; 0.1 by default.",
        lambda job: None if job.model.dropout else 0,
    ),
    (
        "--hidden-dropout",
        "Dropout probability for hidden state transformer; 0.1 by default.",
        lambda job: None if job.model.dropout else 0,
    ),
    (
        "--attention-backend",
        "Attention backend to use (flash,fused,unfused,local,auto). Defaults to auto",
        lambda job: (
            "unfused"
            if job.model.attention is AttentionKind.UNFUSED
            else None
            if job.software.flash_kernel is FlashKernel.CURRENT
            else "flash"
        ),
    ),
    (
        "--num-experts",
        "Number of Experts in MoE (None means no MoE)",
        lambda job: experts(job, "count"),
    ),
    (
        "--moe-router-topk",
        "Number of experts to route to for each token. The default is 2.",
        lambda job: experts(job, "active"),
    ),
    (
        "--moe-router-pre-softmax",
        "Enable pre-softmax routing for MoE, which means softmax is before the top-k selection. "
        "(Demanded with a topk of 1 and scores by softmax.)",
        lambda job: experts(job, "active") == 1,
    ),
    (
        "--moe-router-num-groups",
        "Number of groups to divide experts into for group-limited routing.",
        lambda job: grouped(job, "router_groups"),
    ),
    (
        "--moe-router-group-topk",
        "Number of selected groups for group-limited routing.",
        lambda job: grouped(job, "active_groups"),
    ),
    (
        "--moe-ffn-hidden-size",
        "The hidden size of each expert's feed-forward network (ffn).",
        lambda job: experts(job, "ffn_hidden"),
    ),
    (
        "--moe-shared-expert-intermediate-size",
        "Shared expert total ffn hidden size. None means no shared expert.",
        lambda job: experts(job, "shared_ffn_hidden") or None,
    ),
    (
        "--moe-grouped-gemm",
        "When there are multiple experts per rank, launch multiple local GEMM kernels … with "
        "GroupedLinear in TransformerEngine.",
        lambda job: job.model.experts is not None,
    ),
    (
        "--moe-token-dispatcher-type",
        "The type of token dispatcher to use. The default is 'allgather'.",
        lambda job: (
            {"deduplicated": "flex"}.get(job.expert_dispatch, str(job.expert_dispatch))
            if job.model.experts
            else None
        ),
    ),
    (
        "--overlap-moe-expert-parallel-comm",
        "Overlap the EP A2A communication by batch-level overlapping in 1f1b stage.",
        lambda job: job.expert_overlap,
    ),
    (
        "--moe-flex-dispatcher-backend",
        "The backend to use for flex token dispatcher. The default is 'deepep'.",
        lambda job: (
            "hybridep" if job.model.experts and job.expert_dispatch == "deduplicated" else None
        ),
    ),
    (
        "--moe-expert-capacity-factor",
        "The capacity factor for each expert, None means no token will be dropped.",
        lambda job: job.model.experts.capacity_factor if job.model.experts else None,
    ),
    (
        "--moe-pad-expert-input-to-capacity",
        "Pads the input for each expert to match the expert capacity length.",
        lambda job: job.model.experts is not None and job.model.experts.pads_to_capacity,
    ),
    (
        "--tensor-model-parallel-size",
        "Degree of tensor model parallelism.",
        lambda job: job.parallelism.tensor,
    ),
    (
        "--pipeline-model-parallel-size",
        "Degree of pipeline model parallelism.",
        lambda job: job.parallelism.pipeline,
    ),
    (
        "--context-parallel-size",
        "Degree of context parallelism.",
        lambda job: job.parallelism.context,
    ),
    (
        "--cp-comm-type",
        "Inter-gpu communication type for context parallelism: p2p, a2a, allgather or a2a+p2p. "
        "p2p by default.",
        lambda job: {"all_gather": "all_gather", "ulysses": "a2a"}.get(
            job.parallelism.context_exchange.value
        ),
    ),
    (
        "--expert-model-parallel-size",
        "Degree of expert model parallelism.",
        lambda job: job.parallelism.expert if job.model.experts else None,
    ),
    (
        "--expert-tensor-parallel-size",
        "Degree of expert model parallelism. Default is None, which will be set to the value of "
        "--tensor-model-paralle-size.",
        lambda job: (
            job.parallelism.expert_tensor
            if job.parallelism.expert_tensor not in (None, job.parallelism.tensor)
            else None
        ),
    ),
    (
        "--micro-batch-size",
        "Batch size per model instance (local batch size).",
        lambda job: job.parallelism.micro_batch_size,
    ),
    (
        "--global-batch-size",
        "Training batch size.",
        lambda job: job.global_batch_size,
    ),
    (
        "--num-layers-per-virtual-pipeline-stage",
        "Number of layers per virtual pipeline stage",
        lambda job: virtual_layers(job) if job.parallelism.interleave > 1 else None,
    ),
    (
        "--no-overlap-p2p-communication",
        "overlap pipeline parallel communication with forward and backward chunks in 1F1B "
        "(switched off by it)",
        lambda job: job.parallelism.interleave > 1 and not job.software.overlap_pipeline,
    ),
    (
        "--account-for-embedding-in-pipeline-split",
        "If set, input embedding layer will be treated as a standard transformer layer in the "
        "context of partition and placement for pipeline parallelism.",
        uneven,
    ),
    (
        "--account-for-loss-in-pipeline-split",
        "If set, loss layer will be treated as a standard transformer layer in the context of "
        "partition and placement for pipeline parallelism.",
        uneven,
    ),
    (
        "--sequence-parallel",
        "Enable sequence parallel optimization.",
        lambda job: job.parallelism.sequence_parallel,
    ),
    (
        "--tp-comm-overlap",
        "Enables the overlap of Tensor parallel communication and GEMM kernels.",
        overlapped_tensor,
    ),
    (
        "--recompute-granularity",
        "full: whole transformer layer is recomputed, selective: submodules set in "
        "--recompute-modules are recomputed, default is core_attn.",
        lambda job: (
            None
            if job.parallelism.recompute is Recompute.NONE
            else job.parallelism.recompute.value
        ),
    ),
    (
        "--recompute-method",
        "uniform: uniformly divide the total number of Transformer layers and recompute the input "
        "activation of each divided chunk; block: recompute the input activations of only a set "
        "number of individual Transformer layers per pipeline stage",
        recompute_method,
    ),
    (
        "--recompute-num-layers",
        "uniform: the number of Transformer layers in each uniformly divided recompute unit; "
        "block: the number of individual Transformer layers to recompute within each stage",
        lambda job: (
            (job.parallelism.recompute_layers or 1)
            if job.parallelism.recompute is Recompute.FULL
            else None
        ),
    ),
    (
        "--cpu-offloading-num-layers",
        "The number of Transformer layers to offload to CPU.",
        lambda job: job.parallelism.offload_layers or None,
    ),
    (
        "--optimizer-cpu-offload",
        "Offload optimizer state to CPU.",
        lambda job: job.parallelism.offload.optimizer,
    ),
    (
        "--use-precision-aware-optimizer",
        "Use the precision-aware optimizer in TransformerEngine (demanded by the above; keeps "
        "remainders of BF16 weights)",
        lambda job: job.parallelism.offload.optimizer or job.weight_remainders,
    ),
    (
        "--recompute-modules",
        "The submodules to recompute: core_attn, moe_act, layernorm, mla_up_proj, mlp, moe",
        lambda job: " ".join(job.parallelism.recompute_modules) or None,
    ),
    ("--overlap-grad-reduce", "If set, overlap DDP grad reduce.", overlapped_data),
    (
        "--use-distributed-optimizer",
        "Use distributed optimizer.",
        lambda job: job.parallelism.data_sharding is DataSharding.OPTIMIZER,
    ),
    (
        "--num-distributed-optimizer-instances",
        "Number of Distributed Optimizer copies across Data Parallel domain.",
        lambda job: (
            job.parallelism.replicas // job.parallelism.sharding_degree
            if job.parallelism.sharding_degree
            else None
        ),
    ),
    (
        "--accumulate-allreduce-grads-in-fp32",
        "Gradient accumulation and all-reduce in fp32.",
        lambda job: job.precision is Precision.FP16 and job.software.gradient_bytes == 4,
    ),
    (
        "--overlap-param-gather",
        "If set, overlap param all-gather in distributed optimizer.",
        lambda job: (
            overlapped_data(job) and job.parallelism.data_sharding is DataSharding.OPTIMIZER
        ),
    ),
    (
        "--grad-reduce-in-bf16",
        "Reduce gradients in bfloat16.",
        lambda job: job.precision is not Precision.FP16 and not four_bytes(job) and not fsdp(job),
    ),
    ("--use-torch-fsdp2", "Use the torch FSDP2 implementation.", fsdp),
    (
        "--torch-fsdp2-no-reshard-after-forward",
        "Whether to reshard weights after forward pass when using PyTorch FSDP2. Set to enable "
        "FSDP ZeRO-2.",
        lambda job: (
            job.parallelism.data_sharding is DataSharding.GRADIENTS
            or not job.parallelism.reshard_after_forward
        ),
    ),
    (
        "--no-gradient-accumulation-fusion",
        "Disable fusing gradient accumulation to weight gradient computation of linear layers "
        "(demanded by FSDP2)",
        fsdp,
    ),
    (
        "--ckpt-format",
        "Checkpoint format to use (FSDP2 demands torch_dist or torch_dcp).",
        lambda job: "torch_dist" if fsdp(job) else None,
    ),
    ("--fp16", "Run model in fp16 mode.", lambda job: job.precision is Precision.FP16),
    ("--bf16", "Run model in bfloat16 mode.", lambda job: job.precision is not Precision.FP16),
    (
        "--fp8-format",
        "Which fp8 format scheme to use for FP8 tensors in the forward and backward pass",
        lambda job: {"fp8": "hybrid", "fp8_block": "e4m3", "mxfp8": "e4m3"}.get(
            job.precision.value
        ),
    ),
    (
        "--fp8-recipe",
        "Which fp8 recipe to use for FP8 tensors in the forward and backward pass; delayed by "
        "default",
        lambda job: {"fp8_block": "blockwise", "mxfp8": "mxfp8"}.get(job.precision.value),
    ),
    (
        "--fp8-param-gather",
        "Keep the compute param in fp8 and perform the param all-gather in fp8 (demands a "
        "distributed optimizer; FSDP2 ignores it with Transformer Engine 2.0 and later)",
        lambda job: job.fp8_parameters,
    ),
    (
        "--reuse-grad-buf-for-mxfp8-param-ag",
        "Reuse the grad buffer for the MXFP8 param all-gather (demanded by --fp8-param-gather)",
        lambda job: job.precision is Precision.MXFP8 and job.fp8_parameters and not fsdp(job),
    ),
    (
        "--fp4-format",
        "Which nvfp4 format scheme to use for FP4 tensors in the forward and backward pass",
        lambda job: "e2m1" if job.precision is Precision.NVFP4 else None,
    ),
    (
        "--fp4-recipe",
        "Which fp4 recipe to use for FP4 tensors in the forward and backward pass",
        lambda job: "nvfp4" if job.precision is Precision.NVFP4 else None,
    ),
    (
        "--cross-entropy-loss-fusion",
        "Enabled fusion of cross entropy loss calculation.",
        lambda job: job.software.loss is LossKernels.FUSED,
    ),
    (
        "--cross-entropy-fusion-impl",
        "Implementation of cross entropy loss calculation: native, te.",
        lambda job: "te" if job.software.loss is LossKernels.FUSED else None,
    ),
    (
        "--transformer-impl",
        "Which Transformer implementation to use.",
        lambda job: (
            "transformer_engine" if job.precision.is_low or overlapped_tensor(job) else None
        ),
    ),
    (
        "--cuda-graph-impl",
        "Determines the CUDA graph capture implementation. transformer_engine: capture the CUDA "
        "graph using TE make_graphed_callables().",
        lambda job: (
            "transformer_engine" if job.software.launch is LaunchMode.CUDA_GRAPHS else None
        ),
    ),
    (
        "--cuda-graph-scope",
        "Determines the CUDA graphs capturing scope: attn, mlp (of a dense layer), moe_router, "
        "moe_preprocess (goes with moe_router).",
        captured_parts,
    ),
    (
        "--te-rng-tracker",
        "Use the Transformer Engine version of the random number generator. Required for CUDA "
        "graphs support.",
        lambda job: job.software.launch is LaunchMode.CUDA_GRAPHS,
    ),
]
