from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.machine import LinkKind, LinkSpec
from dse.machine.collectives import (
    CollectiveOp,
    Group,
    all_to_all_v_time_s,
    collective_estimate,
    collective_time_s,
)
from dse.machine.fits import (
    SPREAD_PER_EFOLD_OUTSIDE,
    CollectiveCalibration,
    HeldOut,
    Provenance,
    fit_size_curve,
)
from tests.conftest import make_cluster

SIZES = np.geomspace(1e3, 1e9, 25)
LOW_BYTES, HIGH_BYTES = 1e3, 1e9
SPREAD = 0.05

ops = st.sampled_from(list(CollectiveOp))


def calibration(op: str, ranks: int, slower: float = 1.0) -> CollectiveCalibration:
    """A curve with a step, as measured ones have where the protocol changes."""
    factor = 2 * (ranks - 1) / ranks if op == "all_reduce" else (ranks - 1) / ranks
    time_s = (4 + ranks) * 1e-6 + SIZES * (0.4 + factor) / 250e9
    time_s = slower * time_s * np.where(SIZES > 1e6, 1.3, 1.0)
    return CollectiveCalibration(
        op,
        ranks,
        fit_size_curve(SIZES, time_s),
        SPREAD,
        Provenance("made up", "test device", "tests", "unknown", len(SIZES)),
        HeldOut(5, 0.02, 0.03, 0.05, "none"),
    )


def calibrated(world_size: int, *calibrations: CollectiveCalibration, devices_per_node: int = 8):
    cluster = make_cluster(world_size, devices_per_node)
    return replace(cluster, link=replace(cluster.link, calibrations=calibrations))


TWO_AND_FOUR = tuple(
    calibration(op, ranks)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for ranks in (2, 4)
)
TWO_AND_EIGHT = tuple(calibration("all_gather", ranks) for ranks in (2, 8))


def test_a_curve_is_used_as_it_is_on_its_own_ranks():
    own = calibration("all_gather", 4)
    sizes = np.geomspace(10, 1e10, 50)
    estimate = collective_estimate(calibrated(4, own), "all_gather", sizes)
    np.testing.assert_array_equal(estimate.time_s, own.curve.at(sizes))


def test_the_first_curve_of_the_same_operation_and_ranks_counts():
    first, second = calibration("all_gather", 4), calibration("all_gather", 4, slower=2)
    took = collective_time_s(calibrated(4, first, second), "all_gather", 1e6)
    assert took == first.curve.at(1e6)


def test_an_unequal_exchange_is_looked_up_by_its_largest_part():
    own = calibration("all_to_all", 4)
    took = all_to_all_v_time_s(calibrated(4, own), 3e6, 0, 0)
    assert took == pytest.approx(float(own.curve.at(4e6)))


def test_nothing_to_send_takes_no_time():
    for ranks in (2, 4, 8, 16):
        cluster = calibrated(ranks, *TWO_AND_FOUR)
        for op in CollectiveOp:
            estimate = collective_estimate(cluster, op, np.array([0.0, 1e6]))
            assert estimate.time_s[0] == estimate.spread[0] == 0.0
            assert estimate.time_s[1] > 0
        assert all_to_all_v_time_s(cluster, 0, 0, 0) == 0.0


@given(ops, st.floats(1, 1e11), st.floats(1, 10), st.sampled_from([2, 3, 4, 6, 8, 16, 32]))
def test_a_longer_message_is_never_faster(op, size, factor, ranks):
    for curves in (TWO_AND_FOUR, TWO_AND_EIGHT, TWO_AND_FOUR[:1]):
        times = collective_time_s(calibrated(ranks, *curves), op, np.array([size, size * factor]))
        assert times[1] >= times[0] * (1 - 1e-9)


@given(st.floats(1, 1e11), st.sampled_from([3, 4, 5, 6, 7]))
def test_between_two_measured_rank_counts_lies_the_time_between(size, ranks):
    times = [
        float(collective_time_s(calibrated(count, *TWO_AND_EIGHT), "all_gather", size))
        for count in (2, ranks, 8)
    ]
    assert times[0] * (1 - 1e-6) <= times[1] <= times[2] * (1 + 1e-6)


@given(st.sampled_from([one.op for one in TWO_AND_FOUR]), st.floats(1e3, 1e9))
def test_more_ranks_than_measured_take_longer(op, size):
    times = [
        float(collective_time_s(calibrated(count, *TWO_AND_FOUR), op, size)) for count in (4, 8)
    ]
    assert times[0] <= times[1] < 4 * times[0]


def test_latency_grows_with_steps_and_inverse_bandwidth_with_volume():
    # (4 + ranks) µs and (0.4 + (ranks − 1) / ranks) / 250 GB/s continue as lines.
    smallest, largest = (
        float(collective_time_s(calibrated(8, *TWO_AND_FOUR), "all_gather", size))
        for size in (LOW_BYTES, HIGH_BYTES)
    )
    known = calibration("all_gather", 8).curve
    assert smallest == pytest.approx(float(known.at(LOW_BYTES)), rel=0.05)
    assert largest == pytest.approx(float(known.at(HIGH_BYTES)), rel=0.02)


