"""Lazy import of torch, which is optional."""

from __future__ import annotations

from typing import Any

from dse.errors import OptionalDependencyError


def load_torch() -> Any:
    """Returns the torch module.

    Raises:
        OptionalDependencyError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise OptionalDependencyError(
            "this needs torch, which is not installed here: pip install torch, or the version "
            "that was tested, in the project's folder: pip install '.[validate]'"
        ) from error
    return torch
