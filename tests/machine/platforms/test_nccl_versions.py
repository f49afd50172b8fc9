"""Curves of several versions of the communication library, and those of another device."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from dse.errors import ConfigError, UnknownNameError
from dse.machine import LinkKind, LinkSpec
from dse.machine.collectives import collective_estimate
from dse.machine.fits import CollectiveCalibration, HeldOut, Provenance, fit_size_curve
from dse.machine.platforms import (
    CalibrationFile,
    list_platforms,
    load_platform,
    override_platform,
    read_calibrations,
    transferred_curves,
    write_calibrations,
)
from tests.conftest import ROOT

SIZES = 2.0 ** np.arange(10, 28)
CHECKED = HeldOut(10, 0.02, 0.03, 0.05, "fresh")
MEASURED_ON = LinkSpec("", LinkKind.NVSWITCH, 300e9, 3e-6)


def curve(nccl: str, seconds_per_byte: float, op: str = "all_reduce", ranks: int = 8):
    return CollectiveCalibration(
        op,
        ranks,
        fit_size_curve(SIZES, 1e-5 + SIZES * seconds_per_byte),
        0.05,
        Provenance("mine", "my device", "my stopwatch", "2026-03", len(SIZES)),
        CHECKED,
        nccl=nccl,
    )


#: The newest first, as fits write them; all-gather was measured with one version only.
CURVES = (
    curve("2.29.2", 1e-11),
    curve("2.27.5", 2e-11),
    curve("2.27.3", 3e-11),
    curve("2.29.2", 5e-12, "all_gather"),
)


@pytest.fixture
def folder(tmp_path):
    document = yaml.safe_load((ROOT / "platforms/h100_sxm.yaml").read_text())
    document |= {"name": "mine", "calibrations": [{"file": "mine.json"}]}
    document["links"]["nvswitch"] |= {"bandwidth": "300 GB/s", "latency": "3 us"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document))
    write_calibrations(
        tmp_path / "mine.json", CalibrationFile(collectives=CURVES, link=MEASURED_ON)
    )
    return tmp_path


def all_reduce_s(platform, size: float = 1e8) -> float:
    return float(platform.collective_time("all_reduce", size, 8))


def test_a_file_keeps_versions_and_the_measured_link(folder):
    content = read_calibrations(folder / "mine.json")
    assert [one.nccl for one in content.collectives] == ["2.29.2", "2.27.5", "2.27.3", "2.29.2"]
    assert content.link == MEASURED_ON


@pytest.mark.parametrize(
    ("nccl", "seconds_per_byte"),
    [("newest", 1e-11), ("2.29", 1e-11), ("2.27", 2e-11), ("2.27.3", 3e-11)],
)
def test_the_newest_version_counts_unless_the_link_names_another(folder, nccl, seconds_per_byte):
    platform = load_platform(str(folder / "mine.yaml"))
    changed, _ = override_platform(platform, [f"link.nccl={nccl}"])
    assert all_reduce_s(changed) == pytest.approx(1e-5 + 1e8 * seconds_per_byte, rel=0.01)
    derived = load_platform({"from": str(folder / "mine.yaml"), "link": {"nccl": nccl}})
    assert all_reduce_s(derived) == all_reduce_s(changed)
    document = yaml.safe_load((folder / "mine.yaml").read_text())
    document["links"]["nvswitch"]["nccl"] = nccl
    (folder / "mine.yaml").write_text(yaml.safe_dump(document))
    assert all_reduce_s(load_platform(str(folder / "mine.yaml"))) == all_reduce_s(changed)


def test_facts_name_the_version_that_answers(folder):
    platform = load_platform(str(folder / "mine.yaml"))
    changed, _ = override_platform(platform, ["links.nvswitch.nccl=2.27.3"])
    for answering, version in ((platform, "2.29.2"), (changed, "2.27.3")):
        named = [fact.quantity for fact in answering.facts if "all_reduce" in fact.quantity]
        assert named == [f"calibration.all_reduce on 8 ranks, NCCL {version}"]


def test_what_a_version_lacks_is_taken_from_another_with_a_wider_spread(folder):
    platform = load_platform(str(folder / "mine.yaml"))
    old, _ = override_platform(platform, ["link.nccl=2.27.3"])
    own, lacking = (
        collective_estimate(one.cluster(8), "all_gather", 1e6) for one in (platform, old)
    )
    assert own.time_s == lacking.time_s
    assert own.spread < lacking.spread


@pytest.mark.parametrize("nccl", ["2.26", "2.27.4", "1"])
def test_a_version_that_was_not_measured_is_refused_with_those_that_were(folder, nccl):
    platform = load_platform(str(folder / "mine.yaml"))
    with pytest.raises(UnknownNameError, match=r"2\.29\.2, 2\.27\.5, 2\.27\.3"):
        override_platform(platform, [f"link.nccl={nccl}"])


def test_a_version_needs_measurements(folder):
    platform = load_platform("p100_pcie")
    with pytest.raises(UnknownNameError, match="not measured"):
        override_platform(platform, ["link.nccl=2.27"])
    with pytest.raises(ConfigError, match="nccl"):
        override_platform(load_platform(str(folder / "mine.yaml")), ["link.nccl=latest"])


def test_lent_curves_move_by_the_ratios_of_rate_and_latency():
    twice = LinkSpec("new", LinkKind.NVSWITCH, 600e9, 6e-6)
    (lent,) = transferred_curves(CURVES[:1], MEASURED_ON, twice)
    # 10 µs of latency become 20, and 10 ps a byte become 5.
    assert lent.curve.at(SIZES) == pytest.approx(2e-5 + SIZES * 5e-12, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "rate", "added"),
    [
        (LinkKind.NVSWITCH, 330e9, 0.08),
        (LinkKind.NVSWITCH, 450e9, 0.20),
        (LinkKind.PCIE, 300e9, 0.40),
    ],
)
def test_lent_curves_are_less_sure_the_further_the_link_is(kind, rate, added):
    (lent,) = transferred_curves(CURVES[:1], MEASURED_ON, LinkSpec("new", kind, rate, 3e-6))
    assert lent.spread == pytest.approx(np.hypot(0.05, added))


def test_a_platform_with_a_faster_link_borrows_faster_curves(folder):
    document = yaml.safe_load((folder / "mine.yaml").read_text())
    document["calibrations"] = [{"file": "mine.json", "transferred": "nearest measured link"}]
    document["links"]["nvswitch"] |= {"bandwidth": "600 GB/s", "latency": "3 us"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(document))
    assert all_reduce_s(load_platform(str(folder / "mine.yaml"))) == pytest.approx(
        1e-5 + 1e8 * 5e-12, rel=0.01
    )


@pytest.mark.parametrize("name", list_platforms())
def test_curves_of_shipped_platforms_are_their_own_or_labelled(name):
    platform = load_platform(name)
    for link in platform.links:
        for one in link.calibrations:
            assert one.transferred or one.provenance.device == platform.device.name


@pytest.mark.parametrize("name", list_platforms())
def test_longer_messages_are_never_faster_on_shipped_platforms(name):
    """Inside and beyond the measured sizes, on measured and other numbers of ranks."""
    platform = load_platform(name)
    sizes = np.geomspace(1.0, 1e11, 400)
    for link in platform.links:
        for ranks in range(2, platform.devices_per_node + 1):
            for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
                time_s = platform.collective_time(op, sizes, ranks, link=link.name)
                assert np.all(np.diff(time_s) >= -1e-9 * time_s[1:]), (link.name, ranks, op)
                # The rate beyond the measured sizes stays near that of the largest message.
                assert time_s[-1] > 0.5 * (sizes[-1] / sizes[-2]) * time_s[-2]
