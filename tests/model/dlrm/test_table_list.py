from __future__ import annotations

from dataclasses import replace
import json
import sys

from hypothesis import given
from hypothesis import strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dse.config import parse_document
from dse.errors import ConfigError, OptionalDependencyError
from dse.indices import IdOrder, Uniform, Zipf
from dse.machine import Precision
from dse.model import (
    DataType,
    Interaction,
    InteractionKind,
    ModelDocument,
    ModelRecipe,
    Optimizer,
    PoolingDistribution,
    TableEntry,
    TableList,
    compose_model,
    load_model,
    read_table_list,
)

RECIPE = ModelRecipe("mine", 13, (512, 64), (256, 1))


@pytest.fixture
def read(tmp_path):
    def reader(text: str | bytes) -> TableList:
        path = tmp_path / "tables.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_table_list(path)

    return reader


def problems(read, text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(text)
    return [f"{one.line}: {one.field}: {one.message}" for one in raised.value.diagnostics]


def test_a_list_of_all_columns(read):
    found = read(
        "name,rows,dim,pooling,count,data_type,alpha,ids,is_weighted,bags_per_sample,lengths\n"
        "user,40000000,128,1,1,fp16,1.05,by_popularity,True,0.25,poisson\n"
        "item,1000,64,3+0.5,4,,,,,,\n"
    )
    assert found.entries == (
        TableEntry(
            2,
            "user",
            40_000_000,
            128,
            (1.0,),
            1,
            DataType.FP16,
            Zipf(1.05, ids=IdOrder.BY_POPULARITY),
            True,
            0.25,
            PoolingDistribution.POISSON,
        ),
        TableEntry(3, "item", 1000, 64, (3.0, 0.5), 4, None, None),
    )
    assert found.table_count == 5
    assert found.unused_columns == ()


@pytest.mark.parametrize("rows", ["rows", "num_embeddings", "Hash Size", "hash-size"])
@pytest.mark.parametrize("dim", ["dim", "embedding_dim", "EMBEDDING_DIM"])
@pytest.mark.parametrize("pooling", ["pooling", "pooling_factor", "hotness"])
def test_columns_by_their_usual_names_in_any_order(read, rows, dim, pooling):
    (entry,) = read(f"{pooling},{dim},{rows}\n7,32,100\n").entries
    assert (entry.rows, entry.dim, entry.pooling_factors) == (100, 32, (7.0,))
    assert entry.name == "table_0"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_spreadsheets_of_all_kinds(read, delimiter, end):
    lines = ["name,rows,dim", "# a remark", "", '"a, b",4e2,8.0', "c, 1_000 ,16"]
    if delimiter != ",":
        lines[3] = lines[3].replace('"a, b"', "a")
        lines = [line.replace(",", delimiter) for line in lines]
    found = read(("\ufeff" + end.join(lines)).encode())
    assert [(entry.rows, entry.dim) for entry in found.entries] == [(400, 8), (1000, 16)]
    assert [entry.line for entry in found.entries] == [4, 5]
    assert found.entries[0].name == ("a, b" if delimiter == "," else "a")


def test_unused_columns_are_told(read):
    assert read("rows,team,owner\n1,a,b\n").unused_columns == ("team", "owner")


def test_every_problem_is_told_with_its_line(read):
    found = problems(
        read,
        "name,rows,dim,pooling,alpha,data_type,ids\n"
        "a,x,64,1,,,\n"
        "b,-3,0,0,,,\n"
        "a,10,64,1,,,\n"
        "c,10,1.5,1+,11,fp12,\n"
        "d,10,,,,,hashed\n"
        "e,,8,no,,,\n"
        ",1,8,1,,,\n",
    )
    assert [line.partition(":")[0] for line in found] == list("2333455556778")
    for words in (
        "2: rows: expected a whole number from 1 to 1,000,000,000,000, found `x`",
        "4: name: `a` is the name of line 2 too",
        "5: data_type: expected one of fp32, fp16, bf16, fp8, int8, found `fp12`",
        "7: rows: expected the number of rows, found nothing",
    ):
        assert any(words in line for line in found), (words, found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,rows\n", "no tables below the header"),
        ("name,dim\na,8\n", "no column of rows; expected `rows` or one of `num_embeddings`"),
        ("name,num_embedings\na,8\n", "did you mean `num_embeddings`"),
        ("rows,hash_size\n1,2\n", "`rows` and `hash_size` both mean rows"),
        ('rows\n"1\n', "not valid CSV"),
        (b"rows\n\xff\xfe\n", "UTF-8"),
        ("name,rows\na\x0bb,3\n", "printable"),
        ("rows,count\n5,100001\n", "whole number from 1 to 100,000"),
        ("rows," * 3 + "dim\n", "3 columns have this name"),
    ],
)
def test_files_that_are_no_list(read, text, words):
    assert words in "\n".join(problems(read, text))


def test_more_tables_than_the_limit(read):
    with pytest.raises(ConfigError, match="more than the limit of 100000 tables"):
        read("name,rows,count\na,1,60000\nb,1,60000\n")


@pytest.mark.parametrize("text", ["", "# only a remark\n\n"])
def test_an_empty_file(read, text):
    with pytest.raises(ConfigError, match="header and rows"):
        read(text)


def test_rows_with_other_cells_are_listed(read):
    assert problems(read, "rows,dim\n1\n2,8\n1,000,8\n") == [
        "2: : expected 2 cells as in the header, found 1",
        "4: : expected 2 cells as in the header, found 3",
    ]


