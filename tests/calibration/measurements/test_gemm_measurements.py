from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dse.calibration.measurements import ColumnOptions, read_gemm
from dse.errors import CalibrationError, ConfigError
from tests.calibration.measurements.helpers import gemm_csv, gemm_rows, refusal, write

AICONFIGURATOR = (
    "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency",
    "X,1,GPU,gemm,x,bfloat16,64,128,256,0.5",
    "X,1,GPU,gemm,x,fp8_block,64,128,256,0.25",
)


def read(path, *, minimum_points=1, tolerance=0.25, **options):
    return read_gemm(
        path, ColumnOptions(**options), minimum_points=minimum_points, tolerance=tolerance
    )


@pytest.fixture
def csv(tmp_path):
    return lambda *rows, **header: write(tmp_path, "a.csv", gemm_csv(*rows, **header))


@pytest.mark.parametrize(
    ("column", "seconds"),
    [
        ("time_s", 2.0),
        ("latency_ms", 2e-3),
        ("Latency (µs)", 2e-6),
        ("duration_ns", 2e-9),
        ("kernel_time_us", 2e-6),
        ("median_latency_ms", 2e-3),
        ("time_mean_us", 2e-6),
    ],
)
def test_the_unit_is_in_the_name(csv, column, seconds):
    samples = read(csv("1,2,3,fp16,2", header=f"M,N,K,gemm_dtype,{column}"))
    assert samples.time_s == pytest.approx([seconds])
    assert samples.notes == ()


@pytest.mark.parametrize("column", ["latency", "time", "Duration"])
def test_a_bare_time_needs_a_unit(csv, column):
    path = csv("1,2,3,fp16,2", header=f"m,n,k,dtype,{column}")
    message = refusal(ConfigError, lambda: read(path))
    assert message.startswith(f"{path}:1: {column}: the unit of the times is not known")
    assert "--time-unit s, ms, us or ns" in message
    samples = read(path, time_unit="us")
    assert samples.time_s == pytest.approx([2e-6])
    assert samples.origin.time_unit == "us"


def test_a_told_unit_is_stronger_than_the_name_and_noted(csv):
    samples = read(csv("1,2,3,fp16,2"), time_unit="ms")
    assert samples.time_s == pytest.approx([2e-3])
    assert samples.notes == ("times of `time_us` taken in ms as given",)


def test_units_that_do_not_exist():
    message = refusal(ConfigError, lambda: ColumnOptions(time_unit="usec"))
    assert message.startswith("--time-unit: expected one of `s`, `ms`, `us`, `ns`; found `usec`")
    assert "--size-unit" in refusal(ConfigError, lambda: ColumnOptions(size_unit="KiB"))


def test_tables_of_aiconfigurator_are_known_to_be_in_milliseconds(csv):
    samples = read(csv(*AICONFIGURATOR[1:], header=AICONFIGURATOR[0]))
    assert samples.time_s == pytest.approx([0.5e-3, 0.25e-3])
    assert samples.precision.tolist() == ["bf16", "fp8_block"]
    assert samples.notes == (
        "recognised as a table of aiconfigurator: `latency` is in ms",
        "several precisions: 1 of bf16, 1 of fp8_block",
    )


def test_other_operators_in_such_a_table_are_refused(csv):
    moe = AICONFIGURATOR[1].replace("gemm,x", "moe,x")
    path = csv(AICONFIGURATOR[2], moe, header=AICONFIGURATOR[0])
    message = refusal(ConfigError, lambda: read(path))
    assert f"{path}:3: op_name: 1 of 2 values is not `gemm`, here `moe`" in message
    assert len(read(path, filters={"op_name": "gemm"})) == 1


def test_named_columns(csv):
    path = csv("1,2,3,fp16,2", header="a,b,c,dtype,t_us")
    names = {"m": "a", "n": "b", "k": "c", "time": "t_us"}
    samples = read(path, columns=names)
    assert (samples.m[0], samples.n[0], samples.k[0]) == (1, 2, 3)
    assert samples.time_s == pytest.approx([2e-6])
    message = refusal(ConfigError, lambda: read(path, columns={**names, "time": "t_ms"}))
    assert "no column is called `t_ms`; did you mean `t_us`?" in message
    message = refusal(ConfigError, lambda: read(path, columns={"time_s": "t_us"}))
    assert "`time_s` is not read here; did you mean `time`?" in message


