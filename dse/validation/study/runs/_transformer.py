"""Runs of transformers."""

from __future__ import annotations

from dataclasses import replace
import math
from typing import TYPE_CHECKING, ClassVar

from dse.errors import ConfigError
from dse.machine import Precision
from dse.search import ValidationMode
from dse.validation.study.runs._planner import RunPlanner
from dse.validation.transformer import TransformerCandidate
from dse.workload.transformer import DataSharding, TransformerJob, TransformerWorkload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dse.model import TransformerModel
    from dse.search import TrialRecord
    from dse.validation._protocol import RunCandidate
    from dse.workload import Workload

#: Bytes of a parameter while it is trained: weight, gradient, two moments.
_TRAINED_BYTES = 16.0

#: Most layers, tokens of a sample and rows of the vocabulary of scaled models.
_LAYERS, _TOKENS, _VOCABULARY = 4, 256, 8192

#: Widths of scaled models, the largest first, and the columns of a head.
_WIDTHS = (512, 256, 128)
_HEAD = 64

#: Most micro-batches of a scaled step, and most samples of each.
_PASSES, _SAMPLES = 4, 4


class TransformerRuns(RunPlanner):
    """Plans the runs of transformers."""

    kind: ClassVar[str] = TransformerWorkload.kind
    default_trainer: ClassVar[str] = "pytorch"
    scaled_words: ClassVar[str] = "All arithmetic was in fp32."

    @staticmethod
    def weight_bytes(workload: Workload) -> float:
        """Returns the bytes of weights, gradients and moments of one replica."""
        assert isinstance(workload, TransformerWorkload)
        return _TRAINED_BYTES * workload.model.parameter_count

    def candidate(self, record: TrialRecord) -> TransformerCandidate:
        """Returns what is run for a trial, before its model is scaled."""
        job = self._job(record)
        ranks = self.ranks(job.cluster.world_size)
        if self.mode is ValidationMode.SCALED:
            job = replace(job, precision=Precision.FP32)
        else:
            self.check_memory(record)
        if self.platform is not None:
            platform = replace(self.platform, devices_per_node=ranks)
            job = replace(job, cluster=platform.cluster(ranks))
        adopted = self.trainer.adopt(TransformerCandidate(str(record.number), job))
        checked = self.trainer.checked(adopted, self.device)
        assert isinstance(checked, TransformerCandidate)
        if self.mode is not ValidationMode.SCALED:
            return checked
        return replace(checked, problem=_folded(checked.problem))

    def _job(self, record: TrialRecord) -> TransformerJob:
        job = self.job_of(record)
        assert isinstance(job, TransformerJob)
        return job

    def changes_program(self, record: TrialRecord, candidate: RunCandidate) -> bool:
        """Returns whether the program differs in anything that time depends on."""
        assert isinstance(candidate, TransformerCandidate)
        return candidate.problem.software != self._job(record).software

    def smaller(
        self, candidates: Sequence[RunCandidate]
    ) -> Iterator[tuple[Sequence[TransformerCandidate], str]]:
        """Yields narrower models with fewer layers, tokens and words."""
        own = [one for one in candidates if isinstance(one, TransformerCandidate)]
        assert isinstance(self.workload, TransformerWorkload)
        before = self.workload.model
        tensor = math.lcm(*(one.problem.parallelism.tensor for one in own))
        for width in _WIDTHS:
            model = _scaled(before, width, tensor)
            text = (
                f"width {before.hidden:,} → {model.hidden:,}, layers {before.layers} → "
                f"{model.layers}, tokens {before.sequence_length:,} → {model.sequence_length:,}, "
                f"vocabulary {before.vocab:,} → {model.vocab:,}; at most {_PASSES} micro-batches "
                f"of at most {_SAMPLES} samples"
            )
            yield [replace(one, problem=replace(one.problem, model=model)) for one in own], text


def _folded(job: TransformerJob) -> TransformerJob:
    """Returns a job with tensor parallelism within the ranks that there are, else replicas."""
    ranks, spread = job.cluster.world_size, job.parallelism
    tensor = math.gcd(spread.tensor, ranks)
    data = ranks // tensor
    sharding = spread.data_sharding if data > 1 else DataSharding.NONE
    whole = sharding is not DataSharding.PARAMETERS
    folded = replace(
        spread,
        tensor=tensor,
        data=data,
        sequence_parallel=spread.sequence_parallel and tensor > 1,
        data_sharding=sharding,
        sharding_degree=None,
        reshard_after_forward=whole or spread.reshard_after_forward,
        no_sync=spread.no_sync and sharding.shards_gradients,
        micro_batch_size=min(_SAMPLES, spread.micro_batch_size),
    )
    passes = min(_PASSES, job.micro_batches)
    batch = passes * folded.data * folded.micro_batch_size
    return replace(job, parallelism=folded, global_batch_size=batch)


def _scaled(model: TransformerModel, width: int, tensor: int) -> TransformerModel:
    """Returns a model of the same structure: heads in the same groups, blocks in proportion.

    Raises:
        ConfigError: Heads cannot be divided.
    """
    heads = max(width // _HEAD, tensor)
    group = math.gcd(heads // tensor, model.heads // model.kv_heads)
    if heads % tensor:
        raise ConfigError(f"{heads} heads cannot be divided by tensor {tensor}; use --ranks")
    hidden = heads * _HEAD
    inner = max(1, round(model.ffn_hidden / model.hidden * hidden / _HEAD / tensor))
    return replace(
        model,
        layers=min(model.layers, _LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=heads // group,
        head_dim=_HEAD,
        ffn_hidden=inner * _HEAD * tensor,
        vocab=min(model.vocab, _VOCABULARY) // tensor * tensor,
        sequence_length=min(model.sequence_length, _TOKENS),
    )
