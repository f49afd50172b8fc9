"""Memory account of a rank of each pipeline stage.

Activations follow Korthikanti et al. (arXiv 2205.05198, § 4): of one layer, micro-batch `b`,
sequence `s`, width `h`, `a` heads and tensor parallelism `t`, in bytes with two-byte values,

    s b h (10 + 24 / t + 5 a s / (h t))      tensor parallel
    s b h (34 + 5 a s / h) / t               with sequence parallelism
    without 5 a s / h                        selective recomputation, or fused attention
    2 s b h                                  full recomputation, and the rest of one layer

taken apart here by operator, so that gated blocks, grouped queries and recipes without dropout are
counted too. The first stage keeps the activations of most micro-batches (eq. 5 and § 4.2.3 there).
"""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING, NamedTuple

from dse.model import AttentionKind
from dse.workload._prediction import RESERVED, MemoryAccount
from dse.workload.transformer._types import (
    ContextExchange,
    DataSharding,
    LossKernels,
    Recompute,
    RecomputeModule,
    Schedule,
)
from dse.workload.transformer.kernels._experts import ExpertWork
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.kernels._operators import Product
from dse.workload.transformer.memory._parameters import (
    end_parameters,
    layer_expert_parameters,
    layer_parameters,
    optimizer_parameters,
    stage_expert_parameters,
    stage_matrix_parameters,
    stage_parameters,
    stage_shard,
)
from dse.workload.transformer.memory._recompute import (
    chosen_layers,
    chosen_share,
    recomputed_modules,
)
from dse.workload.transformer.step._schedule import in_flight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.workload.transformer._job import TransformerJob

#: Bytes of a master weight and of a value of optimizer state.
_MASTER_BYTES = 4

#: Layers whose parameters are gathered at the same time: the one at work and the next.
_GATHERED_LAYERS = 2

#: Standard deviation of the logarithm of actual over predicted bytes: of what a pass needs, and
#: of the total. Chosen so that 90 % of the published steps of nanotron lie in their interval.
_PASSING_SPREAD = 0.20
_TOTAL_SPREAD = 0.03

#: Offloaded layers that are on the device all the same: the one at work and the one on its way.
_LAYERS_ON_DEVICE = 2

#: Purpose whose bytes depend on micro batch and recomputation.
ACTIVATIONS = "activations"


def layer_activation_bytes(problem: TransformerJob, recompute: Recompute) -> float:
    """Returns the bytes that a rank keeps of one layer and micro-batch for the backward pass.

    Args:
        problem: What is trained, where and how; its layers are all alike.
        recompute: What is computed again, in place of what the problem says.
    """
    model, parallelism = problem.model, problem.parallelism
    value, mask = problem.precision.value_bytes, 1 if model.dropout else 0
    tokens = problem.micro_batch_tokens
    rows = tokens / parallelism.sequence_share
    hidden, tensor = model.hidden, parallelism.tensor
    if recompute is Recompute.FULL:
        return value * rows * hidden
    # Inputs of products are kept as they are multiplied: a cast, transposed, in low precision.
    operand = problem.precision.operand_bytes
    # Inputs of both norms and of both first products, and the masks of both dropouts.
    shared = rows * hidden * (2 * value + 2 * operand + 2 * mask)
    # Queries, keys, values; input of the projection; both sides of the activation. Without a fused
    # kernel of a gated activation, the activated gate is kept as well.
    activated = model.gated_ffn and not problem.software.fused_elementwise
    inner = model.ffn_width + (model.ffn_hidden if activated else 0)
    split = tokens * value * (model.qkv_width_of(tensor) + model.attention_width / tensor)
    if model.latent is not None:
        # Latent columns as their norms and as the products up take them in.
        shared += rows * model.latent.width * (value + operand)
    # Both inputs of a multi-token prediction module, before and after their norms.
    shared += 2 * model.of_modules * rows * hidden * (value + operand)
    block = tokens * (value * inner + operand * model.ffn_hidden) / tensor
    experts, activated_rows = _expert_activation_bytes(problem)
    if problem.precision.is_low:
        # Attention keeps its output; the projection has a cast of it.
        split += tokens * operand * model.attention_width / tensor
    core = 0.0
    if model.attention is AttentionKind.FLASH:
        core = 4.0 * tokens * model.heads / tensor
    else:
        # Probabilities; with dropout also its mask and output.
        per_score = value + (value + 1 if model.dropout else 0)
        core = per_score * tokens * model.sequence_length * model.heads / tensor
    kept = shared + split + block + experts + core
    if recompute is Recompute.NONE:
        return kept
    modules = recomputed_modules(replace(parallelism, recompute=recompute))
    dropped = {
        # Only its statistics, which are small, would be dropped of a fused kernel.
        RecomputeModule.CORE_ATTENTION: core if model.attention is AttentionKind.UNFUSED else 0.0,
        RecomputeModule.NORMS: 2 * rows * hidden * operand,
        RecomputeModule.LATENT_UP: (
            tokens * value * model.qkv_width_of(tensor) if model.latent is not None else 0.0
        ),
        RecomputeModule.FEED_FORWARD: block if model.experts is None else 0.0,
        RecomputeModule.EXPERTS: block + experts if model.experts is not None else 0.0,
        RecomputeModule.EXPERT_ACTIVATION: (
            0.0 if RecomputeModule.EXPERTS in modules else activated_rows
        ),
        RecomputeModule.OPERATORS: max(0.0, kept - _kept_by_operator(problem)),
    }
    return kept - sum(dropped[module] for module in modules)


