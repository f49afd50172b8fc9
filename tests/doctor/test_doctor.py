"""The check-up on machines that are made up: folders for /proc and /sys, words for tools."""

from __future__ import annotations

from collections import namedtuple
from datetime import date
import json
import shutil

import pytest

from dse.calibration.microbench import PLAN_VERSION
from dse.doctor import (
    Finding,
    GpuFacts,
    Status,
    System,
    Topic,
    examine,
    machine_facts,
    package_facts,
    platform_facts,
)
from dse.doctor import _environment as environment
from dse.doctor import _platforms as platforms
from dse.doctor._machine import machine_findings, run_tool
from dse.doctor._packages import package_findings
from dse.doctor._platforms import platform_findings
from dse.doctor._thorough import run_python, thorough_findings
from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from tests.conftest import ROOT

TODAY = date(2027, 1, 1)

CORE = {
    "numpy": "2.4.6",
    "scipy": "1.17.1",
    "pydantic": "2.14.3",
    "pyyaml": "6.0.3",
    "pint": "0.25.3",
    "typer": "0.29.2",
    "rich": "15.0.0",
    "optuna": "5.0.0",
    "pandas": "3.1.1",
    "pyarrow": "26.0.1",
    "plotly": "7.1.0",
    "jinja2": "3.1.6",
    "xgboost-cpu": "3.2.0",
    "msgspec": "0.22.0",
}

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


def by_subject(findings) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def examined(tmp_path, installed=CORE, **options):
    return examine(
        system=options.pop("system", None) or system(tmp_path),
        version_of=installed.get,
        results=tmp_path / "results",
        today=TODAY,
        **options,
    )


