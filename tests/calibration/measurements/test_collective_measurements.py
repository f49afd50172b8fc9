from __future__ import annotations

import pytest

from dse.calibration.measurements import ColumnOptions, read_collective
from dse.errors import CalibrationError, ConfigError
from tests.calibration.measurements.helpers import gemm_csv, refusal, write

BYTES = "collective,world_size,size_bytes,time_us"
ELEMENTS = "op,ranks,count,dtype,time_us"
AICONFIGURATOR = (
    "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency"
)


@pytest.fixture
def read(tmp_path):
    def run(header, *rows, minimum_points=1, tolerance=0.5, **options):
        path = write(tmp_path, "a.csv", gemm_csv(*rows, header=header))
        return read_collective(
            path, ColumnOptions(**options), minimum_points=minimum_points, tolerance=tolerance
        )

    return run


@pytest.mark.parametrize(
    ("word", "op"),
    [
        ("all_reduce", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("ncclAllGather", "all_gather"),
        ("all-gather", "all_gather"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("broadcast", "broadcast"),
        ("sendrecv", "send_recv"),
    ],
)
def test_operations_in_other_spellings(read, word, op):
    samples = read(BYTES, f"{word},8,1024,5")
    assert samples.op.tolist() == [op]
    assert samples.ranks.tolist() == [8]
    assert samples.size_bytes.tolist() == [1024]
    assert samples.dtype.tolist() == [""]
    assert samples.time_s == pytest.approx([5e-6])


def test_an_unknown_operation_gets_a_hint(read):
    message = refusal(ConfigError, lambda: read(BYTES, "all_redice,8,1024,5"))
    assert "of the unknown operation `all_redice`; did you mean `all_reduce`?" in message


@pytest.mark.parametrize(
    ("dtype", "nbytes", "name"),
    [
        ("half", 2, "fp16"),
        ("int8", 1, "int8"),
        ("float", 4, "fp32"),
        ("bfloat16", 2, "bf16"),
        ("double", 8, "fp64"),
        ("f8e4m3", 1, "fp8"),
        ("torch.float32", 4, "fp32"),
    ],
)
def test_elements_become_bytes(read, dtype, nbytes, name):
    samples = read(ELEMENTS, f"all_reduce,2,1000,{dtype},5")
    assert samples.size_bytes.tolist() == [1000 * nbytes]
    assert samples.dtype.tolist() == [name]


def test_elements_need_a_known_type(read):
    header = "op,ranks,count,time_us"
    message = refusal(ConfigError, lambda: read(header, "all_reduce,2,1000,5"))
    assert "the sizes are in elements" in message
    assert read(header, "all_reduce,2,1000,5", precision="half").size_bytes[0] == 2000
    message = refusal(ConfigError, lambda: read(ELEMENTS, "all_reduce,2,1000,hlaf,5"))
    assert "of the unknown data type `hlaf`" in message


def test_types_we_have_no_name_for_pass_where_sizes_are_in_bytes(read):
    samples = read(f"{BYTES},dtype", "all_reduce,2,1000,5,Posit16")
    assert samples.dtype.tolist() == ["posit16"]


def test_a_bare_size_needs_a_unit(read):
    header, row = "op,ranks,message_size,dtype,time_us", "all_reduce,2,1000,half,5"
    message = refusal(ConfigError, lambda: read(header, row))
    assert "message_size: the unit of the sizes is not known; pass --size-unit" in message
    assert read(header, row, size_unit="bytes").size_bytes[0] == 1000
    assert read(header, row, size_unit="elements").size_bytes[0] == 2000


def test_a_told_size_unit_is_stronger_than_the_name_and_noted(read):
    samples = read(ELEMENTS, "all_reduce,2,1000,half,5", size_unit="bytes")
    assert samples.size_bytes[0] == 1000
    assert samples.notes == ("sizes of `count` taken in bytes as given",)


def test_bytes_are_preferred_to_elements(read):
    samples = read("op,ranks,count,size_bytes,dtype,time_us", "all_reduce,2,7,1000,half,5")
    assert samples.size_bytes[0] == 1000


def test_tables_of_aiconfigurator(read):
    samples = read(AICONFIGURATOR, "X,1,GPU,alltoall,NCCL,half,4,256,0.01")
    assert samples.op.tolist() == ["all_to_all"]
    assert samples.size_bytes.tolist() == [512]
    assert samples.time_s == pytest.approx([1e-5])
    assert samples.notes == (
        "recognised as a table of aiconfigurator: `message_size` in elements",
        "recognised as a table of aiconfigurator: `latency` is in ms",
    )


def test_words_for_the_whole_file(read):
    samples = read("size_bytes,time_us", "1024,5", op="AllReduce", ranks=4)
    assert samples.op.tolist() == ["all_reduce"]
    assert samples.ranks.tolist() == [4]
    message = refusal(ConfigError, lambda: read("size_bytes,time_us", "1024,5", op="all_reduce"))
    assert "`ranks` (recognised: ranks, num_ranks" in message
    assert "or say it for the whole file with --ranks" in message
    one = lambda: read("size_bytes,time_us", "1024,5", op="all_reduce", ranks=1)  # noqa: E731
    assert "--ranks: at least 2 is expected, found 1" in refusal(ConfigError, one)


def test_words_for_the_whole_file_must_not_contradict_it(read):
    rows = ("all_reduce,2,1024,5", "all_reduce,4,1024,5")
    message = refusal(ConfigError, lambda: read(BYTES, *rows, ranks=4))
    assert ":2: world_size: 1 of 2 values is not `4`" in message
    assert len(read(BYTES, *rows, ranks=4, filters={"ranks": 4})) == 1


def test_impossible_sizes_and_ranks(read):
    rows = ("all_reduce,2,1024,5", "all_reduce,1,0,5", "all_reduce,2,10.5,5")
    with pytest.raises(ConfigError) as caught:
        read(BYTES, *rows)
    found = [(item.line, item.field) for item in caught.value.diagnostics]
    assert found == [(3, "world_size"), (3, "size_bytes"), (4, "size_bytes")]


def test_other_types_at_the_same_bytes_are_no_repeats(read):
    rows = ("all_reduce,2,512,half,5", "all_reduce,2,1024,int8,50")
    assert len(read(ELEMENTS, *rows)) == 2
    assert read(ELEMENTS, *rows).notes == ()


def test_repeats_that_disagree(read):
    rows = ("all_reduce,2,512,half,5", "all_reduce,2,512,half,8")
    message = refusal(CalibrationError, lambda: read(ELEMENTS, *rows))
    assert "(op=all_reduce, ranks=2, size_bytes=1024, dtype=fp16)" in message
    assert "60% more where 50% are allowed" in message
    assert "--tolerance" in message


A100, H100 = "NVIDIA A100 SXM4 80 GB", "NVIDIA H100 80GB HBM3"


def test_rows_of_another_device_are_refused(read):
    rows = [f"all_reduce,2,{512 * size},5,{H100}" for size in (1, 2)]
    with pytest.raises(ConfigError) as caught:
        read(f"{BYTES},device", *rows, device=A100)
    (problem,) = caught.value.diagnostics
    assert (problem.line, problem.field) == (2, "device")
    assert "--platform h100_sxm" in problem.message
    assert len(read(f"{BYTES},device", *rows, device="NVIDIA H100 SXM5 80 GB")) == 2
    rows[1] = rows[1].replace(H100, "NVIDIA A100-SXM4-80GB")
    message = refusal(ConfigError, lambda: read(f"{BYTES},gpu", *rows, device=A100))
    assert "--where gpu=NVIDIA A100-SXM4-80GB" in message


@pytest.mark.parametrize(("name", "notes"), [("cuda", 1), ("", 0), (A100, 0)])
def test_names_of_no_known_device_are_noted(read, name, notes):
    samples = read(f"{BYTES},device", f"all_reduce,2,512,5,{name}", device=A100)
    assert len(samples.notes) == notes
    own = read(f"{BYTES},device", f"all_reduce,2,512,5,{name}", device="A chip of our own")
    assert len(own.notes) == int(name != "")


def test_a_measured_figure_does_not_choose_among_repeats(read):
    header = f"{BYTES},busbw,host"
    rows = [f"all_reduce,2,{2**power},{time},{2**power / time / 1e3:.3f},{host}"
            for power in range(9, 13) for time, host in ((5, "a"), (8, "b"))]  # fmt: skip
    message = refusal(CalibrationError, lambda: read(header, *rows))
    assert "--where host=a" in message
    alone = [row.rpartition(",")[0] for row in rows]
    assert "--where" not in refusal(CalibrationError, lambda: read(header[:-5], *alone))


def test_too_few_points(read):
    message = refusal(
        CalibrationError, lambda: read(BYTES, "all_reduce,2,1024,5", minimum_points=4)
    )
    assert "1 measurements, at least 4 are needed" in message
