"""How each training program is written, as far as time and memory depend on it."""

from __future__ import annotations

from dataclasses import replace

from dse.workload._launch import LaunchMode
from dse.workload.transformer._types import (
    EAGER_CALLS,
    Capture,
    ExpertDispatch,
    FlashKernel,
    LossKernels,
    RotaryKernels,
    TransformerRuntime,
)

#: Kernels of Megatron-Core's router and bookkeeping in each direction: casts and the choice of the
#: best, sums by rank and by expert, what other ranks have, prefix sums and copies to the host,
#: numbers of rows, scale factors. Fitted on two published steps whose launches bind.
ROUTER_KERNELS = 50.0

#: What PyTorch's allocator cannot give out of activations and buffers with segments of fixed size,
#: when it has returned what it caches. Assumed.
_FRAGMENTED = 0.02

#: Overlaps and fuses all that can be. One pass of a fused optimizer reads a gradient of two bytes,
#: updates weight and two moments (24) and writes the weight in its precision (2). The step is one
#: graph; where kernels are launched, the framework is called once for each.
IDEAL_RUNTIME = TransformerRuntime(
    launch=LaunchMode.CUDA_GRAPHS,
    captures=Capture.EVERYTHING,
    framework_calls_per_op=1.0,
    sequence_parallel=True,
    rotary=RotaryKernels.NONE,
    gradient_bytes=2,
    fp8_parameters=True,
    weight_remainders=True,
    optimizer_traffic_bytes=28.0,
    expert_dispatch=ExpertDispatch.DEDUPLICATED,
    expert_overlap=True,
)

#: Megatron-LM of 2022 with Apex: DDP after the last backward pass; gradients have two bytes with
#: FP16 weights and four with BF16 weights. An update copies the gradient to FP32 (6 bytes),
#: unscales it (8), takes the norm (4), clips (8), reads the gradient and updates weight and two
#: moments (28), and copies the weight back to its precision (6). A block of its softmax kernel
#: works on four heads (its `fused_softmax.py`).
MEGATRON = TransformerRuntime(
    overlap_gradients=False,
    overlap_tensor_products=False,
    overlap_pipeline=False,
    softmax_group=4,
    rotary=RotaryKernels.SEPARATE,
    loss=LossKernels.SPLIT_VOCABULARY,
    stops_recomputing_early=False,
    gradient_bytes=2,
    sums_bf16_in_fp32=True,
    optimizer_traffic_bytes=60.0,
    flash_kernel=FlashKernel.FLASH2,
    host_waits_for_stages=True,
    fragmented_share=_FRAGMENTED,
)

#: Megatron-Core with Transformer Engine, as NeMo and Megatron-Bridge run it: gradients are reduced
#: in two bytes during the backward pass; norms, activations and the loss are fused. An update
#: takes the norm of the gradient (2 bytes), reads it and updates weight and two moments (26), and
#: writes the weight in its precision (2). Recipes for FP8 and MXFP8 keep parameters in these
#: (Megatron-Bridge's `mixed_precision.py`). Of weights in BF16 the optimizer keeps remainders
#: (`use_precision_aware_optimizer` in NeMo's and Megatron-Bridge's performance scripts, with
#: `store_param_remainders` of Megatron-Core's `OptimizerConfig`; NeMo 1 asked Apex for the same in
#: its `setup_optimization`). What is recomputed runs to its end (`checkpoint` of
#: Megatron-Core's `random.py` and of Transformer Engine).
MEGATRON_CORE = TransformerRuntime(
    captures=Capture.LAYERS,
    sequence_parallel=True,
    stops_recomputing_early=False,
    gradient_bytes=2,
    fp8_parameters=True,
    weight_remainders=True,
    optimizer_traffic_bytes=30.0,
    flash_kernel=FlashKernel.CURRENT,
    expert_dispatch=ExpertDispatch.DEDUPLICATED,
    fused_experts=False,
    router_kernels=ROUTER_KERNELS,
)

