"""Lazy import of torch, which is optional."""

from __future__ import annotations

import sys
from typing import Any

from dse.errors import OptionalDependencyError, WorkerError

#: Address space of a process with torch and the rest of `dse`, before it computes anything. Under
#: a lower limit (`ulimit -v`) the import fails in many ways, or never ends: OpenBLAS tries again
#: and again.
_LEAST_BYTES = 2**30


def load_torch() -> Any:
    """Returns the torch module.

    Raises:
        OptionalDependencyError: torch is not installed.
        WorkerError: This process may not have as much memory as torch needs.
    """
    if "torch" not in sys.modules:
        _check_limit()
    try:
        import torch
    except ImportError as error:
        raise OptionalDependencyError(
            "this needs torch, which is not installed here: pip install torch, or the version "
            "that was tested, in the project's folder: pip install '.[validate]'"
        ) from error
    return torch


def _check_limit() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit_bytes < _LEAST_BYTES:
        raise WorkerError(
            f"torch needs {_LEAST_BYTES / 2**30:g} GiB of address space, this process may have "
            f"{limit_bytes / 2**30:.2g} GiB; raise the limit (`ulimit -v`)",
            limit=limit_bytes,
        )
