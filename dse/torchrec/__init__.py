"""TorchRec from inside a training script: a planner in place of its own.

TorchRec is imported when a plan is made.
"""

from __future__ import annotations

from dse.torchrec._planner import Planner

__all__ = ["Planner"]
