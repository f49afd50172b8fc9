"""Shares of lookups of blocks of rows, against simulated tables and by their laws."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.indices import IdOrder, ReuseHistogram, Uniform, Zipf, lookup_blocks
from dse.sharding import row_blocks

HISTOGRAM = ReuseHistogram((0.6, 0.3, 0.1), (0.2, 0.3, 0.5), mean_reuse=3.0, touched_share=0.2)
LAWS = [Uniform(), Zipf(0.8), Zipf(1.0), Zipf(1.1), Zipf(1.3), HISTOGRAM]
DRAWS = 10_000_000


def probabilities(indices, rows: int) -> np.ndarray:
    """Probability of every row of a table, by popularity rank."""
    popularity = indices.buckets(rows)
    found = np.zeros(rows)
    for first, count, lookups in zip(
        *popularity.ranks(rows), popularity.rows * popularity.probability, strict=True
    ):
        found[first : first + count] += lookups / count
    return found / found.sum()


def drawn_shares(rng, probability: np.ndarray, heights: tuple[int, ...]) -> np.ndarray:
    """Shares of ten million lookups, drawn row by row, that blocks of rows get."""
    blocks = np.repeat(np.arange(len(heights)), heights)
    held = np.bincount(blocks, probability, len(heights))
    return rng.multinomial(DRAWS, held / held.sum()) / DRAWS


@pytest.mark.parametrize("indices", LAWS, ids=str)
@pytest.mark.parametrize(("rows", "blocks"), [(3, 8), (10, 4), (1000, 8), (100_000, 24)])
def test_blocks_by_popularity_against_ten_million_draws(indices, rows, blocks):
    indices = replace(indices, ids=IdOrder.BY_POPULARITY)
    heights = row_blocks(rows, blocks)
    drawn = drawn_shares(np.random.default_rng(0), probabilities(indices, rows), heights)
    busiest = max(block.lookup_share for block in lookup_blocks(indices, heights))
    assert busiest == pytest.approx(drawn.max(), rel=0.02)


@pytest.mark.parametrize("indices", LAWS, ids=str)
@pytest.mark.parametrize(
    ("rows", "blocks", "tables"),
    [(3, 8, 20), (10, 4, 400), (300, 8, 1000), (20_000, 8, 300), (20_000, 64, 100)],
)
def test_the_busiest_hashed_block_against_ten_million_draws(indices, rows, blocks, tables):
    heights = row_blocks(rows, blocks)
    probability = probabilities(indices, rows)
    rng = np.random.default_rng(2)
    # The hash is not known, so the mean over tables with hashes of their own counts.
    drawn = [drawn_shares(rng, rng.permutation(probability), heights).max() for _ in range(tables)]
    uncertain = np.std(drawn) / np.sqrt(tables)
    busiest = max(block.lookup_share for block in lookup_blocks(indices, heights))
    assert abs(busiest - np.mean(drawn)) < 0.02 * np.mean(drawn) + 2.0 * uncertain


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([*LAWS, *(replace(law, ids=IdOrder.BY_POPULARITY) for law in LAWS)]),
    st.one_of(st.integers(1, 300), st.integers(300, 10**9)),
    st.one_of(st.integers(2, 100), st.just(20_000)),
    st.text(max_size=5),
)
def test_laws_of_blocks(indices, rows, count, name):
    heights = row_blocks(rows, count)
    blocks = lookup_blocks(indices, heights, name)
    shares = [block.lookup_share for block in blocks]
    assert sum(shares) == pytest.approx(1.0)
    assert max(shares) >= 1.0 / count - 1e-12
    assert max(shares) >= probabilities(indices, rows)[0] - 1e-9 if rows < 1000 else True
    for block, height in zip(blocks, heights, strict=True):
        # The last of many equal blocks may be a few rows short.
        assert abs(block.rows - height) <= 0.01 * heights[0]
        assert block.rows > 0 or block.lookup_share == 0
        if block.lookup_share > 0:
            inside = block.indices.buckets(block.rows)
            assert inside.rows @ inside.probability == pytest.approx(1.0)


@pytest.mark.parametrize("ids", list(IdOrder))
@pytest.mark.parametrize("rows", [100, 1_000_000])
def test_more_skew_raises_the_busiest_block_and_more_ranks_lower_it(ids, rows):
    def busiest(alpha: float, count: int) -> float:
        blocks = lookup_blocks(Zipf(alpha, ids=ids), row_blocks(rows, count))
        return max(block.lookup_share for block in blocks)

    alphas = [busiest(alpha, 8) for alpha in (0.3, 0.6, 0.9, 1.0, 1.1, 1.3, 2.0)]
    assert alphas == sorted(alphas)
    counts = [busiest(1.05, count) for count in (2, 4, 8, 16, 32, 64, 128)]
    assert counts == sorted(counts, reverse=True)


def test_three_rows_on_eight_ranks_leave_five_without():
    blocks = lookup_blocks(Uniform(), row_blocks(3, 8))
    assert [block.rows for block in blocks] == [1, 1, 1, 0, 0, 0, 0, 0]
    assert [block.lookup_share for block in blocks] == pytest.approx([1 / 3] * 3 + [0.0] * 5)


def test_equal_blocks_are_one_object():
    blocks = lookup_blocks(Uniform(), row_blocks(10_000_003, 8))
    assert len(set(blocks)) == 1
    assert blocks[0].lookup_share == 1 / 8
    assert blocks[0].indices == Uniform()


def test_by_popularity_the_first_block_has_the_head_by_hand():
    # 1 + 1/2 + 1/3 + 1/4 = 25/12 in two blocks of two rows: 18/25 and 7/25.
    indices = Zipf(1.0, ids=IdOrder.BY_POPULARITY)
    first, second = lookup_blocks(indices, (2, 2))
    assert first.lookup_share == pytest.approx(18 / 25)
    assert second.lookup_share == pytest.approx(7 / 25)
    # Inside the first: 2/3 and 1/3; of two draws 1 − 1/9 + 1 − 4/9 different rows are expected.
    assert first.indices.expected_unique_rows(2, 2) == pytest.approx(13 / 9)


def test_hashed_blocks_of_two_rows_by_hand():
    # The hottest row has one of two blocks to itself in a third of all pairings of four rows.
    # Largest shares: {1, 2}: 18/25, {1, 3}: 16/25, {1, 4}: 15/25, each in a third of them.
    blocks = lookup_blocks(Zipf(1.0), (2, 2))
    assert max(b.lookup_share for b in blocks) == pytest.approx((18 + 16 + 15) / 75, rel=0.02)


@pytest.mark.parametrize("ids", list(IdOrder))
@pytest.mark.parametrize("rows", [500, 200_000])
def test_different_rows_of_blocks_add_up_to_those_of_the_table(ids, rows):
    indices, draws = Zipf(1.1, ids=ids), 20_000.0
    blocks = lookup_blocks(indices, row_blocks(rows, 8))
    parts = [
        block.indices.expected_unique_rows(block.rows, draws * block.lookup_share)
        for block in blocks
    ]
    assert sum(parts) == pytest.approx(indices.expected_unique_rows(rows, draws), rel=0.01)


def test_busiest_blocks_of_different_tables_are_in_different_places():
    heights = row_blocks(1_000_000, 8)
    busiest = [
        int(np.argmax([b.lookup_share for b in lookup_blocks(Zipf(1.1), heights, f"t{index}")]))
        for index in range(64)
    ]
    assert np.bincount(busiest, minlength=8).max() < 20


def test_the_busiest_block_is_where_samples_have_it():
    rows, indices = 100_000, Zipf(1.2)
    heights = row_blocks(rows, 8)
    for name in ("a", "b", "c"):
        shares = [block.lookup_share for block in lookup_blocks(indices, heights, name)]
        drawn = indices.sample(np.random.default_rng(1), rows, 100_000, name)
        by_block = np.bincount(drawn // heights[0], minlength=8)
        assert np.argmax(shares) == np.argmax(by_block)
