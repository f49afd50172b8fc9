"""This machine, from /proc, /sys and `nvidia-smi`; torch is not imported."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import partial
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from dse._process.system import ROOT, available_cores, cpu_name, memory_bytes, read_system_file
from dse.doctor._findings import Topic, finding
from dse.doctor._packages import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dse.doctor._findings import Finding

#: The first call of `nvidia-smi` takes seconds on a machine with many GPUs.
_TOOL_TIMEOUT_S = 20.0
_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,driver_version,compute_cap",
    "--format=csv,noheader,nounits",
)
_GROUPS = "sys/fs/cgroup"

#: Below these, searches run out of memory, of disk, or of shared memory for Ray and torch.
_MIN_MEMORY_BYTES = 2 * 2**30
_MIN_DISK_BYTES = 512 * 2**20
_MIN_SHARED_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Devices:
    """What platforms of this machine would be of.

    Attributes:
        cpu_name: Model of the processor.
        gpu_name: Name that the driver gives the first GPU; empty without one.
        gpus: Number of GPUs.
    """

    cpu_name: str
    gpu_name: str = ""
    gpus: int = 0


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

    root: Path = ROOT
    tool: Callable[[Sequence[str]], str] = run_tool

    def gpus(self) -> list[list[str]]:
        """Returns name, MiB of memory, driver and compute capability of each GPU."""
        rows = csv.reader(self.tool(_QUERY).splitlines(), skipinitialspace=True)
        return [row for row in rows if len(row) == 4]

    def devices(self) -> Devices:
        """Returns the devices of this machine."""
        gpus = self.gpus()
        return Devices(cpu_name(self.root), gpus[0][0] if gpus else "", len(gpus))

    def limits(self, name: str, *former: str) -> list[str]:
        """Returns what the control groups of this process say about a limit.

        Version 2 is read along the whole path of the group, version 1 at its root, which is where
        a container sees its own group.

        Args:
            name: File of version 2.
            *former: Files of version 1 that say the same together.
        """
        read = partial(read_system_file, root=self.root)
        own = re.search(r"^0::/(.*)$", read("proc/self/cgroup"), re.MULTILINE)
        parts = [part for part in (own[1] if own else "").split("/") if part not in ("", "..")]
        groups = ["/".join([_GROUPS, *parts[:length]]) for length in range(len(parts) + 1)]
        former_text = " ".join(read(f"{_GROUPS}/{path}") for path in former)
        return [*(read(f"{group}/{name}") for group in groups), former_text]


def machine_findings(system: System, results: Path) -> Iterator[Finding]:
    """Yields findings about the hardware and the surroundings of a run.

    Args:
        system: Source of the facts.
        results: Folder that results are written to; need not exist.
    """
    yield _processor(system)
    yield _memory(system)
    yield from _gpus(system)
    folder = next(path for path in (results, *results.absolute().parents) if path.is_dir())
    yield _results(results, folder)
    yield _free_space("disk", folder, _MIN_DISK_BYTES, "write to another disk with --out")
    shared = system.root / "dev/shm"
    if shared.is_dir():
        step = "give the container more (docker run --shm-size 1g); Ray and torch need it"
        yield _free_space("shared memory", shared, _MIN_SHARED_BYTES, step)
    yield _loopback()
    yield terminal_finding(getattr(sys.stdout, "encoding", None) or "ascii")


_finding = partial(finding, Topic.MACHINE)


def _processor(system: System) -> Finding:
    texts = system.limits("cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    pairs = (re.fullmatch(r"([1-9]\d*) ([1-9]\d*)", text) for text in texts)
    least = min([available_cores(), *(int(pair[1]) / int(pair[2]) for pair in pairs if pair)])
    name = system.devices().cpu_name
    return _finding("processor", f"{name}, {least:g} of {os.cpu_count()} cores usable")


def _memory(system: System) -> Finding:
    whole = memory_bytes("MemTotal", system.root)
    if whole is None:
        return _finding("memory", "unknown")
    texts = system.limits("memory.max", "memory/memory.limit_in_bytes")
    usable = min([whole, *(int(text) for text in texts if text.isdecimal() and int(text))])
    text = f"{usable / 2**30:.1f} GiB{' (container limit)' if usable < whole else ''}"
    step = "" if usable >= _MIN_MEMORY_BYTES else "search with --jobs 1 and --executor serial"
    return _finding("memory", text, step)


def _gpus(system: System) -> Iterator[Finding]:
    found = system.gpus()
    if not found:
        yield _finding("GPUs", "none; predictions do not need any")
    torch = version("torch") or ""
    step = "install a CUDA build of torch, see pytorch.org" if "+cpu" in torch else ""
    problem = f"; torch {torch} has no CUDA" if step else ""
    for index, (name, mib, driver, capability) in enumerate(found):
        # The memory is `[N/A]` where the GPU shares the host's.
        memory = f", {int(mib) / 2**10:.0f} GiB" if mib.isdecimal() else ""
        text = f"{name}{memory}, driver {driver}, compute capability {capability}{problem}"
        yield _finding(f"GPU {index}", text, step)


def _results(results: Path, folder: Path) -> Finding:
    step = "use --out FOLDER"
    if results.exists() and not results.is_dir():
        return _finding("results", f"{results} is a file, not a folder", step)
    try:
        # Permissions are not enough: the disk may be mounted read-only.
        with tempfile.NamedTemporaryFile(prefix=".dse_doctor_", dir=folder):
            return _finding("results", f"{results} is writable")
    except OSError as error:
        return _finding("results", f"{results} is not writable: {error.strerror or error}", step)


def _free_space(subject: str, folder: Path, least_bytes: int, step: str) -> Finding:
    free = shutil.disk_usage(folder).free
    return _finding(subject, f"{free / 2**30:.1f} GiB free", step if free < least_bytes else "")


def _loopback() -> Finding:
    """Checks that processes of this machine can connect, as gloo ranks do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=2).close()
        return _finding("loopback", "127.0.0.1 accepts connections")
    except OSError as error:
        text = f"no connection to 127.0.0.1: {error.strerror or error}"
        step = "allow local connections; validate, calibrate --collectives and Ray need them"
        return _finding("loopback", text, step)


def terminal_finding(encoding: str) -> Finding:
    """Checks that the encoding of standard output has characters such as × and τ."""
    try:
        "×–±µτ…→".encode(encoding)
        return _finding("terminal", encoding)
    except (UnicodeEncodeError, LookupError):
        step = "set PYTHONUTF8=1 or LANG=C.UTF-8"
        return _finding("terminal", f"{encoding} cannot print characters such as × and τ", step)
