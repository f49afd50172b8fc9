"""A calibrated machine as files."""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path
import signal

import pytest

from dse.calibration import fit_machine, write_machine
from dse.errors import ConfigError, StudyError
from dse.machine.platforms import load_platform, read_calibrations
from tests.calibration.test_machine import session


@pytest.fixture(scope="module")
def machine():
    return fit_machine("here", session(), 2)


def content(folder) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_both_files_are_written_and_nothing_else(tmp_path, machine):
    platform = write_machine(machine, tmp_path / "here.yaml")
    assert sorted(content(tmp_path)) == ["here.calibration.json", "here.yaml"]
    fitted = read_calibrations(tmp_path / "here.calibration.json")
    assert len(fitted.kernels) == len(machine.kernels)
    again = load_platform(str(tmp_path / "here.yaml"))
    assert again.facts == platform.facts
    assert again.calibrations == platform.calibrations


def test_folders_are_made(tmp_path, machine):
    write_machine(machine, tmp_path / "new" / "here.yaml")
    assert sorted(content(tmp_path / "new")) == ["here.calibration.json", "here.yaml"]


@pytest.mark.parametrize("with_fits", [True, False])
def test_a_platform_that_cannot_be_read_replaces_nothing(tmp_path, machine, with_fits):
    path = tmp_path / "here.yaml"
    write_machine(machine, path)
    before = content(tmp_path)
    broken = replace(machine, host_link=replace(machine.host_link, bandwidth_bytes_per_s=-1e9))
    broken = replace(broken, kernels=machine.kernels[:1] if with_fits else (), collectives=())
    with pytest.raises(ConfigError, match=str(path)):
        write_machine(broken, path)
    assert content(tmp_path) == before


def test_an_interrupt_leaves_no_fits_without_their_platform(tmp_path, machine, monkeypatch):
    path = tmp_path / "here.yaml"
    write_machine(machine, path)
    replaced = []
    original = os.replace

    def interrupting(source, target):
        original(source, target)
        replaced.append(Path(target).name)
        if target == tmp_path / "here.calibration.json":
            signal.raise_signal(signal.SIGINT)

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(os, "replace", interrupting)
    try:
        with pytest.raises(KeyboardInterrupt):
            write_machine(machine, path)
    finally:
        signal.signal(signal.SIGINT, former)
    assert replaced[-2:] == ["here.calibration.json", "here.yaml"]
    assert sorted(content(tmp_path)) == ["here.calibration.json", "here.yaml"]


def test_fits_of_an_earlier_session_do_not_stay(tmp_path, machine):
    path = tmp_path / "here.yaml"
    write_machine(machine, path)
    platform = write_machine(replace(machine, kernels=(), collectives=()), path)
    assert sorted(content(tmp_path)) == ["here.yaml"]
    assert not platform.calibrations


def test_a_folder_that_cannot_be_written_is_named(tmp_path, machine):
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="cannot write"):
        write_machine(machine, tmp_path / "file" / "here.yaml")
