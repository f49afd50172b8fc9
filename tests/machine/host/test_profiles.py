"""Host profiles: files, and what a platform takes from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from dse.errors import ConfigError
from dse.machine import HostSpec
from dse.machine.host import (
    Figure,
    HostProfile,
    LaunchFigures,
    OperatorFigures,
    ProfileSource,
    SharedFigures,
    host_profile_text,
    load_host_profile,
    platform_host_block,
    write_host_profile,
)
from dse.machine.platforms import load_platform
from tests.conftest import ROOT

PROFILE = HostProfile(
    "mine",
    ProfileSource(("rank0.json", "odd: name #1.json"), ("Tesla V100",), "2023-09-08"),
    SharedFigures(
        between_operators=Figure(4.25e-6, 1.25, 200),
        before_launch=Figure(16e-6, 0.5, 100),
        after_launch=Figure(6e-6, 0.5, 100),
        launch=Figure(5e-6, 0.25, 150),
        between_launches=Figure(0.0, 0.0, 50),
    ),
    (
        OperatorFigures(
            "CppNode<Lookup: a, b>", 10, 1.5, Figure(2e-6, 0.1, 10), Figure(1e-6, 0.0, 10)
        ),
        OperatorFigures("aten::view", 0, 0.0, without_launches=Figure(3e-7, 0.2, 70)),
    ),
    (LaunchFigures("cudaLaunchKernel", Figure(5e-6, 0.25, 150)),),
)
BASE = HostSpec(1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6)


def test_a_file_gives_the_profile_back(tmp_path):
    write_host_profile(tmp_path / "p.yaml", PROFILE)
    back = load_host_profile(tmp_path / "p.yaml")
    assert host_profile_text(back) == host_profile_text(PROFILE)
    assert back.source == PROFILE.source
    assert [one.name for one in back.operators] == [one.name for one in PROFILE.operators]
    assert back.shared.between_operators.mean_s == pytest.approx(4.25e-6)
    assert back.shared.graph_launch is None
    assert back.operators[0].launches == 1.5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mean: 16 us", "mean: 16", r":\d+:\d+: shared.before_launch.mean: expected a time"),
        ("mean: 16 us", "mean: 16 GB", r"expected a time"),
        ("mean: 16 us", "mean: -1 us", r"at least 0"),
        ("spread: 1.25", "spread: -1", r"shared.between_operators.spread"),
        ("count: 150", "count: 0", r"count: expected at least 1"),
        ("before_launch: {mean: 16", "befor_launch: {mean: 16", r"befor_launch"),
        ("launches: 1.5", "launches: 0.5", r"`launches` of at least 1"),
        ("schema_version: 1", "schema_version: 2", r"schema_version"),
        ("'2023-09-08'", "'2023-13-08'", r"source.as_of"),
        ("name: mine\n", "", r"name"),
    ],
)
def test_wrong_files_name_the_place(tmp_path, old, new, message):
    text = host_profile_text(PROFILE)
    assert old in text
    path = tmp_path / "p.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message) as caught:
        load_host_profile(path)
    assert str(path) in str(caught.value)


def test_a_day_that_does_not_exist_is_an_error_of_the_file(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(host_profile_text(PROFILE).replace("'2023-09-08'", "'2023-02-31'"))
    with pytest.raises(ConfigError, match="as_of"):
        load_host_profile(path)


def test_what_traces_do_not_show_stays_the_platforms():
    assert PROFILE.host_spec(BASE) == HostSpec(4.25e-6, 16e-6, 6e-6, 5e-6, 0.0, 6e-6, PROFILE)


def test_the_block_makes_a_platform(tmp_path):
    whole = replace(PROFILE, shared=replace(PROFILE.shared, graph_launch=Figure(9e-6, 0, 1)))
    document = yaml.safe_load((ROOT / "platforms/v100_dgx2.yaml").read_text())
    document |= yaml.safe_load(platform_host_block(whole))
    document.pop("calibrations", None)
    path = tmp_path / "v100.yaml"
    path.write_text(yaml.safe_dump(document))
    host = load_platform(str(path)).host
    assert host.between_operators_s == pytest.approx(4.25e-6)
    assert host.graph_launch_s == pytest.approx(9e-6)
    assert document["host"]["origin"] == "measured"
    assert all(device in document["host"]["source"] for device in PROFILE.source.devices)
    assert platform_host_block(PROFILE).startswith("# not in these traces, to be added: graph_la")