def test_missing_columns_come_with_their_usual_names(csv):
    path = csv("1,2,2", header="m,n,time_us")
    message = refusal(ConfigError, lambda: read(path))
    assert f"{path}:1: k: missing columns: `k` (recognised: k, gemm_k" in message
    assert "`precision` (recognised: precision, gemm_dtype, dtype" in message
    assert "the file has `m`, `n`, `time_us`" in message


def test_several_columns_that_fit(csv):
    path = csv("1,2,3,fp16,2,3", header="m,n,k,dtype,mean_time_us,min_time_us")
    message = refusal(ConfigError, lambda: read(path))
    assert "time: 2 columns fit: `mean_time_us`, `min_time_us`" in message
    assert read(path, columns={"time": "min_time_us"}).time_s == pytest.approx([3e-6])


def test_a_precision_for_the_whole_file(csv):
    path = csv("1,2,3,2", header="m,n,k,time_us")
    assert "--precision" in refusal(ConfigError, lambda: read(path))
    assert read(path, precision="bfloat16").precision.tolist() == ["bf16"]
    message = refusal(ConfigError, lambda: read(path, precision="bf61"))
    assert "--precision: unknown precision `bf61`; did you mean `bf16`?" in message


def test_a_precision_that_contradicts_the_file(csv):
    path = csv("1,2,3,bf16,2", "1,2,4,half,2")
    message = refusal(ConfigError, lambda: read(path, precision="bf16"))
    assert f"{path}:3: dtype: 1 of 2 values is not `bf16`" in message


def test_unknown_precisions_are_counted_with_a_hint(csv):
    path = csv("1,2,3,bf16,2", "1,2,4,bf61,2", "1,2,5,bf61,2")
    message = refusal(ConfigError, lambda: read(path))
    assert f"{path}:3: dtype: 2 of 3 values are of the unknown precision `bf61`" in message
    assert "did you mean `bf16`?" in message


def test_a_column_of_many_unknown_words_is_cut_short(csv):
    path = csv(*(f"1,2,{i},word{i},2" for i in range(1, 41)))
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert len(caught.value.diagnostics) == 6
    last = caught.value.diagnostics[-1]
    assert last.line == 7
    assert "35 of 40 values are of 35 more unknown terms, here `word6`" in last.message


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1,2,3,bf16,nan", "time_us: 1 of 2 values is not a number (NaN), here `nan`"),
        ("1,2,3,bf16,inf", "time_us: 1 of 2 values is infinite, here `inf`"),
        ("1,2,3,bf16,0", "time_us: 1 of 2 values is zero or negative, here `0`"),
        ("1,2,3,bf16,-4", "time_us: 1 of 2 values is zero or negative, here `-4`"),
        ("1,2,3,bf16,1e-308", "time_us: 1 of 2 values is out of range, here `1e-308`"),
        ("1,2,3,bf16,", "time_us: 1 of 2 values is missing; a number is expected"),
        ("1,2,3,bf16,fast", "time_us: 1 of 2 values is no number, here `fast`"),
        ("0,2,3,bf16,5", "m: 1 of 2 values is out of range, here `0`"),
        ("1,-2,3,bf16,5", "n: 1 of 2 values is out of range, here `-2`"),
        ("1,2,3.5,bf16,5", "k: 1 of 2 values is not whole, here `3.5`"),
        ("1,2,1e30,bf16,5", "k: 1 of 2 values is out of range, here `1e30`"),
    ],
)
def test_impossible_values_are_refused_at_their_line(csv, row, problem):
    path = csv("8,8,8,bf16,1", row)
    message = refusal(ConfigError, lambda: read(path))
    assert message.startswith(f"{path}:3: {problem}")
    assert len(message.splitlines()) == 1


def test_all_problems_of_a_file_are_reported_in_order(csv):
    path = csv("0,2,3,bf16,1", "8,8,8,bf16,-1", "8,8,8,bf17,1", "-1,8,8,bf16,-1")
    with pytest.raises(ConfigError) as caught:
        read(path)
    places = [(problem.line, problem.field) for problem in caught.value.diagnostics]
    assert places == [(2, "m"), (3, "time_us"), (4, "dtype")]
    assert "2 of 4 values are out of range" in caught.value.diagnostics[0].message


