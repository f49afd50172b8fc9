from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.indices import Uniform, Zipf
from dse.machine.kernels import (
    LOOKUP_LAUNCHES,
    EmbeddingKernels,
    EmbeddingShape,
    embedding_time_s,
    embedding_work,
    unfused_embedding_work,
)
from tests.conftest import make_device

SHAPE = EmbeddingShape(
    rows=1_000_000,
    dim=32,
    value_bytes=4,
    bags=1000.0,
    lookups=10_000.0,
    output_value_bytes=4,
    state_bytes_per_row=0.0,
)


def work_of(kernels, indices=None, shape=SHAPE, features=1, device=None):
    return unfused_embedding_work(
        device or make_device(), shape, indices or Uniform(), kernels, features
    )


def test_fused_kernels_do_nothing_else():
    assert work_of(EmbeddingKernels()) == embedding_work(make_device(), SHAPE, Uniform())


def test_passes_over_rows_by_hand():
    plain = work_of(EmbeddingKernels(fused=False))
    passed = work_of(
        EmbeddingKernels(fused=False, forward_row_passes=2.0, backward_row_passes=3.0)
    )
    # 10,000 lookups of 32 four-byte values at 0.8 of the bandwidth.
    row_bytes = 10_000 * 128 / 0.8
    assert passed.forward_memory_bytes - plain.forward_memory_bytes == pytest.approx(2 * row_bytes)
    assert passed.backward_memory_bytes - plain.backward_memory_bytes == pytest.approx(
        3 * row_bytes
    )


def test_unfused_updates_touch_each_different_row_twice():
    plain = work_of(EmbeddingKernels(fused=False))
    unique = Uniform().expected_unique_rows(1_000_000, 10_000.0)
    # Rows of 128 bytes are gathered at 0.8 · 128 / (128 + 40) of the bandwidth.
    assert plain.backward_memory_bytes == pytest.approx(2 * unique * (128 + 40) / 0.8)
    assert plain.backward_cache_bytes == 0.0


def test_the_most_popular_row_is_summed_one_draw_after_the_other():
    rows = 4
    shape = replace(SHAPE, rows=rows)
    kernels = EmbeddingKernels(fused=False, hot_row_s=10e-9)
    uniform = work_of(kernels, shape=shape)
    without = work_of(EmbeddingKernels(fused=False), shape=shape)
    # A quarter of 10,000 draws, 10 ns each, at 2 TB/s.
    assert uniform.backward_memory_bytes - without.backward_memory_bytes == pytest.approx(
        2500 * 10e-9 * 2e12
    )
    skewed = work_of(kernels, Zipf(1.05), shape)
    assert skewed.backward_memory_bytes > uniform.backward_memory_bytes


def test_small_kernels_for_each_feature():
    kernels = EmbeddingKernels(kernels_per_feature=9.0)
    none, three = work_of(EmbeddingKernels()), work_of(kernels, features=3)
    floor_bytes = 3 * 2.5e-6 * 2e12
    assert three.forward_memory_bytes - none.forward_memory_bytes == pytest.approx(3 * floor_bytes)
    assert three.backward_memory_bytes - none.backward_memory_bytes == pytest.approx(
        6 * floor_bytes
    )


def test_indices_are_joined_where_received_and_routed_where_rows_are_cut():
    kernels = EmbeddingKernels(
        output_row_passes=2.0, joined_index_bytes=16.0, routed_index_bytes=100.0
    )
    plain = work_of(EmbeddingKernels()).forward_memory_bytes

    def added(**where):
        work = unfused_embedding_work(make_device(), SHAPE, Uniform(), kernels, **where)
        return 0.8 * (work.forward_memory_bytes - plain)

    # 1,000 pooled rows of 128 bytes twice; 10,000 lookups.
    assert added() == pytest.approx(256_000 + 160_000)
    assert added(received=False) == pytest.approx(256_000)
    assert added(routed_lookups=10_000.0) == pytest.approx(256_000 + 160_000 + 1_000_000)


def test_tables_one_after_the_other_take_the_sum_of_their_times():
    device = make_device()
    shapes = SHAPE, replace(SHAPE, rows=1000, dim=128, lookups=200_000.0)
    kernels = EmbeddingKernels(one_table_at_a_time=True)
    for indices in (Uniform(), Zipf(1.05)):
        works = [work_of(kernels, indices, shape) for shape in shapes]
        plain = [embedding_work(device, shape, indices) for shape in shapes]
        alone_s = sum(
            float(
                embedding_time_s(
                    device, one.forward_memory_bytes, one.forward_cache_bytes, LOOKUP_LAUNCHES
                )
            )
            for one in plain
        )
        together = sum(one.forward_memory_bytes for one in works)
        assert float(embedding_time_s(device, together, 0.0, 0)) == pytest.approx(alone_s)
        assert all(one.forward_cache_bytes == one.backward_cache_bytes == 0.0 for one in works)


def test_no_lookups_no_work():
    empty = work_of(EmbeddingKernels(kernels_per_feature=9.0), shape=replace(SHAPE, lookups=0.0))
    assert empty.forward_memory_bytes == empty.backward_memory_bytes == 0.0


costs = st.floats(0.0, 100.0)


@given(costs, costs, costs, costs, st.booleans())
def test_more_of_anything_is_never_faster(forward, backward, index, hot, fused):
    less = EmbeddingKernels(fused, forward, backward, index, hot * 1e-9)
    more = EmbeddingKernels(
        fused, forward + 1, backward + 1, index + 1, (hot + 1) * 1e-9, kernels_per_feature=1
    )
    assert work_of(less).forward_memory_bytes < work_of(more).forward_memory_bytes
    assert work_of(less).backward_memory_bytes < work_of(more).backward_memory_bytes


def test_ordering_by_instructions_takes_the_time_of_all_compute_units():
    shape = EmbeddingShape(100_000, 64, 4, 1000.0, 20_000.0, 4, 4.0)
    plain, ordered = EmbeddingKernels(), EmbeddingKernels(index_unit_s=50e-9)
    for device in (
        make_device(),
        make_device(compute_units=200, memory_bandwidth_bytes_per_s=8e12),
    ):
        added = (
            unfused_embedding_work(device, shape, Uniform(), ordered).backward_memory_bytes
            - unfused_embedding_work(device, shape, Uniform(), plain).backward_memory_bytes
        )
        took_s = added / device.memory_bandwidth_bytes_per_s
        assert took_s == pytest.approx(20_000 * 50e-9 / device.compute_units)
