from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dse.calibration.measurements import ColumnOptions, RowKind, read_gemm
from dse.errors import ConfigError
from tests.calibration.measurements.helpers import gemm_csv, gemm_rows, refusal, write

ROWS = gemm_rows(5)
RECORDS = [
    {"m": 128 * (i + 1), "n": 256, "k": 512, "dtype": "bf16", "time_us": 10.0 + i}
    for i in range(5)
]


def read(path, **options):
    return read_gemm(path, ColumnOptions(**options), minimum_points=1)


def parquet(path, records=RECORDS):
    pq.write_table(pa.Table.from_pylist(records), path)
    return path


@pytest.fixture(params=["csv", "tsv", "semicolons", "crlf", "commented", "jsonl", "parquet"])
def file(request, tmp_path):
    text = gemm_csv(*ROWS)
    texts = {
        "csv": text,
        "tsv": text.replace(",", "\t"),
        "semicolons": text.replace(",", ";"),
        "crlf": "\ufeff" + text.replace("\n", "\r\n"),
        "commented": "# measured by hand\n\n" + text + "\n# end\n",
        "jsonl": "\n".join(json.dumps(record) for record in RECORDS) + "\n",
    }
    if request.param == "parquet":
        return parquet(tmp_path / "data.bin")
    return write(tmp_path, "data.txt", texts[request.param])


def test_all_formats_give_the_same_samples(file):
    samples = read(file)
    assert samples.m.tolist() == [128, 256, 384, 512, 640]
    assert samples.n.tolist() == [256] * 5
    assert samples.k.dtype == np.int64
    assert samples.precision.tolist() == ["bf16"] * 5
    assert samples.time_s == pytest.approx(np.arange(10, 15) * 1e-6)
    assert len(samples) == 5


def test_source_rows_are_lines_of_a_text_and_rows_of_parquet(tmp_path):
    text = read(write(tmp_path, "a.csv", "# comment\n" + gemm_csv(*ROWS)))
    assert text.source_rows.tolist() == [3, 4, 5, 6, 7]
    assert text.origin.row_kind is RowKind.LINE
    assert text.origin.place(3).endswith("a.csv:3")
    table = read(parquet(tmp_path / "a.parquet"))
    assert table.source_rows.tolist() == [1, 2, 3, 4, 5]
    assert table.origin.place(3).endswith("a.parquet, row 3")


def test_select_keeps_what_belongs_together(tmp_path):
    samples = read(write(tmp_path, "a.csv", gemm_csv(*ROWS)))
    chosen = samples.select(samples.m > 300)
    assert chosen.m.tolist() == [384, 512, 640]
    assert chosen.source_rows.tolist() == [4, 5, 6]
    assert chosen.origin == samples.origin


def test_dictionary_columns_of_parquet(tmp_path):
    table = pa.Table.from_pylist(RECORDS)
    at = table.column_names.index("dtype")
    table = table.set_column(at, "dtype", table.column("dtype").dictionary_encode())
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").precision.tolist() == ["bf16"] * 5


def test_durations_of_parquet_are_not_taken_for_numbers(tmp_path):
    table = pa.Table.from_pylist(RECORDS).drop_columns("time_us")
    times = pa.array([10, 11, 12, 13, 14], pa.duration("us"))
    pq.write_table(table.append_column("duration", times), tmp_path / "a.parquet")
    message = refusal(ConfigError, lambda: read(tmp_path / "a.parquet", time_unit="us"))
    assert "5 of 5 values are no number" in message


def test_a_missing_file_and_a_folder(tmp_path):
    assert "no such file" in refusal(ConfigError, lambda: read(tmp_path / "none.csv"))
    assert "this is a folder" in refusal(ConfigError, lambda: read(tmp_path))


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_file(tmp_path, text):
    message = refusal(ConfigError, lambda: read(write(tmp_path, "a.csv", text)))
    assert "the file is empty" in message


def test_a_header_alone(tmp_path):
    message = refusal(ConfigError, lambda: read(write(tmp_path, "a.csv", gemm_csv())))
    assert "no measurements" in message


