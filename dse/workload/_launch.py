"""Launch modes: how the host issues kernels."""

from __future__ import annotations

from enum import StrEnum


class LaunchMode(StrEnum):
    """How the host issues kernels: one by one, or as one captured CUDA graph per iteration."""

    EAGER = "eager"
    CUDA_GRAPHS = "cuda_graphs"
