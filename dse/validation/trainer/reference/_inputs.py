"""Input distribution: from the samples of each rank to the lookups of its shards.

The first all-to-all transfers bag lengths (4 bytes each). They give the number of indices, which
the second all-to-all transfers (8 bytes each). A shard receives the indices of all its features;
column shards of one table receive a copy each, and rows of a row-wise table are sent to the rank
that owns them, as offsets within its block.

The three stages can run in sequence or in consecutive iterations. In the latter case both
collectives overlap training: lengths are sent two iterations ahead and indices one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from dse.workload.dlrm import ExchangeGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.validation.dlrm._batches import LocalBatch
    from dse.validation.trainer.reference._layout import PlanLayout, Shard


#: Most blocks whose index fits a byte, and most for which comparing is cheaper than dividing.
_MAX_BYTE_BLOCKS = 256
_FEW_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Bags:
    """Input of one lookup.

    Attributes:
        indices: Rows within the shard; shape `(lookups,)`, int64.
        offsets: First lookup of each bag; shape `(bags,)`, int64.
        lengths: Lookups of each bag; shape `(bags,)`, int64.
    """

    indices: Any
    offsets: Any
    lengths: Any


@dataclass(slots=True)
class DeviceBatch:
    """Samples of this rank on its device.

    Attributes:
        dense: Dense features; shape `(samples, features)`.
        labels: 0 or 1; shape `(samples,)`.
        lengths: For each table, by feature then by sample; int32.
        indices: For each table in the same order; int64.
    """

    dense: Any
    labels: Any
    lengths: list[Any]
    indices: list[Any]


def to_device(torch: Any, batch: LocalBatch, dtype: Any, device: str) -> DeviceBatch:
    """Copies a batch to a device; on a CPU only the type of dense values changes."""
    on_gpu = device != "cpu"

    def moved(values: Any, kind: Any = None) -> Any:
        tensor = torch.from_numpy(values)
        tensor = tensor if kind is None else tensor.to(kind)
        return tensor.pin_memory().to(device, non_blocking=True) if on_gpu else tensor

    return DeviceBatch(
        moved(batch.dense, dtype),
        moved(batch.labels, dtype),
        [moved(lengths) for lengths in batch.lengths],
        [moved(indices) for indices in batch.indices],
    )


@dataclass(slots=True)
class Feeding:
    """A batch that is being distributed.

    Attributes:
        batch: The samples of this rank.
        sent: Indices of each destination, in a row.
        sent_counts: How many for each destination.
        lengths: Received lengths; shape `(sources, bags of one source)`.
        indices: Received indices, once they are on their way.
        runs: How many of them in each run of one source and feature.
        work: The exchange that is under way.
    """

    batch: DeviceBatch
    sent: Any = None
    sent_counts: list[int] | None = None
    lengths: Any = None
    indices: Any = None
    runs: Any = None
    work: Any = None


class InputDistribution:
    """Sends the indices of all ranks' samples to the shards of this rank.

    Args:
        torch: The torch module.
        layout: Geometry of the plan.
        rank: This rank.
    """

    def __init__(self, torch: Any, layout: PlanLayout, rank: int) -> None:
        self._torch = torch
        self._layout = layout
        self._batch_size = layout.local_batch_size
        self._fed = layout.fed(rank)
        self._features = sum(shard.features for shard in self._fed)
        self._received_bags = self._features * self._batch_size
        self._sent_bags = [
            sum(shard.features for shard in layout.fed(to)) * self._batch_size
            for to in range(layout.world_size)
        ]
        self._alone = layout.world_size == 1 or not any(self._sent_bags)
        # Row-wise tables by their number of blocks; one pass routes all with the same number.
        kinds: dict[int, dict[int, int]] = {}
        for own in layout.shards:
            for shard in own:
                if shard.block is not None:
                    parts = self._parts(shard)
                    kinds.setdefault(parts, {})[shard.table] = shard.block[1]
        self._split = {parts: sorted(tables.items()) for parts, tables in kinds.items()}

    def send_lengths(self, batch: DeviceBatch) -> Feeding:
        """Sorts the indices by destination and starts the all-to-all of lengths."""
        torch, feeding = self._torch, Feeding(batch)
        blocks = self._blocks(batch)
        lengths: list[Any] = []
        indices: list[Any] = []
        counts: list[int] = []
        for to in range(self._layout.world_size):
            count = 0
            for shard in self._layout.fed(to):
                if shard.block is None:
                    own = batch.lengths[shard.table], batch.indices[shard.table]
                else:
                    own = blocks[self._parts(shard), shard.table, shard.block[0]]
                lengths.append(own[0])
                indices.append(own[1])
                count += own[1].shape[0]
            counts.append(count)
        if not lengths:
            return feeding
        feeding.sent, feeding.sent_counts = torch.cat(indices), counts
        sent_lengths = torch.cat(lengths)
        if self._alone:
            feeding.lengths = sent_lengths
            return feeding
        feeding.lengths = sent_lengths.new_empty(self._layout.world_size * self._received_bags)
        feeding.work = torch.distributed.all_to_all_single(
            feeding.lengths,
            sent_lengths,
            [self._received_bags] * self._layout.world_size,
            self._sent_bags,
            async_op=True,
        )
        return feeding

    def send_indices(self, feeding: Feeding) -> Feeding:
        """Waits for the lengths and starts the all-to-all of indices."""
        if feeding.sent_counts is None:
            return feeding
        world_size = self._layout.world_size
        if feeding.work is not None:
            feeding.work.wait()
        shape = (world_size, self._features, self._batch_size)
        feeding.lengths = feeding.lengths.view(shape)
        feeding.runs = feeding.lengths.sum(dim=2).tolist()
        if self._alone:
            feeding.indices = feeding.sent
            return feeding
        counts = [sum(runs) for runs in feeding.runs]
        feeding.indices = feeding.sent.new_empty(sum(counts))
        feeding.work = self._torch.distributed.all_to_all_single(
            feeding.indices, feeding.sent, counts, feeding.sent_counts, async_op=True
        )
        return feeding

    def finish(self, feeding: Feeding) -> list[Bags]:
        """Waits for the indices; returns the lookups of each fed shard of this rank.

        Bags of a piece are ordered by feature, then by sample of the global batch; those of
        node-wise pieces by :attr:`PlanLayout.by_local_rank` in place of ranks.
        """
        if not self._fed or feeding.sent_counts is None:
            return []
        if feeding.work is not None:
            feeding.work.wait()
        torch, features = self._torch, self._features
        flat = [count for runs in feeding.runs for count in runs]
        pieces = torch.split(feeding.indices, flat)
        # Of all features the bags of all sources, by feature.
        by_feature = feeding.lengths.permute(1, 0, 2)
        joined, ordered, sizes = [], [], []
        first = 0
        for shard in self._fed:
            sources: Sequence[int] = range(self._layout.world_size)
            lengths = by_feature[first : first + shard.features]
            if shard.group is ExchangeGroup.NODE and self._layout.node_count > 1:
                sources = self._layout.by_local_rank
                lengths = lengths[:, list(sources)]
            own = [
                source * features + feature
                for feature in range(first, first + shard.features)
                for source in sources
            ]
            joined += [pieces[run] for run in own]
            ordered.append(lengths.reshape(-1))
            sizes.append(sum(flat[run] for run in own))
            first += shard.features
        # All shards at once: separately, each would cost a handful of small operators.
        indices = torch.cat(joined).split(sizes)
        every = torch.cat(ordered).to(torch.int64)
        bags = [one.shape[0] for one in ordered]
        offsets = (every.cumsum(0) - every).split(bags)
        for before, own_offsets in zip(accumulate(sizes, initial=0), offsets, strict=False):
            own_offsets.sub_(before)
        return [Bags(*one) for one in zip(indices, offsets, every.split(bags), strict=True)]

    def local(self, batch: DeviceBatch, table: int) -> Bags:
        """Returns the lookups of this rank's samples in a replicated table."""
        lengths = batch.lengths[table].to(self._torch.int64)
        return Bags(batch.indices[table], lengths.cumsum(0) - lengths, lengths)

    def _parts(self, shard: Shard) -> int:
        """Returns the number of row blocks of a row-wise table."""
        layout = self._layout
        return layout.world_size if shard.group is ExchangeGroup.ROW else layout.local_size

    def _blocks(self, batch: DeviceBatch) -> dict[tuple[int, int, int], tuple[Any, Any]]:
        """Sorts lookups of row-wise tables by the block that owns their row.

        Returns:
            By (number of blocks, table, block): lengths of the bags, and rows within the block.
        """
        torch = self._torch
        found: dict[tuple[int, int, int], tuple[Any, Any]] = {}
        for parts, tables in self._split.items():
            numbers = [table for table, _ in tables]
            bag_counts = [batch.lengths[table].shape[0] for table in numbers]
            lengths = torch.cat([batch.lengths[table] for table in numbers])
            owner, rows = self._owners(batch, tables, parts)
            # Sorting a byte or two keeps the order within a block and is a single pass each.
            rows = rows.index_select(0, torch.sort(owner, stable=True)[1])
            edges = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
            cuts = []
            rest = lengths
            for block in range(1, parts):
                before = torch.nn.functional.pad((owner == block).cumsum(0), (1, 0))
                cut = before.index_select(0, edges).diff().to(torch.int32)
                rest = rest - cut
                cuts.append(cut)
            every = torch.cat([rest, *cuts])
            ends = list(accumulate(bag_counts * parts))
            run_ends = every.cumsum(0)[[end - 1 for end in ends]].tolist()
            runs = rows.split([end - start for start, end in pairwise([0, *run_ends])])
            of_bags = every.split(bag_counts * parts)
            for place, (part, run) in enumerate(zip(of_bags, runs, strict=True)):
                found[parts, numbers[place % len(numbers)], place // len(numbers)] = part, run
        return found

    def _owners(
        self, batch: DeviceBatch, tables: list[tuple[int, int]], parts: int
    ) -> tuple[Any, Any]:
        """Returns the block of every lookup of some tables, and its row within the block."""
        torch = self._torch
        rows = torch.cat([batch.indices[table] for table, _ in tables])
        counts = [batch.indices[table].shape[0] for table, _ in tables]
        kind = torch.uint8 if parts <= _MAX_BYTE_BLOCKS else torch.int16
        owner = torch.zeros(rows.shape[0], dtype=kind, device=rows.device)
        for (_, height), own, within in zip(
            tables, owner.split(counts), rows.split(counts), strict=True
        ):
            if parts > _FEW_BLOCKS:
                own.copy_(within // height)
            else:
                for block in range(1, parts):
                    own += within >= block * height
            within -= own.to(rows.dtype) * height
        return owner, rows