def test_a_machine_without_limits(tmp_path):
    facts = machine_facts(system(tmp_path))
    assert facts.cpu_name == "Test CPU 9000"
    assert facts.memory_bytes == facts.usable_memory_bytes == 16 * 2**30
    assert facts.gpus == ()
    assert facts.nvlink is None
    assert 1 <= facts.usable_cores <= facts.cores


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/memory.max": f"{4 * 2**30}\n",
            "sys/fs/cgroup/job/step/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
        },
        {
            # The first form; inside a container its own group is the root.
            "proc/self/cgroup": "9:memory:/docker/1f\n8:cpu,cpuacct:/docker/1f\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * 2**30}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_limits_of_a_container_count(tmp_path, files):
    facts = machine_facts(system(tmp_path, files))
    assert facts.usable_memory_bytes == 4 * 2**30
    assert facts.memory_bytes == 16 * 2**30
    assert facts.usable_cores == 0.5
    found = by_subject(machine_findings(facts, None))
    assert found["memory"].text == "4.0 GiB (limit of the container)"
    assert found["processor"].text.startswith("Test CPU 9000, 0.5 of ")


def test_no_limit_is_no_number(tmp_path):
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


def test_little_memory_is_told(tmp_path):
    facts = machine_facts(system(tmp_path, {"proc/meminfo": "MemTotal: 1048576 kB\n"}))
    found = by_subject(machine_findings(facts, None))["memory"]
    assert found.status is Status.WARNING
    assert "--jobs 1" in found.next_step


def test_gpus_of_the_driver_s_tool(tmp_path):
    facts = machine_facts(with_gpus(tmp_path))
    assert facts.gpus[1] == GpuFacts(1, "NVIDIA H100 80GB HBM3", 81559 * 2**20, "550.90.07", "9.0")
    assert facts.nvlink == 18
    found = by_subject(machine_findings(facts, "2.13.0"))
    assert found["GPU 0"].status is Status.OK
    assert found["GPU 0"].text == (
        "NVIDIA H100 80GB HBM3, 80 GiB, driver 550.90.07, compute capability 9.0"
    )
    assert found["NVLink"].text == "18 links between GPUs 0 and 1"


def test_gpus_without_nvlink_and_with_unknown_memory(tmp_path):
    query = SMI.replace("81559", "[N/A]").replace(", 9.0", ", [N/A]")
    topology = TOPOLOGY.replace("NV18", "PHB")
    facts = machine_facts(system(tmp_path, tools={"--query-gpu": query, "topo": topology}))
    assert (facts.gpus[0].memory_bytes, facts.gpus[0].compute_capability) == (0, "")
    assert facts.nvlink == 0
    found = by_subject(machine_findings(facts, "2.13.0"))
    assert found["NVLink"].text.startswith("none")
    assert found["GPU 0"].text == "NVIDIA H100 80GB HBM3, driver 550.90.07"


def test_gpus_where_only_the_driver_is_there(tmp_path):
    files = {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.1.2  x",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA A10\nIRQ: 5\n",
    }
    facts = machine_facts(system(tmp_path, files))
    assert facts.gpus == (GpuFacts(0, "NVIDIA A10", 0, "535.1.2", ""),)


def test_a_torch_without_cuda_beside_gpus_is_told(tmp_path):
    facts = machine_facts(with_gpus(tmp_path))
    found = by_subject(machine_findings(facts, "2.13.0+cpu"))["GPU 0"]
    assert found.status is Status.WARNING
    assert "built without CUDA" in found.text


def test_tools_that_are_not_there_or_fail_say_nothing():
    assert run_tool(["no-such-tool-of-any-machine"]) == ""
    assert run_tool(["false"]) == ""
    assert run_tool(["echo", "5"]) == "5\n"


def test_everything_installed(tmp_path):
    optional = ("torch", "ray", "psycopg", "pymysql", "torchrec", "fbgemm-gpu-cpu")
    everything = CORE | dict.fromkeys(optional, "2.13.0")
    checkup = examined(tmp_path, everything)
    assert checkup.healthy
    assert Status.MISSING not in {one.status for one in checkup.findings}
    statuses = {one.status for one in checkup.findings if one.topic is Topic.COMMANDS}
    assert statuses == {Status.OK}


def test_without_torch_and_ray_the_core_works(tmp_path):
    checkup = examined(tmp_path)
    assert checkup.healthy
    found = by_subject(checkup.findings)
    for name in ("torch", "ray", "torchrec"):
        assert found[name].status is Status.MISSING
    assert "pip install '.[validate]'" in found["torch"].next_step
    assert "dse run --executor ray" in found["ray"].text
    validate = found["calibrate, validate, replay, trace capture"]
    assert (validate.status, validate.text) == (Status.MISSING, "lacks torch")
    assert found["run --executor ray"].text == "lacks ray"
    assert found["run, predict, shard, report, and all that is not below"].status is Status.OK


def test_a_missing_core_package_breaks_everything(tmp_path):
    checkup = examined(tmp_path, {name: v for name, v in CORE.items() if name != "scipy"})
    assert not checkup.healthy
    found = by_subject(checkup.findings)
    assert found["scipy"].status is Status.BROKEN
    assert found["scipy"].next_step.startswith("pip install 'scipy")
    commands = [one for one in checkup.findings if one.topic is Topic.COMMANDS]
    assert {one.status for one in commands} == {Status.BROKEN}
    assert all("scipy" in one.text for one in commands)


def test_versions_are_compared_with_what_is_asked_for():
    requirements = ["numpy>=1.26", "torch==2.13.0; extra == 'validate'", "not a requirement !"]
    installed = CORE | {"numpy": "1.9", "torch": "2.13.0+cpu"}
    facts = {one.name: one for one in package_facts(installed.get, requirements)}
    assert not facts["numpy"].fits
    assert facts["torch"].fits
    assert facts["torch"].wanted == "==2.13.0"
    found = by_subject(package_findings(facts.values()))
    assert found["numpy"].status is Status.BROKEN
    assert found["numpy"].text == "1.9, wanted >=1.26; for everything"
    assert found["numpy"].next_step == "pip install 'numpy>=1.26'"
    older = {one.name: one for one in package_facts({"torch": "2.6"}.get, requirements)}
    assert by_subject(package_findings(older.values()))["torch"].status is Status.WARNING


def test_either_name_of_a_package_serves():
    swapped = {name: v for name, v in CORE.items() if name != "xgboost-cpu"} | {"xgboost": "3.1"}
    facts = {one.name: one for one in package_facts(swapped.get, [])}
    assert facts["xgboost"].usable
    assert "xgboost-cpu" not in facts


def test_built_in_platforms_and_which_is_this_machine(tmp_path):
    machine = machine_facts(with_gpus(tmp_path))
    known = {one.name: one for one in platform_facts(machine, tmp_path)}
    h100 = known["h100_sxm"]
    assert h100.is_here
    assert not known["a100_sxm_80"].is_here
    assert not known["cpu"].is_here
    families = {one.family: one for one in h100.families}
    assert set(families) == {"gemm", "collectives"}
    assert h100.formulas == ("embedding", "copies", "other kernels")
    # Three precisions use one fit, whose error is the file's.
    kernels = load_platform("h100_sxm").device.calibrations
    assert families["gemm"].models == len(kernels) == 3
    assert families["gemm"].gmae == pytest.approx(kernels[0].held_out.gmae)
    assert families["gemm"].points == kernels[0].held_out.points
    assert not families["gemm"].transferred
    lent = {one.family: one for one in known["b200_sxm"].families}
    assert lent["gemm"].transferred
    found = by_subject(platform_findings(known.values(), machine, TODAY))
    assert "this machine" not in found
    assert found["b200_sxm"].text.startswith("NVIDIA B200 SXM 180 GB: gemm of another device (±")
    assert "nothing fitted" in found["titan_xp"].text


def test_a_machine_that_nobody_has_measured(tmp_path):
    machine = machine_facts(system(tmp_path))
    found = by_subject(platform_findings(platform_facts(machine, tmp_path), machine, TODAY))
    assert found["this machine"].status is Status.WARNING
    assert "Test CPU 9000" in found["this machine"].text
    assert found["this machine"].next_step.startswith("dse calibrate --device cpu")
    assert all(one.status is not Status.BROKEN for one in found.values())


def calibrated_here(tmp_path, version):
    """A platform as `dse calibrate` leaves it: that of the package, under another name."""
    folder = tmp_path / "work"
    folder.mkdir()
    text = (ROOT / "platforms/cpu.yaml").read_text()
    (folder / "local_cpu.yaml").write_text(text.replace("name: AMD EPYC", "name: Test CPU 9000"))
    header = json.dumps({"kind": "header", "plan": {"version": version}})
    (folder / "local_cpu.points.jsonl").write_text(f"{header}\n{{}}\n")
    return folder


@pytest.mark.parametrize(
    ("version", "today", "words"),
    [
        (PLAN_VERSION, date(2026, 12, 1), ""),
        (PLAN_VERSION, date(2028, 12, 1), "days ago"),
        (PLAN_VERSION - 1, date(2026, 12, 1), f"by version {PLAN_VERSION - 1} of the plan"),
    ],
)
def test_a_calibration_of_this_machine_and_its_age(tmp_path, version, today, words):
    folder = calibrated_here(tmp_path, version)
    machine = machine_facts(system(tmp_path))
    known = platform_facts(machine, folder)
    mine = known[0]
    assert mine.is_here
    assert mine.plan_version == version
    assert {one.family for one in mine.families} == {
        "gemm",
        "embedding",
        "copies",
        "other kernels",
        "collectives",
    }
    found = by_subject(platform_findings(known, machine, today))
    line = found[mine.name]
    assert "this machine" not in found
    assert line.status is (Status.WARNING if words else Status.OK)
    assert words in line.text
    assert bool(line.next_step) == bool(words)


@pytest.mark.parametrize("log", [None, "", "rubbish", "[]", '{"plan": {"version": "2"}}'])
def test_without_a_usable_log_the_version_is_unknown(tmp_path, log):
    folder = calibrated_here(tmp_path, PLAN_VERSION)
    path = folder / "local_cpu.points.jsonl"
    path.unlink() if log is None else path.write_text(log)
    assert platform_facts(machine_facts(system(tmp_path)), folder)[0].plan_version is None


def test_a_platform_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    (tmp_path / "local_cpu.yaml").write_text("schema_version: 1\nname: [")
    machine = machine_facts(system(tmp_path))
    found = list(platform_findings(platform_facts(machine, tmp_path), machine, TODAY))
    assert found[0].status is Status.WARNING
    assert "not valid YAML" in found[0].text

    def refuse(name):
        raise ConfigError("no such file")

    monkeypatch.setattr(platforms, "load_platform", refuse)
    found = list(platform_findings(platform_facts(machine, tmp_path, ["cpu"]), machine, TODAY))
    assert (found[0].subject, found[0].status) == ("cpu", Status.BROKEN)


def test_error_of_a_family_is_the_mean_over_its_points(tmp_path):
    (cpu,) = platform_facts(machine_facts(system(tmp_path)), tmp_path, ["cpu"])
    (embedding,) = [one for one in cpu.families if one.family == "embedding"]
    kernels = [
        one for one in load_platform("cpu").device.calibrations if one.op.startswith("embedding")
    ]
    held_out = [one.held_out for one in kernels]
    points = sum(one.points for one in held_out)
    product = 1.0
    for one in held_out:
        product *= one.gmae ** (one.points / points)
    assert embedding.gmae == pytest.approx(product)
    assert embedding.worst_gmae == max(one.gmae for one in held_out)
    assert (embedding.models, embedding.points) == (2, points)


Usage = namedtuple("Usage", "total used free")


def test_little_disk_is_told(tmp_path, monkeypatch):
    (tmp_path / "dev/shm").mkdir(parents=True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**40, 2**40, 2**26))
    found = by_subject(environment.environment_findings(system(tmp_path), tmp_path / "results"))
    assert found["disk"].status is found["shared memory"].status is Status.WARNING
    assert found["disk"].text == "0.1 GiB free"
    assert "--shm-size" in found["shared memory"].next_step


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    blocker = tmp_path / "results"
    blocker.write_text("")
    found = by_subject(environment.environment_findings(system(tmp_path), blocker))
    assert found["results"].status is Status.WARNING
    assert "is a file" in found["results"].text


