"""Parallelism of a transformer's step, and how the program that runs it is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dse.workload._launch import LaunchMode

if TYPE_CHECKING:
    from collections.abc import Iterable


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass (Korthikanti et al., § 5).

    ``selective``: the core of attention, whose activations are large and cheap. ``full``: all of a
    layer from its input.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class RecomputeModule(StrEnum):
    """A part of a layer that selective recomputation repeats, by Megatron-Core's name.

    ``core_attn``: scores, softmax and weighted values; fused attention repeats them in any case.
    ``mla_up_proj``: queries, keys and values made from latent columns. ``layernorm``: outputs of
    both norms. ``mlp``: the feed-forward block of a layer without experts. ``moe``: routing and
    experts, shared ones too, with the exchange of rows. ``moe_act``: the activation between an
    expert's products. ``op`` is torchtitan's name: all but attention and every other product.
    """

    CORE_ATTENTION = "core_attn"
    LATENT_UP = "mla_up_proj"
    NORMS = "layernorm"
    FEED_FORWARD = "mlp"
    EXPERTS = "moe"
    EXPERT_ACTIVATION = "moe_act"
    OPERATORS = "op"

    @staticmethod
    def text(modules: Iterable[RecomputeModule]) -> str:
        """Returns modules as search spaces and options write them."""
        return "+".join(modules)

    @staticmethod
    def of(text: str) -> tuple[RecomputeModule, ...]:
        """Returns the modules of a text such as ``layernorm+mlp``, each once, in a fixed order.

        Raises:
            ValueError: There is no such module.
        """
        named = [RecomputeModule(name) for name in text.split("+") if name]
        return tuple(module for module in RecomputeModule if module in named)


class Offload(StrEnum):
    """What is kept in host memory instead of on the device."""

    NONE = "none"
    ACTIVATIONS = "activations"
    OPTIMIZER = "optimizer"
    ALL = "all"

    @property
    def activations(self) -> bool:
        """Whether activations are."""
        return self in (Offload.ACTIVATIONS, Offload.ALL)

    @property
    def optimizer(self) -> bool:
        """Whether the optimizer's state is, so that the host updates it."""
        return self in (Offload.OPTIMIZER, Offload.ALL)


class DataSharding(StrEnum):
    """What data-parallel ranks keep only a part of (ZeRO: Rajbhandari et al., arXiv 1910.02054).

    ``none`` is DDP; ``zero1`` shards the optimizer's state, ``zero2`` gradients too, ``zero3``
    parameters too, which is what FSDP calls a full shard.
    """

    NONE = "none"
    OPTIMIZER = "zero1"
    GRADIENTS = "zero2"
    PARAMETERS = "zero3"

    @property
    def shards_optimizer(self) -> bool:
        """Whether the optimizer's state is sharded."""
        return self is not DataSharding.NONE

    @property
    def shards_gradients(self) -> bool:
        """Whether gradients are sharded."""
        return self in (DataSharding.GRADIENTS, DataSharding.PARAMETERS)


class ContextExchange(StrEnum):
    """How context-parallel ranks get the keys and values of each other's part of a sequence.

    ``ring``: they go around, while attention with those of the previous rank is computed (Liu et
    al., arXiv 2310.01889; the default of Megatron-Core, `p2p`). ``all_gather``: all of them are
    gathered first (Llama 3, arXiv 2407.21783, § 3.3.2). ``ulysses``: an all-to-all gives each rank
    whole sequences of a part of the heads, and another brings the outputs back (Jacobs et al.,
    arXiv 2309.14509). In the first two each rank has the first and the last of equal parts of a
    sequence and so on, so that a causal mask leaves all as much work.
    """

    RING = "ring"
    ALL_GATHER = "all_gather"
    ULYSSES = "ulysses"


class Schedule(StrEnum):
    """The order in which a pipeline stage takes its passes.

    ``1f1b`` and, with several chunks of layers a stage, its interleaved form: Narayanan et al.
    (arXiv 2104.04473, § 2.2). ``gpipe``: all forward passes, then all backward passes (Huang et
    al., arXiv 1811.06965). ``zero_bubble``: gradients of weights are made apart from those of
    inputs, and later, in what would be the bubble (ZB-H1: Qi et al., arXiv 2401.10241, § 2.3;
    PyTorch's `InterleavedZeroBubble`).
    """

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    ZERO_BUBBLE = "zero_bubble"


