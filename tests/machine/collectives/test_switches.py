"""Sizes at which NCCL changes its protocol."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.machine import LinkKind, LinkSpec
from dse.machine.collectives import CollectiveOp, nccl_protocols

HOPPER = LinkSpec("nvswitch", LinkKind.NVSWITCH, 450e9, 2.5e-6, in_switch_share=0.6)


def test_four_devices_go_from_ll_to_simple():
    protocols = nccl_protocols(HOPPER, CollectiveOp.ALL_GATHER, 4)
    # LL: 6.6 + 3 * 0.6 = 8.4 us and 141 GB/s of bus; Simple: 8.4 + 3 * 3.4 = 18.6 us and 360 GB/s.
    # They meet where 10.2 us = 3/4 of the size * (1 / 141 - 1 / 360) ns a byte.
    assert protocols is not None
    assert protocols.certain
    _, switch = protocols.switch_bytes
    assert switch == pytest.approx(10.2e-6 * 4 / 3 / (1 / 141e9 - 1 / 360e9))
    assert protocols.bytes_per_s[1:] == pytest.approx([141e9 * 4 / 3, 360e9 * 4 / 3])


def test_eight_devices_use_ll128_between():
    protocols = nccl_protocols(HOPPER, CollectiveOp.ALL_GATHER, 8)
    assert protocols is not None
    _, first, second = protocols.switch_bytes
    assert first == pytest.approx(16.5e-6 * 8 / 7 / (1 / 141e9 - 1 / 331.2e9))
    assert second == pytest.approx(4.9e-6 * 8 / 7 / (1 / 331.2e9 - 1 / 360e9))


def test_switches_that_add_take_over_large_sums():
    protocols = nccl_protocols(HOPPER, CollectiveOp.ALL_REDUCE, 8)
    assert protocols is not None
    # LL: 6.6 + 14 * 0.6 = 15 us and 141 * 8 / 14 GB/s of the message.
    assert protocols.switch_bytes[1:] == pytest.approx([10e-6 / (14 / 8 / 141e9 - 1 / 270e9)])
    assert protocols.bytes_per_s[-1] == pytest.approx(270e9)


@pytest.mark.parametrize(("rate", "channels"), [(300e9, 16), (450e9, 16), (900e9, 32)])
def test_rings_use_all_channels_from_eight_bytes_a_thread_and_rank(rate, channels):
    link = LinkSpec("nvswitch", LinkKind.NVSWITCH, rate, 2.5e-6)
    protocols = nccl_protocols(link, CollectiveOp.REDUCE_SCATTER, 4)
    assert protocols is not None
    assert protocols.flat_bytes == channels * 512 * 8 * 4


@pytest.mark.parametrize("kind", [LinkKind.NVSWITCH, LinkKind.PCIE])
def test_the_time_may_jump_where_one_channel_has_all_its_threads(kind):
    protocols = nccl_protocols(LinkSpec("link", kind, 24e9, 4e-6), CollectiveOp.ALL_REDUCE, 8)
    assert protocols is not None
    assert protocols.switch_bytes[0] == 512 * 8 * 8
    assert protocols.bytes_per_s[0] == protocols.bytes_per_s[1]


def test_pcie_has_no_ll128():
    link = LinkSpec("pcie", LinkKind.PCIE, 24e9, 4e-6)
    protocols = nccl_protocols(link, CollectiveOp.ALL_GATHER, 2)
    assert protocols is not None
    # 7.6 us and 12 GB/s of bus against 14.1 us and 24 GB/s.
    assert protocols.switch_bytes[1:] == pytest.approx([6.5e-6 * 2 / (1 / 12e9 - 1 / 24e9)])
    assert protocols.flat_bytes == 0


def test_exchanges_switch_where_measurements_show_it():
    protocols = nccl_protocols(HOPPER, CollectiveOp.ALL_TO_ALL, 8)
    assert protocols is not None
    assert not protocols.certain
    assert protocols.switch_bytes == (8 * 2**19 + 1,)


@pytest.mark.parametrize("kind", [LinkKind.SHARED_MEMORY, LinkKind.NVLINK_MESH])
def test_nothing_is_known_of_other_links(kind):
    link = LinkSpec("other", kind, 10e9, 1e-6)
    assert nccl_protocols(link, CollectiveOp.ALL_REDUCE, 4) is None


def test_nothing_is_known_of_other_operations():
    assert nccl_protocols(HOPPER, CollectiveOp.BROADCAST, 4) is None


@given(
    rate=st.floats(20e9, 2e12),
    ranks=st.integers(2, 72),
    op=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
    kind=st.sampled_from([LinkKind.NVSWITCH, LinkKind.PCIE]),
)
def test_larger_messages_go_by_faster_protocols(rate, ranks, op, kind):
    protocols = nccl_protocols(LinkSpec("link", kind, rate, 1e-6), CollectiveOp(op), ranks)
    assert protocols is not None
    assert list(protocols.bytes_per_s) == sorted(protocols.bytes_per_s)
    assert list(protocols.switch_bytes) == sorted(protocols.switch_bytes)
    assert len(protocols.switch_bytes) == len(protocols.bytes_per_s) - 1
