from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.indices import Uniform, Zipf
from dse.machine import HostLinkSpec
from dse.machine.kernels import (
    EmbeddingShape,
    cached_row_count,
    embedding_time_s,
    embedding_work,
    host_rows_time_s,
    host_rows_work,
)
from dse.machine.kernels.embedding._uvm import request_bytes
from tests.conftest import make_device

DEVICE = make_device()
LINK = HostLinkSpec(25e9, 10e-6)

#: 256 bytes a row: two whole requests of 128 bytes, at 0.8 of the line rate.
ROW_COST = 256 / 0.8

#: Reading and writing back a row takes longer than reading it.
BOTH_WAYS = 1.19

#: FBGEMM's sort and segments of 40,960 lookups: three passes of 24 bytes, and 410 more.
SORT_BYTES = 40_960 * (24 * 3 + 410) / 0.8


def shape(rows=1_000_000, dim=64, bags=4096.0, lookups=40_960.0, state=4.0) -> EmbeddingShape:
    return EmbeddingShape(rows, dim, 4, bags, lookups, 4, state)


def work(cached_rows, indices=None, host_state=0.0, **changes):
    return host_rows_work(
        DEVICE,
        LINK,
        shape(**changes),
        indices or Uniform(),
        cached_rows=cached_rows,
        host_state_bytes_per_row=host_state,
    )


def times_s(done):
    """Lookup and update, with the time of the link."""
    work = done.device
    device_s = embedding_time_s(
        DEVICE,
        [work.forward_memory_bytes, work.backward_memory_bytes],
        [work.forward_cache_bytes, work.backward_cache_bytes],
    )
    return device_s + host_rows_time_s(LINK, [done.forward_link_bytes, done.backward_link_bytes])


@pytest.mark.parametrize(
    ("size", "cost"),
    [
        (256, 256 / 0.8),
        (128, 128 / 0.8),
        # 32 bytes: 4.7 of 15.75 GB/s.
        (32, 32 * 15.75 / 4.7),
        (4, 32 * 15.75 / 4.7),
        # 96 bytes take longer by their bytes than by their number.
        (96, 96 / 0.8),
        (160, 128 / 0.8 + 32 * 15.75 / 4.7),
    ],
)
def test_random_reads_cost_whole_requests(size, cost):
    assert request_bytes(size, 0.8) == pytest.approx(cost)


def test_without_a_cache_every_lookup_and_every_updated_row_crosses():
    done = work(0)
    distinct = 1e6 * -((1 - 1e-6) ** 40_960 - 1)
    assert done.forward_link_bytes == pytest.approx(40_960 * ROW_COST, rel=1e-3)
    assert done.backward_link_bytes == pytest.approx(distinct * ROW_COST * BOTH_WAYS)
    # Streams of the device pass while it waits for the link; the sort comes before.
    assert done.device.forward_memory_bytes == 1
    assert done.device.forward_cache_bytes == 0
    assert done.device.backward_memory_bytes == pytest.approx(SORT_BYTES + 1)


def test_a_row_on_its_way_is_read_once():
    # 2 µs of 25 GB/s are 195 rows of 256 bytes: of 100 rows, few were not among the last 195.
    small, large = work(0, rows=100), work(0)
    crossing = 40_960 * math.exp(-2e-6 * 25e9 / 256 / 100)
    assert small.forward_link_bytes == pytest.approx(crossing * ROW_COST, rel=0.01)
    assert work(0, Zipf(1.1)).forward_link_bytes < 0.9 * large.forward_link_bytes


def test_state_of_every_value_is_read_over_the_link_and_row_wise_state_is_not():
    distinct = 1e6 * -((1 - 1e-6) ** 40_960 - 1)
    full = work(0, state=256.0, host_state=256.0)
    assert full.backward_link_bytes == pytest.approx(distinct * 2 * ROW_COST * BOTH_WAYS)
    row_wise, none = work(0, state=4.0), work(0, state=0.0)
    assert row_wise.backward_link_bytes == none.backward_link_bytes
    cached, uncached = (
        work(rows, state=256.0, host_state=256.0).backward_link_bytes
        - work(rows, state=0.0).backward_link_bytes
        for rows in (200_000, 0)
    )
    # A cache holds rows without their state.
    assert cached == pytest.approx(uncached)


