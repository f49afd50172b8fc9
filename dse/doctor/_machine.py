"""What this machine has, from /proc, /sys and the NVIDIA driver; without torch."""

from __future__ import annotations

import csv
from dataclasses import dataclass
import os
from pathlib import Path
import platform
import re
import subprocess
from typing import TYPE_CHECKING

from dse.doctor._types import Finding, GpuFacts, MachineFacts, Status, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Longest wait for the driver's tool; with many GPUs its first call takes seconds.
_TOOL_TIMEOUT_S = 20.0

_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,driver_version,compute_cap",
    "--format=csv,noheader,nounits",
)
_TOPOLOGY = ("nvidia-smi", "topo", "-m")

#: Less memory than this is short for a search.
_LEAST_MEMORY_BYTES = 2 * 2**30


def run_tool(command: Sequence[str]) -> str:
    """Returns what a tool prints; nothing when it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True)
class System:
    """Where facts come from; tests give other places.

    Attributes:
        root: Folder that holds `proc` and `sys`.
        tool: Returns what a command prints, or nothing.
    """

    root: Path = Path("/")
    tool: Callable[[Sequence[str]], str] = run_tool

    def read(self, path: str) -> str:
        """Returns the text of a file under the root, nothing if there is none."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""


def machine_facts(system: System) -> MachineFacts:
    """Returns what this machine has."""
    cores = os.cpu_count() or 1
    memory_bytes = _memory_bytes(system)
    limits = [memory_bytes, *_limits(system, "memory", "memory.max", "memory.limit_in_bytes")]
    gpus = _gpus(system)
    return MachineFacts(
        cpu_name=_cpu_name(system),
        cores=cores,
        usable_cores=min([_affinity(), *_processor_shares(system)]),
        memory_bytes=memory_bytes,
        usable_memory_bytes=min(limits),
        gpus=gpus,
        nvlink=_nvlink(system.tool(_TOPOLOGY)) if len(gpus) > 1 else None,
        operating_system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def machine_findings(facts: MachineFacts, torch_version: str | None) -> Iterator[Finding]:
    """Yields what is to be said of the machine.

    Args:
        facts: What it has.
        torch_version: Installed torch; None if there is none.
    """
    yield Finding(
        Topic.MACHINE,
        "processor",
        Status.OK,
        f"{facts.cpu_name}, {facts.usable_cores:g} of {facts.cores} cores usable",
    )
    usable = facts.usable_memory_bytes
    limited = " (limit of the container)" if usable < facts.memory_bytes else ""
    if not usable:
        yield Finding(Topic.MACHINE, "memory", Status.WARNING, "the system does not say how much")
    else:
        short = usable < _LEAST_MEMORY_BYTES
        yield Finding(
            Topic.MACHINE,
            "memory",
            Status.WARNING if short else Status.OK,
            f"{usable / 2**30:.1f} GiB{limited}",
            "search with --jobs 1 and --executor serial" if short else "",
        )
    if not facts.gpus:
        yield Finding(Topic.MACHINE, "GPUs", Status.OK, "none; predictions need none")
        return
    yield from _gpu_findings(facts, torch_version)


def _gpu_findings(facts: MachineFacts, torch_version: str | None) -> Iterator[Finding]:
    without_cuda = torch_version is not None and "+cpu" in torch_version
    for gpu in facts.gpus:
        memory = f", {gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else ""
        driver = f", driver {gpu.driver}" if gpu.driver else ""
        capability = f", compute capability {gpu.compute_capability}"
        yield Finding(
            Topic.MACHINE,
            f"GPU {gpu.index}",
            Status.WARNING if without_cuda else Status.OK,
            f"{gpu.name}{memory}{driver}{capability if gpu.compute_capability else ''}"
            + (f"; torch {torch_version} is built without CUDA" if without_cuda else ""),
            "install the torch of your CUDA version, see pytorch.org" if without_cuda else "",
        )
    if facts.nvlink is not None:
        joined = f"{facts.nvlink} links" if facts.nvlink else "none; PCIe or the host"
        yield Finding(Topic.MACHINE, "NVLink", Status.OK, f"{joined} between GPUs 0 and 1")


def _cpu_name(system: System) -> str:
    text = system.read("proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or "unknown processor"


def _affinity() -> float:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every operating system
        return os.cpu_count() or 1


def _memory_bytes(system: System) -> int:
    found = re.search(r"^MemTotal:\s*(\d+) kB$", system.read("proc/meminfo"), re.MULTILINE)
    if found:
        return int(found[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _control_folders(system: System, controller: str) -> Iterator[str]:
    """Yields the folders of this process's control groups and their parents, of both versions."""
    for line in system.read("proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        if not parts[1]:
            base = "sys/fs/cgroup"
        elif controller in parts[1].split(","):
            base = f"sys/fs/cgroup/{controller}"
        else:
            continue
        # A container sees its own group as the root, whatever the path says.
        path = [part for part in parts[2].split("/") if part not in ("", "..")]
        for length in range(len(path), -1, -1):
            yield "/".join([base, *path[:length]])


def _limits(system: System, controller: str, *files: str) -> Iterator[int]:
    for folder in _control_folders(system, controller):
        for file in files:
            text = system.read(f"{folder}/{file}").strip()
            if text.isdecimal() and int(text) > 0:
                yield int(text)


def _processor_shares(system: System) -> Iterator[float]:
    """Yields the cores that quotas of processor time amount to."""
    for folder in _control_folders(system, "cpu"):
        words = system.read(f"{folder}/cpu.max").split() or [
            system.read(f"{folder}/cpu.cfs_quota_us").strip(),
            system.read(f"{folder}/cpu.cfs_period_us").strip(),
        ]
        if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
            yield int(words[0]) / int(words[1])


def _gpus(system: System) -> tuple[GpuFacts, ...]:
    found = []
    for row in csv.reader(system.tool(_QUERY).splitlines(), skipinitialspace=True):
        if len(row) == 5 and row[0].strip().isdecimal():
            index, name, memory, driver, capability = (cell.strip() for cell in row)
            found.append(
                GpuFacts(
                    int(index),
                    name,
                    # Of machines whose GPUs share the host's memory it is `[N/A]`.
                    int(memory) * 2**20 if memory.isdecimal() else 0,
                    driver,
                    capability if re.fullmatch(r"\d+\.\d+", capability) else "",
                )
            )
    return tuple(found) or tuple(_gpus_of_the_driver(system))


def _gpus_of_the_driver(system: System) -> Iterator[GpuFacts]:
    """Yields GPUs where the driver is loaded but its tool is not installed."""
    version = re.search(
        r"Kernel Module.*?(\d+\.\d+[.\d]*)", system.read("proc/driver/nvidia/version")
    )
    folders = sorted((system.root / "proc/driver/nvidia/gpus").glob("*/information"))
    for index, path in enumerate(folders):
        text = system.read(str(path.relative_to(system.root)))
        name = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
        yield GpuFacts(
            index, name[1].strip() if name else "NVIDIA GPU", 0, version[1] if version else "", ""
        )


def _nvlink(topology: str) -> int | None:
    """Returns the NVLinks between the first two GPUs in the driver's matrix; None if unknown."""
    for line in topology.splitlines():
        # The heading may be underlined, by escape sequences.
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if words[:2] == ["GPU0", "X"] and len(words) > 2:
            links = re.fullmatch(r"NV(\d+)", words[2])
            return int(links[1]) if links else 0
    return None
