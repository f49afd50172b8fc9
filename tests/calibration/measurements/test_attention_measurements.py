from __future__ import annotations

import pytest

from dse.calibration.measurements import ColumnOptions, read_attention
from dse.errors import CalibrationError, ConfigError
from tests.calibration.measurements.helpers import refusal, write


def read(folder, *rows, header="batch,heads,kv_heads,seq,head_dim,latency_us", **options):
    path = write(folder, "attention.csv", "\n".join((header, *rows)) + "\n")
    return read_attention(path, ColumnOptions(**options), minimum_points=1)


def test_sizes_and_times_are_read(tmp_path):
    found = read(tmp_path, "2,32,8,4096,128,700")
    sizes = [found.batch, found.heads, found.kv_heads, found.queries, found.keys, found.dim]
    assert [int(size[0]) for size in sizes] == [2, 32, 8, 4096, 4096, 128]
    assert found.time_s == pytest.approx([7e-4])


def test_heads_of_keys_are_those_of_queries_if_not_given(tmp_path):
    found = read(tmp_path, "2,32,4096,128,700", header="batch,num_heads,seq_len,head_size,time_us")
    assert int(found.kv_heads[0]) == 32


def test_impossible_rows_are_refused(tmp_path):
    message = refusal(ConfigError, lambda: read(tmp_path, "2,0,8,4096,128,700"))
    assert "heads" in message
    with pytest.raises(CalibrationError):
        read(tmp_path, "2,32,8,4096,128,700", "2,32,8,4096,128,1700")
