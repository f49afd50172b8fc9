"""Indices of embedding lookups: their distribution, blocks of rows, and how to measure them."""

from __future__ import annotations

from dse.indices._blocks import RowBlock, lookup_blocks
from dse.indices._distributions import (
    IndexDistribution,
    PopularityRange,
    ReuseHistogram,
    Uniform,
    Zipf,
)
from dse.indices._ids import IdOrder, hashed_rows
from dse.indices._popularity import PopularityBuckets
from dse.indices._sketch import LengthSketch, ReuseCounts, RowSketch, reuse_histogram

__all__ = [
    "IdOrder",
    "IndexDistribution",
    "LengthSketch",
    "PopularityBuckets",
    "PopularityRange",
    "ReuseCounts",
    "ReuseHistogram",
    "RowBlock",
    "RowSketch",
    "Uniform",
    "Zipf",
    "hashed_rows",
    "lookup_blocks",
    "reuse_histogram",
]
