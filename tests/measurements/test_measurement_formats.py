from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dse.errors import ConfigError
from dse.measurements import ColumnOptions, RowKind, read_gemm
from tests.measurements.helpers import gemm_csv, gemm_rows, refusal, write

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
    assert f"{path}:1: expected one object a line, found a list" in message


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
