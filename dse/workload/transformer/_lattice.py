"""The usual ways to parallelize a training step: a small lattice of degrees.

Rules of thumb keep it small: tensor parallelism stays inside a scale-up domain, context
parallelism is for long samples only, pipelines are only as deep as memory requires, and each way
recomputes as little as it can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

from dse.errors import ConfigError
from dse.model import AttentionKind
from dse.workload.transformer._types import DataSharding, Recompute
from dse.workload.transformer.step._schedule import layers_by_chunk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from dse.workload.transformer._job import TransformerJob
    from dse.workload.transformer._types import Parallelism

#: What is chosen, as far as it is not given; everything else stays as it is.
CHOSEN = (
    "tensor",
    "pipeline",
    "context",
    "expert",
    "interleave",
    "sequence_parallel",
    "micro_batch_size",
    "recompute",
    "data_sharding",
)

_MICRO_BATCHES = (1, 2, 4, 8, 16)

#: Fewest tokens of a sample on a rank under context parallelism.
_LEAST_TOKENS = 4096

#: After so many pipeline depths that fit without full recomputation, deeper ones are left out.
_DEPTHS = 2

#: Bubble over the work of a stage: above the first, virtual stages are considered; below the
#: second, no more of them are.
_LONG_WAIT, _SHORT_WAIT = 0.02, 0.005

#: Fewest layers of a virtual stage.
_LEAST_LAYERS = 2


def usual_ways(job: TransformerJob, given: Collection[str] = ()) -> Iterator[Parallelism]:
    """Yields the usual ways to parallelize a job that fit the memory of its ranks.

    Args:
        job: What is trained and where; what is not in :data:`CHOSEN` stays as it has it.
        given: Those of :data:`CHOSEN` that stay, too.
    """
    return _Lattice(job, frozenset(given)).ways()


@dataclass(frozen=True, slots=True)
class _Lattice:
    """The ways to parallelize a job; see :func:`usual_ways`."""

    job: TransformerJob
    given: frozenset[str]

    def _choices(self, name: str, usual: Iterable[Any]) -> list[Any]:
        """Returns the values to try of a degree or switch."""
        return [getattr(self.job.parallelism, name)] if name in self.given else list(usual)

    def ways(self) -> Iterator[Parallelism]:
        """Yields the ways."""
        job = self.job
        world_size = job.cluster.world_size
        for tensor in self._choices(
            "tensor", _divisors(gcd(job.cluster.domain_size, job.model.heads))
        ):
            for context in self._choices("context", _contexts(job, world_size // tensor)):
                depths = 0
                ranks = world_size // tensor // context
                for pipeline in self._choices("pipeline", _divisors(ranks)):
                    spread = replace(
                        job.parallelism,
                        tensor=tensor,
                        pipeline=pipeline,
                        data=max(1, ranks // pipeline),
                        context=context,
                    )
                    ways = [
                        way
                        for shared in self._choices("sequence_parallel", (tensor > 1,))
                        for way in self._of_depth(replace(spread, sequence_parallel=shared))
                    ]
                    yield from ways
                    depths += any(way.recompute is not Recompute.FULL for way in ways)
                    if depths == _DEPTHS:
                        break

    def _of_depth(self, spread: Parallelism) -> Iterator[Parallelism]:
        """Yields the ways with given degrees of tensor, context and pipeline parallelism."""
        for expert in self._choices("expert", _experts(self.job, spread)):
            for sharding in self._choices("data_sharding", _shardings(spread)):
                if sharding is not DataSharding.NONE and spread.replicas == 1:
                    # It was given, and there is nothing to share.
                    break
                for micro_batch in self._choices("micro_batch_size", _MICRO_BATCHES):
                    samples = spread.data * micro_batch
                    micro_batches, rest = divmod(self.job.global_batch_size, samples)
                    # More samples a micro-batch than stages could share leave some of them idle.
                    if rest or (micro_batch > 1 and micro_batches < spread.pipeline):
                        break
                    own = replace(
                        spread, expert=expert, data_sharding=sharding, micro_batch_size=micro_batch
                    )
                    chunks = _interleaves(self.job, spread, micro_batches)
                    found = [
                        way
                        for interleave in self._choices("interleave", chunks)
                        if (way := self._fitting(replace(own, interleave=interleave)))
                    ]
                    if not found:
                        # Larger micro-batches need more memory.
                        break
                    yield from found

    def _fitting(self, spread: Parallelism) -> Parallelism | None:
        """Returns a way with as little recomputation as fits; None if none does."""
        unfused = self.job.model.attention is AttentionKind.UNFUSED
        least = (Recompute.NONE, *([Recompute.SELECTIVE] if unfused else []), Recompute.FULL)
        for recompute in self._choices("recompute", least):
            way = replace(self.job, parallelism=replace(spread, recompute=recompute))
            try:
                way.check()
            except ConfigError:
                return None
            if not way.cannot_fit():
                return way.parallelism
        return None


def _contexts(job: TransformerJob, ranks: int) -> list[int]:
    most = max(1, job.model.sequence_length // _LEAST_TOKENS)
    return [degree for degree in _divisors(ranks) if degree <= most]


def _experts(job: TransformerJob, spread: Parallelism) -> list[int]:
    """Returns all experts on every rank, those of a node or pod, and as few a rank as possible."""
    if job.model.experts is None:
        return [1]
    degrees = _divisors(gcd(job.model.experts.count, spread.replicas))
    near = [one for one in degrees if one * spread.tensor <= job.cluster.domain_size]
    return sorted({1, near[-1], degrees[-1]})


def _shardings(spread: Parallelism) -> tuple[DataSharding, ...]:
    if spread.replicas == 1:
        return (DataSharding.NONE,)
    if spread.pipeline > 1:
        return (DataSharding.OPTIMIZER,)
    return DataSharding.OPTIMIZER, DataSharding.PARAMETERS


def _interleaves(job: TransformerJob, spread: Parallelism, micro_batches: int) -> tuple[int, ...]:
    """Returns one chunk a stage, and as few more as make the wait short where it is long."""
    wait = (spread.pipeline - 1) / micro_batches
    if wait < _LONG_WAIT or micro_batches % spread.pipeline:
        return (1,)
    layers, modules = job.model.layers, job.model.mtp_modules
    chunks = [
        count
        for count in range(2, layers // (spread.pipeline * _LEAST_LAYERS) + 1)
        if layers_by_chunk(layers, spread.pipeline, count, modules)
    ]
    # Uneven ones wait for the longest.
    chunks = [count for count in chunks if layers % (spread.pipeline * count) == 0] or chunks
    enough = [count for count in chunks if wait / count <= _SHORT_WAIT]
    return (1, *(enough[:1] or chunks[-1:]))


def _divisors(count: int) -> list[int]:
    return [value for value in range(1, count + 1) if count % value == 0]
