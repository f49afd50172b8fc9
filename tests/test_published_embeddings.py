"""Tables of embedding times: fitted and held-out rows, levels, rows that are no kernel times."""

from __future__ import annotations

from dataclasses import replace
import importlib
import json
import math
import sys

import pytest

from dse.errors import DseError
from tests.conftest import ROOT

pd = pytest.importorskip("pandas")

README = "NVIDIA/recsys-examples:corelib/dynamicemb/benchmark/README.md"
H100 = "H100 (EOS)"


def loaded(name):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def embeddings():
    return loaded("published_embeddings")


@pytest.fixture(scope="module")
def fits():
    return loaded("embedding_fits")


def row(**changes):
    one = {
        "source": f"{README}@6f7281aa",
        "device": H100,
        "placement": "uvm",
        "phase": "forward",
        "tables": 1,
        "batch": 1_048_576,
        "rows_per_table": 8_388_608,
        "dim": 128,
        "lookups": 1_048_576.0,
        "dtype": "fp32",
        "pooling": "none",
        "optimizer": "sgd",
        "distribution": "pow-law-1.05",
        "time_ms": 7.5,
        "note": "",
    }
    return {**one, **changes}


def table(tmp_path, *rows):
    path = tmp_path / "table.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_distinct_rows_of_the_generator(embeddings):
    # Printed by the benchmark for ten tables: 350,280.02 and 433,722.73.
    law = embeddings.PowerLaw(1.05)
    assert law.expected_unique_rows(1_677_721, 104_857) == pytest.approx(35_028, rel=1e-3)
    assert law.expected_unique_rows(26_843_545, 104_857) == pytest.approx(43_372, rel=1e-3)


def test_groups_tell_fitted_rows_from_others(embeddings, fits, tmp_path, capsys):
    again = row(source=f"{README}@1a89190b")
    other = row(source="NVIDIA/recsys-examples:results.json@1234 (measured)", phase="eval forward")
    path = table(tmp_path, row(), again, other)
    found = embeddings.embedding_rows(path)
    kinds = [one.group.split(":")[0] for one in found]
    assert kinds == ["fitted", "fitted, measured again", "held out"]
    assert [one.kind for one in found] == kinds
    fits.compare_embedding(path, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert [document["by_kind"][kind]["points"] for kind in kinds] == [1, 1, 1]
    assert document["overall"]["points"] == 3
    assert all(one.low_s < one.predicted_s < one.high_s for one in found)
    assert found[0].predicted_s == found[1].predicted_s == found[2].predicted_s


def test_sources_without_a_device_are_compared_up_to_a_factor(embeddings, tmp_path):
    unnamed = row(source="meta-pytorch/torchrec@ff", device="not stated", batch=131072)
    fast, slow = unnamed, {**unnamed, "time_ms": 4 * unnamed["time_ms"]}
    errors = [
        math.log(one.predicted_s / one.measured_s)
        for one in embeddings.embedding_rows(table(tmp_path, fast, slow))
    ]
    assert errors == pytest.approx([math.log(2), -math.log(2)])


def test_rows_that_are_no_kernel_times_carry_the_reason(embeddings, fits, tmp_path, capsys):
    path = table(
        tmp_path,
        row(),
        row(source="meta-pytorch/torchrec@ff", device="not stated", batch=1024),
        row(
            source="pytorch/FBGEMM@8b9eae95", device="not stated", placement="hbm (after prefetch)"
        ),
    )
    assert [bool(one.problem) for one in embeddings.embedding_rows(path)] == [False, True, True]
    fits.compare_embedding(path, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["overall"]["points"], document["overall"]["problems"]) == (1, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "NVIDIA A100-SXM4-80GB"},
        {"device": "not stated"},
        {"time_ms": -1.0},
        {"time_ms": math.nan},
    ],
    ids=["a device without kernels", "alone without a device", "a negative time", "no time"],
)
def test_rows_that_cannot_be_compared_carry_the_reason(embeddings, tmp_path, changes):
    rows = embeddings.embedding_rows(table(tmp_path, row(), row(**changes)))
    assert [bool(one.problem) for one in rows] == [False, True]


def test_a_cache_that_holds_all_repeated_batches_misses_nothing(embeddings, tmp_path):
    cached = {"placement": "uvm_caching", "lookups": 65536.0, "batch": 65536}
    enough = row(**cached, rows_per_table=67_108_864)
    scarce = row(**cached, rows_per_table=8_388_608)
    times = [one.predicted_s for one in embeddings.embedding_rows(table(tmp_path, enough, scarce))]
    assert times[0] < times[1]


def test_a_table_without_a_column_is_refused(embeddings, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("source,device\na,b\n")
    with pytest.raises(DseError, match="placement"):
        embeddings.embedding_rows(path)


def test_a_fit_finds_the_constants_that_made_the_times(embeddings, fits, tmp_path):
    made = replace(embeddings.SHIPPED, link_efficiency=0.7)
    rows = [
        row(phase=phase, optimizer=rule)
        for phase in ("forward", "backward+update")
        for rule in ("sgd", "adam")
    ]
    path = table(tmp_path, *rows)
    frame = embeddings.embedding_table(path)
    times = [1e3 * embeddings.predicted(one, made)[0] for one in frame.itertuples()]
    frame["time_ms"] = times
    assert fits.fit_kernels(frame).link_efficiency == pytest.approx(0.7, rel=0.01)


def test_each_shape_is_left_out_once(fits, embeddings, tmp_path):
    path = table(tmp_path, row(), row(rows_per_table=67_108_864, time_ms=7.8))
    found = list(fits.left_out(embeddings.embedding_table(path)))
    assert [one.what for one in found] == [
        "without 1,048,576 lookups of 8,388,608 rows",
        "without 1,048,576 lookups of 67,108,864 rows",
    ]
    assert all(len(one.errors) == 1 and one.errors[0] < 0.1 for one in found)
