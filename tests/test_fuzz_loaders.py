"""Every reader on mutated files: each is read and usable, or refused with a clear error.

A few hundred files by default, 10,000 with `-m slow`, more with `DSE_FUZZ_FILES=100000`.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
import pytest
from rich.console import Console
import yaml

from dse._reading import JsonProblemError, load_json
from dse.calibration.measurements import ColumnOptions, read_collective, read_embedding, read_gemm
from dse.calibration.microbench import read_session
from dse.cli._request import Request
from dse.cli._versus import changed
from dse.config import parse_plain
from dse.errors import ConfigError
from dse.machine.host import host_profile_text, load_host_profile, platform_host_block
from dse.machine.platforms import load_platform
from dse.model import load_model, read_table_list
from dse.report.terminal import print_study, print_validation
from dse.search import (
    CalibrationFactor,
    RankingMetrics,
    RunOptions,
    ValidatedCandidate,
    Validation,
    ValidationMode,
    ValidationSetting,
    load_study,
    run,
)
from dse.search.space import load_space
from dse.sharding import check_plan, plan_to_json, read_constraints, read_plan
from dse.simulate import simulate
from dse.trace import (
    link,
    match_collectives,
    read_execution_trace,
    read_kineto,
    summarise,
    trace_graph,
)
from dse.trace.capture import read_records
from dse.trace.whatif import read_changes
from tests.conftest import ROOT, make_table
from tests.fuzzing import (
    FILES,
    QUICK_FILES,
    as_json,
    check_reader,
    check_words,
    mutated_bytes,
    packed,
    variants,
)
from tests.search.traces import rank_events
from tests.trace.helpers import document, node
from tests.validation.studies import write_space

if TYPE_CHECKING:
    from pathlib import Path

#: Percentage of the files that each reader gets.
SHARES = {
    "model": 8,
    "platform": 8,
    "calibrations": 6,
    "space": 10,
    "plan": 10,
    "constraints": 5,
    "profile": 5,
    "steps": 6,
    "tables": 8,
    "list": 2,
    "versus": 2,
    "parquet": 2,
    "log": 4,
    "records": 3,
    "kineto": 9,
    "archives": 2,
    "execution": 6,
    "study": 3,
    "validation": 1,
}


@pytest.fixture(params=["quick", pytest.param("all", marks=pytest.mark.slow)])
def count(request):
    """Returns how many mutated files a reader gets."""
    if request.param == "all":
        return lambda reader: FILES * SHARES[reader] // 100
    return lambda reader: max(QUICK_FILES * SHARES[reader] // 100, 20)


def test_the_shares_add_up():
    assert sum(SHARES.values()) == 100


def text_of(*paths: str) -> list[bytes]:
    return [(ROOT / path).read_bytes() for path in paths]


MODEL = b"""\
schema_version: 1
kind: dlrm
name: small
source: a test
dense_features: 13
bottom_mlp: [64, 16]
interaction: {kind: dot}
top_mlp: [64, 1]
optimizer: {dense: sgd, sparse: rowwise_adagrad}
global_batch_size: 4096
table_defaults: {dim: 16, indices: {kind: zipf, alpha: 1.05}}
tables:
  - &one {name: a, rows: 1000, pooling: [1, 2, 3]}
  - {<<: *one, name: b, count: 3, data_type: fp16}
  - name: c
    rows: 50
    indices: {kind: reuse_histogram, row_share: [0.5, 0.5], lookup_share: [0.1, 0.9],
              mean_reuse: 2.5, touched_share: 0.5}
