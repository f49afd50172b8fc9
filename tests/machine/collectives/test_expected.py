"""What collectives should reach."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine.collectives import (
    CollectiveOp,
    CollectiveTable,
    collective_estimate,
    expected_collective,
)
from dse.machine.platforms import load_platform

MIB = 2**20
H100 = load_platform("h100_sxm")


def test_the_time_is_that_of_predictions():
    cluster = H100.cluster(32, network="efa_3200g")
    estimate = collective_estimate(cluster, "all_reduce", 64 * MIB)
    found = expected_collective(cluster, "all_reduce", 64 * MIB)
    assert found.time_s == float(estimate.time_s)
    assert found.low_s * found.high_s == pytest.approx(found.time_s**2)
    assert (found.ranks, found.domains) == (32, 4)


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 2 * 15 / 16),
        ("all_gather", 15 / 16),
        ("reduce_scatter", 15 / 16),
        ("all_to_all", 15 / 16),
        ("broadcast", 1.0),
        ("send_recv", 1.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(op, factor):
    found = expected_collective(H100.cluster(16), op, 1e9)
    assert found.algorithm_bandwidth_bytes_per_s == pytest.approx(1e9 / found.time_s)
    assert found.bus_bandwidth_bytes_per_s == pytest.approx(factor * 1e9 / found.time_s)
    low, high = found.low_bus_bandwidth_bytes_per_s, found.high_bus_bandwidth_bytes_per_s
    assert low < found.bus_bandwidth_bytes_per_s < high


def test_sources_say_what_was_measured():
    inside = expected_collective(H100.cluster(8), "all_reduce", MIB)
    assert (inside.decided_by, inside.between) == ("inside", None)
    assert inside.inside.basis == "measured"
    assert inside.inside.ranks == (8,)
    assert inside.inside.nccl
    over_efa = expected_collective(H100.cluster(32, network="efa_3200g"), "all_reduce", MIB)
    assert over_efa.decided_by == "between"
    assert over_efa.between is not None
    assert (over_efa.between.basis, over_efa.between.calibration) == ("fitted", "efa_v2")
    unmeasured = expected_collective(H100.cluster(32), "all_reduce", MIB)
    assert unmeasured.between is not None
    assert (unmeasured.between.basis, unmeasured.between.calibration) == ("formulas", "")
    lent = expected_collective(load_platform("gb300_nvl72").cluster(4), "all_reduce", MIB)
    assert lent.inside.basis == "transferred"
    further = expected_collective(load_platform("gb300_nvl72").cluster(4), "broadcast", MIB)
    assert further.inside.basis == "transferred"
    continued = expected_collective(H100.cluster(8), "broadcast", MIB)
    assert continued.inside.basis == "continued"


@pytest.mark.parametrize("ranks", [3, 6])
def test_numbers_of_ranks_between_those_measured_are_continued(ranks):
    source = expected_collective(H100.cluster(ranks), "all_reduce", MIB).inside
    assert (source.basis, source.ranks) == ("continued", (2, 4, 8))


def test_two_nodes_have_a_source_between_them():
    found = expected_collective(H100.cluster(16), "all_reduce", MIB)
    assert found.domains == 2
    assert found.between is not None
    assert found.between.basis == "formulas"


def test_answers_are_short():
    found = expected_collective(H100.cluster(16), "all_reduce", MIB)
    table = CollectiveTable("all_reduce", "h100_sxm", "nvswitch", "efa", (found,))
    assert len(repr(found)) < 120
    assert len(repr(table)) < 120
    assert table.at(float(MIB), 16) is found
    with pytest.raises(ConfigError):
        table.at(float(MIB), 8)


def test_one_rank_has_no_collective():
    with pytest.raises(ValueError, match="two ranks"):
        expected_collective(H100.cluster(1), "all_reduce", MIB)


@given(
    st.sampled_from(CollectiveOp),
    st.sampled_from([2, 8, 16, 64]),
    st.floats(1.0, 1e10),
    st.floats(1.0, 100.0),
    st.sampled_from([network.name for network in H100.networks]),
)
def test_more_bytes_never_take_less_time(op, ranks, size, factor, network):
    cluster = H100.cluster(ranks, network=network)
    less, more = (expected_collective(cluster, op, one) for one in (size, size * factor))
    assert less.time_s <= more.time_s * (1 + 1e-9)
    assert less.low_s <= less.time_s <= less.high_s
