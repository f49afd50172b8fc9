"""Design-space exploration for multi-GPU training."""

from __future__ import annotations

__version__ = "0.1.0"