"""
GENERATED = (
    b"\n".join(line for line in MODEL.split(b"\n")[:11] if b"defaults" not in line).replace(
        b"{kind: dot}", b"{kind: concat}"
    )
    + b"\ngenerate: {statistics: meta2021, count: 20, seed: 3}\n"
)


def test_models(tmp_path, count):
    def read(path):
        model = load_model(str(path))
        assert repr(model)
        if hasattr(model, "parameter_count"):
            assert model.parameter_count >= 0
        for table in getattr(model, "tables", ()):
            assert table.rows > 0
            assert table.dim > 0

    seeds = [MODEL, GENERATED, *text_of("models/gpt_1_7b.yaml", "models/bert_base.yaml")]
    check_reader(variants(seeds, count("model"), 1), tmp_path / "a.yaml", read, valid=len(seeds))


def test_platforms(tmp_path, count):
    def read(path):
        platform = load_platform(str(path))
        assert platform.facts
        assert platform.devices_per_node <= 10**6

    seeds = text_of("platforms/p100_pcie.yaml", "platforms/h100_sxm.yaml", "platforms/cpu.yaml")
    check_reader(
        variants(seeds, count("platform"), 2), tmp_path / "p.yaml", read, valid=len(seeds)
    )


def test_calibrations(tmp_path, count):
    host = yaml.safe_load((ROOT / "platforms/p100_pcie.yaml").read_text())
    host |= {"calibrations": [{"file": "mine.json"}]}
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(host))
    built_in = json.loads((ROOT / "platforms/calibrations/cpu.json").read_text())
    collectives = json.loads((ROOT / "platforms/calibrations/h100_sxm_nccl.json").read_text())
    built_in["kernels"] = sorted(built_in["kernels"], key=lambda one: len(str(one)))[:2]
    built_in["collectives"] = [
        {**one, "size_bytes": one["size_bytes"][:6], "time_s": one["time_s"][:6]}
        for one in collectives["collectives"][:2]
    ]

    def read(_path):
        platform = load_platform(str(tmp_path / "p.yaml"))
        for curve in (one for each in platform.links for one in each.calibrations):
            assert curve.curve.at(1e6) >= 0

    files = variants([as_json(built_in)], count("calibrations"), 3)
    check_reader(files, tmp_path / "mine.json", read, valid=1)


TRACE_SPACE = b"""\
schema_version: 1
name: changed
workload: {trace: run, samples_per_step: 128, step: 1}
parameters:
  platform: [same, h100_sxm]
  network_factor: [0.5x, 1x, 2x]
  optimizations:
    - []
    - [halved.yaml]
    - [network=2x, amp]
objectives:
  - {metric: throughput_samples_per_s, direction: maximize}
search: {sampler: nsga2, trials: 50, batch: 4}
"""


def test_spaces(tmp_path, count):
    def read(path):
        space = load_space(path)
        assert repr(space)
        for parameter in space.parameters:
            assert len(parameter.choices) >= 1

    seeds = [TRACE_SPACE, *text_of("search_spaces/dlrm_sharding.yaml")]
    seeds += text_of("search_spaces/gpt_parallelism.yaml")
    check_reader(variants(seeds, count("space"), 4), tmp_path / "s.yaml", read, valid=len(seeds))


PLAN = {
    "schema_version": 1,
    "model": "small",
    "world_size": 4,
    "tables": {
        "a": {"sharding_type": "table_wise", "ranks": [1], "compute_kernel": "fused"},
        "b": {
            "sharding_type": "row_wise",
            "ranks": [0, 1, 2, 3],
            "compute_kernel": "fused_uvm_caching",
            "cache_load_factor": 0.2,
        },
        "c": {"sharding_type": "column_wise", "ranks": [2, 3]},
    },
}
SHARDS = [
    {"shard_offsets": [25 * rank, 0], "shard_sizes": [25, 96], "placement": f"rank:{rank}/cuda:0"}
    for rank in range(4)
]
TORCHREC = {
    "world_size": 4,
    "plan": {
        "arch.user": {
            "a": {
                "sharding_type": "row_wise",
                "compute_kernel": "fused",
                "ranks": [0, 1, 2, 3],
                "sharding_spec": {"shards": SHARDS},
            },
            "b": {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": [0]},
        },
        "": {
            "c": {
                "sharding_type": "table_wise",
                "compute_kernel": "fused",
                "shards": [{**SHARDS[0], "shard_sizes": [100, 96]}],
                "cache_params": {"load_factor": 0.5},
            }
        },
    },
}


def test_plans(tmp_path, count):
    tables = [make_table(name, rows=100, dim=96) for name in "abc"]
    kinds = random.Random(0)

    def read(path):
        plan = read_plan(path, kinds.choice((None, tables)))
        assert plan_to_json(plan, "x")
        check_plan(plan, tables, 4, 2)

    files = variants([as_json(PLAN), as_json(TORCHREC)], count("plan"), 5)
    check_reader(files, tmp_path / "plan.json", read, valid=2)


def test_constraints(tmp_path, count):
    seed = b"""\