def test_a_row_with_other_cells(tmp_path):
    path = write(tmp_path, "a.csv", gemm_csv(*ROWS, "1,2,3"))
    message = refusal(ConfigError, lambda: read(path))
    assert message == f"{path}:7: expected 5 cells as in the header, found 3"


def test_many_broken_rows_are_counted(tmp_path):
    path = write(tmp_path, "a.csv", gemm_csv(*["1,2"] * 40))
    message = refusal(ConfigError, lambda: read(path))
    assert message.startswith("40 rows cannot be read; the first 10:")
    assert len(message.splitlines()) == 11


def test_two_columns_of_one_name(tmp_path):
    path = write(tmp_path, "a.csv", gemm_csv(*ROWS, header="m,m,k,dtype,time_us"))
    message = refusal(ConfigError, lambda: read(path))
    assert f"{path}:1: m: 2 columns have this name" in message


def test_json_that_is_none(tmp_path):
    path = write(tmp_path, "a.jsonl", json.dumps(RECORDS[0]) + "\n{]\n")
    assert f"{path}:2: not valid JSON" in refusal(ConfigError, lambda: read(path))
    path = write(tmp_path, "a.jsonl", json.dumps(RECORDS) + "\n")
    message = refusal(ConfigError, lambda: read(path))
    assert f"{path}:1: expected one object a line, found `[" in message
    # One document over many lines is one problem.
    path = write(tmp_path, "a.json", json.dumps(RECORDS, indent=1) + "\n")
    message = refusal(ConfigError, lambda: read(path))
    assert message.startswith(f"{path}:1: ")
    assert len(message.splitlines()) == 1


def test_a_value_that_one_record_lacks(tmp_path):
    records = [*RECORDS, {key: value for key, value in RECORDS[0].items() if key != "n"}]
    path = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)))
    message = refusal(ConfigError, lambda: read(path))
    assert message == f"{path}:6: n: 1 of 6 values is missing; a number is expected"


def test_bytes_that_are_nothing(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"m,n\n\xff\xfe")
    message = refusal(ConfigError, lambda: read(path))
    assert message == f"{path}:2: neither UTF-8 text nor Parquet"
    path.write_bytes(b"PAR1 and no more")
    assert "cannot be read as Parquet" in refusal(ConfigError, lambda: read(path))


def test_in_place_is_for_logs(tmp_path):
    path = write(tmp_path, "a.csv", gemm_csv(*ROWS))
    assert "--in-place is for logs" in refusal(ConfigError, lambda: read(path, in_place=True))


HUGE = "9" * 5000


def test_numbers_of_thousands_of_digits(tmp_path):
    path = write(tmp_path, "a.jsonl", json.dumps(RECORDS[0]).replace("128", HUGE))
    message = refusal(ConfigError, lambda: read(path))
    assert message.startswith(f"{path}:1: `99999999999999999999…` has ")
    assert "digits, more than the limit of 300; one object a line" in message
    digits = HUGE[:300]
    path = write(tmp_path, "a.jsonl", json.dumps(RECORDS[0]).replace("128", digits))
    assert "out of range, here `9999" in refusal(ConfigError, lambda: read(path))
    assert "matches none" in refusal(ConfigError, lambda: read(path, filters={"m": 10**400}))
    path = write(tmp_path, "a.csv", gemm_csv(f"{HUGE},2,3,bf16,10"))
    assert "infinite" in refusal(ConfigError, lambda: read(path))


