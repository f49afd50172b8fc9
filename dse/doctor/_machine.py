"""Facts about this machine from /proc, /sys and `nvidia-smi`; torch is not imported."""

from __future__ import annotations

import csv
from dataclasses import dataclass
import os
from pathlib import Path
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from dse.doctor._findings import Finding, Status, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The first call of `nvidia-smi` takes seconds on a machine with many GPUs.
_TOOL_TIMEOUT_S = 20.0
_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,driver_version,compute_cap",
    "--format=csv,noheader,nounits",
)
_TOPOLOGY = ("nvidia-smi", "topo", "-m")

#: Below these, searches run out of memory, of disk, or of shared memory for Ray and torch.
_MIN_MEMORY_BYTES = 2 * 2**30
_MIN_DISK_BYTES = 512 * 2**20
_MIN_SHARED_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One CUDA device.

    Attributes:
        index: Device index.
        name: Name given by the driver.
        memory_bytes: Memory; 0 if unknown.
        driver: Driver version.
        compute_capability: For example `9.0`; empty if unknown.
    """

    index: int
    name: str
    memory_bytes: int
    driver: str
    compute_capability: str


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Hardware of this machine.

    Attributes:
        cpu_name: Model of the processor.
        cores: Logical cores.
        usable_cores: Cores left by the process affinity and the container's CPU quota; may be a
            fraction.
        memory_bytes: Memory; 0 if unknown.
        usable_memory_bytes: Memory left by the container's limit.
        gpus: CUDA devices.
        nvlink: NVLinks between the first two GPUs; None if unknown or fewer than two GPUs.
        operating_system: System, release and architecture.
    """

    cpu_name: str
    cores: int
    usable_cores: float
    memory_bytes: int
    usable_memory_bytes: int
    gpus: tuple[GpuFacts, ...]
    nvlink: int | None
    operating_system: str


def run_tool(command: Sequence[str]) -> str:
    """Returns the output of a command; empty if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True)
class System:
    """Source of the machine's facts, replaceable in tests.

    Attributes:
        root: Folder that contains `proc` and `sys`.
        tool: Returns the output of a command, empty on failure.
    """

    root: Path = Path("/")
    tool: Callable[[Sequence[str]], str] = run_tool

    def read(self, path: str) -> str:
        """Returns the text of a file under the root; empty if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""


