"""Packages that `dse` uses: installed, in which version, and whether they can be imported."""

from __future__ import annotations

from importlib import metadata
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

from dse.doctor._findings import Status, Topic, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.specifiers import SpecifierSet

    from dse.doctor._findings import Finding

#: Optional packages: the extra that installs them, empty where none can, and what needs them.
OPTIONAL = {
    "pandas": ("tables", "Study.to_dataframe (Python)"),
    "pyarrow": ("tables", "lists and measurements in Parquet"),
    "torch": ("validate", "calibrate, validate, replay, trace capture, run --sampler gp"),
    "ray": ("ray", "run --executor ray"),
    "psycopg": ("postgresql", "run --storage postgresql://…"),
    "pymysql": ("mysql", "run --storage mysql://…"),
    "torchrec": ("", "dse.sharding.to_torchrec (Python)"),
    "fbgemm-gpu": ("", "dse.sharding.to_torchrec (Python)"),
}
#: Other distributions that provide the same module.
_SAME_MODULE = {"xgboost-cpu": "xgboost", "xgboost": "xgboost-cpu", "fbgemm-gpu": "fbgemm-gpu-cpu"}

#: What breaks when it is installed next to the wrong CUDA or torch, and how that shows.
_IMPORTS = {
    "xgboost-cpu": "import xgboost",
    "torch": "import torch; found = torch.cuda.device_count(); assert found >= {gpus}, "
    "f'finds {{found}} of {gpus} GPUs; check CUDA_VISIBLE_DEVICES and the driver'",
    "ray": "import ray",
    "torchrec": "import torchrec",
    "fbgemm-gpu": "import fbgemm_gpu",
}
#: The first import after an installation loads gigabytes.
_IMPORT_TIMEOUT_S = 120.0


def package_findings(gpus: int | None) -> Iterator[Finding]:
    """Yields `dse`, the required packages, then the optional ones.

    Args:
        gpus: GPUs of this machine, to import the heavy packages as well and see whether torch
            finds as many; None to look for their versions only.
    """
    from dse import __version__

    text = f"dse {__version__}, Python {platform.python_version()}"
    try:
        requirements, step = metadata.requires("dse") or [], ""
    except metadata.PackageNotFoundError:
        requirements, step = [], "pip install ."
        text += "; not installed, so its requirements are unknown"
    yield finding(Topic.PACKAGES, "dse", text, step)
    try:
        from packaging.requirements import Requirement
    except ImportError:  # comes with Optuna
        step = "pip install packaging optuna"
        yield finding(Topic.PACKAGES, "packaging", "not installed", step, Status.BROKEN)
        return
    optional: dict[str, SpecifierSet | None] = dict.fromkeys(OPTIONAL)
    for line in requirements:
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            yield _package(wanted.name, wanted.specifier, gpus)
        elif wanted.name in OPTIONAL:
            optional[wanted.name] = wanted.specifier
    for name, versions in optional.items():
        yield _package(name, versions, gpus)


def _package(name: str, wanted: SpecifierSet | None, gpus: int | None) -> Finding:
    extra, users = OPTIONAL.get(name, ("", "everything"))
    step = "see docs/torchrec.md: its versions belong together, and pip needs --no-deps"
    if extra:
        step = f"pip install '.[{extra}]' in the project's folder"
    elif name not in OPTIONAL:
        step = f"pip install '{name}{wanted}'"
    found = name if version(name) else _SAME_MODULE.get(name, name)
    bad = Status.WARNING if name in OPTIONAL else Status.BROKEN
    has = version(found)
    if has is None:
        found, text = name, f"not installed; needed for {users}"
        bad = Status.MISSING if name in OPTIONAL else bad
    # Builds such as 2.13.0+cpu count as the same version.
    elif wanted is not None and not wanted.contains(has, prereleases=True):
        text = f"{has}, wanted {wanted}; for {users}"
    elif gpus is not None and name in _IMPORTS and (error := _error_of(_IMPORTS[name], gpus)):
        text = f"{has} cannot be used: {error[:300]}"
    else:
        text, step = has, ""
    return finding(Topic.PACKAGES, found, text, step, bad)


def version(name: str) -> str | None:
    """Returns the version of an installed distribution; None if it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _error_of(code: str, gpus: int) -> str:
    """Runs code in a new interpreter; returns the last line of its error, empty if it worked."""
    command = [sys.executable, "-c", code.format(gpus=gpus)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not imported after {_IMPORT_TIMEOUT_S:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""
