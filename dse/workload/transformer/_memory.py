"""Memory account of a rank of each pipeline stage.

Activations follow Korthikanti et al. (arXiv 2205.05198, § 4): of one layer, micro-batch `b`,
sequence `s`, width `h`, `a` heads and tensor parallelism `t`, in bytes with two-byte values,

    s b h (10 + 24 / t + 5 a s / (h t))      tensor parallel
    s b h (34 + 5 a s / h) / t               with sequence parallelism
    without 5 a s / h                        selective recomputation, or fused attention
    2 s b h                                  full recomputation, and one layer in full

taken apart here by operator, so that gated blocks, grouped queries and recipes without dropout are
counted too. The first stage keeps the activations of most micro-batches (eq. 5 and § 4.2.3 there).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model import AttentionKind
from dse.workload._prediction import MemoryAccount
from dse.workload.transformer._schedule import in_flight
from dse.workload.transformer._types import (
    ContextExchange,
    DataSharding,
    LossKernels,
    Recompute,
)

if TYPE_CHECKING:
    from dse.workload.transformer._job import TransformerJob

#: Bytes of a master weight and of a value of optimizer state.
_MASTER_BYTES = 4

#: Layers whose parameters are gathered at the same time: the one at work and the next.
_GATHERED_LAYERS = 2

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
    split = tokens * value * (model.qkv_width + model.attention_width + inner) / tensor
    split += tokens * operand * model.ffn_hidden / tensor
    if model.experts is not None:
        split += _expert_activation_bytes(problem, tokens)
    if problem.precision.is_low:
        # Attention keeps its output; the projection has a cast of it.
        split += tokens * operand * model.attention_width / tensor
    core = 0.0
    if model.attention is AttentionKind.FLASH:
        core = 4.0 * tokens * model.heads / tensor
    elif recompute is Recompute.NONE:
        # Probabilities; with dropout also its mask and output.
        per_score = value + (value + 1 if model.dropout else 0)
        core = per_score * tokens * model.sequence_length * model.heads / tensor
    return shared + split + core


def _expert_activation_bytes(problem: TransformerJob, tokens: float) -> float:
    """Returns what experts keep: their input, both sides of the activation, their output."""
    model, experts = problem.model, problem.model.experts
    if experts is None:
        return 0.0
    value, operand = problem.precision.value_bytes, problem.precision.operand_bytes
    rows = tokens * experts.active * experts.imbalance
    kept = (2 if model.gated_ffn else 1) * value + operand
    if model.gated_ffn and not problem.software.fused_elementwise:
        kept += value
    inner = experts.ffn_hidden / problem.parallelism.tensor
    return rows * (kept * inner + (operand + value) * model.hidden)


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
    """Returns the parameters of a stage's shard, if as many ranks as may share them."""
    parallelism = problem.parallelism
    shared = stage_parameters(problem, stage)
    experts = stage_expert_parameters(problem, stage)
    return (shared + experts * parallelism.expert) / parallelism.shards