schema_version: 1
tables:
  "user_*": {sharding_types: [row_wise, column_wise], compute_kernels: [fused]}
  a: {ranks: [0, 1], min_partition: 32, max_partitions: 4}
  "[a-c]?": {cache_load_factor: 0.2}
"""

    def read(path):
        assert all(one.origin for one in read_constraints(path))

    files = variants([seed], count("constraints"), 6)
    check_reader(files, tmp_path / "c.yaml", read, valid=1)


def test_host_profiles(tmp_path, count):
    figure = "{mean: 5 us, spread: 0.25, count: 100}"
    seed = f"""\
schema_version: 1
name: mine
source: {{files: [rank0.json], devices: [V100], as_of: '2024-05-31'}}
shared:
  launch: {figure}
  after_launch: {figure}
launches:
  cudaLaunchKernel: {figure}
operators:
  aten::mm: {{calls: 3, launches: 1.5, before_launch: {figure}}}
""".encode()

    def read(path):
        profile = load_host_profile(path)
        assert host_profile_text(profile)
        assert platform_host_block(profile)

    files = variants([seed], count("profile"), 7)
    check_reader(files, tmp_path / "h.yaml", read, valid=1)


def test_steps(tmp_path, count):
    seed = b"""\
schema_version: 1
name: changes
steps:
  - {select: {name: "*gemm*", phase: forward, longer_than: 5 us}, scale: 50 %}
  - {select: {collective: all_reduce, rank: [0, 1]}, remove: true}
  - {optimization: network, factor: 2x, latency: 0.5x}
  - {optimization: amp}
  - {optimization: resize, dimensions: "512:1024"}
