"""Shards of a cut, wherever they are placed: problems that differ in other things share them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.sharding import column_widths
from dse.workload.dlrm.scoring._features import ExchangeGroup, exchange_group
from dse.workload.dlrm.scoring._row_cuts import row_cut
from dse.workload.dlrm.scoring._shard_features import shard_features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.indices import RowBlock
    from dse.sharding import ShardingType
    from dse.workload.dlrm.scoring._shard_features import ShardContext

#: Cuts that are kept, of about a kilobyte each, and the most shards of one of them on all ranks;
#: bounds memory.
_CUTS_KEPT = 8192
_MOST_PLACES = 512


class CutShards(NamedTuple):
    """Shards of a cut.

    Attributes:
        groups: Exchange groups as bits of the layout.
        rows: Features of different shards, in the order in which they first appear; shape
            `(shards, WIDE_FEATURE_COUNT)`. With hot rows, one more row, the last, has those of
            their copies on all ranks.
        places: Which of them each part is on each rank that it reaches, in the order of ranks;
            shape `(parts, ranks reached)`, one rank for copies, which are alike.
        even: Whether each part is the same on all these ranks.
    """

    groups: int
    rows: NDArray[np.float64]
    places: NDArray[np.int64]
    even: bool


def cut_shards(
    contexts: tuple[ShardContext, ShardContext],
    table_index: int,
    kind: ShardingType,
    parts: int,
    blocks: int,
    cached_share: float | None,
    hot_rows: int,
) -> CutShards:
    """Returns the shards of a cut; do not change them.

    Args:
        contexts: What shards depend on, and those of copies on every rank.
        table_index: Number of the table.
        kind: How it is cut.
        parts: Parts that are placed on their own: shards of columns, or 1.
        blocks: Blocks that its rows are cut into.
        cached_share: Of rows in host memory, the part in a cache on the device; None for a table
            on the device.
        hot_rows: Rows that every rank has a copy of.
    """
    on_all, on_one = contexts
    group = exchange_group(kind, pooled=on_all.tables[table_index].pooled)
    # Fewer problems share what only copies depend on.
    context = on_one if group is ExchangeGroup.REPLICATED else on_all
    copied = on_one if hot_rows else None
    made = _kept if parts * blocks <= _MOST_PLACES else _made
    return made(context, copied, table_index, group, parts, blocks, cached_share, hot_rows)


def _made(
    context: ShardContext,
    copied: ShardContext | None,
    table_index: int,
    group: ExchangeGroup,
    parts: int,
    blocks: int,
    cached_share: float | None,
    hot_rows: int,
) -> CutShards:
    """Returns the shards of a cut in an exchange group.

    Args:
        context: What they depend on.
        copied: What copies of hot rows depend on; None without them.
        table_index: As for :func:`cut_shards`, and so are the others.
        group: The group.
        parts: See there.
        blocks: See there.
        cached_share: See there.
        hot_rows: See there.
    """
    table = context.tables[table_index]
    cut = row_cut(table, blocks, hot_rows)
    of_kinds = [cut.blocks[first] for first in cut.first.tolist()]
    known: dict[tuple[int, RowBlock | None], int] = {}
    classes = [
        [known.setdefault((columns, block), len(known)) for block in of_kinds]
        for columns in column_widths(table.dim, parts)
    ]
    rows = [
        shard_features(context, table_index, group, columns, block, blocks, cached_share, hot_rows)
        for columns, block in known
    ]
    groups = 1 << group
    if copied is not None:
        copies = ExchangeGroup.REPLICATED
        groups |= 1 << copies
        rows.append(
            shard_features(copied, table_index, copies, table.dim, None, 1, None, hot_rows)
        )
    features = np.array([values for values, _ in rows])
    places = np.array(classes, dtype=np.int64)[:, cut.kind_of]
    even = bool((places == places[:, :1]).all())
    features.flags.writeable = places.flags.writeable = False
    return CutShards(groups, features, places, even)


_kept = lru_cache(maxsize=_CUTS_KEPT)(_made)
