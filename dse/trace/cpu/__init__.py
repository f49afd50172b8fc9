"""The CPU as the device: computing operators, gloo's collectives, and waits for them."""

from __future__ import annotations

from dse.trace.cpu._gloo import add_gloo, gloo_events
from dse.trace.cpu._operators import computing, cpu_stretches
from dse.trace.cpu._waits import CpuWaits, cpu_waits

__all__ = [
    "CpuWaits",
    "add_gloo",
    "computing",
    "cpu_stretches",
    "cpu_waits",
    "gloo_events",
]
