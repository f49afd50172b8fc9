"""Union of time intervals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np

from dse.graph import union_length

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8)


@given(SPANS)
def test_union_counts_every_covered_unit_once(spans):
    start = np.array([begin for begin, _ in spans], dtype=np.int64)
    end = start + np.array([length for _, length in spans], dtype=np.int64)
    covered = {unit for begin, length in spans for unit in range(begin, begin + length)}
    assert union_length(start, end) == len(covered)


def test_columns_are_separate_unions():
    start = np.array([[0.0, 3.0], [1.0, 0.0]])
    end = np.array([[2.0, 4.0], [4.0, 1.0]])
    assert union_length(start, end).tolist() == [4.0, 2.0]
    assert union_length(start[:0], end[:0]).tolist() == [0.0, 0.0]
