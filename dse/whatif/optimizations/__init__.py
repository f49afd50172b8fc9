"""Named optimizations; each module is one, written over the primitives of a job."""

from __future__ import annotations

from dse.whatif.optimizations._network import Network

#: All of them, in the order of the documentation.
OPTIMIZATIONS = (Network,)

__all__ = ["OPTIMIZATIONS", "Network"]