def test_impossible_values_of_parquet_are_refused_at_their_row(tmp_path):
    records = [
        {"m": 8, "n": 8, "k": 8, "dtype": "bf16", "time_us": 1.0},
        {"m": 8, "n": 8, "k": 9, "dtype": "bf16", "time_us": float("nan")},
    ]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(records), path)
    message = refusal(ConfigError, lambda: read(path))
    assert message.startswith(f"{path}: time_us: row 2: 1 of 2 values is not a number (NaN)")


def test_filters_go_before_checks_and_are_counted(csv):
    path = csv("1,2,3,bf16,1", "0,2,3,int4,-1")
    samples = read(path, filters={"dtype": "bf16"})
    assert len(samples) == 1
    assert samples.notes == ("filter dtype=bf16: 1 of 2 rows kept",)


@pytest.mark.parametrize("key", ["gemm_dtype", "precision", "GEMM dtype"])
@pytest.mark.parametrize("value", ["bfloat16", "bf16"])
def test_filters_take_the_names_of_the_file_and_ours(csv, key, value):
    path = csv(*AICONFIGURATOR[1:], header=AICONFIGURATOR[0])
    samples = read(path, filters={key: value})
    assert samples.precision.tolist() == ["bf16"]


def test_a_filter_takes_the_spelling_of_the_file_first(csv):
    path = csv("1,2,3,fp8,1", "1,2,3,fp8_e5m2,9")
    assert len(read(path, filters={"dtype": "fp8"})) == 1
    assert len(read(path, filters={"dtype": "fp8_e5m2"})) == 1


def test_filters_compare_numbers_as_numbers(csv):
    path = csv("64.0,2,3,bf16,1", "65,2,3,bf16,1")
    assert read(path, filters={"m": 64}).m.tolist() == [64]


def test_filters_that_leave_nothing_or_name_nothing(csv):
    path = csv("1,2,3,bf16,1", "1,2,3,fp16,1")
    message = refusal(ConfigError, lambda: read(path, filters={"dtype": "fp8"}))
    assert message == (
        f"{path}: --where dtype=fp8 matches none of 2 rows; the column has `bf16`, `fp16`"
    )
    message = refusal(ConfigError, lambda: read(path, filters={"dtipe": "fp8"}))
    assert "no column is called `dtipe`; did you mean `dtype`?" in message


def test_too_few_points(csv):
    path = csv(*gemm_rows(7))
    message = refusal(CalibrationError, lambda: read_gemm(path))
    assert message.startswith(f"{path}: 7 measurements, at least 30 are needed")
    filtered = lambda: read(path, minimum_points=5, filters={"m": 128})  # noqa: E731
    message = refusal(CalibrationError, filtered)
    assert "1 measurements, at least 5 are needed; filter m=128: 1 of 7 rows kept" in message


def test_repeats_that_agree_are_kept_and_noted(csv):
    samples = read(csv("1,2,3,bf16,10", "1,2,3,bf16,12", "1,2,3,fp16,99"))
    assert len(samples) == 3
    assert "1 points are measured more than once; all 3 rows kept" in samples.notes


def test_repeats_that_disagree_are_refused(csv):
    path = csv("9,9,9,bf16,1", "1,2,3,bf16,20", "1,2,3,bf16,10")
    message = refusal(CalibrationError, lambda: read(path))
    assert message == (
        f"{path}:4: 1 of 1 repeated points disagree; the first (m=1, n=2, k=3, precision=bf16) "
        f"takes 1e-05 s here and 2e-05 s at {path}:3, 100% more where 25% are allowed; "
        "measure again, or keep one of them"
    )
    assert len(read(path, tolerance=1.1)) == 3


def test_the_column_that_tells_repeats_apart_is_named(csv):
    path = csv("1,2,3,bf16,20,a", "1,2,3,bf16,10,b", header="m,n,k,dtype,time_us,library")
    message = refusal(CalibrationError, lambda: read(path))
    assert "they differ in `library`: choose one with --where library=b" in message