def test_one_measured_rank_count_is_carried_over_by_the_formulas():
    plain = {
        ranks: float(collective_time_s(make_cluster(ranks, 8), "all_gather", 1e7))
        for ranks in (2, 4, 8)
    }
    own = calibration("all_gather", 4)
    for ranks in (2, 8):
        took = float(collective_time_s(calibrated(ranks, own), "all_gather", 1e7))
        assert took == pytest.approx(float(own.curve.at(1e7)) * plain[ranks] / plain[4], rel=0.02)


def test_on_a_mesh_the_formulas_carry_the_nearest_curve_to_other_ranks():
    """Rings of five neighbours have fewer links than rings of four and of eight."""
    mesh = LinkSpec("mesh", LinkKind.NVLINK_MESH, 150e9, 4e-6)
    curves = tuple(calibration("all_reduce", ranks) for ranks in (4, 8))
    bare = make_cluster(5, 8, link=mesh)
    plain = {
        ranks: float(collective_time_s(replace(bare, world_size=ranks), "all_reduce", 1e8))
        for ranks in (4, 5)
    }
    took = collective_time_s(
        replace(bare, link=replace(mesh, calibrations=curves)), "all_reduce", 1e8
    )
    assert took == pytest.approx(float(curves[0].curve.at(1e8)) * plain[5] / plain[4], rel=0.02)


def test_a_curve_of_large_messages_begins_with_the_latency_of_the_formulas():
    sizes = 2.0 ** np.arange(20, 30)
    own = replace(calibration("all_reduce", 8), curve=fit_size_curve(sizes, 1e-4 + sizes / 1e11))
    bare, known = make_cluster(8, 8), calibrated(8, own)
    small = np.array([2.0**9, 2.0**14, 2.0**20])
    ratio = collective_time_s(known, "all_reduce", small) / collective_time_s(
        bare, "all_reduce", small
    )
    assert ratio == pytest.approx(np.full(3, ratio[-1]), rel=0.02)
    # Nothing below a mebibyte was measured.
    spread = collective_estimate(known, "all_reduce", np.array([2.0**9, 2.0**20])).spread
    assert spread[0] == pytest.approx(np.hypot(SPREAD, 0.15 * np.log(2.0**11)), rel=1e-6)
    assert spread[1] == pytest.approx(SPREAD)


@pytest.mark.parametrize("op", ["broadcast", "send_recv", "all_reduce", "reduce_scatter"])
def test_an_operation_without_a_curve_follows_a_related_one(op):
    fast, slow = calibration("all_gather", 4), calibration("all_gather", 4, slower=3)
    times = [float(collective_time_s(calibrated(4, own), op, 1e7)) for own in (fast, slow)]
    assert times[1] == pytest.approx(3 * times[0], rel=1e-3)


def test_spread_by_what_is_known():
    def spread(op: str, ranks: int, nbytes: float = 1e6) -> float:
        return float(collective_estimate(calibrated(ranks, *TWO_AND_FOUR), op, nbytes).spread)

    assert spread("all_gather", 4) == pytest.approx(SPREAD)
    assert spread("all_gather", 8) == pytest.approx(np.hypot(SPREAD, 0.1))
    assert spread("all_gather", 3) == pytest.approx(np.hypot(SPREAD, 0.1))
    assert spread("broadcast", 4) == pytest.approx(np.hypot(SPREAD, 0.2))
    # Beyond the range the time grows by a known rate; below it nothing is known of the protocol.
    for nbytes, each in (
        (HIGH_BYTES * np.e**2, 0.05),
        (LOW_BYTES / np.e**2, SPREAD_PER_EFOLD_OUTSIDE),
    ):
        outside = 2 * each
        assert spread("all_gather", 4, nbytes) == pytest.approx(
            np.hypot(SPREAD, outside), rel=1e-3
        )


def test_spread_over_nodes_is_that_of_the_level_that_decides():
    cluster = calibrated(16, *TWO_AND_FOUR)
    slow_cards = replace(cluster, network=replace(cluster.network, nic_bandwidth_bytes_per_s=1e8))
    fast_cards = replace(cluster, network=replace(cluster.network, nic_bandwidth_bytes_per_s=1e13))
    extrapolated = np.hypot(SPREAD, 0.1)
    for bound, expected in ((slow_cards, 0.25), (fast_cards, extrapolated)):
        spread = float(collective_estimate(bound, "all_gather", 1e9).spread)
        assert spread == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("op", ["broadcast", "send_recv"])
def test_own_curves_of_operations_that_depend_little_on_the_ranks(op):
    curves = tuple(calibration(op, ranks) for ranks in (2, 4))
    for ranks in (2, 3, 4, 8):
        took = collective_time_s(calibrated(ranks, *curves), op, 1e6)
        assert curves[0].curve.at(1e6) <= took <= 2 * curves[1].curve.at(1e6)


def test_curves_speak_of_one_node_only():
    cluster = calibrated(16, *TWO_AND_FOUR)
    between = Group(2, 1)
    assert collective_time_s(cluster, "all_reduce", 1e8, between) == collective_time_s(
        make_cluster(16, 8), "all_reduce", 1e8, between
    )
