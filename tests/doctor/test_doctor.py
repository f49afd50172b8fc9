"""Checkups of made-up machines: folders in place of /proc and /sys, text in place of tools."""

from __future__ import annotations

from collections import namedtuple
from datetime import date
from importlib import metadata
import shutil
import socket
import subprocess
import tempfile

import pytest

from dse.doctor import (
    Devices,
    Status,
    System,
    Topic,
    examine,
    is_of,
    platform_findings,
)
from dse.doctor._machine import run_tool, terminal_finding
from dse.errors import ConfigError
from dse.machine.platforms import by_formulas, fitted_families, load_platform
from tests.conftest import ROOT

TODAY = date(2027, 1, 1)

REQUIREMENTS = (
    "numpy>=1.26",
    "rich>=13.7",
    "scipy",
    "xgboost-cpu>=3.0; sys_platform != 'darwin'",
    "xgboost>=3.0; sys_platform == 'darwin'",
    "torch==2.13.0; extra == 'validate'",
    "psycopg[binary]>=3.2; extra == 'postgresql'",
)
CORE = {"numpy": "2.4.6", "rich": "15.0.0", "scipy": "1.17.1", "xgboost-cpu": "3.2.0"}

SMI = """\
NVIDIA H100 80GB HBM3, 81559, 550.90.07, 9.0
NVIDIA H100 80GB HBM3, 81559, 550.90.07, 9.0
"""
H100 = Devices("Test CPU 9000", "NVIDIA H100 80GB HBM3", 2)


def system(tmp_path, files=(), gpus=""):
    texts = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Test CPU 9000\n",
        "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
        **dict(files),
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return System(tmp_path, lambda command: gpus if command[0] == "nvidia-smi" else "")


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """Examines a machine with some packages and no platforms; returns its findings by subject."""
    monkeypatch.setattr("dse.doctor.platform_findings", lambda devices, folder: ())

    def check(installed=CORE, requirements=REQUIREMENTS, **options):
        def version(name):
            if name not in installed:
                raise metadata.PackageNotFoundError(name)
            return installed[name]

        def requires(name):
            if not requirements:
                raise metadata.PackageNotFoundError(name)
            return list(requirements)

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(metadata, "requires", requires)
        if "system" not in options:
            options["system"] = system(tmp_path)
        options.setdefault("folder", tmp_path)
        return {finding.subject: finding for finding in examine(**options)}

    return check


# --- machine ---------------------------------------------------------------------------------


def test_a_machine_without_limits(tmp_path, findings):
    assert system(tmp_path).devices() == Devices("Test CPU 9000")
    found = findings()
    assert found["memory"].text == "16.0 GiB"
    assert found["processor"].text.startswith("Test CPU 9000, ")
    assert found["GPUs"].status is Status.OK


CGROUPS_V2 = {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/memory.max": f"{4 * 2**30}\n",
    "sys/fs/cgroup/job/step/cpu.max": "50000 100000\n",
    "sys/fs/cgroup/cpu.max": "max 100000\n",
}
CGROUPS_V1 = {
    "proc/self/cgroup": "9:memory:/docker/1f\n8:cpu,cpuacct:/docker/1f\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * 2**30}\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize("files", [CGROUPS_V2, CGROUPS_V1], ids=["v2", "v1"])
def test_container_limits_count(tmp_path, files, findings):
    found = findings(system=system(tmp_path, files))
    assert found["memory"].text == "4.0 GiB (container limit)"
    assert "0.5 of " in found["processor"].text


def test_groups_without_limits_are_ignored(tmp_path, findings):
    files = {
        "proc/self/cgroup": "9:memory:/\n8:cpu,cpuacct:/\n0::/\nrubbish\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
        "sys/fs/cgroup/memory.max": "max\n",
    }
    found = findings(system=system(tmp_path, files))
    assert found["memory"].text == "16.0 GiB"
    assert found["processor"].text == findings()["processor"].text


def test_little_memory_is_a_warning(tmp_path, findings):
    small = system(tmp_path, {"proc/meminfo": "MemTotal: 1048576 kB\n"})
    found = findings(system=small)["memory"]
    assert found.status is Status.WARNING
    assert "--jobs 1" in found.next_step


def test_gpus_from_nvidia_smi(tmp_path, findings):
    with_gpus = system(tmp_path, gpus=SMI)
    assert with_gpus.devices() == H100
    found = findings(system=with_gpus)
    assert found["GPU 1"].status is Status.OK
    assert "80 GiB, driver 550.90.07, compute capability 9.0" in found["GPU 1"].text


def test_gpus_with_unknown_memory(tmp_path, findings):
    found = findings(system=system(tmp_path, gpus=SMI.replace("81559", "[N/A]")))
    assert found["GPU 0"].text.startswith("NVIDIA H100 80GB HBM3, driver 550.90.07")


def test_a_torch_without_cuda_next_to_gpus_is_a_warning(tmp_path, findings):
    found = findings(CORE | {"torch": "2.13.0+cpu"}, system=system(tmp_path, gpus=SMI))
    assert found["GPU 0"].status is Status.WARNING
    assert "2.13.0+cpu" in found["GPU 0"].text


def test_tools_that_are_missing_or_fail_print_nothing():
    assert run_tool(["no-such-tool-of-any-machine"]) == ""
    assert run_tool(["false"]) == ""
    assert run_tool(["echo", "5"]) == "5\n"


Usage = namedtuple("Usage", "total used free")


def test_little_disk_is_a_warning(tmp_path, monkeypatch, findings):
    (tmp_path / "dev/shm").mkdir(parents=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 2**40, 2**26))
    found = findings()
    assert found["disk"].status is found["shared memory"].status is Status.WARNING


