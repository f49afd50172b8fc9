"""benchmarks/uneven_exchanges.py: what gloo measured, and the law that the model has for it."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import uneven_exchanges

    yield uneven_exchanges
    sys.modules.pop("uneven_exchanges", None)


@pytest.mark.parametrize("clock", ["wall_s", "processor_s"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_law_of_shared_memory_is_nearer_to_gloo_than_that_of_links(benchmark, clock, ranks):
    rows = benchmark.read(ROOT / "benchmarks" / "measurements" / "gloo_uneven.csv")
    rows = [row for row in rows if row.ranks == ranks]
    assert len(rows) >= 12
    shared, links, _ = benchmark.errors(rows, clock).values()
    assert shared[0] < links[0]
    assert shared[1] < links[1]


def test_rows_survive_a_file(benchmark, tmp_path):
    rows = [benchmark.Row(2, 1024, 1536, 0.25, 0.125)]
    benchmark.write(tmp_path / "rows.csv", rows)
    benchmark.write(tmp_path / "rows.csv", rows)
    assert benchmark.read(tmp_path / "rows.csv") == 2 * rows
