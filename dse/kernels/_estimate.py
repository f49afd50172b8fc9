"""A duration with its uncertainty; shared with the collectives."""

from __future__ import annotations

from dse.curves import Estimate

__all__ = ["Estimate"]