class FlashKernel(StrEnum):
    """Which implementation of fused attention.

    ``flash2`` is FlashAttention-2 and ``triton`` Triton's kernel. ``current`` is what present-day
    programs call: FlashAttention-3 where it was measured (Hopper), TensorRT-LLM's kernel in
    FlashInfer where that was (Blackwell), both of the class of cuDNN's, else FlashAttention-2.
    """

    FLASH2 = "flash2"
    TRITON = "triton"
    CURRENT = "current"

    @property
    def implementations(self) -> tuple[str, ...]:
        """Names of the kernels in calibrations and published figures, the preferred one first."""
        return {
            FlashKernel.FLASH2: ("flash_attention_2",),
            FlashKernel.TRITON: ("triton",),
            FlashKernel.CURRENT: ("flash_attention_3", "flashinfer", "flash_attention_2"),
        }[self]


class LossKernels(StrEnum):
    """How the loss is computed from the logits.

    ``fused``: one kernel in each direction. ``torch``: PyTorch's loss under autocast, with a cast
    to FP32 and back. ``split_vocabulary``: Megatron-LM's, one operator a step of the softmax.
    """

    FUSED = "fused"
    TORCH = "torch"
    SPLIT_VOCABULARY = "split_vocabulary"


class Capture(StrEnum):
    """What a program can capture as CUDA graphs.

    ``layers``: each pass of a layer, without what its experts do, whose sizes change.
    ``everything``: the whole step, which only a bound can assume of any step.
    """

    NOTHING = "nothing"
    LAYERS = "layers"
    EVERYTHING = "everything"


class RotaryKernels(StrEnum):
    """How positions are rotated into queries and keys, where models have no learned ones.

    ``none``: nothing is rotated, or inside other kernels. ``fused``: by one kernel each, as in
    Transformer Engine. ``separate``: by operators of PyTorch in FP32, and keys and values are
    repeated for the heads that share them. ``copied``: by one kernel each, among copies that
    bring sequences together and keys next to values, as in nanotron.
    """

    NONE = "none"
    FUSED = "fused"
    SEPARATE = "separate"
    COPIED = "copied"


