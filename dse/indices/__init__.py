"""Distributions of embedding indices: unique rows and cache hits of lookups."""

from __future__ import annotations

from dse.indices._distributions import (
    IndexDistribution,
    PopularityRange,
    ReuseHistogram,
    Uniform,
    Zipf,
)
from dse.indices._ids import IdOrder, hashed_rows
from dse.indices._popularity import PopularityBuckets

__all__ = [
    "IdOrder",
    "IndexDistribution",
    "PopularityBuckets",
    "PopularityRange",
    "ReuseHistogram",
    "Uniform",
    "Zipf",
    "hashed_rows",
]
