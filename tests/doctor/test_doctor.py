"""Checkups of made-up machines: folders in place of /proc and /sys, text in place of tools."""

from __future__ import annotations

from collections import namedtuple
from datetime import date
import json
import shutil
import socket
import tempfile

import pytest

from dse.calibration.microbench import PLAN_VERSION
from dse.doctor import (
    GpuFacts,
    Status,
    System,
    Topic,
    examine,
    machine_facts,
    platform_facts,
)
from dse.doctor._checkup import run_python
from dse.doctor._machine import run_tool, terminal_finding
from dse.doctor._platforms import platform_findings
from dse.errors import ConfigError
from dse.machine.platforms import load_platform
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
0, NVIDIA H100 80GB HBM3, 81559, 550.90.07, 9.0
1, NVIDIA H100 80GB HBM3, 81559, 550.90.07, 9.0
"""
TOPOLOGY = (
    "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\n"
    "GPU0\t X \tNV18\t0-31\n"
    "GPU1\tNV18\t X \t0-31\n"
    "\nLegend:\n\n  X    = Self\n"
)


def system(tmp_path, files=(), tools=()):
    texts = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Test CPU 9000\n",
        "proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n",
        **dict(files),
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    answers = dict(tools)
    return System(tmp_path, lambda command: answers.get(command[1].partition("=")[0], ""))


def with_gpus(tmp_path):
    return system(tmp_path, tools={"--query-gpu": SMI, "topo": TOPOLOGY})


@pytest.fixture
def findings(tmp_path, monkeypatch):
    """Examines a machine without platforms; returns its findings by subject."""
    monkeypatch.setattr("dse.doctor._checkup.platform_facts", lambda machine, folder: ())

    def check(installed=CORE, **options):
        if "system" not in options:
            options["system"] = system(tmp_path)
        options.setdefault("results", tmp_path / "results")
        options.setdefault("requirements", REQUIREMENTS)
        checkup = examine(version_of=installed.get, today=TODAY, **options)
        return {finding.subject: finding for finding in checkup.findings}

    return check


# --- machine ---------------------------------------------------------------------------------


def test_a_machine_without_limits(tmp_path):
    facts = machine_facts(system(tmp_path))
    assert facts.cpu_name == "Test CPU 9000"
    assert facts.memory_bytes == facts.usable_memory_bytes == 16 * 2**30
    assert facts.gpus == ()
    assert facts.nvlink is None
    assert 1 <= facts.usable_cores <= facts.cores


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
    container = system(tmp_path, files)
    facts = machine_facts(container)
    assert facts.usable_memory_bytes == 4 * 2**30
    assert facts.memory_bytes == 16 * 2**30
    assert facts.usable_cores == 0.5
    found = findings(system=container)
    assert "4.0 GiB (container" in found["memory"].text
    assert "0.5 of " in found["processor"].text


def test_groups_without_limits_are_ignored(tmp_path):
    files = {
        "proc/self/cgroup": "9:memory:/\n8:cpu,cpuacct:/\n0::/\nrubbish\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
        "sys/fs/cgroup/memory.max": "max\n",
    }
    facts = machine_facts(system(tmp_path, files))
    assert facts.usable_memory_bytes == 16 * 2**30
    assert facts.usable_cores >= 1


def test_little_memory_is_a_warning(tmp_path, findings):
    small = system(tmp_path, {"proc/meminfo": "MemTotal: 1048576 kB\n"})
    found = findings(system=small)["memory"]
    assert found.status is Status.WARNING
    assert "--jobs 1" in found.next_step


def test_gpus_from_nvidia_smi(tmp_path, findings):
    facts = machine_facts(with_gpus(tmp_path))
    assert facts.gpus[1] == GpuFacts(1, "NVIDIA H100 80GB HBM3", 81559 * 2**20, "550.90.07", "9.0")
    assert facts.nvlink == 18
    found = findings(system=with_gpus(tmp_path))
    assert found["GPU 0"].status is Status.OK
    assert "80 GiB, driver 550.90.07, compute capability 9.0" in found["GPU 0"].text
    assert found["NVLink"].text.startswith("18 links")


def test_gpus_without_nvlink_and_with_unknown_memory(tmp_path, findings):
    query = SMI.replace("81559", "[N/A]").replace(", 9.0", ", [N/A]")
    topology = TOPOLOGY.replace("NV18", "PHB")
    machine = system(tmp_path, tools={"--query-gpu": query, "topo": topology})
    facts = machine_facts(machine)
    assert (facts.gpus[0].memory_bytes, facts.gpus[0].compute_capability) == (0, "")
    assert facts.nvlink == 0
    assert findings(system=machine)["NVLink"].text.startswith("none")


def test_a_torch_without_cuda_next_to_gpus_is_a_warning(tmp_path, findings):
    found = findings(CORE | {"torch": "2.13.0+cpu"}, system=with_gpus(tmp_path))
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
    (tmp_path / "file").touch()
    assert "is a file" in findings(results=tmp_path / "file")["results"].text

    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    found = findings(results=tmp_path / "a/b/c")["results"]
    assert found.status is Status.WARNING
    assert "Read-only" in found.text


def test_a_checkup_leaves_nothing_behind(tmp_path, findings):
    folder = tmp_path / "work"
    folder.mkdir()
    assert findings(results=folder / "results")["results"].status is Status.OK
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


# --- packages and commands -------------------------------------------------------------------


def test_everything_installed(findings):
    optional = ("torch", "ray", "psycopg", "pymysql", "torchrec", "fbgemm-gpu-cpu")
    found = findings(CORE | dict.fromkeys(optional, "2.13.0"))
    assert not {Status.MISSING, Status.BROKEN} & {one.status for one in found.values()}
    commands = [one for one in found.values() if one.topic is Topic.COMMANDS]
    assert {one.status for one in commands} == {Status.OK}


def test_without_optional_packages_the_core_works(findings):
    found = findings()
    for name in ("torch", "ray", "torchrec", "psycopg"):
        assert found[name].status is Status.MISSING
    assert "pip install '.[validate]'" in found["torch"].next_step
    validate = found["calibrate, validate, replay, trace capture"]
    assert (validate.status, validate.text) == (Status.MISSING, "lacks torch")
    assert found["run --executor ray"].text == "lacks ray"
    assert found["run, predict, shard, report and all others"].status is Status.OK


def test_a_missing_core_package_breaks_every_command(findings):
    found = findings({name: version for name, version in CORE.items() if name != "scipy"})
    assert found["scipy"].status is Status.BROKEN
    assert found["scipy"].next_step == "pip install 'scipy'"
    commands = [one for one in found.values() if one.topic is Topic.COMMANDS]
    assert {one.status for one in commands} == {Status.BROKEN}
    assert all("scipy" in one.text for one in commands)


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
    assert findings(requirements=[])["dse"].status is Status.WARNING


def torch_prints(**found):
    answer = {"gpus": 2, "backends": ["gloo", "nccl"]} | found
    return lambda code: (True, f"a warning\n{json.dumps(answer)}\n")


def test_thorough_imports_what_is_installed_and_nothing_else(tmp_path, findings):
    code, progress = [], []

    def python(text):
        code.append(text.strip().splitlines()[0])
        return torch_prints()(text)

    found = findings(
        CORE | {"torch": "2.13.0", "ray": "2.60.0"},
        system=with_gpus(tmp_path),
        thorough=True,
        python=python,
        on_progress=progress.append,
    )
    assert code == ["import xgboost", "import json, torch", "import ray"]
    assert progress[1:4] == ["importing xgboost-cpu", "importing torch", "importing ray"]
    assert found["import torch"].status is Status.OK
    assert "2 CUDA devices, backends gloo, nccl" in found["import torch"].text


def test_thorough_reports_failed_imports(tmp_path, findings):
    options = {"system": with_gpus(tmp_path), "thorough": True}
    installed = CORE | {"torch": "2.13.0"}
    fewer = findings(installed, python=torch_prints(gpus=1), **options)["import torch"]
    assert fewer.status is Status.WARNING
    assert "the driver has 2 GPUs" in fewer.text
    broken = findings(installed, python=lambda _: (False, "OSError: no .so"), **options)
    assert broken["import torch"].status is Status.WARNING
    assert broken["import xgboost"].status is Status.BROKEN
    assert "no .so" in broken["import xgboost"].text


def test_python_runs_in_a_new_process():
    assert run_python("print(6 * 7)") == (True, "42\n")
    works, text = run_python("import no_such_module_anywhere")
    assert not works
    assert "no_such_module_anywhere" in text


# --- platforms -------------------------------------------------------------------------------


def platform_lines(machine, today=TODAY, **options):
    known = platform_facts(machine, **options)
    return {finding.subject: finding for finding in platform_findings(known, machine, today)}


def test_built_in_platforms_and_which_is_this_machine(tmp_path):
    machine = machine_facts(with_gpus(tmp_path))
    names = ["h100_sxm", "a100_sxm_80", "cpu", "b200_sxm", "titan_xp"]
    known = {facts.name: facts for facts in platform_facts(machine, tmp_path, names)}
    h100 = known["h100_sxm"]
    assert h100.is_here
    assert not known["a100_sxm_80"].is_here
    assert not known["cpu"].is_here
    families = {family.family: family for family in h100.families}
    assert set(families) == {"gemm", "collectives"}
    assert h100.formulas == ("embedding", "copies", "other kernels")
    # Three precisions use one fit, whose error is the file's.
    kernels = load_platform("h100_sxm").device.calibrations
    assert families["gemm"].models == len(kernels) == 3
    assert families["gemm"].gmae == pytest.approx(kernels[0].held_out.gmae)
    assert families["gemm"].points == kernels[0].held_out.points
    assert not families["gemm"].transferred
    lent = {family.family: family for family in known["b200_sxm"].families}
    assert lent["gemm"].transferred
    found = platform_lines(machine, folder=tmp_path, names=names)
    assert "this machine" not in found
    assert "gemm of another device ±" in found["b200_sxm"].text
    assert "nothing fitted" in found["titan_xp"].text


def test_a_machine_without_calibration(tmp_path):
    machine = machine_facts(system(tmp_path))
    found = platform_lines(machine, folder=tmp_path)
    assert found["this machine"].status is Status.WARNING
    assert "Test CPU 9000" in found["this machine"].text
    assert found["this machine"].next_step.startswith("dse calibrate --device cpu")
    assert all(finding.status is not Status.BROKEN for finding in found.values())


def calibrated_here(tmp_path, version):
    """Writes the output of `dse calibrate`: the package's platform under another name."""
    folder = tmp_path / "work"
    folder.mkdir()
    text = (ROOT / "platforms/cpu.yaml").read_text()
    (folder / "local_cpu.yaml").write_text(text.replace("name: AMD EPYC", "name: Test CPU 9000"))
    header = json.dumps({"kind": "header", "plan": {"version": version}})
    (folder / "local_cpu.points.jsonl").write_text(f"{header}\n{{}}\n")
    return folder