def _kept_by_operator(problem: TransformerJob) -> float:
    """Returns what is kept of a layer where every other product is repeated.

    It is the layer's input, queries, values, what attention makes of them, the first side of the
    activation and, with a gate, what the last product makes; also what tensor-parallel ranks have
    added up, since sums are not repeated.
    """
    model, spread = problem.model, problem.parallelism
    value, tokens, tensor = (
        problem.precision.value_bytes,
        problem.micro_batch_tokens,
        spread.tensor,
    )
    rows = tokens / spread.sequence_share
    columns = model.attention_width / tensor + model.key_heads(tensor) * model.head_dim
    columns += model.ffn_hidden / tensor + (model.hidden if model.gated_ffn else 0)
    kept = rows * model.hidden * (1 + (2 if tensor > 1 else 0)) + tokens * columns
    if model.attention is AttentionKind.FLASH:
        kept += tokens * (model.attention_width + 4.0 / value * model.heads) / tensor
    return value * kept


def _expert_activation_bytes(problem: TransformerJob) -> tuple[float, float]:
    """Returns what experts keep, and what of that the output of their activation is.

    It is their input, both sides of the activation, and their output if it is weighed by itself.
    """
    model, experts = problem.model, problem.model.experts
    if experts is None:
        return 0.0, 0.0
    value, operand = problem.precision.value_bytes, problem.precision.operand_bytes
    rows = ExpertWork(problem).rows
    kept = (2 if model.gated_ffn else 1) * value + operand
    if model.gated_ffn and not problem.software.fused_elementwise:
        kept += value
    inner = experts.ffn_hidden / problem.parallelism.expert_shards
    # Fused kernels weigh rows by their scores in the activation: no output is needed again.
    output = 0 if problem.software.fused_elementwise else value
    return rows * (kept * inner + (operand + output) * model.hidden), rows * operand * inner


class _LayerBytes(NamedTuple):
    """What a rank keeps of one layer and micro-batch.

    Attributes:
        whole: Without recomputation.
        less: With it.
        operands: What gradients of weights are made of, where these are made apart.
    """

    whole: float
    less: float
    operands: float

    @staticmethod
    def of(problem: TransformerJob) -> _LayerBytes:
        """Returns those of a job of which all layers are alike."""
        apart = problem.parallelism.schedule is Schedule.ZERO_BUBBLE
        return _LayerBytes(
            layer_activation_bytes(problem, Recompute.NONE),
            layer_activation_bytes(problem, problem.parallelism.recompute),
            layer_operand_bytes(problem) if apart else 0.0,
        )


def stage_accounts(problem: TransformerJob) -> tuple[MemoryAccount, ...]:
    """Returns what a rank of each stage has to hold at the fullest moment of an iteration."""
    layers = [_LayerBytes.of(job) for job in problem.layer_jobs]
    return tuple(
        _stage_account(problem, stage, layers) for stage in range(problem.parallelism.pipeline)
    )


