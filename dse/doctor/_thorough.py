"""Importing optional packages, each in a process of its own: installed is not yet working."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from dse.doctor._types import Finding, Status, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dse.doctor._types import MachineFacts, PackageFacts

#: Longest import; the first one after an installation compiles and loads gigabytes.
_IMPORT_TIMEOUT_S = 120.0

#: What to import of a package, where it is called otherwise.
_MODULES = {
    "fbgemm-gpu": "fbgemm_gpu",
    "fbgemm-gpu-cpu": "fbgemm_gpu",
    "xgboost-cpu": "xgboost",
}
_IMPORTED = ("torch", "ray", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "xgboost", "xgboost-cpu")

_TORCH = """
import json, torch
devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
joined = devices > 1 and torch.cuda.can_device_access_peer(0, 1)
distributed = torch.distributed.is_available()
print(json.dumps({
    "devices": devices,
    "joined": bool(joined),
    "gloo": distributed and torch.distributed.is_gloo_available(),
    "nccl": distributed and torch.distributed.is_nccl_available(),
}))
"""


def run_python(code: str) -> tuple[bool, str]:
    """Runs code in a new interpreter.

    Returns:
        Whether it ended well, and what it printed, or else the last line of its complaint.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no end after {_IMPORT_TIMEOUT_S:.0f} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return False, lines[-1] if lines else f"exit code {done.returncode}"
    return True, done.stdout


def thorough_findings(
    packages: Iterable[PackageFacts],
    machine: MachineFacts,
    python: Callable[[str], tuple[bool, str]] = run_python,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Finding]:
    """Yields how imports of the heavy packages end, and what torch finds.

    Args:
        packages: What is installed.
        machine: What the driver finds.
        python: Runs code in a process of its own.
        tell: Told what is imported next.
    """
    for package in packages:
        if package.version is None or package.name not in _IMPORTED:
            continue
        tell(f"importing {package.name}")
        module = _MODULES.get(package.name, package.name)
        is_torch = module == "torch"
        works, text = python(_TORCH if is_torch else f"import {module}")
        if not works:
            yield Finding(
                Topic.PACKAGES,
                f"import {module}",
                Status.BROKEN if package.required else Status.WARNING,
                text[:300],
                f"install it again: {package.install}",
            )
        elif is_torch:
            yield _torch_finding(text, machine)
        else:
            yield Finding(Topic.PACKAGES, f"import {module}", Status.OK, "works")


def _torch_finding(text: str, machine: MachineFacts) -> Finding:
    found = json.loads(text.splitlines()[-1])
    backends = [name for name in ("gloo", "nccl") if found[name]]
    peers = ", which reach each other's memory" if found["joined"] else ""
    words = f"works: {found['devices']} CUDA devices{peers}; collectives by " + (
        " and ".join(backends) or "none"
    )
    if found["devices"] < len(machine.gpus):
        return Finding(
            Topic.PACKAGES,
            "import torch",
            Status.WARNING,
            f"{words}; the driver has {len(machine.gpus)} GPUs",
            "check CUDA_VISIBLE_DEVICES, and that torch's CUDA is no newer than the driver's",
        )
    return Finding(Topic.PACKAGES, "import torch", Status.OK, words)