@pytest.mark.parametrize(
    ("version", "today", "text"),
    [
        (PLAN_VERSION, date(2026, 12, 1), ""),
        (PLAN_VERSION, date(2028, 12, 1), "days ago"),
        (PLAN_VERSION - 1, date(2026, 12, 1), f"by version {PLAN_VERSION - 1} of the"),
    ],
)
def test_a_calibration_of_this_machine_and_its_age(tmp_path, version, today, text):
    folder = calibrated_here(tmp_path, version)
    machine = machine_facts(system(tmp_path))
    own = str(folder / "local_cpu.yaml")
    (mine,) = platform_facts(machine, folder, [own])
    assert mine.is_here
    assert mine.plan_version == version
    assert len(mine.families) == 5
    found = platform_lines(machine, today, folder=folder, names=[own])
    assert "this machine" not in found
    assert found[own].status is (Status.WARNING if text else Status.OK)
    assert text in found[own].text
    assert bool(found[own].next_step) == bool(text)


@pytest.mark.parametrize("log", [None, "", "rubbish", "[]", '{"plan": {"version": "2"}}'])
def test_without_a_usable_log_the_version_is_unknown(tmp_path, log):
    folder = calibrated_here(tmp_path, PLAN_VERSION)
    path = folder / "local_cpu.points.jsonl"
    path.unlink() if log is None else path.write_text(log)
    (mine,) = platform_facts(
        machine_facts(system(tmp_path)), folder, [str(folder / "local_cpu.yaml")]
    )
    assert mine.plan_version is None