def _stage_account(
    problem: TransformerJob, stage: int, layers: Sequence[_LayerBytes]
) -> MemoryAccount:
    parameters = stage_parameters(problem, stage) + stage_expert_parameters(problem, stage)
    sharding = problem.parallelism.data_sharding
    part = 1.0
    if sharding.shards_optimizer:
        part = stage_shard(problem, stage) / max(1.0, parameters)
    value = problem.precision.value_bytes
    state = problem.model.optimizer.state_values_per_parameter * _MASTER_BYTES
    optimizer = parameters * (state + _master_bytes(problem))
    weights = parameters * value
    gradients = parameters * problem.gradient_bytes
    apart = value < problem.gradient_bytes and not problem.software.fused_accumulation
    if apart and not _reduces_by_layer(problem):
        # What a backward pass makes is added to the sums after it.
        gradients += parameters * value
    if _has_buckets(problem):
        gradients += parameters * value
    if sharding.shards_optimizer:
        optimizer *= part
    if sharding.shards_gradients and not problem.parallelism.no_sync:
        gradients *= part
    if sharding is DataSharding.PARAMETERS:
        # The sharded master weights are the only weights; gathered copies are buffers.
        weights = parameters * _MASTER_BYTES * part
        optimizer = parameters * state * part
    if problem.precision.is_low:
        # Transformer Engine keeps casts of the weights, as they are and transposed where products
        # need that, and the weights unless parameters are in FP8; of sharded ones while they are
        # gathered.
        matrices = stage_matrix_parameters(problem, stage)
        casts = problem.operand_copies * problem.precision.operand_bytes * matrices
        if sharding is DataSharding.PARAMETERS:
            casts *= min(
                1.0, _gathered_layers(problem, stage) / max(1, problem.stage_layers(stage))
            )
        elif problem.fp8_parameters:
            casts -= value * matrices
        weights += casts
    activations, held_bytes = _activations_bytes(problem, stage, layers)
    buffers = _buffers_bytes(problem, stage)
    if problem.parallelism.offload.optimizer:
        # With the gradients that its update takes in.
        held_bytes += optimizer + optimizer_parameters(problem, stage) * problem.gradient_bytes
        optimizer = 0.0
    parts = [
        ("weights", weights),
        ("gradients", gradients),
        ("optimizer state", optimizer),
        (ACTIVATIONS, activations),
        ("buffers", buffers),
    ]
    if fragmented := problem.software.fragmented_share:
        parts.append((RESERVED, fragmented * (activations + buffers)))
    # What is kept between steps is known; how much a pass needs in between is less so.
    passing = (activations + buffers) / max(1.0, sum(size_bytes for _, size_bytes in parts))
    spread = math.hypot(_PASSING_SPREAD * passing, _TOTAL_SPREAD)
    return MemoryAccount(tuple(parts), held_bytes, spread=spread)


def _master_bytes(problem: TransformerJob) -> int:
    """Returns the bytes of a master weight beside the weight that is multiplied."""
    value = problem.precision.value_bytes
    if value == _MASTER_BYTES:
        return 0
    return _MASTER_BYTES - (value if problem.weight_remainders else 0)


def _reduces_by_layer(problem: TransformerJob) -> bool:
    """Whether only the layer in progress has unreduced gradients, which are among the buffers."""
    spread = problem.parallelism
    sharded = spread.replicas > 1 and spread.data_sharding is DataSharding.PARAMETERS
    return sharded and not spread.no_sync


def _has_buckets(problem: TransformerJob) -> bool:
    """Whether gradients are reduced in buckets beside those that are summed."""
    spread = problem.parallelism
    alone = spread.replicas > 1 and spread.data_sharding is DataSharding.NONE
    return alone and problem.software.gradient_buckets


def kept_layer_bytes(problem: TransformerJob) -> float:
    """Returns the bytes that a rank keeps of an average layer and one micro-batch.

    Args:
        problem: What is trained, where and how; its layers are all alike.
    """
    share = chosen_share(problem, problem.parallelism.recompute_layers)
    whole = layer_activation_bytes(problem, Recompute.NONE)
    return whole + share * (layer_activation_bytes(problem, problem.parallelism.recompute) - whole)


def _activations_bytes(
    problem: TransformerJob, stage: int, layer_bytes: Sequence[_LayerBytes]
) -> tuple[float, float]:
    """Returns the bytes on the device and those in host memory."""
    model, parallelism = problem.model, problem.parallelism
    chunks = range(parallelism.interleave)
    layers = [problem.chunk_layers(stage, chunk) for chunk in chunks]
    again = sum(chosen_layers(count, parallelism.recompute_layers) for count in layers)
    share = again / max(sum(layers), 1)
    moments = in_flight(
        parallelism.pipeline,
        parallelism.interleave,
        problem.micro_batches,
        stage,
        parallelism.schedule,
    )
    kept = operands = repeated = 0.0
    for (_, count), each in zip(problem.stage_layer_jobs(stage), layer_bytes, strict=True):
        if count:
            kept += count * (share * each.less + (1 - share) * each.whole)
            repeated = max(repeated, each.whole - each.less)
            operands += count * each.operands
    found = []
    for moment in moments:
        held = moment.chunks * kept / parallelism.interleave
        away = _offloaded_share(problem, layers, moment.chunks) * held
        waiting = moment.weights * operands / parallelism.interleave
        found.append((held - away + waiting, away))
    kept, gone = max(found)
    if stage == 0 and model.dropout:
        masks = problem.micro_batch_tokens / parallelism.sequence_share * model.hidden
        kept += masks * min(parallelism.pipeline, problem.micro_batches)
    # The layer that is recomputed needs the rest as well; the loss is over by then.
    last = stage == parallelism.pipeline - 1
    kept += max(repeated, (1 + model.mtp_modules) * _head_bytes(problem) if last else 0.0)
    return kept * problem.software.kept_share, gone