def test_results_that_cannot_be_written(tmp_path, monkeypatch, findings):
    (tmp_path / "results").touch()
    assert "is a file" in findings()["results"].text

    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    found = findings(folder=tmp_path / "a/b/c")["results"]
    assert found.status is Status.WARNING
    assert "Read-only" in found.text


def test_a_checkup_leaves_nothing_behind(tmp_path, findings):
    folder = tmp_path / "work"
    folder.mkdir()
    assert findings(folder=folder)["results"].status is Status.OK
    assert list(folder.iterdir()) == []


def test_a_closed_loopback_is_a_warning(monkeypatch, findings):
    assert findings()["loopback"].status is Status.OK

    def refuse(*_, **__):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "create_server", refuse)
    found = findings()["loopback"]
    assert found.status is Status.WARNING
    assert "not permitted" in found.text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "no-such-encoding"])
def test_a_terminal_without_special_characters_is_a_warning(encoding):
    assert "PYTHONUTF8" in terminal_finding(encoding).next_step
    assert terminal_finding("utf-8").status is Status.OK


# --- packages --------------------------------------------------------------------------------


def test_everything_installed(findings):
    tables = ("pandas", "pyarrow")
    optional = (*tables, "torch", "ray", "psycopg", "pymysql", "torchrec", "fbgemm-gpu-cpu")
    found = findings(CORE | dict.fromkeys(optional, "2.13.0"))
    packages = {one.subject: one.status for one in found.values() if one.topic is Topic.PACKAGES}
    assert set(packages) >= {"dse", *CORE, *optional}
    # The last is older than what is wanted.
    assert {name for name, status in packages.items() if status is not Status.OK} == {"psycopg"}


def test_without_optional_packages_the_core_works(findings):
    found = findings()
    for name in ("torch", "ray", "torchrec", "psycopg"):
        assert found[name].status is Status.MISSING
    assert "pip install '.[validate]'" in found["torch"].next_step
    assert "validate" in found["torch"].text
    assert "run --executor ray" in found["ray"].text
    assert Status.BROKEN not in {one.status for one in found.values()}


def test_a_missing_core_package_is_broken(findings):
    found = findings({name: version for name, version in CORE.items() if name != "scipy"})
    assert found["scipy"].status is Status.BROKEN
    assert found["scipy"].next_step == "pip install 'scipy'"
    assert "everything" in found["scipy"].text


def test_versions_are_compared_with_the_requirements(findings):
    found = findings(CORE | {"numpy": "1.9", "torch": "2.13.0+cpu", "psycopg": "2.0"})
    assert found["numpy"].status is Status.BROKEN
    assert found["numpy"].text.startswith("1.9, wanted >=1.26")
    assert found["numpy"].next_step == "pip install 'numpy>=1.26'"
    assert found["torch"].status is Status.OK
    assert found["psycopg"].status is Status.WARNING


def test_either_name_of_a_package_serves(findings):
    swapped = {name: v for name, v in CORE.items() if name != "xgboost-cpu"} | {"xgboost": "3.1"}
    found = findings(swapped)
    assert found["xgboost"].status is Status.OK
    assert "xgboost-cpu" not in found


def test_requirements_without_an_installation_are_unknown(findings):
    assert findings(requirements=())["dse"].status is Status.WARNING


@pytest.fixture
def interpreter(monkeypatch):
    """Answers for new interpreters: the code that they ran, and what `fails` says."""
    ran, fails = [], {}

    def run(command, **options):
        if command[0] == "nvidia-smi":
            raise OSError
        ran.append(command[-1])
        error = next((text for word, text in fails.items() if word in command[-1]), "")
        return subprocess.CompletedProcess(command, int(bool(error)), "", f"Traceback\n{error}\n")

    monkeypatch.setattr(subprocess, "run", run)
    return ran, fails


def test_thorough_imports_what_is_installed_and_nothing_else(tmp_path, findings, interpreter):
    ran, _ = interpreter
    options = {"system": system(tmp_path, gpus=SMI), "thorough": True}
    found = findings(CORE | {"torch": "2.13.0", "ray": "2.60.0"}, **options)
    assert [code.partition(";")[0] for code in ran] == [
        "import xgboost",
        "import torch",
        "import ray",
    ]
    assert ">= 2" in ran[1]
    assert found["torch"].status is found["ray"].status is Status.OK


