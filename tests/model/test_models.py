from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.indices import ReuseHistogram, Uniform, Zipf
from dse.machine import Precision
from dse.model import (
    META_2021,
    activation_bytes,
    dense_operators,
    dense_parameter_count,
    find_model,
    generate_tables,
    interaction_width,
    list_models,
    load_model,
)

HISTOGRAM = ReuseHistogram((0.6, 0.3, 0.1), (0.2, 0.3, 0.5), mean_reuse=3.0, touched_share=0.2)
DISTRIBUTIONS = [Uniform(), Zipf(0.8), Zipf(1.0), Zipf(1.2), HISTOGRAM]


@pytest.mark.parametrize("indices", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 1000, 100_000])
def test_popularity_is_a_distribution_over_the_rows(indices, rows):
    buckets = indices.buckets(rows)
    assert buckets.rows @ buckets.probability == pytest.approx(1.0)
    assert buckets.rows.sum() <= rows * 1.0001


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.05, 1.3])
@pytest.mark.parametrize("draws", [100, 10_000, 1_000_000])
def test_zipf_unique_rows_against_the_plain_sum(alpha, draws):
    rows = 50_000
    weight = np.arange(1, rows + 1) ** -alpha
    popularity = weight / weight.sum()
    exact = np.sum(-np.expm1(draws * np.log1p(-popularity)))
    assert Zipf(alpha).expected_unique_rows(rows, draws) == pytest.approx(exact, rel=0.005)


def test_uniform_unique_rows_by_formula():
    expected = 1000 * (1 - (1 - 1 / 1000) ** 500)
    assert Uniform().expected_unique_rows(1000, 500) == pytest.approx(expected)
    assert Uniform().expected_unique_rows(1, 10) == pytest.approx(1)