def machine_facts(system: System | None = None) -> MachineFacts:
    """Collects the facts about this machine."""
    system = system or System()
    cores = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    quotas, limits = _container_limits(system)
    memory_bytes = _memory_bytes(system)
    model = re.search(r"^model name\s*:\s*(.+)$", system.read("proc/cpuinfo"), re.MULTILINE)
    gpus = tuple(_gpus(system))
    return MachineFacts(
        cpu_name=model[1].strip() if model else platform.processor() or "unknown processor",
        cores=cores,
        usable_cores=min([affinity, *quotas]),
        memory_bytes=memory_bytes,
        usable_memory_bytes=min([memory_bytes, *limits]),
        gpus=gpus,
        nvlink=_nvlink(system.tool(_TOPOLOGY)) if len(gpus) > 1 else None,
        operating_system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def _memory_bytes(system: System) -> int:
    found = re.search(r"^MemTotal:\s*(\d+) kB$", system.read("proc/meminfo"), re.MULTILINE)
    if found:
        return int(found[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _container_limits(system: System) -> tuple[list[float], list[int]]:
    """Returns CPU quotas in cores and memory limits in bytes of this process's control groups.

    Version 2 is read along the whole path of the group, version 1 at its root, which is where a
    container sees its own group.
    """
    own = re.search(r"^0::/(.*)$", system.read("proc/self/cgroup"), re.MULTILINE)
    parts = [part for part in (own[1] if own else "").split("/") if part not in ("", "..")]
    root = "sys/fs/cgroup"
    groups = ["/".join([root, *parts[:length]]) for length in range(len(parts) + 1)]
    cpu = [system.read(f"{group}/cpu.max").split() for group in groups]
    cpu.append(
        [system.read(f"{root}/cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    )
    memory = [system.read(f"{group}/memory.max").strip() for group in groups]
    memory.append(system.read(f"{root}/memory/memory.limit_in_bytes").strip())
    quotas = [
        int(pair[0]) / int(pair[1])
        for pair in cpu
        if len(pair) == 2 and all(text.isdecimal() and int(text) for text in pair)
    ]
    return quotas, [int(text) for text in memory if text.isdecimal() and int(text)]


def _gpus(system: System) -> Iterator[GpuFacts]:
    for row in csv.reader(system.tool(_QUERY).splitlines(), skipinitialspace=True):
        if len(row) == 5 and row[0].strip().isdecimal():
            index, name, memory, driver, capability = (cell.strip() for cell in row)
            yield GpuFacts(
                int(index),
                name,
                # `[N/A]` where the GPU shares the host's memory.
                int(memory) * 2**20 if memory.isdecimal() else 0,
                driver,
                capability if re.fullmatch(r"\d+\.\d+", capability) else "",
            )


def _nvlink(topology: str) -> int | None:
    """Returns the NVLinks between GPU 0 and 1 from the matrix of `nvidia-smi topo -m`."""
    # The heading may be underlined with escape sequences.
    row = re.search(r"^GPU0\s+X\s+(\S+)", re.sub(r"\x1b\[[0-9;]*m", "", topology), re.MULTILINE)
    if not row:
        return None
    links = re.fullmatch(r"NV(\d+)", row[1])
    return int(links[1]) if links else 0


def machine_findings(
    facts: MachineFacts, system: System, results: Path, torch_version: str | None
) -> Iterator[Finding]:
    """Yields findings about the hardware and the surroundings of a run.

    Args:
        facts: The machine.
        system: Where /dev/shm is looked up.
        results: Folder that results are written to; need not exist.
        torch_version: Installed torch; None if missing.
    """
    cores = f"{facts.cpu_name}, {facts.usable_cores:g} of {facts.cores} cores usable"
    yield _finding("processor", cores)
    usable = facts.usable_memory_bytes
    limited = " (container limit)" if usable < facts.memory_bytes else ""
    step = "" if usable >= _MIN_MEMORY_BYTES else "search with --jobs 1 and --executor serial"
    yield _finding("memory", f"{usable / 2**30:.1f} GiB{limited}" if usable else "unknown", step)
    if not facts.gpus:
        yield _finding("GPUs", "none; predictions do not need any")
    no_cuda = torch_version is not None and "+cpu" in torch_version
    for gpu in facts.gpus:
        parts = [gpu.name]
        parts += [f"{gpu.memory_bytes / 2**30:.0f} GiB"] if gpu.memory_bytes else []
        parts += [f"driver {gpu.driver}"]
        parts += [f"compute capability {gpu.compute_capability}"] if gpu.compute_capability else []
        text = ", ".join(parts) + (f"; torch {torch_version} has no CUDA" if no_cuda else "")
        step = "install a CUDA build of torch, see pytorch.org" if no_cuda else ""
        yield _finding(f"GPU {gpu.index}", text, step)
    if facts.nvlink is not None:
        links = f"{facts.nvlink} links" if facts.nvlink else "none; PCIe or through the host"
        yield _finding("NVLink", f"{links} between GPUs 0 and 1")
    folder = next(path for path in (results, *results.absolute().parents) if path.is_dir())
    yield _results(results, folder)
    yield _free_space("disk", folder, _MIN_DISK_BYTES, "write to another disk with --out")
    shared = system.root / "dev/shm"
    if shared.is_dir():
        step = "give the container more (docker run --shm-size 1g); Ray and torch need it"
        yield _free_space("shared memory", shared, _MIN_SHARED_BYTES, step)
    yield _loopback()
    yield terminal_finding(getattr(sys.stdout, "encoding", None) or "ascii")


def _finding(subject: str, text: str, next_step: str = "") -> Finding:
    """A finding with a next step is a warning."""
    status = Status.WARNING if next_step else Status.OK
    return Finding(Topic.MACHINE, subject, status, text, next_step)


def _results(results: Path, folder: Path) -> Finding:
    if results.exists() and not results.is_dir():
        return _finding("results", f"{results} is a file, not a folder", "use --out FOLDER")
    try:
        # Permissions are not enough: the disk may be mounted read-only.
        with tempfile.NamedTemporaryFile(prefix=".dse_doctor_", dir=folder):
            return _finding("results", f"{results} is writable")
    except OSError as error:
        text = f"{results} is not writable: {error.strerror or error}"
        return _finding("results", text, "use --out FOLDER")


def _free_space(subject: str, folder: Path, least_bytes: int, step: str) -> Finding:
    free = shutil.disk_usage(folder).free
    return _finding(subject, f"{free / 2**30:.1f} GiB free", step if free < least_bytes else "")


def _loopback() -> Finding:
    """Checks that processes of this machine can connect, as gloo ranks do."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()[:2], timeout=2),
        ):
            return _finding("loopback", "127.0.0.1 accepts connections")
    except OSError as error:
        text = f"no connection to 127.0.0.1: {error.strerror or error}"
        step = "allow local connections; validate, calibrate --collectives and Ray need them"
        return _finding("loopback", text, step)


def terminal_finding(encoding: str) -> Finding:
    """Checks that the encoding of standard output has characters such as × and τ."""
    try:
        "×–±µτ…→".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        step = "set PYTHONUTF8=1 or LANG=C.UTF-8"
        return _finding("terminal", f"{encoding} cannot print characters such as × and τ", step)
    return _finding("terminal", encoding)
