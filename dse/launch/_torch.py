"""Lazy import of torch."""

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
            "real runs need torch; install the extra `validate`, in the project's folder: "
            "pip install '.[validate]'"
        ) from error
    return torch
