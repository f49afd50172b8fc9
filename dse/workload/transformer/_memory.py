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
from typing import TYPE_CHECKING

from dse.model import AttentionKind
from dse.workload._prediction import RESERVED, MemoryAccount
from dse.workload.transformer._recompute import chosen_layers, recomputed_modules
from dse.workload.transformer._schedule import chunks_in_flight
from dse.workload.transformer._types import DataSharding, LossKernels, Recompute, RecomputeModule

if TYPE_CHECKING:
    from dse.workload.transformer._job import TransformerJob

#: Bytes of a master weight and of a value of optimizer state.
_MASTER_BYTES = 4

#: Layers whose parameters are gathered at the same time: the one at work and the next.
_GATHERED_LAYERS = 2

#: Standard deviation of the logarithm of actual over predicted bytes: of what a pass needs, and of
#: the total besides. Such that 90 % of the published steps of nanotron lie in their interval.
_PASSING_SPREAD = 0.20
_TOTAL_SPREAD = 0.03

#: Purpose whose bytes depend on micro batch and recomputation.
ACTIVATIONS = "activations"


def layer_activation_bytes(problem: TransformerJob, recompute: Recompute) -> float:
    """Returns the bytes that a rank keeps of one layer and micro-batch for the backward pass.

    Args:
        problem: What is trained, where and how.
        recompute: What is computed again, in place of what the problem says.
    """
    model, parallelism = problem.model, problem.parallelism
    value, mask = problem.precision.value_bytes, 1 if model.dropout else 0
    tokens = parallelism.micro_batch_size * model.sequence_length / parallelism.context
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
    split = tokens * value * (model.qkv_width + model.attention_width) / tensor
    block = tokens * (value * inner + operand * model.ffn_hidden) / tensor
    experts, activated_rows = _expert_activation_bytes(problem, tokens)
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
        RecomputeModule.FEED_FORWARD: block,
        RecomputeModule.EXPERTS: experts,
        RecomputeModule.EXPERT_ACTIVATION: (
            0.0 if RecomputeModule.EXPERTS in modules else activated_rows
        ),
    }
    return kept - sum(dropped[module] for module in modules)


def _expert_activation_bytes(problem: TransformerJob, tokens: float) -> tuple[float, float]:
    """Returns what experts keep, and what of that the output of their activation is.

    It is their input, both sides of the activation, and their output.
    """
    model, experts = problem.model, problem.model.experts
    if experts is None:
        return 0.0, 0.0
    value, operand = problem.precision.value_bytes, problem.precision.operand_bytes
    rows = tokens * experts.active * experts.imbalance
    kept = (2 if model.gated_ffn else 1) * value + operand
    if model.gated_ffn and not problem.software.fused_elementwise:
        kept += value
    inner = experts.ffn_hidden / problem.parallelism.tensor
    return rows * (kept * inner + (operand + value) * model.hidden), rows * operand * inner


def end_parameters(problem: TransformerJob, *, last: bool) -> float:
    """Returns the parameters of a rank before the layers, or after them, of that stage.

    Tensor parallelism splits the rows of the vocabulary; positions, segments, the final norm and
    BERT's transform are on each of its ranks, as in Megatron-LM.

    Args:
        problem: What is trained, where and how.
        last: After the layers; there a tied embedding counts again if another stage has it too.
    """
    model, parallelism = problem.model, problem.parallelism
    vocabulary = model.vocab * model.hidden
    if not last:
        return vocabulary / parallelism.tensor + model.embedding_parameters - vocabulary
    own = 0 if model.tied_embeddings else vocabulary
    held = 0 if model.tied_embeddings and parallelism.pipeline == 1 else vocabulary
    return held / parallelism.tensor + model.head_parameters - own