def stage_matrix_parameters(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a rank's matrices in the layers of a stage."""
    layers = problem.stage_layers(stage)
    shared = layers * problem.model.layer_matrix_parameters / problem.parallelism.tensor
    return shared + stage_expert_parameters(problem, stage)


def stage_memory(problem: TransformerJob, stage: int) -> MemoryAccount:
    """Returns what a rank of a stage has to hold at the fullest moment of an iteration."""
    parameters = stage_parameters(problem, stage) + stage_expert_parameters(problem, stage)
    sharding = problem.parallelism.data_sharding
    part = stage_shard(problem, stage) / parameters
    value = problem.precision.value_bytes
    mixed = value < _MASTER_BYTES
    state = problem.model.optimizer.state_values_per_parameter * _MASTER_BYTES
    optimizer = parameters * (state + (_MASTER_BYTES if mixed else 0))
    weights = parameters * value
    gradients = parameters * problem.gradient_bytes
    if sharding.shards_optimizer:
        optimizer *= part
    if sharding.shards_gradients and not problem.parallelism.no_sync:
        gradients *= part
    if sharding is DataSharding.PARAMETERS:
        # The sharded master weights are the only weights; gathered copies are buffers.
        weights = parameters * _MASTER_BYTES * part
        optimizer = parameters * state * part
    if problem.precision.is_low:
        # Transformer Engine keeps the weights, and casts of them as they are and transposed.
        weights += 2 * problem.precision.operand_bytes * stage_matrix_parameters(problem, stage)
    return MemoryAccount(
        (
            ("weights", weights),
            ("gradients", gradients),
            ("optimizer state", optimizer),
            (ACTIVATIONS, _activations_bytes(problem, stage)),
            ("buffers", _buffers_bytes(problem, stage)),
        )
    )


def _activations_bytes(problem: TransformerJob, stage: int) -> float:
    model, parallelism = problem.model, problem.parallelism
    recompute = parallelism.recompute
    layers = problem.stage_layers(stage) / parallelism.interleave
    kept = layers * _in_flight_bytes(problem, stage)
    if recompute is Recompute.FULL:
        kept += layer_activation_bytes(problem, Recompute.NONE)
    elif recompute is Recompute.SELECTIVE:
        kept += layer_activation_bytes(problem, Recompute.NONE)
        kept -= layer_activation_bytes(problem, Recompute.SELECTIVE)
    tokens = parallelism.micro_batch_size * model.sequence_length / parallelism.context
    rows = tokens / parallelism.sequence_share
    value = problem.precision.value_bytes
    if stage == 0 and model.dropout:
        kept += rows * model.hidden * min(parallelism.pipeline, problem.micro_batches)
    if stage == parallelism.pipeline - 1:
        # Inputs of the final norm and of the logits, the logits and, for the loss, their copy in
        # FP32, of one micro-batch.
        logits = tokens * model.vocab / parallelism.tensor
        copy = value if problem.software.loss is LossKernels.FUSED else value + 4
        kept += 2 * value * rows * model.hidden + copy * logits
    return kept


def _in_flight_bytes(problem: TransformerJob, stage: int) -> float:
    """Returns what a stage keeps for the passes in flight, for each layer of a chunk."""
    spread = problem.parallelism
    moments = in_flight(
        spread.pipeline, spread.interleave, problem.micro_batches, stage, spread.schedule
    )
    kept = layer_activation_bytes(problem, spread.recompute)
    if len(moments) == 1 and not moments[0].weights:
        return moments[0].chunks * kept
    operands = layer_operand_bytes(problem)
    return max(one.chunks * kept + one.weights * operands for one in moments)


def layer_operand_bytes(problem: TransformerJob) -> float:
    """Returns what the gradients of a layer's weights are made of, for one micro-batch.

    These are the inputs of all products and the gradients of their outputs: 32 `s b h` for a layer
    of GPT (Qi et al., arXiv 2401.10241, table 1).

    Args:
        problem: What is trained, where and how.
    """
    model, spread = problem.model, problem.parallelism
    tokens = spread.micro_batch_size * model.sequence_length / spread.context
    value, operand = problem.precision.value_bytes, problem.precision.operand_bytes
    shared = tokens / spread.sequence_share * model.hidden
    split = tokens / spread.tensor
    inputs = (2 if model.ffn_hidden else 1) * shared
    inputs += split * (model.attention_width + model.ffn_hidden)
    gradients = inputs - split * model.attention_width - split * model.ffn_hidden
    gradients += split * (model.qkv_width + model.ffn_width)
    if model.experts is not None:
        rows = tokens * model.experts.active * model.experts.imbalance
        inner = model.experts.ffn_hidden / spread.tensor
        inputs += rows * (model.hidden + inner)
        gradients += rows * (model.hidden + (2 if model.gated_ffn else 1) * inner)
    return operand * inputs + value * gradients


def _buffers_bytes(problem: TransformerJob, stage: int) -> float:
    model, parallelism = problem.model, problem.parallelism
    value = problem.precision.value_bytes
    tokens = parallelism.micro_batch_size * model.sequence_length / parallelism.context
    total = 0.0
    if parallelism.expert > 1 and model.experts is not None:
        # Rows on their way to the experts, and on their way back.
        total += 2 * value * tokens * model.experts.active * model.hidden
    if parallelism.tensor > 1:
        total += value * tokens * model.hidden
    if parallelism.pipeline > 1:
        total += 2 * value * tokens * model.hidden / parallelism.tensor
    total += _context_buffer_bytes(problem, tokens)
    if parallelism.replicas > 1 and parallelism.data_sharding is DataSharding.PARAMETERS:
        experts = model.layer_expert_parameters / parallelism.expert
        layer = (model.layer_parameters + experts) / parallelism.tensor
        first, last = stage == 0, stage == parallelism.pipeline - 1
        rest = end_parameters(problem, last=False) if first else 0.0
        rest += end_parameters(problem, last=True) if last else 0.0
        # Gathered layers and root, and one unreduced gradient of the larger of both.
        gathered = float(_GATHERED_LAYERS)
        if not parallelism.reshard_after_forward:
            gathered = problem.stage_layers(stage)
        total += value * (gathered * layer + rest)
        if not parallelism.no_sync:
            total += problem.gradient_bytes * max(layer, rest)
    return total


def _context_buffer_bytes(problem: TransformerJob, tokens: float) -> float:
    """Returns what context-parallel ranks receive before attention begins."""
    model, spread = problem.model, problem.parallelism
    if spread.context == 1 or spread.context_exchange is ContextExchange.RING:
        return 0.0
    value, tensor = problem.precision.value_bytes, spread.tensor
    if spread.context_exchange is ContextExchange.ULYSSES:
        return value * tokens * model.qkv_width / tensor
    # Keys and values of whole sequences, and in the backward pass their gradients.
    return 2 * value * tokens * spread.context * 2 * model.kv_heads * model.head_dim / tensor