def test_thorough_reports_failed_imports(findings, interpreter):
    _, fails = interpreter
    fails |= {"torch": "AssertionError: finds 1 of 2 GPUs", "xgboost": "OSError: no .so"}
    found = findings(CORE | {"torch": "2.13.0"}, thorough=True)
    assert found["torch"].status is Status.WARNING
    assert "finds 1 of 2 GPUs" in found["torch"].text
    assert found["xgboost-cpu"].status is Status.BROKEN
    assert "no .so" in found["xgboost-cpu"].text


def test_imports_run_in_a_new_process(findings, monkeypatch):
    monkeypatch.setattr("dse.doctor._packages._IMPORTS", {"ray": "import no_such_module"})
    found = findings(CORE | {"ray": "2.60.0"}, thorough=True)["ray"]
    assert found.status is Status.WARNING
    assert "no_such_module" in found.text


# --- platforms -------------------------------------------------------------------------------


def platform_lines(devices, folder, names=None, today=TODAY):
    found = platform_findings(devices, folder, names, today)
    return {finding.subject: finding for finding in found}


def test_built_in_platforms_and_which_is_this_machine(tmp_path):
    names = ["h100_sxm", "a100_sxm_80", "cpu", "b300_sxm", "titan_xp"]
    assert [name for name in names if is_of(load_platform(name), H100)] == ["h100_sxm"]
    fitted = fitted_families(load_platform("h100_sxm"))
    families = {family.family: family for family in fitted}
    assert set(families) == {"gemm", "attention", "experts", "collectives", "networks"}
    assert by_formulas(fitted) == ("embedding", "copies", "other kernels")
    # Three precisions use one fit, whose error counts once.
    kernels = [one for one in load_platform("h100_sxm").device.calibrations if one.op == "gemm"]
    fits = {one.provenance.name: one.held_out for one in kernels}
    assert families["gemm"].models == len(kernels) == len(fits) + 2
    assert families["gemm"].points == sum(held_out.points for held_out in fits.values())
    assert families["gemm"].worst_gmae == max(held_out.gmae for held_out in fits.values())
    assert not families["gemm"].transferred
    lent = {family.family: family for family in fitted_families(load_platform("b300_sxm"))}
    assert lent["gemm"].transferred
    found = platform_lines(H100, tmp_path, names)
    assert "this machine" not in found
    assert "gemm of another device ±" in found["b300_sxm"].text
    assert "nothing fitted" in found["titan_xp"].text


def test_a_machine_without_calibration(tmp_path):
    found = platform_lines(Devices("Test CPU 9000"), tmp_path)
    assert found["this machine"].status is Status.WARNING
    assert "Test CPU 9000" in found["this machine"].text
    assert found["this machine"].next_step.startswith("dse calibrate --device cpu")
    assert all(finding.status is not Status.BROKEN for finding in found.values())


@pytest.mark.parametrize(
    ("today", "status"),
    [(date(2026, 12, 1), Status.OK), (date(2028, 12, 1), Status.WARNING)],
)
def test_a_calibration_of_this_machine_and_its_age(tmp_path, today, status):
    # The output of `dse calibrate`: the package's platform under another name.
    text = (ROOT / "platforms/cpu.yaml").read_text()
    own = tmp_path / "local_cpu.yaml"
    own.write_text(text.replace("name: AMD EPYC", "name: Test CPU 9000"))
    assert len(fitted_families(load_platform(str(own)))) == 6
    found = platform_lines(Devices("Test CPU 9000"), tmp_path, today=today)
    assert "this machine" not in found
    assert found[str(own)].status is status
    assert ("calibrate --force" in found[str(own)].next_step) == (status is Status.WARNING)


def test_a_platform_that_cannot_be_read(tmp_path, monkeypatch):
    own = tmp_path / "local_cpu.yaml"
    own.write_text("schema_version: 1\nname: [")
    found = platform_lines(H100, tmp_path)[str(own)]
    assert found.status is Status.WARNING
    assert "not valid YAML" in found.text

    def refuse(name):
        raise ConfigError("no such file")

    monkeypatch.setattr("dse.doctor._platforms.load_platform", refuse)
    assert platform_lines(H100, tmp_path, ["cpu"])["cpu"].status is Status.BROKEN


def test_the_error_of_a_family_is_the_mean_over_its_points():
    cpu = load_platform("cpu")
    (embedding,) = [one for one in fitted_families(cpu) if one.family == "embedding"]
    kernels = cpu.device.calibrations
    held_out = [kernel.held_out for kernel in kernels if kernel.op.startswith("embedding")]
    points = sum(error.points for error in held_out)
    product = 1.0
    for error in held_out:
        product *= error.gmae ** (error.points / points)
    assert embedding.gmae == pytest.approx(product)
    assert embedding.worst_gmae == max(error.gmae for error in held_out)
    assert (embedding.models, embedding.points) == (2, points)