def test_a_disk_for_reading_only_is_told(tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(environment.tempfile, "NamedTemporaryFile", refuse)
    found = by_subject(environment.environment_findings(system(tmp_path), tmp_path / "a/b/c"))
    assert found["results"].status is Status.WARNING
    assert "Read-only file system" in found["results"].text


def test_looking_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    list(environment.environment_findings(system(tmp_path / "root"), folder / "results"))
    assert list(folder.iterdir()) == []


def test_a_coarse_clock_is_told():
    assert environment.clock_finding("tsc", 50e-9).status is Status.OK
    coarse = environment.clock_finding("acpi_pm", 3e-6)
    assert coarse.status is Status.WARNING
    assert coarse.text == "acpi_pm, 3000 ns from reading to reading"


def test_loopback_that_is_shut_is_told(monkeypatch):
    assert environment.loopback().status is Status.OK

    def refuse(*_, **__):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(environment.socket, "create_server", refuse)
    shut = environment.loopback()
    assert shut.status is Status.WARNING
    assert "Operation not permitted" in shut.text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "", "no-such-encoding"])
def test_a_terminal_without_our_signs_is_told(encoding):
    found = environment.terminal(encoding)
    assert found.status is Status.WARNING
    assert "PYTHONUTF8=1" in found.next_step


