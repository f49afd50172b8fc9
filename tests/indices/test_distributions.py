from __future__ import annotations

import math
import pickle

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.indices import (
    IdOrder,
    PopularityBuckets,
    ReuseHistogram,
    Uniform,
    Zipf,
    hashed_rows,
)

HISTOGRAM = ReuseHistogram((0.6, 0.3, 0.1), (0.2, 0.3, 0.5), mean_reuse=3.0, touched_share=0.2)
DISTRIBUTIONS = [Uniform(), Zipf(0.8), Zipf(1.0), Zipf(1.3), HISTOGRAM]


def simulate_lru(indices, rows: int, draws: int, cache_rows: int) -> float:
    """Share of hits of an LRU cache that is empty at first: a dict in order of last use."""
    cache: dict[int, None] = {}
    hits = 0
    for row in indices.sample(np.random.default_rng(3), rows, draws).tolist():
        if row in cache:
            hits += 1
            del cache[row]
        elif len(cache) >= cache_rows:
            del cache[next(iter(cache))]
        cache[row] = None
    return hits / draws


@pytest.mark.parametrize("indices", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize(
    ("rows", "draws", "cache_rows"),
    # From a batch that turns the cache over many times to one that never fills it.
    [(5000, 60_000, 500), (5000, 10_000, 2000), (50_000, 30_000, 5000), (50_000, 20_000, 15_000)],
)
def test_hits_of_one_batch_against_a_simulated_cache(indices, rows, draws, cache_rows):
    predicted = indices.hit_rate(rows, draws, cache_rows)
    assert predicted == pytest.approx(simulate_lru(indices, rows, draws, cache_rows), abs=0.012)


def test_uniform_hits_by_hand():
    # V(t) = E (1 − e^(−t/E)) = C gives t = −E ln(1 − C/E); every later draw finds C of E rows.
    rows, draws, cache_rows = 1000, 5000, 250
    stay = -rows * math.log(1 - cache_rows / rows)
    hits = (stay - cache_rows) + (draws - stay) * cache_rows / rows
    assert Uniform().hit_rate(rows, draws, cache_rows) == pytest.approx(hits / draws)


def test_long_batches_reach_the_steady_state():
    assert Uniform().hit_rate(1000, 10**9, 250) == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("indices", DISTRIBUTIONS, ids=str)
def test_hits_have_no_step_where_the_cache_becomes_large_enough(indices):
    rows, draws = 20_000, 30_000
    distinct = indices.expected_unique_rows(rows, draws)
    below = indices.hit_rate(rows, draws, distinct * (1 - 1e-6))
    assert below == pytest.approx(indices.hit_rate(rows, draws, distinct), abs=1e-5)


@given(st.integers(2, 60), st.floats(1, 200), st.floats(0.3, 2.0), st.floats(0.1, 0.9))
def test_hits_against_the_integral_over_the_batch(rows, draws, alpha, share):
    # The definition without its closed form: H(min(s, t)) averaged over the batch.
    popularity = Zipf(alpha).buckets(rows).probability
    stay = share * draws
    cache_rows = float(np.sum(1 - np.exp(-popularity * stay)))
    steps = (np.arange(4000) + 0.5) / 4000 * draws
    within = np.minimum(steps, stay)[:, np.newaxis]
    average = float(np.mean((1 - np.exp(-popularity * within)) @ popularity))
    bound = 1 - Zipf(alpha).expected_unique_rows(rows, draws) / draws
    assert Zipf(alpha).hit_rate(rows, draws, cache_rows) == pytest.approx(
        min(average, bound), abs=1e-4
    )


@given(
    st.sampled_from(DISTRIBUTIONS),
    st.integers(1, 50),
    st.floats(0.1, 300),
    st.floats(0.01, 60),
    st.floats(1, 3),
)
def test_laws_hold_for_tiny_tables_and_caches(indices, rows, draws, cache_rows, factor):
    small = indices.hit_rate(rows, draws, cache_rows)
    large = indices.hit_rate(rows, draws, cache_rows * factor)
    bound = max(0.0, 1 - indices.expected_unique_rows(rows, draws) / draws)
    assert 0 <= small <= large + 1e-9
    assert large <= bound + 1e-9


@pytest.mark.parametrize("indices", DISTRIBUTIONS, ids=str)
def test_arrays_of_draws(indices):
    draws = np.array([[0, 1, 10], [1000, 10**5, 10**7]])
    unique = indices.expected_unique_rows(5000, draws)
    assert unique.shape == draws.shape
    assert unique.dtype == np.float64
    for place in np.ndindex(draws.shape):
        assert unique[place] == indices.expected_unique_rows(5000, int(draws[place]))
    assert unique[0, 0] == 0
    assert unique[0, 1] == pytest.approx(1)


def test_rare_rows_do_not_cancel():
    # Two draws of one in 10^15 rows collide once in 10^15; 1 − (1 − p)^2 would round that away.
    rows = 10**15
    assert Uniform().expected_unique_rows(rows, 1e6) == pytest.approx(1e6, rel=1e-8)
    assert Uniform().expected_unique_rows(10**9, 10**6) == pytest.approx(
        1e6 - 1e6 * (1e6 - 1) / 2e9, rel=1e-6
    )


@pytest.mark.parametrize("alpha", [0.8, 1.0, 1.05])
def test_buckets_of_many_rows_against_the_plain_sum(alpha):
    rows, draws = 3_000_000, 2_000_000
    weight = np.arange(1, rows + 1) ** -alpha
    popularity = weight / weight.sum()
    exact = np.sum(-np.expm1(draws * np.log1p(-popularity)))
    assert Zipf(alpha).expected_unique_rows(rows, draws) == pytest.approx(exact, rel=1e-3)
    buckets = Zipf(alpha).buckets(rows)
    assert buckets.probability[:3] == pytest.approx(popularity[:3], rel=1e-4)
    assert np.all(np.diff(buckets.probability) <= 0)


def test_buckets_stay_few_for_tables_of_any_size():
    assert len(Zipf(1.05).buckets(10**12).rows) < 2000
    assert Zipf(1.05).buckets(10**12).rows.sum() == pytest.approx(1e12)


@pytest.mark.parametrize("ids", list(IdOrder))
def test_samples_follow_the_popularity(ids):
    rows, draws = 10_000, 200_000
    drawn = Zipf(1.1, ids=ids).sample(np.random.default_rng(5), rows, draws, "t")
    assert drawn.dtype == np.int64
    expected = Zipf(1.1).buckets(rows).probability[:5] * draws
    popular = np.arange(5)
    at = popular if ids is IdOrder.BY_POPULARITY else hashed_rows(popular, rows, "t")
    counted = np.bincount(drawn, minlength=rows)[at]
    assert np.all(np.abs(counted - expected) < 5 * np.sqrt(expected))


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 4096, 4097, 100_003])
def test_a_hash_is_a_permutation_that_depends_on_the_table(rows):
    numbers = hashed_rows(np.arange(rows), rows, "a")
    assert sorted(numbers.tolist()) == list(range(rows))
    if rows > 10:
        assert (numbers == hashed_rows(np.arange(rows), rows, "b")).mean() < 0.01