def _offloaded_share(problem: TransformerJob, layers: Sequence[int], chunks: int) -> float:
    """Returns the share of a stage's layers in flight whose activations are in host memory.

    Args:
        problem: What is trained, where and how.
        layers: Layers of each of the stage's chunks.
        chunks: Chunks of them whose activations are held at once.
    """
    parallelism = problem.parallelism
    if not parallelism.offload.activations or not sum(layers) or not chunks:
        return 0.0
    chosen = sum(chosen_layers(count, parallelism.offload_layers) for count in layers)
    held = chunks * chosen / len(layers)
    return max(0.0, held - _LAYERS_ON_DEVICE) / (chunks * sum(layers) / len(layers))


def _head_bytes(problem: TransformerJob) -> float:
    """Returns what the final norm, the logits and the loss of one micro-batch need."""
    model, parallelism, software = problem.model, problem.parallelism, problem.software
    value = problem.precision.value_bytes
    tokens = problem.micro_batch_tokens
    # As the product makes them, and what the loss makes of them in FP32.
    per_logit = value if software.loss is LossKernels.FUSED else value + _MASTER_BYTES
    if software.copies_logits:
        per_logit += _MASTER_BYTES
    inputs = 2 * value * tokens / parallelism.sequence_share * model.hidden
    return inputs + per_logit * tokens * model.vocab / parallelism.tensor


def layer_operand_bytes(problem: TransformerJob) -> float:
    """Returns what the gradients of a layer's weights are made of, for one micro-batch.

    These are the inputs of all products and the gradients of their outputs: 32 `s b h` for a layer
    of GPT (Qi et al., arXiv 2401.10241, table 1).

    Args:
        problem: What is trained, where and how; its layers are all alike.
    """
    value, operand = problem.precision.value_bytes, problem.precision.operand_bytes
    spread, work = problem.parallelism, LayerWork(problem)
    made = [one for one in work.weight_gradients() if isinstance(one, Product)]
    inputs = sum(one.m * one.k for one in made)
    outputs = sum(one.k * one.n * one.experts for one in made)
    # What all tensor-parallel ranks take in and give is shared where sequences are.
    whole = work.tokens * problem.model.hidden * (1 - 1 / spread.sequence_share)
    blocks = 1 + bool(problem.model.ffn_hidden)
    return operand * (inputs - blocks * whole) + value * (outputs - blocks * whole)


def _buffers_bytes(problem: TransformerJob, stage: int) -> float:
    model, parallelism = problem.model, problem.parallelism
    value = problem.precision.value_bytes
    tokens = problem.micro_batch_tokens
    total = 0.0
    if parallelism.expert_ranks > 1 and model.experts is not None:
        # Rows on their way to the experts, and on their way back.
        total += 2 * value * ExpertWork(problem).mean_rows * model.hidden
    if parallelism.tensor > 1:
        total += problem.software.whole_sequence_buffers * value * tokens * model.hidden
    if parallelism.pipeline > 1:
        total += 2 * value * tokens * model.hidden / parallelism.tensor
    total += _context_buffer_bytes(problem, tokens)
    if parallelism.replicas > 1 and parallelism.data_sharding is DataSharding.PARAMETERS:
        layer = max(
            layer_parameters(one) + layer_expert_parameters(one) for one in problem.layer_jobs
        )
        first, last = stage == 0, stage == parallelism.pipeline - 1
        rest = end_parameters(problem, last=False) if first else 0.0
        rest += end_parameters(problem, last=True) if last else 0.0
        # Gathered layers and root, and one unreduced gradient of the larger of both. Weights that
        # are gathered in FP8 are among the casts.
        layers = 0 if problem.gathers_fp8 else _gathered_layers(problem, stage)
        total += value * (layers * layer + rest)
        if _reduces_by_layer(problem):
            total += problem.gradient_bytes * max(layer, rest)
    return total


def _gathered_layers(problem: TransformerJob, stage: int) -> int:
    """Returns how many layers of sharded parameters a stage holds gathered at once."""
    if problem.parallelism.reshard_after_forward:
        return _GATHERED_LAYERS
    return problem.stage_layers(stage)


def _context_buffer_bytes(problem: TransformerJob, tokens: float) -> float:
    """Returns what context-parallel ranks receive before attention begins."""
    model, spread = problem.model, problem.parallelism
    if spread.context == 1 or spread.context_exchange is ContextExchange.RING:
        return 0.0
    value, tensor = problem.precision.value_bytes, spread.tensor
    if spread.context_exchange is ContextExchange.ULYSSES:
        return value * tokens * model.qkv_width_of(tensor)
    # Keys and values of whole sequences, and in the backward pass their gradients.
    return 2 * value * tokens * spread.context * model.key_value_width(tensor)