def test_a_cache_with_room_fetches_each_missing_row_once():
    done = work(200_000)
    # Uniform draws: 0.8 of the distinct rows are outside the cache, which has room for them.
    distinct = 1e6 * -((1 - 1e-6) ** 40_960 - 1)
    missing = 0.8e6 * -((1 - 1e-6) ** 40_960 - 1)
    assert done.forward_link_bytes == pytest.approx(missing * ROW_COST)
    assert done.backward_link_bytes == 0
    resident = embedding_work(DEVICE, shape(), Uniform())
    # Writing and reading each missing row; finding the place of each different row takes one of
    # 100 units 0.35 µs; small kernels as long as 65 of the shortest of 2.5 µs, at 2 TB/s.
    efficiency = 0.8 * 256 / (256 + 40)
    probe_bytes = (distinct * 0.35e-6 / 100 + 65 * 2.5e-6) * 2e12
    extra = SORT_BYTES + 2 * missing * 256 / efficiency + probe_bytes
    assert done.device.forward_memory_bytes - resident.forward_memory_bytes == pytest.approx(extra)
    assert done.device.backward_memory_bytes - resident.backward_memory_bytes == pytest.approx(
        40_960 * 410 / 0.8
    )


def test_rows_without_room_in_the_cache_are_read_in_place():
    # Ten rows, all of them drawn; the cache holds four, which are in use themselves.
    done = work(4, rows=10, lookups=4000.0, bags=400.0)
    assert done.forward_link_bytes == pytest.approx(0.6 * 4000 * ROW_COST, rel=1e-3)
    assert done.backward_link_bytes == pytest.approx(6 * ROW_COST * BOTH_WAYS, rel=1e-3)


def test_a_cache_of_all_rows_needs_no_link():
    done = work(1_000_000)
    assert (done.forward_link_bytes, done.backward_link_bytes) == (0, 0)


def test_popular_rows_are_in_the_cache_first():
    zipf, uniform = work(100_000, Zipf(1.1)), work(100_000)
    assert zipf.forward_link_bytes < 0.5 * uniform.forward_link_bytes


def test_tables_share_the_call_that_fills_their_caches():
    of_one, of_ten = (
        host_rows_work(
            DEVICE,
            LINK,
            shape(),
            Uniform(),
            cached_rows=10,
            host_state_bytes_per_row=0.0,
            call_share=share,
        ).device.forward_memory_bytes
        for share in (1.0, 0.1)
    )
    assert of_one - of_ten == pytest.approx(0.9 * 65 * 2.5e-6 * 2e12)


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
def test_a_larger_cache_never_costs_more(distribution, rows, one, other, lookups, on_host):
    small, large = sorted((one, other))
    first, second = (
        work(
            cached_row_count(rows, share),
            distribution,
            4.0 * on_host,
            rows=rows,
            lookups=lookups,
            bags=max(1.0, lookups / 8),
        )
        for share in (small, large)
    )
    slack = 1 + 1e-9
    assert second.forward_link_bytes <= first.forward_link_bytes * slack + 1e-3
    assert second.backward_link_bytes <= first.backward_link_bytes * slack + 1e-3
    # What the device does while it waits shrinks with the waiting; the sum does not grow.
    assert (times_s(second) <= times_s(first) * slack + 1e-12).all()


@given(indices, st.integers(1, 10**6), st.floats(0, 1.2))
def test_the_head_has_at_least_its_share(distribution, rows, share):
    found = distribution.head_share(rows, share * rows)
    assert min(share, 1.0) * (1 - 1e-9) - 1e-9 <= found <= 1
    if share >= 1:
        assert found == 1