"""

    def read(path):
        assert all(step.title for step in read_changes(path))

    check_reader(variants([seed], count("steps"), 8), tmp_path / "w.yaml", read, valid=1)


def gemm_rows() -> list[dict[str, object]]:
    return [
        {"m": 128 * (1 + at), "n": 256, "k": 512, "dtype": "bf16", "time_us": 10.5 + at}
        for at in range(6)
    ]


def embedding_rows() -> list[dict[str, object]]:
    return [
        {
            "pass": "forward",
            "rows": 1000 * (1 + at),
            "dim": 64,
            "batch": 512,
            "pooling": 3,
            "value_bytes": 4,
            "alpha": 1.05,
            "time_us": 5 + at,
        }
        for at in range(6)
    ]


def csv_of(rows: list[dict[str, object]]) -> bytes:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    return "\n".join(lines).encode()


def lines_of(rows: list[dict[str, object]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def read_any_table(path: Path) -> None:
    """Reads a table as the one that it is most like."""
    head = path.read_bytes()[:300]
    options = ColumnOptions()
    if b"pooling" in head:
        samples = read_embedding(path, options, minimum_points=1)
    elif b"dtype" in head and b"time_us" in head:
        samples = read_gemm(path, options, minimum_points=1)
    else:
        samples = read_collective(path, options, minimum_points=1)
    assert len(samples.time_s) >= 1
    assert (samples.time_s > 0).all()


def test_tables_and_logs_of_measurements(tmp_path, count):
    seeds = [csv_of(gemm_rows()), lines_of(gemm_rows()), csv_of(embedding_rows())]
    seeds += [lines_of(embedding_rows())]
    new, old = text_of(
        *(f"tests/calibration/measurements/logs/{age}_header.txt" for age in ("new", "old"))
    )
    # Without the run of an operation that is no collective.
    seeds += [new[: new.index(b"# Collective test starting: sendrecv")], old]
    files = variants(seeds, count("tables"), 9)
    check_reader(files, tmp_path / "t.csv", read_any_table, valid=len(seeds))


def test_parquet(tmp_path, count):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = gemm_rows()
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    rng = random.Random(10)
    seed = buffer.getvalue()
    files = (seed if at == 0 else mutated_bytes(seed, rng) for at in range(count("parquet")))

    def read(path):
        assert len(read_gemm(path, minimum_points=1).time_s) >= 1

    check_reader(files, tmp_path / "t.parquet", read, valid=1)


def test_lists_of_tables(tmp_path, count):
    seed = b'name,rows,dim,pooling,data_type,alpha\na,1000,64,3+4,fp16,1.05\n"b, c",50,8,1,,\n'

    def read(path):
        listed = read_table_list(path)
        assert listed.table_count == sum(entry.count for entry in listed.entries) >= 1

    check_reader(variants([seed], count("list"), 19), tmp_path / "t.csv", read, valid=1)


def test_second_configurations(tmp_path, count):
    seed = b"world_size: 16\nlink: pcie\nplan: other.json\nsequence_parallel: true\n"
    asked = Request("m", "p", 8, 1024)

    def read(path):
        other, words = changed(asked, str(path))
        assert other != asked
        assert words

    check_reader(variants([seed], count("versus"), 20), tmp_path / "v.yaml", read, valid=1)


def session_lines() -> bytes:
    machine = {
        "device": "cpu",
        "device_name": "x",
        "device_count": 1,
        "compute_units": 4,
        "driver": "",
        "cores": 4,
        "memory_bytes": 2**34,
        "last_level_cache_bytes": 2**25,
        "operating_system": "Linux",
        "libraries": {"python": "3.11"},
    }
    plan = {"threads": 1, "collectives_backend": "gloo", "points": 4}
    sample = {"time_s": 1e-3, "half_width_s": 1e-5, "repeats": 10, "purpose": "fit"}
    sizes = {"m": 8, "n": 8, "k": 8}
    point = {"op": "gemm", "sizes": sizes, "precision": "fp32", "purpose": "fit"}
    host = dict.fromkeys(
        ("between_operators_s", "before_launch_s", "after_launch_s", "launch_s"), 1e-6
    )
    host |= {"between_launches_s": 0.0, "graph_launch_s": None, "half_width_s": 1e-8}
    lines = [
        {
            "kind": "header",
            "schema_version": 1,
            "date": "2026-01-01",
            "plan": plan,
            "machine": machine,
        },
        {"kind": "kernel", **point, **sample},
        {"kind": "collective", "op": "all_reduce", "ranks": 2, "size_bytes": 1024, **sample},
        {"kind": "host", **host},
        {"kind": "skipped", "point": {"kind": "kernel", **point}, "reason": "no memory"},
        {"kind": "skipped", "point": None, "reason": "no time"},
    ]
    return ("\n".join(map(json.dumps, lines)) + "\n").encode()


def mutated_lines(seed: bytes, files: int, number: int):
    """Yields files of JSON lines in which one line is changed."""
    rng = random.Random(number)
    lines = seed.splitlines()
    yield seed
    for _ in range(files):
        at = rng.randrange(len(lines))
        _, line = variants([lines[at]], 1, rng.randrange(2**32))
        yield b"\n".join([*lines[:at], line, *lines[at + 1 :]]) + b"\n"


def test_logs_of_microbenchmarks(tmp_path, count):
    def read(path):
        result = read_session(path)
        assert result.done >= 0
        assert repr(result)
        for one in result.kernels:
            assert one.time_s > 0
            assert all(float(value) == value for _, value in one.sizes)
        for other in result.collectives:
            assert other.size_bytes * other.ranks * other.time_s == other.time_s * (
                other.ranks * other.size_bytes
            )

    files = mutated_lines(session_lines(), count("log"), 11)
    check_reader(files, tmp_path / "log.jsonl", read, valid=1)


RECORD = {
    "schema_version": 1,
    "rank": 0,
    "world_size": 2,
    "backend": "nccl",
    "host": "host",
    "device": "GPU",
    "dse": "1",
    "python": "3",
    "torch": "2",
    "cuda": "12",
    "settings": {"steps": 1, "stacks": True},
    "counted_by": "step",
    "steps": [5],
    "complete": True,
    "step_s_profiled": 0.011,
    "step_s_unprofiled": 0.01,
    "files": [{"name": "rank0.pt.trace.json.gz", "size_bytes": 3, "sha256": "ab"}],
}


def test_records_of_captures(tmp_path, count):
    def read(path):
        (record,) = read_records(path.parent)
        assert record.overhead is None or record.overhead >= -1.0
        assert isinstance(record.distorted, bool)

    folder = tmp_path / "run"
    folder.mkdir()
    files = variants([as_json(RECORD)], count("records"), 12)
    check_reader(files, folder / "rank0.capture.json", read, valid=1)


KINETO = document(
    rank_events(), 0, 2, deviceProperties=[{"id": 0, "name": "V100"}], baseTimeNanoseconds=5
)


def use_kineto(path: Path) -> None:
    """Reads a trace and does with it what `dse trace info` does."""
    traces = read_kineto(path)
    links = [link(trace) for trace in traces]
    collectives = match_collectives(traces, links)
    summary = summarise(traces, links, collectives)
    assert len(summary.ranks) == len(traces)
    made = trace_graph(traces, links, collectives)
    assert simulate(made.graph).makespan_s >= 0


def test_kineto_traces(tmp_path, count):
    files = variants([as_json(KINETO)], count("kineto"), 13)
    check_reader(files, tmp_path / "rank0.json", use_kineto, valid=1)


def test_archives(tmp_path, count):
    """Gzip and tar around traces, mutated outside and inside."""
    rng = random.Random(14)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in (
            ("rank0.json", as_json(KINETO)),
            ("run/rank1.json.gz", packed(as_json(KINETO))),
            ("x" * 150 + "rank2.json", b"{}"),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.pax_headers = {"comment": "x", "mtime": "1.5"}
            archive.addfile(info, io.BytesIO(content))
    tar = buffer.getvalue()

    def files():
        for _ in range(count("archives")):
            kind = rng.randrange(4)
            if kind == 0:
                yield packed(mutated_bytes(as_json(KINETO), rng))
            elif kind == 1:
                yield mutated_bytes(packed(as_json(KINETO)), rng)
            elif kind == 2:
                yield packed(mutated_bytes(tar, rng))
            else:
                at = rng.randrange(len(tar) // 512) * 512
                head = mutated_bytes(tar[at : at + 512], rng)[:512].ljust(512, b"\0")
                yield tar[:at] + with_checksum(head) + tar[at + 512 :]

    check_reader(files(), tmp_path / "run.tar.gz", read_kineto)


def with_checksum(header: bytes) -> bytes:
    """Returns a block of a tar archive whose checksum is right whatever else is in it."""
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    return header[:148] + f"{total:06o}\0 ".encode() + header[156:]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The files of a finished study with its validation."""
    folder = tmp_path_factory.mktemp("finished")
    study = run(write_space(folder), RunOptions(out=folder / "study", executor="serial"))
    directory = study.directory
    directory.write_validation(VALIDATION)
    paths = (directory.header, directory.journal, directory.validation)
    return {path.name: path.read_bytes() for path in paths}


