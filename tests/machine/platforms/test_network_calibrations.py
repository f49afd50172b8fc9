"""Fitted networks of platforms: their files, and the networks that use them."""

from __future__ import annotations

import json

import pytest
import yaml

from dse.errors import ConfigError
from dse.machine.fits import HeldOut, NetworkCalibration, NetworkModel, Provenance
from dse.machine.platforms import (
    CalibrationFile,
    load_platform,
    override_platform,
    read_calibrations,
    write_calibrations,
)
from tests.conftest import ROOT

FITTED = NetworkCalibration(
    model=NetworkModel(0.5, 0.4, 0.6, 2.5, 0.2, 1.5),
    ops=("all_reduce", "all_to_all"),
    size_bytes=(1024.0, 1e9),
    nodes=(2, 8),
    spread=0.07,
    provenance=Provenance("mine", "my device", "my stopwatch", "2026-03", 40),
    held_out=HeldOut(10, 0.02, 0.03, 0.05, "fresh"),
)


@pytest.fixture
def folder(tmp_path):
    """A platform of one's own with a fitted network beside it."""
    write_calibrations(tmp_path / "mine.json", CalibrationFile(networks=(FITTED,)))
    return tmp_path


def platform_with(folder, **block):
    document = yaml.safe_load((ROOT / "platforms/a100_pcie.yaml").read_text())
    document |= {"name": "mine", "calibrations": [{"file": "mine.json", **block}]}
    (folder / "mine.yaml").write_text(yaml.safe_dump(document))
    return load_platform(str(folder / "mine.yaml"))


def test_a_file_is_read_as_it_was_written(folder):
    assert read_calibrations(folder / "mine.json").networks == (FITTED,)


def test_the_default_network_uses_it_unless_another_is_named(folder):
    default, other, *_ = platform_with(folder).networks
    assert default.calibrations == (FITTED,)
    assert other.calibrations == ()
    networks = {item.name: item for item in platform_with(folder, network=other.name).networks}
    assert networks[other.name].calibrations == (FITTED,)
    assert networks[default.name].calibrations == ()


def test_its_facts_say_where_it_comes_from(folder):
    facts = {fact.quantity: fact for fact in platform_with(folder).facts}
    fact = facts["calibration.all_reduce/all_to_all between nodes"]
    assert (fact.origin, fact.source) == ("fitted", "mine.json: my stopwatch")


def test_a_transferred_one_is_less_sure(folder):
    default, *_ = platform_with(folder, transferred="alike", added_spread="20 %").networks
    (moved,) = default.calibrations
    assert moved.spread == pytest.approx((0.07**2 + 0.2**2) ** 0.5)
    assert moved.transferred == "alike"


def test_it_stays_with_its_network_under_overrides(folder):
    platform, _ = override_platform(platform_with(folder), ["network.bandwidth=*2"])
    default, *_ = platform.networks
    assert default.calibrations == (FITTED,)


def test_a_network_that_the_platform_lacks_is_refused(folder):
    with pytest.raises(ConfigError, match="expected one of"):
        platform_with(folder, network="carrier pigeons")


@pytest.mark.parametrize(
    "change",
    [
        {"ops": ["all_reduced"]},
        {"ops": []},
        {"nodes": [8, 2]},
        {"nodes": [1, 2]},
        {"relayed_share": 0.0},
        {"direct_share": 3.0},
        {"full_rate_factor": 0.5},
        {"message_hops": -1.0},
        {"size_bytes": [1e9, 1024.0]},
    ],
)
def test_impossible_figures_are_refused(folder, change):
    path = folder / "mine.json"
    document = json.loads(path.read_text())
    document["networks"][0] |= change
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError):
        read_calibrations(path)