def stage_parameters(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a rank of a stage before any sharding over replicas.

    Those of experts are counted by :func:`stage_expert_parameters`.
    """
    model, parallelism = problem.model, problem.parallelism
    tensor, last = parallelism.tensor, parallelism.pipeline - 1
    vectors = 6 if model.biases else 2
    whole = min(vectors * model.hidden, model.layer_vector_parameters)
    split = model.layer_parameters - whole
    total = problem.stage_layers(stage) * (split / tensor + whole)
    if stage == 0:
        total += end_parameters(problem, last=False)
    if stage == last:
        total += end_parameters(problem, last=True)
    return total


def stage_expert_parameters(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a rank's experts before any sharding over replicas."""
    parallelism = problem.parallelism
    layer = problem.model.layer_expert_parameters / (parallelism.tensor * parallelism.expert)
    return problem.stage_layers(stage) * layer


def stage_shard(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a stage's shard, if all ranks with the same ones share them."""
    parallelism = problem.parallelism
    shared = stage_parameters(problem, stage)
    experts = stage_expert_parameters(problem, stage)
    return (shared + experts * parallelism.expert) / parallelism.replicas


def stage_matrix_parameters(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a rank's matrices in the layers of a stage."""
    layers = problem.stage_layers(stage)
    shared = layers * problem.model.layer_matrix_parameters / problem.parallelism.tensor
    return shared + stage_expert_parameters(problem, stage)


def stage_memory(problem: TransformerJob, stage: int) -> MemoryAccount:
    """Returns what a rank of a stage has to hold at the fullest moment of an iteration."""
    parameters = stage_parameters(problem, stage) + stage_expert_parameters(problem, stage)
    sharding = problem.parallelism.data_sharding
    part = stage_shard(problem, stage) / max(1.0, parameters)
    value = problem.precision.value_bytes
    mixed = value < _MASTER_BYTES
    state = problem.model.optimizer.state_values_per_parameter * _MASTER_BYTES
    optimizer = parameters * (state + (_MASTER_BYTES if mixed else 0))
    weights = parameters * value
    gradients = parameters * problem.gradient_bytes
    if value < problem.gradient_bytes and not problem.software.fused_accumulation:
        # What a backward pass makes is added to the sums after it.
        gradients += parameters * value
    if _has_buckets(problem):
        gradients += parameters * value
    if sharding.shards_optimizer:
        optimizer *= part
    if sharding.shards_gradients:
        gradients *= part
    if sharding is DataSharding.PARAMETERS:
        # The sharded master weights are the only weights; gathered copies are buffers.
        weights = parameters * _MASTER_BYTES * part
        optimizer = parameters * state * part
    if problem.precision.is_low:
        # Transformer Engine keeps the weights, and casts of them as they are and transposed.
        weights += 2 * problem.precision.operand_bytes * stage_matrix_parameters(problem, stage)
    activations, buffers = _activations_bytes(problem, stage), _buffers_bytes(problem)
    parts = [
        ("weights", weights),
        ("gradients", gradients),
        ("optimizer state", optimizer),
        (ACTIVATIONS, activations),
        ("buffers", buffers),
    ]
    if fragmented := problem.software.fragmented_share:
        parts.append((RESERVED, fragmented * (activations + buffers)))
    account = MemoryAccount(tuple(parts))
    # What is kept between steps is known; how much a pass needs in between is less so.
    passing = (activations + buffers) / account.total_bytes
    return replace(account, spread=math.hypot(_PASSING_SPREAD * passing, _TOTAL_SPREAD))


def _has_buckets(problem: TransformerJob) -> bool:
    """Whether gradients are reduced in buckets beside those that are summed."""
    spread = problem.parallelism
    alone = spread.replicas > 1 and spread.data_sharding is DataSharding.NONE
    return alone and problem.software.gradient_buckets


def _activations_bytes(problem: TransformerJob, stage: int) -> float:
    model, parallelism = problem.model, problem.parallelism
    recompute = parallelism.recompute
    layers = problem.stage_layers(stage) / parallelism.interleave
    again = (
        sum(
            chosen_layers(problem.chunk_layers(stage, chunk), parallelism.recompute_layers)
            for chunk in range(parallelism.interleave)
        )
        / parallelism.interleave
    )
    chunks = chunks_in_flight(
        parallelism.pipeline, parallelism.interleave, problem.micro_batches, stage
    )
    whole, less = (layer_activation_bytes(problem, kind) for kind in (Recompute.NONE, recompute))
    kept = chunks * (again * less + (layers - again) * whole)
    if stage == 0 and model.dropout:
        tokens = parallelism.micro_batch_size * model.sequence_length / parallelism.context
        masks = tokens / parallelism.sequence_share * model.hidden
        kept += masks * min(parallelism.pipeline, problem.micro_batches)
    # The layer that is computed again needs the rest besides; the loss is over by then.
    last = stage == parallelism.pipeline - 1
    kept += max(whole - less, _head_bytes(problem) if last else 0.0)
    return kept * problem.software.kept_share


def _head_bytes(problem: TransformerJob) -> float:
    """Returns what the final norm, the logits and the loss of one micro-batch need."""
    model, parallelism, software = problem.model, problem.parallelism, problem.software
    value = problem.precision.value_bytes
    tokens = parallelism.micro_batch_size * model.sequence_length / parallelism.context
    # As the product makes them, and what the loss makes of them in FP32.
    per_logit = value if software.loss is LossKernels.FUSED else value + _MASTER_BYTES
    if software.copies_logits:
        per_logit += 2 * _MASTER_BYTES
    inputs = 2 * value * tokens / parallelism.sequence_share * model.hidden
    return inputs + per_logit * tokens * model.vocab / parallelism.tensor


def _buffers_bytes(problem: TransformerJob) -> float:
    model, parallelism = problem.model, problem.parallelism
    value = problem.precision.value_bytes
    tokens = parallelism.micro_batch_size * model.sequence_length / parallelism.context
    total = 0.0
    if parallelism.expert > 1 and model.experts is not None:
        # Rows on their way to the experts, and on their way back.
        total += 2 * value * tokens * model.experts.active * model.hidden
    if parallelism.tensor > 1:
        total += problem.software.whole_sequence_buffers * value * tokens * model.hidden
    if parallelism.pipeline > 1:
        total += 2 * value * tokens * model.hidden / parallelism.tensor
    if parallelism.replicas > 1 and parallelism.data_sharding is DataSharding.PARAMETERS:
        experts = model.layer_expert_parameters / parallelism.expert
        layer = (model.layer_parameters + experts) / parallelism.tensor
        rest = end_parameters(problem, last=False) + end_parameters(problem, last=True)
        # Gathered layers and root, and one unreduced gradient of the larger of both.
        total += value * (_GATHERED_LAYERS * layer + rest)
        total += problem.gradient_bytes * max(layer, rest)
    return total
