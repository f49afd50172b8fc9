"""Platforms whose host was measured: in their file, in a mapping and under an override."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.machine.host import (
    Figure,
    HostProfile,
    ProfileSource,
    SharedFigures,
    host_profile_from_text,
    host_profile_text,
    write_host_profile,
)
from dse.machine.platforms import (
    CalibrationSource,
    host_profile_override,
    load_platform,
    override_platform,
    platform_from_text,
)
from tests.conftest import ROOT

#: As a file has it, whose times are in microseconds.
PROFILE = host_profile_from_text(
    host_profile_text(
        HostProfile(
            "rack 7",
            ProfileSource(("rank0.json",), ("NVIDIA H100",), "2025-03-01"),
            SharedFigures(before_launch=Figure(40e-6, 0.5, 9), launch=Figure(7e-6, 0.4, 9)),
        )
    ),
    "host.yaml",
)


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "host.yaml"
    write_host_profile(path, PROFILE)
    return path


def own_file(folder, profile):
    text = (ROOT / "platforms/h100_sxm.yaml").read_text()
    assert text.count("\nhost:\n") == 1
    path = folder / "own.yaml"
    path.write_text(text.replace("\nhost:\n", f"\nhost:\n  profile: {profile}\n"))
    return path


def test_a_file_a_mapping_and_an_override_say_the_same(profile, tmp_path):
    plain = load_platform("h100_sxm")
    changed, figures = override_platform(plain, [f"host.profile={profile}"])
    every = [
        changed,
        load_platform(own_file(tmp_path, "host.yaml")),
        load_platform({"from": "h100_sxm", "host": {"profile": str(profile)}}),
        override_platform(plain, [host_profile_override(profile)])[0],
        override_platform(plain, [host_profile_override(PROFILE)])[0],
    ]
    assert [(one.quantity, one.before, one.after) for one in figures] == [
        ("host.profile", "not set", str(profile))
    ]
    for platform in every:
        assert platform.host == every[0].host
        assert platform.cluster(8).host.profile == PROFILE
        assert platform.host.before_launch_s == pytest.approx(40e-6)
        assert platform.host.launch_s == pytest.approx(7e-6)
        # What was not measured is the platform's.
        assert platform.host.between_operators_s == plain.host.between_operators_s
        facts = {fact.quantity: fact for fact in platform.facts}
        assert facts["host.profile"].value == "rack 7"
        assert (facts["host.launch"].value, facts["host.launch"].origin) == ("7 us", "measured")
        assert facts["host.after_launch"].origin != "measured"


def test_other_changes_keep_the_profile(profile):
    measured = load_platform({"from": "h100_sxm", "host": {"profile": str(profile)}})
    cheaper, _ = override_platform(measured, ["price=1 USD/GPU/h", "host.after_launch=9 us"])
    assert cheaper.host.profile == PROFILE
    assert cheaper.host.after_launch_s == pytest.approx(9e-6)
    assert cheaper.host.launch_s == pytest.approx(7e-6)


@pytest.mark.parametrize(
    "changes", [["host.launch=1 us"], ["host=*0.5"], ["host.launch=1 us", "host.profile=FILE"]]
)
def test_a_measured_figure_is_not_overridden(profile, changes):
    measured = load_platform({"from": "h100_sxm", "host": {"profile": str(profile)}})
    changes = [change.replace("FILE", str(profile)) for change in changes]
    with pytest.raises(ConfigError, match=r"^host\.(launch|before_launch): "):
        override_platform(measured, changes)


def test_a_later_profile_replaces_an_earlier_one(profile, tmp_path):
    other = HostProfile("other", PROFILE.source, SharedFigures(launch=Figure(2e-6, 0.4, 9)))
    write_host_profile(tmp_path / "other.yaml", other)
    plain = load_platform("h100_sxm")
    changes = [f"host.profile={profile}", f"h100_sxm.host.profile={tmp_path / 'other.yaml'}"]
    changed, _ = override_platform(plain, changes)
    assert changed.host.profile == other
    assert changed.host.launch_s == pytest.approx(2e-6)
    assert changed.host.before_launch_s == plain.host.before_launch_s


@pytest.mark.parametrize("path", ["../host.yaml", "/host.yaml", "a/../../host.yaml"])
def test_a_platform_file_names_no_file_outside_its_folder(tmp_path, path):
    with pytest.raises(ConfigError, match="folder"):
        load_platform(own_file(tmp_path, path))


def test_a_kept_text_stands_in_for_the_file(profile, tmp_path):
    path = own_file(tmp_path, "host.yaml")
    (kept,) = [one for one in load_platform(path).calibrations if one.name == "host.yaml"]
    text = path.read_text()
    profile.unlink()
    assert platform_from_text(text, "own.yaml", [kept]).host.profile == PROFILE
    mapping = "from: h100_sxm\nhost: {profile: host.yaml}\n"
    base = {"h100_sxm": (ROOT / "platforms/h100_sxm.yaml").read_text()}
    assert platform_from_text(mapping, "space", [kept], base).host.profile == PROFILE
    for source in ([], [CalibrationSource("another.yaml", "", "", kept.text)]):
        with pytest.raises(ConfigError, match="not kept"):
            platform_from_text(text, "own.yaml", source)
        with pytest.raises(ConfigError, match="not kept"):
            platform_from_text(mapping, "space", source, base)


def test_a_missing_or_wrong_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        override_platform(load_platform("h100_sxm"), [f"host.profile={tmp_path / 'none.yaml'}"])
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("schema_version: 1\nname: x\n")
    with pytest.raises(ConfigError, match="source"):
        load_platform({"from": "h100_sxm", "host": {"profile": str(wrong)}})
