"""A transformer's step to be run, and what no real run trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dse.model import AttentionKind, TransformerFamily
from dse.workload.transformer import DataSharding, Offload, Recompute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dse.model import TransformerModel
    from dse.workload.transformer import TransformerJob

#: Bytes of a parameter between iterations: the weight and two moments in FP32.
STATE_BYTES = 12.0


@dataclass(frozen=True, slots=True)
class TransformerCandidate:
    """One configuration to run.

    Attributes:
        name: Name in results, unique within a run.
        problem: Model, batch, precision, parallelism, program and cluster. A run takes only the
            number of ranks from the cluster; the rest is for predictions.
    """

    name: str
    problem: TransformerJob

    @property
    def model(self) -> TransformerModel:
        """Model to train."""
        return self.problem.model

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.problem.cluster.world_size

    @property
    def global_batch_size(self) -> int:
        """Samples of an iteration on all ranks."""
        return self.problem.global_batch_size

    @property
    def resident_bytes(self) -> float:
        """Bytes of weights and optimizer state on all ranks, replicas included."""
        spread = self.problem.parallelism
        copies = spread.replicas
        if spread.data_sharding is not DataSharding.NONE:
            copies //= spread.shards
        return STATE_BYTES * copies * self.model.parameter_count

    def job(self) -> TransformerJob:
        """Returns the candidate as a job that can be predicted."""
        return self.problem


def untrained(candidate: TransformerCandidate) -> tuple[str, str]:
    """Returns the first thing that real runs do not have, and what to do; both empty for none."""
    return next(_untrained(candidate), ("", ""))


def _untrained(candidate: TransformerCandidate) -> Iterator[tuple[str, str]]:
    model, spread = candidate.model, candidate.problem.parallelism
    for name in ("pipeline", "context", "expert"):
        if (degree := getattr(spread, name)) > 1:
            yield f"{name} parallelism (`{name}: {degree}`)", f"choose `{name}: 1`"
    parts = {
        "experts (`experts`)": model.experts,
        "latent attention (`latent_attention`)": model.latent,
        "sliding windows (`sliding_window`)": model.window,
        "multi-token prediction (`mtp_modules`)": model.mtp_modules,
        "dropout (`dropout`)": model.dropout,
        "encoders (`family: bert`)": model.family is TransformerFamily.BERT,
        "unfused attention (`attention: unfused`)": model.attention is AttentionKind.UNFUSED,
    }
    for what, has in parts.items():
        if has:
            yield what, f"leave it out of a copy of {model.name}"
    if spread.recompute is Recompute.SELECTIVE or spread.recompute_layers:
        yield "recomputation of a part of the layers", "choose `recompute: none` or `full`"
    if spread.offload is not Offload.NONE:
        yield f"offload (`offload: {spread.offload}`)", "choose `offload: none`"
    yield from _unsplit(model, spread.tensor, sequence_parallel=spread.sequence_parallel)


def _unsplit(
    model: TransformerModel, tensor: int, *, sequence_parallel: bool
) -> Iterator[tuple[str, str]]:
    """What tensor parallelism cannot divide here."""
    if tensor == 1:
        return
    if model.kv_heads % tensor:
        yield (
            f"{model.kv_heads} heads of keys and values on `tensor: {tensor}` ranks",
            "choose a divisor",
        )
    if model.vocab % tensor:
        yield (
            f"a vocabulary of {model.vocab} on `tensor: {tensor}` ranks",
            "pad it in a copy of the model",
        )
    if model.tied_embeddings:
        yield (
            f"shared embeddings (`tied_embeddings`) on `tensor: {tensor}` ranks",
            "untie them in a copy of the model",
        )
    if model.learned_positions and sequence_parallel:
        yield (
            "learned positions (`learned_positions`) with `sequence_parallel`",
            "leave one of them out",
        )
