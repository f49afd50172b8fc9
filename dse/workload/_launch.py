"""Launch modes: how the host issues kernels."""

from __future__ import annotations

from enum import StrEnum


class LaunchMode(StrEnum):
    """How the host issues kernels: one by one, or captured as CUDA graphs.

    A graph is an iteration of a recommendation model, or one pass of a transformer's layer.
    """

    EAGER = "eager"
    CUDA_GRAPHS = "cuda_graphs"