VALIDATION = Validation(
    schema_version=1,
    sentence="use 1",
    agreement=RankingMetrics(1, 1, 0.0, True, None, 1.0, 1, 1, 0, 1.0, None),
    candidates=(
        ValidatedCandidate(
            1, (2,), "best", 2, 64, 1e-3, 2, 64, 1e-3, 9e-4, 2e-3, 1.1e-3, None, 2e-3, (1e-3,), 5,
            1e-3, True,
        ),
    ),
    factors=(CalibrationFactor("cpu", ValidationMode.REAL, 1, 1.1, 1.0),),
    setting=ValidationSetting(
        "2026-01-01", ValidationMode.REAL, "cpu", "x", 2, 1e9, 1, (("python", "3.11"),), "cpu",
        1.0, 0, 60.0, False, ("words",), ((3, "too large"),),
    ),
)  # fmt: skip


def use_study(path: Path) -> None:
    """Loads a study and does with it what printing, exporting and the tables do."""
    study = load_study(path.parent)
    result = study.result
    print_study(result, Console(file=io.StringIO(), width=200), [("report", "report.html")])
    if result.validation is not None:
        print_validation(result.validation, Console(file=io.StringIO(), width=200))
    for record in result.records:
        if record.configuration is not None and record.configuration.plan is not None:
            assert plan_to_json(record.configuration.plan, result.model_name)


