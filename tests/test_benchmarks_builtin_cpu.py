"""benchmarks/builtin_cpu.py: from a log to the built-in platform, and what its check sees."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from dse.calibration.microbench import PLAN_VERSION, MachineInfo, make_plan, run_session
from dse.machine.platforms import platform_from_text
from tests.calibration.measurers import LawfulMeasurer
from tests.conftest import ROOT

MACHINE = MachineInfo(
    device="cpu",
    device_name="test processor",
    device_count=1,
    compute_units=2,
    driver="",
    cores=2,
    memory_bytes=2**34,
    last_level_cache_bytes=2**25,
    operating_system="Linux",
    libraries=(("python", "3.11"), ("torch", "2.13.0")),
)


@pytest.fixture
def builtin_cpu(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("builtin_cpu")
    sys.modules.pop("builtin_cpu", None)


def measured(builtin_cpu, root, **options):
    """A checkout with a log and nothing else."""
    files = builtin_cpu.files_in(root)
    files.models.parent.mkdir(parents=True)
    plan = make_plan(
        local_ranks=2,
        threads=1,
        points=16,
        operators=("gemm", "elementwise", "memcpy_h2d", "memcpy_d2d"),
        **options,
    )
    run_session(plan, files.log, 1e9, measurer=LawfulMeasurer(), machine=MACHINE)
    return files


def test_a_log_becomes_the_platform(builtin_cpu, tmp_path):
    files = measured(builtin_cpu, tmp_path)
    calibration = builtin_cpu.write(files)
    text = files.platform.read_text()
    assert text.startswith("# yaml-language-server")
    assert "\n- file: cpu\n" in text
    # Without its models: they are found beside the built-in platforms only.
    platform = platform_from_text(text.replace("calibrations:\n- file: cpu\n", ""), "cpu.yaml", [])
    assert (platform.name, platform.devices_per_node) == ("cpu", 2)
    assert platform.device.memory_bandwidth_bytes_per_s == pytest.approx(10e9, rel=0.1)
    assert "2 ranks at work" in text
    models = json.loads(files.models.read_text())
    assert models["name"] == "cpu"
    assert {one["op"] for one in models["collectives"]} >= {"all_reduce", "all_to_all"}
    version = builtin_cpu.version_of(files.log)
    assert version == PLAN_VERSION
    assert list(builtin_cpu.problems(files, version)) == []
    result = builtin_cpu.read_session(files.log)
    shown = "\n".join(builtin_cpu.lines(calibration, result))
    assert f"{result.planned} of {result.planned} points, 2 ranks at work" in shown
    assert shown.count("| all_reduce |") == 1


def test_the_check_names_what_is_wrong(builtin_cpu, tmp_path):
    files = measured(builtin_cpu, tmp_path, busy_devices=1)
    builtin_cpu.write(files)
    files.models.write_text("{}")
    files.platform.write_text(files.platform.read_text().replace("test processor", "another"))
    found = list(builtin_cpu.problems(files, PLAN_VERSION - 1))
    assert found == [
        f"measured by version {PLAN_VERSION - 1} of the plan, now it is {PLAN_VERSION}",
        "operators were measured with 1 of 2 ranks at work",
        "cpu.yaml is not what its log gives",
        "cpu.json is not what its log gives",
    ]


def test_the_shipped_platform_is_what_its_log_gives(builtin_cpu):
    files = builtin_cpu.files_in(ROOT)
    assert list(builtin_cpu.problems(files, builtin_cpu.version_of(files.log))) == []