class ExpertDispatch(StrEnum):
    """How tokens reach the ranks of their experts, and results come back.

    ``alltoall``: rows, one for each expert that a token visits, by NCCL. ``allgather``: all ranks
    have all tokens, and sums are scattered. ``deduplicated``: a token goes once to every node, and
    once to every rank inside it, that has one of its experts (DeepEP, HybridEP).
    """

    ALL_TO_ALL = "alltoall"
    ALL_GATHER = "allgather"
    DEDUPLICATED = "deduplicated"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How a training step is spread over ranks, and what it recomputes.

    Ranks are numbered with tensor parallelism innermost, then context, data, and pipeline stages
    outermost, as Megatron-LM does.

    Attributes:
        tensor: Ranks that share every matrix.
        pipeline: Stages.
        data: Replicas, each with its own part of the batch.
        context: Ranks that share every sequence.
        expert: Ranks that share the experts of a layer, each with as many of them.
        expert_tensor: Ranks that share every expert's matrices; None for as many as `tensor`.
        expert_dispatch: How tokens reach their experts; None as the program does it.
        expert_overlap: Tokens travel to their experts and back while a pass of another micro-batch
            computes (`overlap_moe_expert_parallel_comm` of Megatron-Core); None as the program
            does it.
        interleave: Chunks of layers of one stage.
        schedule: Order of the passes of a stage.
        sequence_parallel: Tensor-parallel ranks also share norms, dropout and residuals.
        micro_batch_size: Samples of one pass through a stage.
        recompute: What is computed again in the backward pass.
        recompute_modules: Parts of a layer that selective recomputation repeats; empty for the
            core of attention.
        recompute_layers: Layers of each stage, or virtual stage, of which anything is computed
            again; 0 for all.
        offload: What is kept in host memory.
        offload_layers: Layers of each stage, or virtual stage, whose activations it holds; 0 for
            all.
        data_sharding: What data-parallel ranks keep only a part of.
        sharding_degree: Ranks that share one copy of what is sharded; other groups of as many keep
            copies of it (HSDP). All replicas if None.
        reshard_after_forward: With sharded parameters, each layer's gathered ones are freed after
            its forward pass and gathered again for its backward pass.
        no_sync: With sharded gradients, these are summed over micro-batches on every rank, and
            over ranks only after the last micro-batch.
        context_exchange: How context-parallel ranks share keys and values.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    expert_dispatch: ExpertDispatch | None = None
    expert_overlap: bool | None = None
    interleave: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    sequence_parallel: bool = False
    micro_batch_size: int = 1
    recompute: Recompute = Recompute.NONE
    recompute_modules: tuple[RecomputeModule, ...] = ()
    recompute_layers: int = 0
    offload: Offload = Offload.NONE
    offload_layers: int = 0
    data_sharding: DataSharding = DataSharding.NONE
    sharding_degree: int | None = None
    reshard_after_forward: bool = True
    no_sync: bool = False
    context_exchange: ContextExchange = ContextExchange.RING

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def replicas(self) -> int:
        """Ranks with the same parameters before sharding: those of data and context."""
        return self.data * self.context

    @property
    def shards(self) -> int:
        """Ranks that share one copy of what is sharded."""
        return self.sharding_degree or self.replicas

    @property
    def expert_shards(self) -> int:
        """Ranks that share every expert's matrices."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def expert_ranks(self) -> int:
        """Ranks that have all experts of a layer between them."""
        return self.expert * self.expert_shards

    @property
    def expert_replicas(self) -> int:
        """Ranks of a stage with the same part of the experts."""
        return self.tensor * self.replicas // self.expert_ranks

    @property
    def expert_zero(self) -> int:
        """Ranks that share one copy of what is sharded of the same experts."""
        return max(1, self.tensor * self.shards // self.expert_ranks)

    @property
    def sequence_share(self) -> int:
        """Tensor-parallel ranks that share norms and residuals."""
        return self.tensor if self.sequence_parallel else 1


#: Calls of eager PyTorch for one kernel of a transformer, modules and automatic differentiation
#: included. Fitted on published steps of small GPT models on one node (docs/transformers.md).
EAGER_CALLS = 3.3


@dataclass(frozen=True, slots=True)
class TransformerRuntime:
    """How the training program is written, as far as time and memory depend on it.

    Attributes:
        overlap_gradients: Gradients are reduced while the backward pass still runs.
        prefetch_parameters: Sharded parameters of the next layer are gathered during this one.
        overlap_tensor: In the backward pass the collectives of tensor parallelism overlap
            with the product that makes the weights' gradient.
        sequence_parallel: Recipes have sequence parallelism beside tensor parallelism.
        overlap_tensor_products: With sequence parallelism, gathers and scatters overlap in parts
            with the products whose operands or results they move.
        overlap_pipeline: Stages send and receive while they compute; else a sender waits until its
            output has arrived.
        fused_elementwise: Bias, activation, dropout and residual share kernels.
        softmax_group: Where attention is not fused, its softmax is one kernel if this divides a
            rank's heads over all samples of a micro-batch; else one kernel for each operator.
        joins_gates: A gate and what it multiplies are halves of one product, whose gradients
            separate kernels put together again.
        rotary: How positions are rotated into queries and keys.
        fused_accumulation: Products that make gradients add them to those of earlier passes.
        loss: How the loss is computed from the logits.
        stops_recomputing_early: Recomputation ends with the last activation that is needed, so a
            layer's last product is not repeated.
        gradient_bytes: Bytes of a gradient value where it is summed over micro-batches and ranks,
            with weights of two bytes.
        sums_bf16_in_fp32: With weights in BF16 these are four bytes in any case.
        fp8_parameters: Weights of products in FP8 are kept as products read them, and gathered so
            where one scale factor a tensor allows it; else they are kept in BF16 as well
            (`fp8_param_gather` of Megatron-Core).
        weight_remainders: A sharded master weight of a weight in BF16 is the 16 bits that the
            weight lacks; else all 32.
        optimizer_traffic_bytes: Bytes that one update of one parameter reads and writes: gradient
            clipping, unscaling, copies between precisions and the rule itself.
        flash_kernel: Which implementation of fused attention.
        expert_dispatch: How tokens reach their experts.
        expert_overlap: They do so while a pass of another micro-batch computes, where that is
            possible.
        fused_experts: Biases and limits of experts are part of their products; else they are
            kernels of their own, biases for each expert.
        router_kernels: Kernels of a layer's router, and of the bookkeeping of its exchange, in
            each direction.
        launch: Eager launches, or captured CUDA graphs.
        captures: What the program can capture.
        framework_calls_per_op: Calls of the framework for one kernel: modules, automatic
            differentiation, views, casts. Eager only; host overheads measured from traces
            include them.
        calls_per_collective: Calls of the framework for a collective of tensor parallelism, with
            what divides the product next to it; zero where those per kernel include them.
        calls_per_shard_transfer: Calls of the framework to gather the sharded parameters of a
            layer once, or to reduce their gradients: hooks, copies, streams and views.
        delay_beside_stages_s: Time that each rank loses at each such collective while stages on
            other nodes send to each other.
        delay_between_nodes_s: Time lost at each such collective for every node but one that it
            spans: of a ring, one message after the other goes from node to node.
        host_waits_for_stages: The host synchronises with the device whenever a stage has
            received its input, so launches cannot run ahead of transfers between stages.
        balances_stages: Stages share the arithmetic of layers and logits; else the layers.
        tensors_apart: Gradients and updated parameters of replicas are sent tensor by tensor.
        copies_parameters: Gathered parameters are copied from the buffer of their collective to
            tensors, and gradients, in their own precision, to that of theirs.
        kept_share: Bytes of activations that are held over those that the backward pass needs:
            copies that reshaping makes, and what is freed late.
        whole_sequence_buffers: Inputs, outputs or their gradients of a layer that are held for all
            of a sequence where sequence parallelism splits them, next to its activations.
        copies_logits: The loss keeps the logits in FP32 as well as their softmax; else in place.
        gradient_buckets: Replicas that do not shard the optimizer reduce gradients in buckets of
            the weights' precision beside those that are summed over micro-batches.
        fragmented_share: Bytes that PyTorch's allocator cannot give out for each one of
            activations and buffers, after it has returned what it caches; none with expandable
            segments.
    """

    overlap_gradients: bool = True
    prefetch_parameters: bool = True
    overlap_tensor: bool = True
    sequence_parallel: bool = False
    overlap_tensor_products: bool = True
    overlap_pipeline: bool = True
    fused_elementwise: bool = True
    softmax_group: int = 1
    joins_gates: bool = False
    rotary: RotaryKernels = RotaryKernels.FUSED
    fused_accumulation: bool = True
    loss: LossKernels = LossKernels.FUSED
    stops_recomputing_early: bool = True
    gradient_bytes: int = 4
    sums_bf16_in_fp32: bool = False
    fp8_parameters: bool = False
    weight_remainders: bool = False
    optimizer_traffic_bytes: float = 40.0
    flash_kernel: FlashKernel = FlashKernel.CURRENT
    expert_dispatch: ExpertDispatch = ExpertDispatch.ALL_TO_ALL
    expert_overlap: bool = False
    fused_experts: bool = True
    router_kernels: float = 3.0
    launch: LaunchMode = LaunchMode.EAGER
    captures: Capture = Capture.NOTHING
    framework_calls_per_op: float = EAGER_CALLS
    calls_per_collective: float = 0.0
    calls_per_shard_transfer: float = 0.0
    delay_beside_stages_s: float = 0.0
    delay_between_nodes_s: float = 0.0
    host_waits_for_stages: bool = False
    balances_stages: bool = False
    tensors_apart: bool = False
    copies_parameters: bool = False
    kept_share: float = 1.0
    whole_sequence_buffers: int = 1
    copies_logits: bool = False
    gradient_buckets: bool = False
    fragmented_share: float = 0.0