def test_lists_deep_inside_json(tmp_path):
    for depth in (10, 400, 900, 990, 5000):
        nested = "[" * depth + "]" * depth
        path = write(tmp_path, "a.jsonl", json.dumps(RECORDS[0]).replace('"bf16"', nested))
        message = refusal(ConfigError, lambda path=path: read(path))
        assert "unknown precision" in message or "more than 64 levels deep" in message


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), [1]),
        (pa.list_(pa.int64(), 1), [1]),
        (pa.struct([("a", pa.int64())]), {"a": 1}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    ],
)
@pytest.mark.parametrize("name", ["m", "remark"])
def test_nested_columns_of_parquet(tmp_path, kind, value, name):
    table = pa.Table.from_pylist(RECORDS)
    if name == "m":
        table = table.drop_columns("m")
    path = tmp_path / "a.parquet"
    pq.write_table(table.append_column(name, pa.array([value] * 5, kind)), path)
    message = refusal(ConfigError, lambda: read(path))
    assert f"{path}: {name}: expected a column of numbers or text, found lists" in message
    assert message.endswith("write one value a row, or leave the column out")


def test_two_columns_of_one_name_in_parquet(tmp_path):
    table = pa.Table.from_pylist(RECORDS)
    path = tmp_path / "a.parquet"
    pq.write_table(table.append_column("m", table.column("m")), path)
    message = refusal(ConfigError, lambda: read(path))
    assert message == f"{path}: m: 2 columns have this name; give each its own"


def test_parquet_that_is_small_only_while_compressed(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    table = pa.table({"m": np.zeros(200_000, dtype=np.int64)})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    monkeypatch.setenv("DSE_MAX_FILE_BYTES", "1000000")
    message = refusal(ConfigError, lambda: read(path))
    assert re.search(r"16\d{5} bytes once uncompressed, more than the limit of 1000000; ", message)
    assert message.endswith("leave out columns or rows")


def test_parquet_of_many_equal_rows(tmp_path):
    """Run lengths make 30 million rows a few bytes, compressed or not."""
    path = tmp_path / "a.parquet"
    rows = pa.DictionaryArray.from_arrays(np.zeros(30_000_000, dtype=np.int8), ["bf16"])
    pq.write_table(pa.table({"dtype": rows}), path)
    assert path.stat().st_size < 100_000
    message = refusal(ConfigError, lambda: read(path))
    assert "30000000 rows of 1 columns, more than the limit of 20000000 values; " in message


def test_long_words_of_parquet_are_held_once(tmp_path):
    path = tmp_path / "a.parquet"
    remark = pa.DictionaryArray.from_arrays(
        pa.array([0] * 99_999 + [None], pa.int32()), ["x" * 1_000_000]
    )
    columns = {name: [value] * 100_000 for name, value in RECORDS[0].items()}
    pq.write_table(pa.table({**columns, "remark": remark}), path, store_schema=False)
    assert len(read(path)) == 100_000


def test_values_that_parquet_lacks(tmp_path):
    path = parquet(tmp_path / "a.parquet", [*RECORDS, RECORDS[0] | {"dtype": None}])
    assert "6 values" in refusal(ConfigError, lambda: read(path)).replace("1 of ", "")


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.decimal128(30, 2), pa.string()],
)
def test_all_kinds_of_numbers_of_parquet(tmp_path, kind):
    table = pa.Table.from_pylist(RECORDS).drop_columns("k")
    pq.write_table(table.append_column("k", pa.array([32] * 5).cast(kind)), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").k.tolist() == [32] * 5


def test_thousands_of_columns(tmp_path):
    names = [f"c{index}" for index in range(1001)]
    path = write(tmp_path, "a.csv", ",".join(names) + "\n")
    limit = "1001 columns, more than the limit of 1000; leave out those that are not needed"
    assert limit in refusal(ConfigError, lambda: read(path))
    path = write(tmp_path, "a.jsonl", "\n".join(json.dumps({name: 1}) for name in names))
    assert limit in refusal(ConfigError, lambda: read(path))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: [1] for name in names}), path)
    assert limit in refusal(ConfigError, lambda: read(path))


@pytest.mark.parametrize("header", ["m" * 200_000 + ",n", "m,n\rk"])
def test_headers_that_are_no_csv(tmp_path, header):
    path = tmp_path / "a.csv"
    path.write_bytes(f"# comment\n{header}\n1,2\n".encode())
    assert f"{path}:2: not valid CSV" in refusal(ConfigError, lambda: read(path))
