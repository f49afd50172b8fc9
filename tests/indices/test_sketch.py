from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from dse.indices import (
    IdOrder,
    LengthSketch,
    ReuseHistogram,
    RowSketch,
    Uniform,
    Zipf,
    reuse_histogram,
)


def counted(law, rows, batches=10, draws=20_000, **options):
    rng = np.random.default_rng(1)
    sketch = RowSketch(rows, **options)
    drawn = [law.sample(rng, rows, draws, "t") for _ in range(batches)]
    for one in drawn:
        sketch.add(one)
    return sketch, np.concatenate(drawn)


def test_few_rows_are_counted_exactly():
    sketch = RowSketch(10)
    sketch.add(np.array([[3, 3], [7, 3]]))
    sketch.add(np.array([7, 1]))
    counts = sketch.counts()
    assert counts.lookups == 6
    assert counts.counts.tolist() == [3, 2, 1]
    assert counts.rows.tolist() == [1, 1, 1]
    # Pairs of equal lookups: 3 of row 3, 1 of row 7, out of 15.
    assert counts.repetition == pytest.approx(4 / 15)


def test_numbers_outside_of_the_table_are_refused():
    for row in (-1, 10):
        with pytest.raises(ValueError, match=f"row {row}"):
            RowSketch(10).add(np.array([0, row]))
    with pytest.raises(ValueError, match="no lookup"):
        RowSketch(10).distribution()


@pytest.mark.parametrize("rows", [1000, 300_000, 50_000_000])
@pytest.mark.parametrize("alpha", [0.6, 0.9, 1.2])
def test_the_exponent_of_a_zipf_law_is_found(rows, alpha):
    sketch, _ = counted(Zipf(alpha), rows)
    law = sketch.distribution()
    assert law.alpha == pytest.approx(alpha, rel=0.02)
    assert law.ids is IdOrder.HASHED


@pytest.mark.parametrize("rows", [1000, 300_000, 50_000_000])
def test_uniform_lookups_are_uniform(rows):
    sketch, _ = counted(Uniform(), rows)
    assert sketch.distribution() == Uniform()


def test_the_order_of_ids_is_found():
    sketch, _ = counted(Zipf(1.05, ids=IdOrder.BY_POPULARITY), 100_000)
    assert sketch.distribution().ids is IdOrder.BY_POPULARITY


def test_what_no_law_describes_is_a_histogram():
    # Half of the lookups are of ten rows, the others of a hundred thousand.
    rng = np.random.default_rng(0)
    sketch = RowSketch(1_000_000)
    for _ in range(10):
        hot, cold = rng.integers(0, 10, 50_000), rng.integers(0, 100_000, 50_000)
        sketch.add(np.concatenate((hot, cold)))
    law = sketch.distribution()
    assert isinstance(law, ReuseHistogram)
    assert law.expected_unique_rows(1_000_000, 1e6) == pytest.approx(100_010, rel=0.02)
    # Rows that are equally popular are counted a little more or less often by chance.
    assert law.expected_unique_rows(1_000_000, 1e5) == pytest.approx(39_360, rel=0.05)


@pytest.mark.parametrize("law", [Uniform(), Zipf(0.9), Zipf(1.2)])
def test_a_sample_of_rows_stands_for_all(law):
    sketch, drawn = counted(law, 2_000_000, kept_rows=2**14)
    counts = sketch.counts()
    assert len(counts.counts) <= 2**14
    assert counts.unique_rows == pytest.approx(len(np.unique(drawn)), rel=0.03)
    assert float(counts.rows @ counts.counts) == pytest.approx(len(drawn), rel=0.03)
    # The most frequent row is counted, not sampled.
    assert counts.counts[0] == pytest.approx(
        np.unique(drawn, return_counts=True)[1].max(), rel=0.1
    )


def test_a_histogram_has_the_lookups_of_its_counts():
    sketch, drawn = counted(Zipf(1.0), 10_000)
    made = reuse_histogram(sketch.counts(), 10_000)
    assert sum(made.row_share) == pytest.approx(1.0)
    assert sum(made.lookup_share) == pytest.approx(1.0)
    assert made.touched_share == pytest.approx(len(np.unique(drawn)) / 10_000)
    assert made.mean_reuse == pytest.approx(len(drawn) / len(np.unique(drawn)))


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), min_size=1, max_size=5))
def test_batches_add_up(batches):
    together, apart = RowSketch(51), RowSketch(51)
    together.add(np.concatenate([np.array(one) for one in batches]))
    for one in batches:
        apart.add(np.array(one))
    assert together.counts().counts.tolist() == apart.counts().counts.tolist()


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50))
def test_lengths_have_their_mean_and_variance(lengths):
    sketch = LengthSketch()
    for one in lengths:
        sketch.add(np.array([one]))
    assert sketch.mean == pytest.approx(np.mean(lengths))
    assert sketch.variance == pytest.approx(np.var(lengths), abs=1e-6)


def test_no_bags_have_no_lookups():
    assert LengthSketch().mean == LengthSketch().variance == 0.0