def test_hashed_rows_are_spread_and_popular_ones_are_no_neighbours():
    rows = 2**20 + 7
    numbers = hashed_rows(np.arange(20_000), rows, "t")
    quarters = np.bincount(4 * numbers // rows, minlength=4)
    assert np.abs(quarters - 5000).max() < 5 * np.sqrt(5000)
    # Differences of independent numbers are spread as well.
    steps = np.bincount(4 * (np.diff(numbers) % rows) // rows, minlength=4)
    assert np.abs(steps - 5000).max() < 5 * np.sqrt(5000)


@pytest.mark.parametrize("indices", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 600, 10_000])
def test_buckets_are_ranges_of_ranks_in_the_table(indices, rows):
    first, count = indices.buckets(rows).ranks(rows)
    assert first[0] == 0
    assert (count >= 1).all()
    assert (first + count <= rows).all()
    assert (np.diff(first) >= 0).all()


@pytest.mark.parametrize("indices", DISTRIBUTIONS, ids=str)
def test_distributions_are_values(indices):
    copy = pickle.loads(pickle.dumps(indices))
    assert copy == indices
    assert hash(copy) == hash(indices)


def test_rows_that_are_never_drawn_take_no_cache():
    buckets = PopularityBuckets(np.array([10.0, 90.0]), np.array([0.1, 0.0]))
    assert buckets.unique_rows(1000) == pytest.approx(10)
    assert buckets.lru_hit_rate(1000, 10) == pytest.approx(1 - 10 / 1000)
    assert buckets.lru_hit_rate(1000, 0) == buckets.lru_hit_rate(0, 5) == 0


@given(
    st.one_of(st.just(Uniform()), st.floats(0.5, 1.6).map(Zipf)),
    st.integers(2, 10**6),
    st.floats(1, 1e5),
    st.floats(0.01, 0.99),
)
def test_a_running_cache_misses_no_more_than_an_empty_one(indices, rows, draws, share):
    lookups, distinct = indices.expected_misses(rows, draws, share * rows)
    assert 0 <= distinct <= lookups <= draws * (1 + 1e-9)
    everything = indices.expected_unique_rows(rows, draws)
    assert distinct <= everything * (1 + 1e-9)
    # The most popular rows are the best that a cache can hold.
    others = draws * (1.0 - indices.head_share(rows, share * rows))
    assert others <= lookups * (1 + 1e-6) + 1e-6
    more = indices.expected_misses(rows, draws, min(1.0, 1.1 * share) * rows)
    assert more[0] <= lookups * (1 + 1e-9) + 1e-9


def test_misses_of_a_running_cache_against_a_simulated_one():
    rows, cached, batch = 20_000, 2_000, 1_000
    rng = np.random.default_rng(0)
    draws = Zipf(1.05).sample(rng, rows, 120 * batch)
    last, missed, misses = {}, set(), []
    for position, row in enumerate(draws.tolist()):
        if position % batch == 0:
            misses.append(len(missed))
            missed.clear()
            held = set(sorted(last, key=last.__getitem__)[-cached:])
        if row not in held:
            missed.add(row)
        last[row] = position
    expected = Zipf(1.05).expected_misses(rows, batch, cached)[1]
    assert np.mean(misses[40:]) == pytest.approx(expected, rel=0.02)


def test_misses_without_a_cache_and_with_all_rows():
    assert Uniform().expected_misses(100, 50.0, 100) == (0.0, 0.0)
    lookups, distinct = Uniform().expected_misses(100, 50.0, 0)
    assert lookups == 50
    assert distinct == pytest.approx(100 * (1 - 0.99**50))
