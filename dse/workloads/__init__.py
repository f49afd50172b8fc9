"""workloads."""

from __future__ import annotations
