"""Mutated traces, archives and records of captures."""

from __future__ import annotations

import io
import random
import tarfile
from typing import TYPE_CHECKING

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
from tests.fuzzing import (
    as_json,
    check_reader,
    mutated_bytes,
    packed,
    variants,
)
from tests.search.traces import rank_events
from tests.trace.helpers import document, node

if TYPE_CHECKING:
    from pathlib import Path

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
