"""Bytes of lookups and updates by a framework's operators on a CPU."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.indices import Uniform
from dse.machine.kernels import (
    EMBEDDING_SIZES,
    FBGEMM,
    EmbeddingKernels,
    EmbeddingShape,
    embedding_work,
    unfused_embedding_work,
)
from dse.machine.kernels.embedding._cpu import cpu_lookup_bytes, cpu_update_bytes
from dse.machine.platforms import load_platform
from tests.machine.kernels.calibrations import calibration

SHAPE = EmbeddingShape(
    rows=1000,
    dim=8,
    value_bytes=4,
    bags=10.0,
    lookups=30.0,
    output_value_bytes=4,
    state_bytes_per_row=0.0,
)


def test_a_lookup_reads_numbers_and_rows_and_writes_sums():
    # 30 numbers of 8 B and rows of 32 B, 10 sums of 32 B, at 80 % of the bandwidth.
    assert cpu_lookup_bytes(SHAPE) == pytest.approx((30 * 40 + 10 * 32) / 0.8)


def test_an_update_sorts_sums_and_touches_each_row_once():
    # 30 pairs of 16 B in log2(32) = 5 rounds; 3 passes over 30 gradients of 32 B, 10 gradients of
    # bags; 20 rows read and written.
    moved = 30 * 16 * 5 + 3 * 30 * 32 + 10 * 32 + 2 * 20 * 32
    assert cpu_update_bytes(SHAPE, 20.0) == pytest.approx(moved / 0.8)
    # Row-wise Adagrad keeps 4 B for each row.
    with_state = cpu_update_bytes(replace(SHAPE, state_bytes_per_row=4.0), 20.0)
    assert with_state == pytest.approx((moved + 2 * 20 * 4) / 0.8)


@given(
    st.integers(1, 10**7),
    st.sampled_from([4, 16, 64, 256]),
    st.floats(1.0, 1e5),
    st.floats(1.0, 100.0),
    st.floats(1.01, 4.0),
)
def test_more_lookups_move_more_and_nothing_jumps(rows, dim, bags, pooling, more):
    device = replace(load_platform("cpu").device, calibrations=())

    def work(lookups):
        shape = replace(SHAPE, rows=rows, dim=dim, bags=bags, lookups=lookups)
        return embedding_work(device, shape, Uniform())

    few, many = work(bags * pooling), work(more * bags * pooling)
    for less, greater in (
        (few.forward_memory_bytes, many.forward_memory_bytes),
        (few.backward_memory_bytes, many.backward_memory_bytes),
    ):
        # A logarithm more than in proportion, for the sort.
        assert less < greater <= 1.6 * more * less
    assert few.forward_cache_bytes == few.backward_cache_bytes == 0.0


def test_kernels_of_a_library_have_its_own_times():
    bare = replace(load_platform("cpu").device, calibrations=())
    sizes = dict.fromkeys(EMBEDDING_SIZES, (1.0, 1e9))
    torch, fbgemm = (
        calibration("embedding_backward", sizes, ratio=4.0),
        calibration("embedding_backward", sizes, ratio=2.0),
    )
    both = replace(bare, calibrations=(torch, replace(fbgemm, implementation="fbgemm")))

    def update_bytes(device, kernels):
        return unfused_embedding_work(device, SHAPE, Uniform(), kernels).backward_memory_bytes

    once = update_bytes(bare, EmbeddingKernels())
    assert update_bytes(both, EmbeddingKernels()) == pytest.approx(4 * once)
    # Measured updates order their indices, too; those that were not measured are torch's.
    assert update_bytes(both, FBGEMM) == pytest.approx(2 * once)
    only_torch = replace(bare, calibrations=(torch,))
    ordering = update_bytes(bare, FBGEMM) - once
    assert update_bytes(only_torch, FBGEMM) == pytest.approx(4 * once + ordering)
