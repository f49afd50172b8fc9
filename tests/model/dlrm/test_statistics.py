from __future__ import annotations

import pytest

from dse.model import META_2021, META_2022, STATISTICS, DataType, generate_tables


@pytest.mark.parametrize("statistics", [META_2021, META_2022], ids=lambda item: item.name)
def test_published_figures_agree_with_each_other(statistics):
    # Average reuse is published too: 6.9 and 12.7.
    assert statistics.mean_reuse == pytest.approx({2021: 6.9, 2022: 12.7}[_year(statistics)], 0.01)
    assert sum(statistics.row_share) == pytest.approx(1, abs=0.005)
    assert sum(statistics.lookup_share) == pytest.approx(1, abs=0.005)
    assert STATISTICS[statistics.name] is statistics


@pytest.mark.parametrize("seed", [1, 2022])
def test_totals_of_the_2022_tables(seed):
    tables = generate_tables(META_2022, 788, seed)
    draws = [META_2022.batch_size * table.lookups_per_sample for table in tables]
    assert sum(draws) == pytest.approx(1_405_446_071, rel=0.01)
    unique = sum(
        table.indices.expected_unique_rows(table.rows, count)
        for table, count in zip(tables, draws, strict=True)
    )
    assert unique == pytest.approx(110_259_895, rel=0.1)


def test_a_seed_gives_the_same_tables_everywhere():
    tables = generate_tables(META_2021, 3, 7)
    assert [(table.rows, table.dim, table.pooling_factors) for table in tables] == PINNED
    assert [table.name for table in tables] == ["t_0", "t_1", "t_2"]


def test_generated_tables_are_possible():
    for table in generate_tables(META_2021, 300, 5, DataType.FP32):
        assert table.data_type is DataType.FP32
        assert 0 < table.indices.touched_share <= 0.25
        draws = META_2021.batch_size * table.lookups_per_sample
        assert table.indices.expected_unique_rows(table.rows, draws) <= table.rows


def _year(statistics) -> int:
    return int(statistics.name.removeprefix("meta"))


#: Rows, width and pooling factor of seed 7: they change only when the recipe does.
PINNED = [(272254, 4, (7.173,)), (1025006, 128, (27.004,)), (1174581, 128, (13.258,))]
