from __future__ import annotations

from pathlib import Path

import pytest

from dse.calibration.measurements import ColumnOptions, read_collective, read_gemm
from dse.errors import ConfigError
from tests.calibration.measurements.helpers import refusal, write
from tests.nccl_logs import nccl_log

LOGS = Path(__file__).parent / "logs"
NEW, OLD = LOGS / "new_header.txt", LOGS / "old_header.txt"

#: A log of one run that does not name its operation, with two ranks.
RUN = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#  Rank  0 Group  0 Pid   10 on     box device  0 [0x01] Example GPU
#  Rank  1 Group  0 Pid   10 on     box device  1 [0x03] Example GPU
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8             2     float     sum      -1     5.00    0.00    0.00      0     4.00    0.00    0.00      0
          16             4     float     sum      -1     6.00    0.00    0.00      0     5.00    0.00    0.00      0
"""  # noqa: E501
RANKS = "\n".join(RUN.splitlines()[1:3]) + "\n"


def read(path, *, minimum_points=1, **options):
    return read_collective(path, ColumnOptions(**options), minimum_points=minimum_points)


def test_new_header_with_two_runs_labels_and_noise():
    samples = read(NEW)
    assert samples.op.tolist() == ["all_reduce"] * 3 + ["send_recv"] * 2
    assert samples.ranks.tolist() == [4, 4, 4, 2, 2]
    assert samples.size_bytes.tolist() == [1024, 32768, 1048576, 1024, 1048576]
    assert samples.time_s == pytest.approx([20.5e-6, 24e-6, 60.25e-6, 12e-6, 1.2e-3])
    assert samples.dtype.tolist() == ["fp32"] * 3 + ["fp16"] * 2
    assert samples.origin.place(int(samples.source_rows[0])) == f"{NEW}:16"


@pytest.mark.parametrize(("log", "version"), [(NEW, "2.27.3"), (OLD, "2.7.8")])
def test_the_version_is_the_one_that_the_log_states(log, version):
    assert set(read(log).nccl.tolist()) == {version}
    assert set(read(log, nccl="2.30.1").nccl.tolist()) == {"2.30.1"}


def test_a_log_may_leave_the_version_open(tmp_path):
    samples = read(write(tmp_path, "run.txt", RUN), op="all_reduce")
    assert samples.nccl.tolist() == ["", ""]


def test_in_place_times_are_taken_on_demand():
    samples = read(NEW, in_place=True)
    assert samples.time_s == pytest.approx([19.75e-6, 23.1e-6, 59e-6, 12.5e-6, 75e-6])
    assert "log of nccl-tests: in-place times in µs" in samples.notes


@pytest.mark.parametrize(
    "label",
    [
        "[{0},0]<stdout>:",
        "[prterun-box-{0}@1,0]<stdout>: ",
        "{0:2}: ",
        "box-{0}: ",
        "[pod/launcher-{0}/nccl] ",
        "2026-11-24T12:00:{0}.123Z ",
        "Tue Nov 24 12:00:{0} 2026[1,0]<stdout>:",
    ],
)
def test_labels_of_lines_are_left_out(tmp_path, label):
    lines = [f"{label.format(7 + 2 * at)}{line}" for at, line in enumerate(RUN.splitlines())]
    samples = read(write(tmp_path, "log.txt", "\n".join(["mpirun …", *lines])), op="all_reduce")
    assert samples.size_bytes.tolist() == [8, 16]
    assert samples.ranks.tolist() == [2, 2]


def test_a_torn_row_before_the_columns_is_no_label(tmp_path):
    path = write(tmp_path, "log.txt", RUN + RUN.replace("#       size", " 64   #       size"))
    assert read(path, op="all_reduce").size_bytes.tolist() == [8, 16]


def test_rows_before_a_failure_are_kept(tmp_path):
    failure = "box: Test NCCL failure common.cu:958 'unhandled system error'\n"
    path = write(tmp_path, "log.txt", RUN + failure)
    samples = read(path, op="all_reduce")
    assert samples.size_bytes.tolist() == [8, 16]
    assert f"nccl-tests failed, first {path}:7; earlier rows are kept" in samples.notes
    path = write(tmp_path, "failed.txt", "".join(RUN.splitlines(True)[:4]) + failure)
    assert f"{path}:5: nccl-tests failed" in refusal(ConfigError, lambda: read(path))


def test_torn_rows_are_counted_with_their_place():
    assert f"1 rows torn by other output left out, first {NEW}:19" in read(NEW).notes


def test_old_headers_without_root_and_without_redop():
    samples = read(OLD)
    assert samples.op.tolist() == ["all_gather"] * 3 + ["all_reduce"] * 2
    assert set(samples.ranks.tolist()) == {2}
    assert samples.size_bytes.tolist() == [1024, 8192, 65536, 1024, 65536]
    assert samples.time_s == pytest.approx([13.39e-6, 16.57e-6, 30.1e-6, 14.4e-6, 39e-6])
    assert "1 rows of size 0 left out" in samples.notes


def test_in_place_times_of_old_headers():
    assert read(OLD, in_place=True).time_s[-1] == pytest.approx(38.5e-6)


def test_runs_can_be_chosen():
    samples = read(OLD, filters={"op": "all_reduce"})
    assert len(samples) == 2
    assert "filter op=all_reduce: 2 of 5 rows kept" in samples.notes


def test_an_operation_for_the_whole_file_must_not_contradict_it():
    message = refusal(ConfigError, lambda: read(OLD, op="all_reduce"))
    assert f"{OLD}:15: op: 3 of 5 values are not `all_reduce`" in message
    assert "--where op=all_reduce" in message


def test_an_operation_that_the_log_does_not_say_is_asked_for(tmp_path):
    path = write(tmp_path, "log.txt", RUN)
    message = refusal(ConfigError, lambda: read(path))
    assert f"{path}:5: op: the log does not say the operation of 2 of 2 rows; pass --op" in message
    assert read(path, op="all_reduce_perf").op.tolist() == ["all_reduce"] * 2


def test_ranks_that_the_log_does_not_say_are_asked_for(tmp_path):
    path = write(tmp_path, "log.txt", RUN.replace(RANKS, ""))
    message = refusal(ConfigError, lambda: read(path, op="all_reduce"))
    assert "number of ranks of 2 of 2 rows; pass --ranks" in message
    assert read(path, op="all_reduce", ranks=8).ranks.tolist() == [8, 8]


def test_a_list_of_ranks_that_was_cut_short_is_not_counted(tmp_path):
    cut = RUN.replace("[0x03] Example GPU", "[0x03...")
    path = write(tmp_path, "log.txt", cut)
    assert "pass --ranks" in refusal(ConfigError, lambda: read(path, op="all_reduce"))


def test_groups_have_their_own_ranks(tmp_path):
    more = RANKS.replace("Rank  0", "Rank  2").replace("Rank  1", "Rank  3")
    split = RUN.replace(RANKS, RANKS + more.replace("Group  0", "Group  1"))
    samples = read(write(tmp_path, "log.txt", split), op="all_reduce")
    assert samples.ranks.tolist() == [2, 2]
    assert any("2 groups at the same time" in note for note in samples.notes)


def test_one_rank_is_no_collective(tmp_path):
    path = write(tmp_path, "log.txt", RUN.replace(RANKS, RANKS.splitlines()[0] + "\n"))
    message = refusal(ConfigError, lambda: read(path, op="all_reduce"))
    assert f"{path}:4: ranks: 2 of 2 values are out of range, here `1`" in message


def test_wrong_results_are_refused(tmp_path):
    broken = RUN.replace("6.00    0.00    0.00      0", "6.00    0.00    0.00     12")
    path = write(tmp_path, "log.txt", broken)
    message = refusal(ConfigError, lambda: read(path, op="all_reduce"))
    assert f"{path}:6: #wrong: 1 of 2 results are wrong" in message


def test_launch_times_of_the_cpu_are_refused(tmp_path):
    path = write(tmp_path, "log.txt", RUN.replace("    time ", " cputime "))
    message = refusal(ConfigError, lambda: read(path, op="all_reduce"))
    assert f"{path}:4: cputime: these are launch times of the CPU" in message


def test_an_unknown_program_gets_a_hint(tmp_path):
    path = write(tmp_path, "log.txt", "$ ./build/all_reduced_perf -g 2\n" + RUN)
    message = refusal(ConfigError, lambda: read(path))
    assert "of the unknown operation `all_reduced`; did you mean `all_reduce`?" in message


def test_a_log_without_rows_is_refused(tmp_path):
    path = write(tmp_path, "log.txt", "\n".join(RUN.splitlines()[:4]))
    assert "no results" in refusal(ConfigError, lambda: read(path, op="all_reduce"))


@pytest.mark.parametrize("last", ["# Using devices", "NCCL version 2.27.3+cuda12.9"])
@pytest.mark.parametrize("label", ["", "[default0]:", "0: ", "[1,0]<stdout>:"])
def test_a_log_that_ends_in_its_header_is_one_of_nccl_tests(tmp_path, last, label):
    lines = ("# nThread 1 nGpus 1 minBytes 8 maxBytes 64", "#", last)
    path = write(tmp_path, "log.txt", "".join(f"{label}{line}\n" for line in lines))
    assert "this log of nccl-tests has no results" in refusal(ConfigError, lambda: read(path))


def test_a_table_may_keep_the_comment_of_a_log(tmp_path):
    text = "# nThread 1 nGpus 1\nop,ranks,size_bytes,time_us\nall_reduce,2,1024,10\n"
    path = write(tmp_path, "table.csv", text)
    assert read(path, time_unit="us").time_s == pytest.approx([1e-5])


def test_what_was_left_out_is_said_where_nothing_is_left(tmp_path):
    header, row = RUN.splitlines()[3], "           0             0     float"
    path = write(tmp_path, "log.txt", f"# nThread 1\n{header}\n{row}     sum 0 0 0 0 0 0 0 0 0\n")
    assert "1 rows of size 0" in refusal(ConfigError, lambda: read(path, op="all_reduce"))


def test_a_log_holds_no_matrix_multiplications():
    message = refusal(ConfigError, lambda: read_gemm(NEW))
    assert "this is a log of nccl-tests" in message
    assert "dse fit collective" in message


def test_numbers_of_thousands_of_digits_are_torn_rows(tmp_path):
    huge = "1" * 5000
    path = write(tmp_path, "log.txt", RUN + f"  {huge}  4  float  sum  -1  6.00  0.00  0.00  0\n")
    samples = read(path, op="all_reduce")
    assert samples.size_bytes.tolist() == [8, 16]
    assert f"1 rows torn by other output left out, first {path}:7" in samples.notes


def test_ranks_of_thousands_of_digits_are_not_counted(tmp_path):
    path = write(tmp_path, "log.txt", RUN.replace("Rank  1", "Rank  " + "1" * 5000))
    message = refusal(ConfigError, lambda: read(path, op="all_reduce"))
    assert "at least" in message or "a number from 2" in message
    path = write(tmp_path, "log.txt", RUN.replace("Group  0", "Group  " + "1" * 5000))
    assert "number of ranks" in refusal(ConfigError, lambda: read(path, op="all_reduce"))


def test_hosts_are_the_nodes_of_a_run():
    assert read(NEW).nodes.tolist() == [2, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("ranks", "nodes"),
    [
        (("box", "box"), 1),
        (("box", "bin"), 2),
        (("box", "box", "bin"), 0),
    ],
)
def test_nodes_are_known_where_hosts_have_equally_many_ranks(tmp_path, ranks, nodes):
    lines = [
        f"#  Rank {rank:2d} Group  0 Pid   10 on {host:>8} device  {rank} [0x01] Example GPU"
        for rank, host in enumerate(ranks)
    ]
    path = write(tmp_path, "log.txt", RUN.replace(RANKS, "\n".join(lines) + "\n"))
    assert set(read(path, op="all_reduce").nodes.tolist()) == {nodes}


def law(size):
    return 1e-5 + size / 100e9


@pytest.mark.parametrize("op", ["all_gather", "all_to_all", "broadcast"])
@pytest.mark.parametrize("run", ["all_reduce", "reduce_scatter"])
def test_a_reduction_is_not_taken_for_another_operation(tmp_path, run, op):
    path = write(tmp_path, "log.txt", nccl_log(run, 1, law, named=False))
    with pytest.raises(ConfigError) as error:
        read(path, op=op)
    found = {one.field: one.message for one in error.value.diagnostics}
    assert "`sum`" in found["redop"]
    assert f"`{op}`" in found["redop"]


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("run", ["all_gather", "alltoall"])
def test_what_reduces_nothing_is_not_taken_for_a_reduction(tmp_path, run, op):
    path = write(tmp_path, "log.txt", nccl_log(run, 1, law, named=False))
    with pytest.raises(ConfigError) as error:
        read(path, op=op)
    found = {one.field: one.message for one in error.value.diagnostics}
    assert "`none`" in found["redop"]
    assert f"`{op}`" in found["redop"]


@pytest.mark.parametrize(
    ("run", "op"),
    [
        ("all_reduce", "reduce_scatter"),
        ("reduce_scatter", "all_reduce"),
        ("alltoall", "broadcast"),
        ("all_reduce", "send_recv"),
    ],
)
def test_the_ratio_of_bandwidths_tells_operations_apart(tmp_path, run, op):
    path = write(tmp_path, "log.txt", nccl_log(run, 1, law, named=False))
    with pytest.raises(ConfigError) as error:
        read(path, op=op)
    (problem,) = error.value.diagnostics
    assert problem.field == "bus_ratio"
    assert f"`{op}`" in problem.message


def test_a_stated_operation_may_contradict_its_log_as_well(tmp_path):
    text = nccl_log("all_reduce", 1, law).replace("starting: all_reduce", "starting: all_gather")
    with pytest.raises(ConfigError) as error:
        read(write(tmp_path, "log.txt", text))
    assert {one.field for one in error.value.diagnostics} == {"redop"}


@pytest.mark.parametrize("per_node", [2, 3, 8])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("run", ["all_reduce", "all_gather", "reduce_scatter", "alltoall"])
def test_a_log_agrees_with_its_own_operation(tmp_path, run, in_place, per_node):
    path = write(tmp_path, "log.txt", nccl_log(run, 2, law, per_node=per_node, named=False))
    samples = read(path, op=run, in_place=in_place)
    assert len(samples) == 21


def test_rows_of_another_operation_may_be_left_out(tmp_path):
    text = "".join(nccl_log(run, 1, law, named=False) for run in ("all_reduce", "all_gather"))
    samples = read(write(tmp_path, "log.txt", text), op="all_gather", filters={"redop": "none"})
    assert len(samples) == 21


def test_groups_and_early_versions_print_other_ratios(tmp_path):
    # Of two groups of eight, all sixteen ranks are counted in the bus bandwidth.
    text = nccl_log("all_reduce", 2, law, named=False)
    split = text.replace("Group  0", "Group  1", 8)
    assert len(read(write(tmp_path, "log.txt", split), op="all_reduce")) == 21
    rows = [
        line if line.startswith("#") or "float" not in line else _equal_rates(line)
        for line in nccl_log("all_gather", 1, law, named=False).splitlines()
    ]
    assert len(read(write(tmp_path, "log.txt", "\n".join(rows)), op="all_gather")) == 21


def _equal_rates(line):
    cells = line.split()
    cells[7], cells[11] = cells[6], cells[10]
    return " ".join(cells)


def test_early_versions_left_the_operator_blank(tmp_path):
    text = RUN.replace("     sum ", "         ").replace("    root", "").replace("      -1 ", " ")
    samples = read(write(tmp_path, "log.txt", text), op="all_to_all")
    assert samples.time_s == pytest.approx([5e-6, 6e-6])


def test_sizes_of_a_log_are_in_bytes(tmp_path):
    path = write(tmp_path, "log.txt", RUN)
    with pytest.raises(ConfigError) as error:
        read(path, op="all_reduce", size_unit="elements")
    assert (error.value.key, error.value.value) == ("size_unit", "elements")
    assert read(path, op="all_reduce", size_unit="bytes").size_bytes.tolist() == [8, 16]