def test_one_mistake_on_all_lines_makes_a_short_message(read):
    with pytest.raises(ConfigError) as raised:
        read("rows\n" + "x\n" * 1000)
    assert len(raised.value.diagnostics) == 1000
    assert len(str(raised.value).splitlines()) < 200


def test_other_formats(tmp_path):
    records = [{"hash_size": 100, "dim": 8.0, "alpha": None}, {"hash_size": 7, "dim": None}]
    lines = tmp_path / "tables.jsonl"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    parquet = tmp_path / "tables.parquet"
    pq.write_table(pa.Table.from_pylist(records), parquet)
    expected = (TableEntry(1, "table_0", 100, 8), TableEntry(2, "table_1", 7))
    assert read_table_list(lines).entries == expected
    assert read_table_list(parquet).entries == expected


def test_parquet_names_the_extra_that_reads_it(tmp_path, monkeypatch):
    path = tmp_path / "tables.parquet"
    pq.write_table(pa.table({"hash_size": [100]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(OptionalDependencyError, match=r"'\.\[tables\]'"):
        read_table_list(path)


def test_a_model_of_a_list(read, tmp_path):
    listed = read(
        "name,rows,dim,pooling,count,data_type,alpha\n"
        "user,1000,64,,1,,\n"
        "item,2000,64,3+1,2,fp16,1.1\n"
        "shop,3000,64,0.00001,1,,0\n"
    )
    recipe = replace(
        RECIPE,
        pooling=5,
        alpha=0.9,
        precision=Precision.FP16,
        dense_optimizer=Optimizer.ADAM,
        sparse_optimizer=Optimizer.SGD,
        global_batch_size=1024,
    )
    path = tmp_path / "mine.yaml"
    path.write_text(compose_model(listed, recipe))
    model = load_model(str(path))
    tables = {table.name: table for table in model.tables}
    assert list(tables) == ["user", "item_0", "item_1", "shop"]
    assert [table.rows for table in model.tables] == [1000, 2000, 2000, 3000]
    assert {table.dim for table in model.tables} == {64}
    assert tables["user"].pooling_factors == (5.0,)
    assert tables["item_1"].pooling_factors == (3.0, 1.0)
    assert tables["shop"].pooling_factors == (1e-5,)
    assert tables["user"].indices == Zipf(0.9)
    assert tables["item_0"].indices == Zipf(1.1)
    assert tables["shop"].indices == Uniform()
    assert tables["item_0"].data_type is DataType.FP16
    assert tables["shop"].data_type is DataType.FP32
    assert model.interaction == Interaction(InteractionKind.DOT)
    assert (model.dense_features, model.bottom_mlp, model.top_mlp) == (13, (512, 64), (256, 1))
    assert (model.precision, model.global_batch_size) == (Precision.FP16, 1024)
    assert (model.dense_optimizer, model.sparse_optimizer) == (Optimizer.ADAM, Optimizer.SGD)
    assert model.source.endswith(listed.sha256)


def test_the_interaction_follows_the_widths(read):
    equal = read("rows,dim\n9,64\n9,64\n")
    assert "kind: dot" in compose_model(equal, RECIPE)
    other = read("rows,dim\n9,64\n9,32\n")
    assert "interaction: {kind: concat}" in compose_model(other, RECIPE)
    narrow = replace(RECIPE, bottom_mlp=(512, 32))
    assert "interaction: {kind: concat}" in compose_model(equal, narrow)
    cross = Interaction(InteractionKind.DCNV2_LOW_RANK, layers=3, low_rank=16)
    text = compose_model(other, replace(RECIPE, interaction=cross))
    assert parse_document(text, ModelDocument).to_model().interaction == cross


def test_what_does_not_fit_together_is_told_by_the_lines_of_the_list(read):
    listed = read("rows,dim\n9,64\n# wider\n9,32\n")
    with pytest.raises(ConfigError, match="needs equal widths") as raised:
        compose_model(listed, replace(RECIPE, interaction=Interaction(InteractionKind.DOT)))
    (problem,) = raised.value.diagnostics
    assert (problem.line, problem.field) == (4, "dim")
    with pytest.raises(ConfigError, match="have no `dim`, the first is `table_0`"):
        compose_model(read("rows\n9\n"), RECIPE)
    with pytest.raises(ConfigError, match="top_mlp: expected the layers behind the interaction"):
        compose_model(listed, replace(RECIPE, top_mlp=()))


@given(
    name=st.text(min_size=1, max_size=20).filter(str.isprintable),
    rows=st.integers(1, 10**12),
    pooling=st.floats(1e-9, 1e6),
    alpha=st.floats(1e-9, 10),
)
def test_any_table_is_read_back_as_it_was(name, rows, pooling, alpha):
    entry = TableEntry(
        2, name, rows, 64, (pooling,), 1, None, Zipf(alpha), weighted=True, bags_per_sample=0.5
    )
    listed = TableList(f"{name}.csv", "0" * 64, (entry,))
    text = compose_model(listed, replace(RECIPE, name=name, description=name))
    model = parse_document(text, ModelDocument).to_model()
    (table,) = model.tables
    assert (table.name, table.rows) == (name, rows)
    assert table.pooling_factors[0] == pytest.approx(pooling)
    assert (table.weighted, table.bags_per_sample) == (True, 0.5)
    assert isinstance(table.indices, Zipf)
    assert table.indices.alpha == pytest.approx(alpha)
    assert (model.name, model.description) == (name, name)