def test_studies(tmp_path, finished, count):
    folder = tmp_path / "study"
    folder.mkdir()

    def read_with(name, files, valid):
        for other, content in finished.items():
            (folder / other).write_bytes(content)
        check_reader(files, folder / name, use_study, valid=valid)

    number = count("study") // 2
    read_with("study.yaml", variants([finished["study.yaml"]], number, 16), 1)
    read_with("journal.log", mutated_lines(finished["journal.log"], number, 17), 1)
    files = variants([finished["validation.json"]], count("validation"), 18)
    read_with("validation.json", files, 1)


TENSOR = [5, 6, 0, 112, 4, "cuda:0"]


def execution_seeds() -> list[bytes]:
    old = [
        node(2, "thread", 1),
        node(7, "aten::slice", 2, rf=3, seq=440, inputs=[[TENSOR]], types=["Tensor(float)"]),
        node(8, "aten::mm", 7, rf=4, inputs=[TENSOR, [48], 0], shapes=[[112], [[]], []]),
        node(
            30,
            "record_param_comms",
            2,
            inputs=[[[1, 2, 0, 16, 8, "cuda:1"]], 3, 0, "all_to_all", [1, 3], [2, 2]],
        ),
    ]
    values = {
        "values": [TENSOR, [1, 2]],
        "shapes": [[112], []],
        "types": ["Tensor(float)", "GenericList[Int,Int]"],
        "strides": [[1], []],
    }
    attributes = {"rf_id": 3, "fw_parent": 0, "seq_id": -1, "scope": 7, "tid": 1, "fw_tid": 0}
    listed = [{"name": name, "type": "int64", "value": at} for name, at in attributes.items()]
    listed += [{"name": "op_schema", "type": "string", "value": "aten::mm(Tensor a) -> Tensor"}]
    new = [
        {
            "id": at,
            "name": name,
            "ctrl_deps": 1,
            "inputs": values,
            "outputs": values,
            "attrs": listed,
        }
        for at, name in ((2, "thread"), (3, "aten::mm"), (4, "process_group:init"))
    ]
    return [
        as_json({"schema": "1.0.1", "pid": 10, "nodes": old}),
        as_json({"schema": "1.1.0-chakra.0.0.4", "pid": 10, "nodes": new}),
    ]


def test_execution_traces(tmp_path, count):
    def read(path):
        (trace,) = read_execution_trace(path, arguments=True)
        assert len(trace.arguments) == len(trace)
        assert all(trace.name_of(at) is not None for at in range(len(trace)))
        assert (trace.parent < len(trace)).all()

    files = variants(execution_seeds(), count("execution"), 15)
    check_reader(files, tmp_path / "rank0.et.json", read, valid=2)


# --- texts that no seed resembles ----------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON_VALUES)
def test_json_that_is_taken_can_be_written_again(value):
    try:
        data = load_json(json.dumps(value))
    except JsonProblemError:
        return
    written = json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    assert load_json(written) == data


@given(st.text() | st.text(alphabet="[]{}:,-&*!?|>#'\"% \n\tab01.~<"))
def test_any_text_as_json_and_yaml(text):
    for read, error in ((load_json, JsonProblemError), (parse_plain, ConfigError)):
        try:
            read(text)
        except error as found:
            check_words(found)


@given(st.binary())
def test_any_bytes_as_json(content):
    try:
        load_json(content)
    except JsonProblemError as found:
        check_words(found)