def test_a_platform_that_cannot_be_read(tmp_path, monkeypatch):
    own = tmp_path / "local_cpu.yaml"
    own.write_text("schema_version: 1\nname: [")
    machine = machine_facts(system(tmp_path))
    found = platform_lines(machine, folder=tmp_path)[str(own)]
    assert found.status is Status.WARNING
    assert "not valid YAML" in found.text

    def refuse(name):
        raise ConfigError("no such file")

    monkeypatch.setattr("dse.doctor._platforms.load_platform", refuse)
    found = platform_lines(machine, folder=tmp_path, names=["cpu"])
    assert found["cpu"].status is Status.BROKEN


def test_the_error_of_a_family_is_the_mean_over_its_points(tmp_path):
    (cpu,) = platform_facts(machine_facts(system(tmp_path)), tmp_path, ["cpu"])
    (embedding,) = [family for family in cpu.families if family.family == "embedding"]
    kernels = load_platform("cpu").device.calibrations
    held_out = [kernel.held_out for kernel in kernels if kernel.op.startswith("embedding")]
    points = sum(error.points for error in held_out)
    product = 1.0
    for error in held_out:
        product *= error.gmae ** (error.points / points)
    assert embedding.gmae == pytest.approx(product)
    assert embedding.worst_gmae == max(error.gmae for error in held_out)
    assert (embedding.models, embedding.points) == (2, points)
