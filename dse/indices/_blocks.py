"""Blocks of a table's rows: the lookups that each gets, and how they fall inside it.

Row-wise sharding cuts a table into contiguous blocks of rows. Which lookups a block gets depends
on how row numbers follow from popularity (:class:`dse.indices.IdOrder`):

* ``by_popularity``: the block holds a range of popularity ranks.
* ``hashed``: rows are scattered. On average every block gets its share of the rows, but the most
  popular rows cannot be cut, so some block gets more. Which one depends on a hash that nobody
  knows beforehand. The blocks of one table are therefore the *expected* ones, from the busiest to
  the least busy, over many random permutations: the most popular rows are placed one by one, what
  the others add varies by a normal distribution. That makes the busiest block of a table right on
  average, where any single permutation is some percent off. Which rank gets which of them follows
  from a hash of the table's name, so the busiest blocks of different tables are on different ranks
  as after any hash, and sums over tables vary between ranks as they do in a typical case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dse.indices._distributions import IndexDistribution
from dse.indices._ids import IdOrder, hashed_rows
from dse.indices._popularity import PopularityBuckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Rows that are placed one by one; what the others add to a block is close to normal.
_HOT_ROWS = 128

#: Rows of a table in which two random ones are seldom the same.
_FEW_ROWS = 100 * _HOT_ROWS

#: Permutations over which expected blocks are averaged, and their seed. Of many blocks fewer
#: permutations are as good: hot rows seldom meet in one of them, and each permutation has more
#: blocks without any.
_PERMUTATIONS = 400
_FEWEST_PERMUTATIONS = 4
_MOST_PLACES = _PERMUTATIONS * 1024
_SEED = 0

#: Blocks beyond these are not told apart one by one: neighbours in the order of shares are taken
#: together, as many as make about this number of groups.
_SINGLE_BLOCKS = 1024

#: Blocks whose shares of lookups differ by at most this ratio are taken as equal.
_SAME_SHARE = 0.04

#: The same for the busiest block, which decides how long all ranks wait.
_SAME_AS_BUSIEST = 0.004


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    """One block of rows; equal blocks of a table are one object.

    Attributes:
        rows: Rows of the block; may be 0.
        lookup_share: Share of the table's lookups that it gets.
        indices: How rows are drawn inside the block.
    """

    rows: int
    lookup_share: float
    indices: IndexDistribution


@dataclass(frozen=True, eq=False)
class _InsideBlock(IndexDistribution):
    """Rows of one block, in their own proportions.

    Attributes:
        popularity: Their popularity; adds up to 1.
    """

    popularity: PopularityBuckets

    def buckets(self, rows: int) -> PopularityBuckets:
        """Returns the popularity of the block's rows, of which there are `rows`."""
        return self.popularity


