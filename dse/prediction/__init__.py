"""The performance model."""

from __future__ import annotations

from dse.prediction._types import Configuration
from dse.prediction._types import LaunchMode
from dse.prediction._types import Prediction
from dse.prediction._types import RankMemory
from dse.prediction._types import Software

__all__ = ["Configuration", "LaunchMode", "Prediction", "RankMemory", "Software"]