@pytest.mark.parametrize("indices", DISTRIBUTIONS, ids=str)
def test_unique_rows_against_drawing_them(indices):
    rng = np.random.default_rng(0)
    drawn = indices.sample(rng, 20_000, 15_000)
    assert drawn.min() >= 0
    assert drawn.max() < 20_000
    expected = indices.expected_unique_rows(20_000, 15_000)
    assert len(np.unique(drawn)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("indices", [Uniform(), Zipf(1.05)], ids=str)
def test_hit_rate_against_an_lru_cache(indices):
    rng = np.random.default_rng(1)
    rows, draws, cache_rows = 5000, 60_000, 500
    cache: dict[int, None] = {}
    hits = 0
    for row in indices.sample(rng, rows, draws).tolist():
        if row in cache:
            hits += 1
            del cache[row]
        elif len(cache) >= cache_rows:
            del cache[next(iter(cache))]
        cache[row] = None
    assert hits / draws == pytest.approx(indices.hit_rate(rows, draws, cache_rows), abs=0.03)


@given(
    st.sampled_from(DISTRIBUTIONS),
    st.integers(1, 10**6),
    st.floats(1, 1e7),
    st.floats(0, 1e6),
    st.floats(1, 10),
)
def test_laws_of_hits_and_unique_rows(indices, rows, draws, cache_rows, factor):
    unique = indices.expected_unique_rows(rows, draws)
    assert 0 < unique <= min(rows, draws) * (1 + 1e-9)
    assert indices.expected_unique_rows(rows, draws * factor) >= unique * (1 - 1e-9)
    small = indices.hit_rate(rows, draws, cache_rows)
    large = indices.hit_rate(rows, draws, cache_rows * factor)
    assert 0 <= small <= large + 1e-9
    assert large <= 1 - unique / draws + 1e-9


def test_a_cache_that_holds_everything_misses_first_touches_only():
    unique = Zipf(1.05).expected_unique_rows(1000, 5000)
    assert Zipf(1.05).hit_rate(1000, 5000, 1000) == pytest.approx(1 - unique / 5000)
    assert Zipf(1.05).hit_rate(1000, 5000, 0) == 0


def test_the_histogram_reproduces_its_reference_batch():
    rows, seen = 1_000_000, 200_000
    unique = HISTOGRAM.expected_unique_rows(rows, 3.0 * seen)
    assert unique == pytest.approx(seen, rel=0.02)


# --- models -------------------------------------------------------------------------------

#: Weights in GiB as the models' sources state them.
EMBEDDING_GIB = {
    "dlrm_criteo": 97.36,
    "dlrm_dcnv2": 97.36,
    "dlrm_dle_small": 15.6,
    "dlrm_dle_large": 84.85,
    "dlrm_dle_xlarge": 420.94,
    "dlrm_tiny": 4.2,
    "dlrm_small": 26.3,
    "dlrm_medium": 206.2,
    "dlrm_large": 773.8,
    "dlrm_jumbo": 3109.5,
    "dlrm_default": 1.91,
    "dlrm_ddp": 0.31,
}


@pytest.mark.parametrize("name", [name for name in list_models() if name.startswith("dlrm")])
def test_shipped_models(name):
    model = load_model(name)
    assert model.name == name
    assert model.source
    assert len({table.name for table in model.tables}) == len(model.tables)
    if name in EMBEDDING_GIB:
        assert model.embedding_bytes / 2**30 == pytest.approx(EMBEDDING_GIB[name], abs=0.06)


def test_aliases_find_models():
    assert find_model("mlperf_dlrm_dcnv2") == find_model("dlrm_dcnv2")
    assert load_model("tfde_tiny_v3").name == "dlrm_tiny"
    assert sum(table.feature_count for table in load_model("tfde_small_v3").tables) == 116


def test_dcnv2_multi_hot_sizes():
    lookups = [table.lookups_per_sample for table in load_model("dlrm_dcnv2").tables]
    assert sum(lookups) == 214
    assert lookups[20] == 100


def test_generated_tables_have_the_published_totals():
    tables = generate_tables(META_2021, 856, 2021)
    batch = META_2021.batch_size
    lookups = sum(batch * table.lookups_per_sample for table in tables)
    assert lookups == pytest.approx(META_2021.lookups, rel=0.01)
    unique = sum(
        table.indices.expected_unique_rows(table.rows, batch * table.lookups_per_sample)
        for table in tables
    )
    assert unique == pytest.approx(META_2021.unique_rows, rel=0.1)
    assert {table.dim for table in tables} == {4, 8, 16, 32, 64, 128, 256}
    assert generate_tables(META_2021, 20, 7) != generate_tables(META_2021, 20, 8)


# --- dense part ---------------------------------------------------------------------------


def test_mlperf_parameters_by_hand():
    bottom = 14 * 512 + 513 * 256 + 257 * 128
    # Interaction: 128 + 27 · 26 / 2 = 479.
    top = 480 * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 256 + 257
    model = load_model("dlrm_criteo")
    assert interaction_width(model) == 479
    assert dense_parameter_count(model) == bottom + top == 2_368_897


def test_dcnv2_parameters_by_hand():
    width = 27 * 128
    cross = 3 * (2 * width * 512 + width)
    bottom = 14 * 512 + 513 * 256 + 257 * 128
    top = (width + 1) * 1024 + 1025 * 1024 + 1025 * 512 + 513 * 256 + 257
    assert dense_parameter_count(load_model("dlrm_dcnv2")) == bottom + cross + top


@pytest.mark.parametrize("name", ["dlrm_criteo", "dlrm_dcnv2", "dlrm_tiny", "dlrm_medium"])
def test_gradient_groups_cover_all_parameters_in_order(name):
    model = load_model(name)
    operators = dense_operators(model, 128, Precision.TF32)
    groups = operators.parameter_groups
    assert sum(group.parameters for group in groups) == dense_parameter_count(model)
    ready = [group.ready_after for group in groups]
    assert ready == sorted(ready)
    backward = (
        *operators.top_backward,
        *operators.interaction_backward,
        *operators.bottom_backward,
    )
    assert all("gradient" in backward[index].name for index in ready)


def test_gemm_flops_of_the_backward_pass_are_twice_the_forward_less_the_first_layer():
    operators = dense_operators(load_model("dlrm_criteo"), 64, Precision.FP32)

    def flops(phase):
        return sum(2 * op.m * op.n * op.k for op in phase if op.kind == "gemm")

    forward = flops(operators.bottom_forward) + flops(operators.top_forward)
    backward = flops(operators.bottom_backward) + flops(operators.top_backward)
    assert backward == 2 * forward - 2 * 64 * 13 * 512


def test_activations_scale_with_batch_and_precision():
    model = load_model("dlrm_dcnv2")
    base = activation_bytes(model, 128, Precision.FP32)
    assert activation_bytes(model, 256, Precision.FP32) == 2 * base
    assert activation_bytes(model, 128, Precision.FP16) == base / 2
