from __future__ import annotations

import pytest

from dse.calibration.measurements import ColumnOptions, read_embedding
from dse.errors import CalibrationError, ConfigError
from tests.calibration.measurements.helpers import gemm_csv, refusal, write

HEADER = "op,rows,dim,batch,pooling,value_bytes,alpha,time_us"
ROW = "forward,1000000,128,4096,20.5,4,1.05,120"


@pytest.fixture
def read(tmp_path):
    def run(*rows, header=HEADER, minimum_points=1, **options):
        path = write(tmp_path, "a.csv", gemm_csv(*rows, header=header))
        return read_embedding(path, ColumnOptions(**options), minimum_points=minimum_points)

    return run


def test_all_columns(read):
    samples = read(ROW, "bwd,1000,64,512,1,2,0,30")
    assert samples.op.tolist() == ["forward", "backward"]
    assert samples.rows.tolist() == [1_000_000, 1000]
    assert samples.dim.tolist() == [128, 64]
    assert samples.batch.tolist() == [4096, 512]
    assert samples.pooling.tolist() == [20.5, 1.0]
    assert samples.value_bytes.tolist() == [4, 2]
    assert samples.alpha.tolist() == [1.05, 0.0]
    assert samples.time_s == pytest.approx([120e-6, 30e-6])
    assert samples.source_rows.tolist() == [2, 3]
    assert samples.select(samples.op == "backward").dim.tolist() == [64]


def test_letters_of_the_usual_notation(read):
    samples = read("100,64,8,2,5", header="E,D,B,L,time_ms", op="fwd", precision="half")
    assert samples.rows[0] == 100
    assert samples.value_bytes[0] == 2
    assert samples.alpha[0] == 0
    assert "no column `alpha`: looked-up rows taken to be uniform" in samples.notes


def test_what_cannot_be(read):
    rows = ("sideways,0,128,4096,0,4,-1,120", "forward,10,1.5,4096,2,4,0,120")
    with pytest.raises(ConfigError) as caught:
        read(*rows)
    found = {(item.line, item.field) for item in caught.value.diagnostics}
    assert found == {(2, "op"), (2, "rows"), (2, "pooling"), (2, "alpha"), (3, "dim")}


def test_bytes_of_a_value_must_be_known(read):
    header, row = "op,rows,dim,batch,pooling,time_us", "forward,10,8,4,2,120"
    message = refusal(ConfigError, lambda: read(row, header=header))
    assert "`value_bytes` (recognised: value_bytes" in message
    assert "--precision" in message
    message = refusal(ConfigError, lambda: read(row, header=header, precision="fp61"))
    assert "--precision: unknown data type `fp61`" in message
    message = refusal(ConfigError, lambda: read(ROW, precision="half"))
    assert "value_bytes: 1 of 1 values is not `2`" in message


def test_repeats_that_disagree(read):
    message = refusal(CalibrationError, lambda: read(ROW, ROW.replace(",120", ",240")))
    assert "1 of 1 repeated points disagree" in message
    assert len(read(ROW, ROW.replace("1.05", "1.1"))) == 2


def test_too_few_points(tmp_path):
    path = write(tmp_path, "a.csv", gemm_csv(ROW, header=HEADER))
    message = refusal(CalibrationError, lambda: read_embedding(path))
    assert "1 measurements, at least 20 are needed" in message