def test_a_terminal_with_our_signs(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert environment.terminal("utf-8").status is Status.OK
    monkeypatch.setenv("COLUMNS", "40")
    assert "wrap" in environment.terminal("utf-8").text


def torch_says(**found):
    answer = {"devices": 2, "joined": True, "gloo": True, "nccl": True} | found
    return lambda code: (True, f"a warning\n{json.dumps(answer)}\n")


def test_thorough_imports_what_is_installed_and_nothing_else(tmp_path):
    asked = []

    def python(code):
        asked.append(code.strip().splitlines()[0])
        return torch_says()(code)

    packages = package_facts((CORE | {"torch": "2.13.0", "ray": "2.60.0"}).get, [])
    told = []
    machine = machine_facts(with_gpus(tmp_path))
    found = by_subject(thorough_findings(packages, machine, python, told.append))
    assert asked == ["import xgboost", "import json, torch", "import ray"]
    assert told == ["importing xgboost-cpu", "importing torch", "importing ray"]
    assert found["import torch"].text == (
        "works: 2 CUDA devices, which reach each other's memory; collectives by gloo and nccl"
    )


def test_thorough_tells_what_does_not_work(tmp_path):
    machine = machine_facts(with_gpus(tmp_path))
    packages = package_facts((CORE | {"torch": "2.13.0"}).get, [])
    python = torch_says(devices=1, joined=False)
    found = by_subject(thorough_findings(packages, machine, python))
    assert found["import torch"].status is Status.WARNING
    assert "the driver has 2 GPUs" in found["import torch"].text
    broken = by_subject(thorough_findings(packages, machine, lambda _: (False, "OSError: no .so")))
    assert broken["import torch"].status is Status.WARNING
    assert broken["import xgboost"].status is Status.BROKEN
    assert "no .so" in broken["import xgboost"].text


def test_code_is_run_in_a_process_of_its_own():
    assert run_python("print(6 * 7)") == (True, "42\n")
    works, text = run_python("import no_such_module_anywhere")
    assert not works
    assert "no_such_module_anywhere" in text
