"""Training pipelines: what of an iteration belongs to later batches, and what memory that takes.

They are those of TorchRec, under its names; other programs prefetch their input or do not, which
is `SPARSE_DIST` or `BASE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TrainPipeline(StrEnum):
    """Which work on later batches overlaps with an iteration.

    BASE: none; a batch is copied, exchanged and looked up when its turn comes.
    SPARSE_DIST: copy and input exchange of the next batch.
    FUSED_SPARSE_DIST: also its lookups, from the moment the tables are updated: they and their
        exchange overlap with the dense optimizer and the bottom MLP.
    PREFETCH: as SPARSE_DIST, and the next batch's rows are fetched into the caches of tables in
        host memory.
    SEMI_SYNC: as SPARSE_DIST, and lookups of the next batch come before the update by this one, so
        that their exchange overlaps with all of the dense part.
    """

    BASE = "base"
    SPARSE_DIST = "sparse_dist"
    FUSED_SPARSE_DIST = "fused_sparse_dist"
    PREFETCH = "prefetch"
    SEMI_SYNC = "semi_sync"

    @property
    def distributes_ahead(self) -> bool:
        """Whether copy and input exchange are those of a later batch."""
        return self is not TrainPipeline.BASE

    @property
    def looks_up_ahead(self) -> bool:
        """Whether lookups are those of a later batch."""
        return self in (TrainPipeline.FUSED_SPARSE_DIST, TrainPipeline.SEMI_SYNC)


@dataclass(frozen=True, slots=True)
class HeldBatches:
    """What a pipeline holds in device memory at the peak of an iteration.

    Attributes:
        received: Batches of indices as exchanged between the ranks.
        own: Batches of a rank's own samples as copied from the host, in PyTorch.
        reserved: Bytes that PyTorch's allocator reserves for each one that it gives to batches,
            activations and buffers.
        pooled: Batches of pooled vectors besides those of this iteration.
    """

    received: int
    own: int
    reserved: float
    pooled: int = 0


#: Reserved over allocated memory without tables, of one model on two GPUs: 45.9 over 35.2 GB with
#: the base pipeline, 57.5 over 40.1 GB with sparse-dist (meta-pytorch/torchrec 49071ff6). Blocks
#: that several streams use are given back late. The others have as many streams or more.
_ONE_STREAM, _SEVERAL_STREAMS = 1.30, 1.43

_HELD = {
    TrainPipeline.BASE: HeldBatches(1, 1, _ONE_STREAM),
    TrainPipeline.SPARSE_DIST: HeldBatches(2, 3, _SEVERAL_STREAMS),
    TrainPipeline.FUSED_SPARSE_DIST: HeldBatches(2, 3, _SEVERAL_STREAMS),
    TrainPipeline.PREFETCH: HeldBatches(3, 4, _SEVERAL_STREAMS),
    TrainPipeline.SEMI_SYNC: HeldBatches(2, 3, _SEVERAL_STREAMS, pooled=1),
}


def held_batches(pipeline: TrainPipeline) -> HeldBatches:
    """Returns what a pipeline holds in device memory.

    The authors of TorchRec counted two own batches and a received one more for sparse-dist than
    for base (the same source); other pipelines hold one more of each for each further stage.
    """
    return _HELD[pipeline]