@lru_cache(maxsize=8192)
def lookup_blocks(
    indices: IndexDistribution, heights: tuple[int, ...], table: str = ""
) -> tuple[RowBlock, ...]:
    """Returns the blocks of a table.

    Args:
        indices: How the table's rows are drawn.
        heights: Rows of each block, in the order of rows: all alike, but the last that is not
            empty may have less, and empty ones come last.
        table: Name of the table; hashed tables of different names have their busiest blocks in
            different places.

    Returns:
        One for each of `heights`; their shares of lookups add up to 1.
    """
    kinds, kind_of = _kinds(indices, heights)
    if indices.ids is IdOrder.HASHED and len(kinds) > 1:
        kind_of = _placed(indices, heights, table, kind_of)
    full = [RowBlock(heights[0], *kind) for kind in kinds]
    blocks = [full[kind] for kind in kind_of]
    if len(kinds) > 1:
        # Of a single kind the last of many blocks may be short of a few rows.
        short: dict[tuple[int, int], RowBlock] = {}
        for place in range(sum(heights) // heights[0], len(heights)):
            kind, height = kind_of[place], heights[place]
            block = short.get((kind, height))
            if block is None:
                block = short[kind, height] = RowBlock(height, *kinds[kind])
            blocks[place] = block
    return tuple(blocks)


@lru_cache(maxsize=4096)
def _kinds(
    indices: IndexDistribution, heights: tuple[int, ...]
) -> tuple[tuple[tuple[float, IndexDistribution], ...], tuple[int, ...]]:
    """Returns the different blocks, and which of them each block is.

    Hashed blocks are in the order of falling shares, not in that of rows.
    """
    popularity = _by_rank(indices.buckets(sum(heights)))
    starts = _groups(heights)
    sizes = np.diff(starts, append=len(heights))
    parts = (_in_order if indices.ids is IdOrder.BY_POPULARITY else _scattered)(
        popularity, heights, starts
    )
    shares = parts @ _lookups(popularity)
    shares /= shares @ sizes
    kind_of = _alike(shares.tolist())
    kinds = []
    # Blocks alike are neighbours.
    ends = np.cumsum(np.bincount(kind_of)).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        weights = sizes[start:end] / sizes[start:end].sum()
        share = 1.0 / len(heights) if len(ends) == 1 else float(weights @ shares[start:end])
        kinds.append((share, _inside(indices, popularity, weights @ parts[start:end])))
    return tuple(kinds), tuple(np.repeat(kind_of, sizes).tolist())


def _groups(heights: tuple[int, ...]) -> NDArray[np.int64]:
    """Returns the first block of each group of blocks that are not told apart."""
    blocks = len(heights)
    if blocks <= 2 * _SINGLE_BLOCKS:
        return np.arange(blocks)
    step = -(-(blocks - _SINGLE_BLOCKS) // _SINGLE_BLOCKS)
    # The block that has less rows than others, and those without any, are apart from others.
    ends = np.array([sum(heights) // heights[0], -(-sum(heights) // heights[0])])
    starts = [np.arange(_SINGLE_BLOCKS), np.arange(_SINGLE_BLOCKS, blocks, step), ends]
    found = np.unique(np.concatenate(starts))
    return np.asarray(found[found < blocks], dtype=np.int64)


def _by_rank(popularity: PopularityBuckets) -> PopularityBuckets:
    order = np.argsort(-popularity.probability, kind="stable")
    return PopularityBuckets(popularity.rows[order], popularity.probability[order])


def _lookups(popularity: PopularityBuckets) -> NDArray[np.float64]:
    """Returns the share of lookups of each bucket."""
    lookups = popularity.rows * popularity.probability
    return np.asarray(lookups / lookups.sum())


def _inside(
    indices: IndexDistribution, popularity: PopularityBuckets, part: NDArray[np.float64]
) -> IndexDistribution:
    """Returns how rows are drawn inside equal blocks, given their part of each bucket."""
    held = popularity.rows * part
    used = held > 0
    if len(popularity.rows) == 1 or not used.any():
        # Equally popular rows are so in any number.
        return indices
    probability = popularity.probability[used]
    return _InsideBlock(
        PopularityBuckets(held[used], probability / (held[used] @ probability)), ids=indices.ids
    )


def _alike(shares: list[float]) -> tuple[int, ...]:
    """Numbers the different ones among falling shares."""
    kind, first, found = 0, shares[0], [0]
    for share in shares[1:]:
        tolerance = _SAME_SHARE if kind else _SAME_AS_BUSIEST
        if first - share > tolerance * first:
            kind, first = kind + 1, share
        found.append(kind)
    return tuple(found)


def _in_order(
    popularity: PopularityBuckets, heights: tuple[int, ...], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Returns the part of each bucket in each block of popularity ranks.

    Returns:
        Means over the blocks of each group; shape `(groups, buckets)`.
    """
    starts, widths = popularity.ranks(sum(heights))
    tall = np.add.reduceat(heights, groups)
    high = np.cumsum(tall)[:, None]
    inside = np.minimum(starts + widths, high) - np.maximum(starts, high - tall[:, None])
    sizes = np.diff(groups, append=len(heights))
    return np.asarray(np.maximum(0, inside) / widths / sizes[:, None])


def _hot_rows(
    popularity: PopularityBuckets, rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Returns the rows that are placed one by one: bucket, rank and lookups of each."""
    if len(popularity.rows) == 1:
        # Equally popular rows need no places.
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    starts, widths = popularity.ranks(rows)
    first = int(np.searchsorted(starts, _HOT_ROWS))
    starts, widths = starts[:first], widths[:first]
    lookups = _lookups(popularity)[:first] / widths
    taken = np.minimum(widths, _HOT_ROWS - starts)
    bucket = np.repeat(np.arange(first), taken)
    within = np.arange(len(bucket)) - np.repeat(np.cumsum(taken) - taken, taken)
    return bucket, starts[bucket] + within, lookups[bucket]


def _permutations(blocks: int) -> int:
    return max(_FEWEST_PERMUTATIONS, min(_PERMUTATIONS, _MOST_PLACES // blocks))


@lru_cache(maxsize=256)
def _hot_blocks(rows: int, height: int, permutations: int) -> NDArray[np.int64]:
    """Returns the blocks of the most popular rows; shape `(permutations, rows)`.

    Callers must not change the array.
    """
    rng = np.random.Generator(np.random.PCG64(_SEED))
    if rows <= 2 * _HOT_ROWS:
        return rng.random((permutations, rows)).argsort(axis=1)[:, :_HOT_ROWS] // height
    # Blocks are alike, so the first row may stay in the first one. Each other row is equally often
    # in every block: what it adds to the first row's is then exact.
    drawn = rng.random((permutations, _HOT_ROWS)).argsort(axis=0) + rng.random(_HOT_ROWS)
    drawn[:, 0] = 0.0
    at = np.floor(drawn * (rows / permutations))
    while rows < _FEW_ROWS:
        # Two rows are never in one place; those that are move.
        order = np.argsort(at, axis=1, kind="stable")
        ascending = np.take_along_axis(at, order, axis=1)
        permutation, later = np.nonzero(ascending[:, 1:] == ascending[:, :-1])
        if not len(later):
            break
        moved = np.floor(rng.random(len(later)) * rows)
        at[permutation, order[permutation, later + 1]] = moved
    return np.asarray(at // height, dtype=np.int64)


@lru_cache(maxsize=64)
def _normal(blocks: int) -> NDArray[np.float64]:
    """Returns normal random numbers; shape `(permutations, blocks)`."""
    rng = np.random.Generator(np.random.PCG64(_SEED + 1))
    angle, radius = rng.random((2, _permutations(blocks), blocks))
    return np.asarray(np.sqrt(-2.0 * np.log1p(-radius)) * np.cos(2.0 * np.pi * angle))


def _scattered(
    popularity: PopularityBuckets, heights: tuple[int, ...], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Returns the expected part of each bucket in each block of rows, the busiest block first.

    Returns:
        Means over the blocks of each group; shape `(groups, buckets)`.
    """
    rows, buckets, blocks = sum(heights), len(popularity.rows), len(heights)
    tall = np.array(heights, dtype=np.float64)
    bucket, rank, lookups = _hot_rows(popularity, rows)
    if not len(bucket):
        means = np.add.reduceat(tall, groups) / np.diff(groups, append=blocks)
        return np.repeat((means / rows)[:, None], buckets, axis=1)
    height, permutations = heights[0], _permutations(blocks)
    if rows >= _FEW_ROWS:
        # Places in tables of many rows differ by next to nothing.
        places = _hot_blocks(-(-rows // height) * _FEW_ROWS, _FEW_ROWS, permutations)
    else:
        places = _hot_blocks(rows, height, permutations)
    block = places[:, rank]
    each = blocks * np.arange(permutations)[:, None]
    shape, size = (permutations, blocks), permutations * blocks
    weights = np.broadcast_to(lookups, block.shape).ravel()
    shares = np.bincount((block + each).ravel(), weights, size).reshape(shape)
    # The other rows fill what is left of each block.
    hot = np.unique(rank)
    taken = np.bincount((places[:, hot] + each).ravel(), minlength=size).reshape(shape)
    cold = np.maximum(0.0, tall - taken)
    cold /= np.maximum(cold.sum(axis=1, keepdims=True), 1.0)
    left = np.bincount(bucket, minlength=buckets) / popularity.ranks(rows)[1]
    cold_lookups = (1.0 - left) * _lookups(popularity)
    cold *= _varied(cold_lookups, (1.0 - left) * popularity.rows, rows - len(hot), cold)
    shares += cold * cold_lookups.sum()
    order = np.argsort(-shares, axis=1, kind="stable")
    sizes = np.diff(groups, append=blocks)
    group = np.empty_like(order)
    np.put_along_axis(group, order, np.repeat(np.arange(len(groups)), sizes)[None], axis=1)
    slots = np.take_along_axis(group, block, axis=1) * buckets + bucket
    placed = np.bincount(slots.ravel(), minlength=len(groups) * buckets)
    parts = placed.reshape(-1, buckets) / (permutations * popularity.ranks(rows)[1])
    colds = np.take_along_axis(cold, order, axis=1).mean(axis=0)
    parts += (1.0 - left) * np.add.reduceat(colds, groups)[:, None]
    return np.asarray(parts / sizes[:, None])


def _varied(
    lookups: NDArray[np.float64],
    held: NDArray[np.float64],
    rows: int,
    parts: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns by which factor blocks get more or less of the lookups of rows that are not hot.

    A block of `h` of `R` rows gets lookups with variance `h (1 − h / R)` times that of one row's.

    Args:
        lookups: Lookups of the rows of each bucket; shape `(buckets,)`.
        held: Their number; shape `(buckets,)`.
        rows: Rows, those that are never looked up included.
        parts: Part of the rows in each block; shape `(permutations, blocks)`.

    Returns:
        Shape `(permutations, blocks)`; its mean weighted with `parts` is 1.
    """
    total = float(lookups.sum())
    if rows <= 1 or total <= 0.0:
        return np.ones_like(parts)
    used = held > 0
    squares = float((lookups[used] ** 2 / held[used]).sum())
    variance = max(0.0, squares / rows - (total / rows) ** 2)
    drawn = np.sqrt(variance * rows * parts) * _normal(parts.shape[1])
    drawn -= parts * drawn.sum(axis=1, keepdims=True)
    even = np.maximum(parts * total, 1e-300)
    return np.asarray(np.maximum(0.0, 1.0 + np.where(parts > 0, drawn / even, 0.0)))


def _placed(
    indices: IndexDistribution, heights: tuple[int, ...], table: str, kind_of: tuple[int, ...]
) -> tuple[int, ...]:
    """Puts the kinds of blocks, the busiest first, where the hash of a table puts its lookups."""
    rows = sum(heights)
    _, rank, lookups = _hot_rows(_by_rank(indices.buckets(rows)), rows)
    shares = np.array(heights) / rows * (1.0 - float(lookups.sum()))
    at = hashed_rows(rank, rows, table) // heights[0]
    shares += np.bincount(at, lookups, len(heights))
    found = list(kind_of)
    for kind, block in zip(kind_of, np.argsort(-shares, kind="stable").tolist(), strict=True):
        found[block] = kind
    return tuple(found)
