from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.indices import Uniform, Zipf
from dse.machine import HostLinkSpec
from dse.machine.kernels import (
    EmbeddingShape,
    cached_row_count,
    embedding_work,
    host_rows_time_s,
    host_rows_work,
)
from dse.machine.kernels.embedding._uvm import request_bytes
from tests.conftest import make_device

DEVICE = make_device()

#: 256 bytes a row: two whole requests of 128 bytes, at 0.78 of the line rate.
ROW_COST = 256 / 0.78


def shape(rows=1_000_000, dim=64, bags=4096.0, lookups=40_960.0, state=4.0) -> EmbeddingShape:
    return EmbeddingShape(rows, dim, 4, bags, lookups, 4, state)


def work(cached_rows, indices=None, state_on_host=False, **changes):
    return host_rows_work(
        DEVICE,
        shape(**changes),
        indices or Uniform(),
        cached_rows=cached_rows,
        state_on_host=state_on_host,
    )


@pytest.mark.parametrize(
    ("size", "cost"),
    [
        (256, 256 / 0.78),
        (128, 128 / 0.78),
        # 32 bytes: 4.7 of 15.75 GB/s.
        (32, 32 * 15.75 / 4.7),
        (4, 32 * 15.75 / 4.7),
        # 96 bytes take longer by their bytes than by their number.
        (96, 96 / 0.78),
        (160, 128 / 0.78 + 32 * 15.75 / 4.7),
    ],
)
def test_random_reads_cost_whole_requests(size, cost):
    assert request_bytes(size) == pytest.approx(cost)


def test_without_a_cache_every_lookup_and_every_updated_row_crosses():
    done = work(0)
    distinct = 1e6 * -((1 - 1e-6) ** 40_960 - 1)
    assert done.forward_link_bytes == pytest.approx(40_960 * ROW_COST)
    assert done.backward_link_bytes == pytest.approx(distinct * ROW_COST)
    # The device streams offsets, indices and outputs only: 96 + 80 + 256 bytes a bag, at 0.8.
    assert done.device.forward_memory_bytes == pytest.approx(4096 * (96 + 80 + 256) / 0.8)
    assert done.device.forward_cache_bytes == 0


def test_state_of_every_value_is_read_over_the_link_and_row_wise_state_is_not():
    distinct = 1e6 * -((1 - 1e-6) ** 40_960 - 1)
    full = work(0, state=256.0, state_on_host=True)
    assert full.backward_link_bytes == pytest.approx(distinct * 2 * ROW_COST)
    row_wise, none = work(0, state=4.0), work(0, state=0.0)
    assert row_wise.backward_link_bytes == none.backward_link_bytes
    assert row_wise.device.backward_memory_bytes - none.device.backward_memory_bytes == (
        pytest.approx(2 * distinct * 32)
    )


def test_a_cache_with_room_fetches_each_missing_row_once():
    done = work(200_000)
    # Uniform draws: 0.8 of the distinct rows are outside the cache, which has room for them.
    missing = 0.8e6 * -((1 - 1e-6) ** 40_960 - 1)
    assert done.forward_link_bytes == pytest.approx(missing * ROW_COST)
    assert done.backward_link_bytes == 0
    resident = embedding_work(DEVICE, shape(), Uniform())
    # Sorting 40,960 pairs of 24 bytes in 3 passes, and writing and reading each missing row.
    efficiency = 0.8 * 256 / (256 + 40)
    extra = 40_960 * 24 * 3 / 0.8 + 2 * missing * 256 / efficiency
    assert done.device.forward_memory_bytes - resident.forward_memory_bytes == pytest.approx(extra)
    assert done.device.backward_memory_bytes == resident.backward_memory_bytes


def test_rows_without_room_in_the_cache_are_read_in_place():
    # Ten rows, all of them drawn; the cache holds four, which are in use themselves.
    done = work(4, rows=10, lookups=4000.0, bags=400.0)
    assert done.forward_link_bytes == pytest.approx(0.6 * 4000 * ROW_COST, rel=1e-3)
    assert done.backward_link_bytes == pytest.approx(6 * ROW_COST, rel=1e-3)


def test_a_cache_of_all_rows_needs_no_link():
    done = work(1_000_000)
    assert (done.forward_link_bytes, done.backward_link_bytes) == (0, 0)


def test_popular_rows_are_in_the_cache_first():
    zipf, uniform = work(100_000, Zipf(1.1)), work(100_000)
    assert zipf.forward_link_bytes < 0.5 * uniform.forward_link_bytes


def test_no_lookups_move_nothing():
    done = work(10, lookups=0.0)
    assert (done.forward_link_bytes, done.device.forward_memory_bytes) == (0, 0)


def test_link_time_by_hand():
    link = HostLinkSpec(25e9, 10e-6)
    assert host_rows_time_s(link, [0.0, 25e6]).tolist() == pytest.approx([0.0, 10e-6 + 1e-3])


@pytest.mark.parametrize(("share", "rows"), [(0.2, 2), (0.21, 3), (1.0, 10), (0.0, 0)])
def test_cached_rows_are_whole(share, rows):
    assert cached_row_count(10, share) == rows


indices = st.one_of(st.just(Uniform()), st.floats(0.5, 1.6).map(Zipf))


@given(
    indices,
    st.integers(1, 10**7),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
    st.floats(1, 1e6),
    st.booleans(),
)
def test_a_larger_cache_never_costs_more(distribution, rows, one, other, lookups, state_on_host):
    small, large = sorted((one, other))
    first, second = (
        work(
            cached_row_count(rows, share),
            distribution,
            state_on_host,
            rows=rows,
            lookups=lookups,
            bags=max(1.0, lookups / 8),
        )
        for share in (small, large)
    )
    slack = 1 + 1e-9
    assert second.forward_link_bytes <= first.forward_link_bytes * slack + 1e-3
    assert second.backward_link_bytes <= first.backward_link_bytes * slack + 1e-3
    assert second.device.forward_memory_bytes <= first.device.forward_memory_bytes * slack + 1e-3
    assert second.device.backward_memory_bytes <= first.device.backward_memory_bytes * slack


@given(indices, st.integers(1, 10**6), st.floats(1, 1e5), st.floats(0, 1.2))
def test_the_tail_is_what_the_head_leaves(distribution, rows, draws, share):
    lookups, distinct = distribution.expected_tail(rows, draws, share * rows)
    assert 0 <= distinct <= lookups <= draws
    everything = distribution.expected_unique_rows(rows, draws)
    assert distinct <= everything * (1 + 1e-9)
    assert distribution.expected_tail(rows, draws, 0)[1] == pytest.approx(everything)
    if share >= 1:
        assert (lookups, distinct) == (0, 0)
