"""Shards of a cut, wherever they are placed: problems that differ in other things share them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dse.sharding import column_widths
from dse.workload.dlrm.scoring._features import ExchangeGroup
from dse.workload.dlrm.scoring._row_cuts import row_cut
from dse.workload.dlrm.scoring._shard_features import ShardKey, shard_features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.indices import RowBlock
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
    contexts: tuple[ShardContext, ShardContext], whole: ShardKey, parts: int
) -> CutShards:
    """Returns the shards of a cut; do not change them.

    Args:
        contexts: What shards depend on, and those of copies on every rank.
        whole: The table as one shard, with the blocks that its rows are cut into.
        parts: Parts that are placed on their own: shards of columns, or 1.
    """
    on_all, on_one = contexts
    # Fewer problems share what only copies depend on.
    context = on_one if whole.is_replicated else on_all
    copied = on_one if whole.hot_rows else None
    made = _kept if parts * whole.row_blocks <= _MOST_PLACES else _made
    return made(context, copied, whole, parts)


def _made(
    context: ShardContext, copied: ShardContext | None, whole: ShardKey, parts: int
) -> CutShards:
    """Returns the shards of a cut.

    Args:
        context: What they depend on.
        copied: What copies of hot rows depend on; None without them.
        whole: As for :func:`cut_shards`.
        parts: See there.
    """
    cut = row_cut(context.tables[whole.table], whole.row_blocks, whole.hot_rows)
    of_kinds = [cut.blocks[first] for first in cut.first.tolist()]
    known: dict[tuple[int, RowBlock | None], int] = {}
    classes = [
        [known.setdefault((columns, block), len(known)) for block in of_kinds]
        for columns in column_widths(whole.columns, parts)
    ]
    table, group, _, _, blocks, cached_share, hot_rows = whole
    shards = [
        ShardKey(table, group, columns, block, blocks, cached_share, hot_rows)
        for columns, block in known
    ]
    rows = [shard_features(context, shard)[0] for shard in shards]
    groups = 1 << whole.group
    if copied is not None:
        groups |= 1 << ExchangeGroup.REPLICATED
        rows.append(shard_features(copied, whole.hot_copy)[0])
    features = np.array(rows)
    places = np.array(classes, dtype=np.int64)[:, cut.kind_of]
    even = bool((places == places[:, :1]).all())
    features.flags.writeable = places.flags.writeable = False
    return CutShards(groups, features, places, even)


_kept = lru_cache(maxsize=_CUTS_KEPT)(_made)
