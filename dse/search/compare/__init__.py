"""Comparing two studies: what they were made from, their fronts, candidates of both."""

from __future__ import annotations

from dse.search.compare._inputs import InputDifference
from dse.search.compare._studies import CommonCandidate, StudyComparison, compare_studies

__all__ = [
    "CommonCandidate",
    "InputDifference",
    "StudyComparison",
    "compare_studies",
]