#: Composer over PyTorch FSDP with the Triton kernel of FlashAttention, as LLM Foundry ran MPT.
#: The optimizer is a loop of separate kernels: decay (8), two moments (12 + 16), denominator
#: (8 + 8), quotient and update (16), clipping by norm (4 + 8).
COMPOSER = TransformerRuntime(
    fused_elementwise=False,
    rotary=RotaryKernels.SEPARATE,
    loss=LossKernels.TORCH,
    gradient_bytes=4,
    optimizer_traffic_bytes=80.0,
    flash_kernel=FlashKernel.TRITON,
)


#: nanotron: eager PyTorch. Every backward pass adds to FP32 gradients. An update averages and
#: zeroes them (14 bytes), takes the norm (4) and clips (8), updates weight and two moments (28),
#: and copies the weight back to its precision (6). It starts collectives of tensor parallelism
#: asynchronously, but published steps take as long as if products waited for them: with overlap as
#: in Megatron-LM the 8B model on four ranks would be 8 % too fast, without it 1 %. Recomputation
#: is PyTorch's `CheckpointFunction`, which repeats whole layers.
NANOTRON = TransformerRuntime(
    overlap_tensor=False,
    overlap_gradients=False,
    overlap_tensor_products=False,
    overlap_pipeline=False,
    fused_elementwise=False,
    joins_gates=True,
    rotary=RotaryKernels.COPIED,
    stops_recomputing_early=False,
    fused_accumulation=False,
    loss=LossKernels.SPLIT_VOCABULARY,
    gradient_bytes=4,
    optimizer_traffic_bytes=60.0,
    flash_kernel=FlashKernel.FLASH2,
    calls_per_collective=12.5,
    delay_beside_stages_s=220e-6,
    delay_between_nodes_s=400e-6,
    host_waits_for_stages=True,
    balances_stages=True,
    tensors_apart=True,
    kept_share=1.2,
    whole_sequence_buffers=4,
    copies_logits=True,
    gradient_buckets=True,
    fragmented_share=_FRAGMENTED,
)

#: torchtitan with `torch.compile` of each layer: FSDP2 gathers and reduces alongside the layers,
#: the latter in FP32; collectives of tensor parallelism wait, and it has no tensor parallelism
#: without sequence parallelism. Fused AdamW updates FP32 shards (28 bytes) after norm (4) and
#: clipping (8).
TORCHTITAN = TransformerRuntime(
    sequence_parallel=True,
    overlap_tensor=False,
    overlap_tensor_products=False,
    fused_accumulation=False,
    flash_kernel=FlashKernel.FLASH2,
    framework_calls_per_op=1.0,
    copies_parameters=True,
)

#: The same without `torch.compile`.
TORCHTITAN_EAGER = replace(
    TORCHTITAN,
    fused_elementwise=False,
    rotary=RotaryKernels.SEPARATE,
    loss=LossKernels.TORCH,
    framework_calls_per_op=EAGER_CALLS,
)

#: PyTorch's own DDP, FSDP2 and tensor parallelism without compilation, as the exported module
#: calls them (``fsdp``) and :mod:`dse.validation` trains, without rotary positions. One pass of a
#: fused AdamW updates FP32 weights (28 bytes).
PYTORCH = replace(TORCHTITAN_EAGER, rotary=RotaryKernels.NONE, optimizer_traffic_bytes=28.0)

#: The same between processes on a CPU, where a call launches nothing. Calls are fitted on steps
#: that hardly compute: those of a kernel on single ranks, the others on what FSDP2 and DTensor add
#: to each layer, about 1.5 ms of processor time a collective on a core of an EPYC whose time
#: between operators is 0.63 µs.
PYTORCH_CPU = replace(
    PYTORCH,
    framework_calls_per_op=14.6,
    calls_per_collective=2400.0,
    calls_per_shard_transfer=2400.0,
)
