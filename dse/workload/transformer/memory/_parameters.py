"""Parameters that a rank of a pipeline stage holds, and those that it updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.workload.transformer._job import TransformerJob


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
    if model.mtp_modules and parallelism.pipeline > 1 and not model.tied_embeddings:
        held += vocabulary  # what modules take in
    return held / parallelism.tensor + model.head_parameters - own


def stage_parameters(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a rank of a stage before any sharding over replicas.

    Those of experts are counted by :func:`stage_expert_parameters`.
    """
    total = sum(
        count * layer_parameters(alike) for alike, count in problem.stage_layer_jobs(stage)
    )
    if stage == 0:
        total += end_parameters(problem, last=False)
    if stage == problem.parallelism.pipeline - 1:
        total += end_parameters(problem, last=True)
    return total


def layer_parameters(problem: TransformerJob) -> float:
    """Returns the parameters of a rank in one layer, all layers being alike; no experts."""
    model, tensor = problem.model, problem.parallelism.tensor
    vectors = 6 if model.biases else 2 + model.attention_output_bias
    whole = min(vectors * model.hidden, model.layer_vector_parameters)
    split = (model.layer_vector_parameters - whole) / tensor
    if model.latent is None and (model.biases or model.qkv_bias):
        # Where several ranks have the same head of keys and values, they have its biases, too.
        split += model.key_value_width(tensor) - model.key_value_width() / tensor
    return model.layer_matrix_parameters_of(tensor) + split + whole


def layer_expert_parameters(problem: TransformerJob) -> float:
    """Returns the parameters of a rank's experts in one layer, all layers being alike."""
    return problem.model.layer_expert_parameters / problem.parallelism.expert_ranks


def stage_expert_parameters(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a rank's experts before any sharding over replicas."""
    parallelism = problem.parallelism
    experts = sum(
        count * alike.model.layer_expert_parameters
        for alike, count in problem.stage_layer_jobs(stage)
    )
    return experts / parallelism.expert_ranks


def stage_shard(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a stage's shard, if as many ranks as may share them."""
    parallelism = problem.parallelism
    shared = stage_parameters(problem, stage)
    experts = stage_expert_parameters(problem, stage)
    return shared / parallelism.shards + experts / parallelism.expert_zero


def stage_matrix_parameters(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a rank's matrices in the layers of a stage."""
    tensor = problem.parallelism.tensor
    shared = sum(
        count * alike.model.layer_matrix_parameters_of(tensor)
        for alike, count in problem.stage_layer_jobs(stage)
    )
    return shared + stage_expert_parameters(problem, stage)


def optimizer_parameters(problem: TransformerJob, stage: int) -> float:
    """Returns the parameters of a stage that one rank updates."""
    if problem.parallelism.data_sharding.shards_optimizer:
        return stage_shard(problem, stage)
    return stage_parameters(problem, stage) + stage_expert_parameters(problem, stage)
