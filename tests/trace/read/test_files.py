"""Files of traces: formats, damage, limits, and files that do not belong together."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile

import pytest

from dse.errors import ConfigError
from dse.trace import read_execution_trace, read_kineto
from tests.trace.helpers import document, execution_trace, kernel, node, operator, span, write

EVENTS = [operator("a", 10, 5), kernel("k", 12, 4, 1)]


def text(rank=None, events=EVENTS, **top):
    return json.dumps(document(events, rank, **top)).encode()


def archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def fails(path, match, reader=read_kineto, **options):
    with pytest.raises(ConfigError, match=match) as raised:
        reader(path, **options)
    return str(raised.value)


def test_the_same_from_every_kind_of_file(tmp_path):
    plain = tmp_path / "all"
    plain.mkdir()
    for rank in (1, 0):
        (plain / f"worker{rank}.pt.trace.json").write_bytes(text(rank))
    packed = tmp_path / "packed"
    packed.mkdir()
    for rank in (1, 0):
        (packed / f"{rank}.json.gz").write_bytes(gzip.compress(text(rank)))
    (packed / "readme.txt").write_text("no trace")
    tar = archive(
        tmp_path / "both.tar.gz",
        {"in/w1.json": text(1), "in/._w1.json": b"\0", "in/w0.json.gz": gzip.compress(text(0))},
    )
    for path in (plain, packed, tar):
        traces = read_kineto(path)
        assert [trace.rank for trace in traces] == [0, 1]
        assert [len(trace) for trace in traces] == [2, 2]
        assert all(trace.world_size == 2 for trace in traces)
    assert read_kineto(tar)[1].file == f"{tar}:in/w1.json"


@pytest.mark.parametrize("cut", [30, 150, 230])
def test_truncated_json(tmp_path, cut):
    path = tmp_path / "t.json"
    path.write_bytes(text()[:cut])
    message = fails(path, r"t\.json: the JSON ends too early, after \d+ bytes")
    assert "copy the trace again" in message
    assert ("in or after event" in message) == (cut > 100)


def test_truncated_json_names_the_event(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(text(events=[operator("a", i, 1) for i in range(9)])[:-40])
    assert "in or after event 8" in fails(path, "too early")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"{]", "not valid JSON"),
        (b"[1, 2]", "not a trace"),
        (b"{}", "`traceEvents` is missing"),
        (b'{"nodes": [], "schema": "1.0.1"}', "it looks like an execution trace"),
        (b'{"traceEvents": 3}', "not a trace"),
        (b'{"traceEvents": []}', "no event has a duration"),
        (b'{"traceEvents": [{"ph": "M"}, 3, null]}', r"2 of 2 events cannot be used"),
        (b'{"traceEvents": [' + b"[" * 200_000, "nested too deeply|too early"),
    ],
)
def test_not_a_trace(tmp_path, content, message):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    assert str(path) in fails(path, message)


def test_damaged_gzip(tmp_path):
    packed = gzip.compress(text(events=[operator(f"op{i}", i, 1) for i in range(500)]))
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    assert "t.json.gz: the gzip data is damaged" in fails(path, "copy it again")
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    broken[-6] ^= 0xFF
    path.write_bytes(broken)
    fails(path, "damaged")
    path.write_bytes(b"\x1f\x8b\x09" + packed[3:])
    fails(path, "damaged")


def test_damaged_archives(tmp_path):
    fails(archive(tmp_path / "a.tar.gz", {"x.txt": b"a"}), "no .json files in this archive")
    fails(archive(tmp_path / "b.tar.gz", {"../x.json": b"a"}), "`../x.json` points outside")
    fails(archive(tmp_path / "c.tar.gz", {"/x.json": b"a"}), "`/x.json` points outside")
    path = tmp_path / "d.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("x.json")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    fails(path, "`x.json` is a link, a device")
    whole = gzip.decompress(archive(tmp_path / "e.tar.gz", {"x.json": text()}).read_bytes())
    path.write_bytes(whole[:600])
    fails(path, "damaged")


def test_unpacked_bytes_are_limited(tmp_path, monkeypatch):
    monkeypatch.setenv("DSE_MAX_FILE_BYTES", "1000000")
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 10_000_000))
    fails(path, "more than the limit of 1000000 unpacked bytes")
    tar = archive(tmp_path / "bomb.tar.gz", {"skipped.txt": b" " * 10_000_000, "t.json": text()})
    fails(tar, "more than the limit")
    inner = archive(tmp_path / "in.tar.gz", {"t.json.gz": gzip.compress(b" " * 10_000_000)})
    fails(inner, r"in.tar.gz:t.json.gz: more than the limit")


def test_missing_paths(tmp_path):
    fails(tmp_path / "none.json", "no such file")
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", "no traces in this folder")
    inner = tmp_path / "empty" / "inner"
    inner.mkdir()
    (inner / "rank0.json").write_text("{}")
    fails(tmp_path / "empty", f"no traces in this folder.* {re.escape(str(inner))}")


def many(*odd, count=100):
    return [operator("a", 10 + i, 5) for i in range(count)] + list(odd)


def test_a_few_broken_times_are_counted(tmp_path):
    no_start = {"ph": "X", "cat": "cpu_op", "name": "a", "dur": 1, "pid": 1, "tid": 1}
    no_end = {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "pid": 1, "tid": 1}
    odd = [operator("b", 20, -1), no_start, no_end, operator("b", "soon", 1), 17]
    odd += [operator("b", 20, 1e300), operator("c", "25.5", 1)]
    path = write(tmp_path / "t.json", many(*odd, count=300))
    (trace,) = read_kineto(path)
    assert len(trace) == 301
    assert trace.notes == (
        "1 events are not objects with plain values; left out, the first is event 304",
        "1 events have a negative duration (`dur`); left out, the first is event 300",
        "1 events have no duration (`dur`); left out, the first is event 302",
        "2 events have no start (`ts`); left out, the first is event 301",
        "1 events last more than 30 days (`dur`); left out, the first is event 305",
    )


def test_many_broken_times_are_refused(tmp_path):
    path = write(tmp_path / "t.json", many(*[operator("b", 20, -1)] * 4))
    message = fails(path, r"4 of 104 events cannot be used, more than 3%")
    assert "4 events have a negative duration (`dur`); left out, the first is event 100" in message


def test_jumps_of_the_clock(tmp_path):
    far = kernel("k", 10 + 5 * 3600e6, 5, 3)
    (trace,) = read_kineto(write(tmp_path / "t.json", many(far, operator("z", 0, 1))))
    assert trace.notes[-1] == (
        "1 events start hours away from the others (`ts`; the clock jumped); left out, "
        "the first is event 100"
    )
    fails(write(tmp_path / "u.json", many(*[far] * 5)), "5 of 105 events cannot be used")


def two(
    tmp_path, first, second, *, names=("rank0.json", "rank1.json"), sizes=(2, 2), ranks=(0, 1)
):
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    for name, events, size, rank in zip(names, (first, second), sizes, ranks, strict=True):
        write(folder / name, events, rank=rank, world_size=size)
    return folder


def step(number, ts=0):
    return [span("user_annotation", f"ProfilerStep#{number}", ts, 10)]


def test_ranks_of_different_runs(tmp_path):
    both = r"rank0.json and .*rank1.json belong to different runs: "
    fails(two(tmp_path, EVENTS, EVENTS, sizes=(2, 4)), both + "2 and 4 ranks")
    fails(two(tmp_path, step(3), step(4)), both + "one has profiler steps 3, the other 4")
    fails(two(tmp_path, step(3), step(3, 5e6)), both + r"5\.0 s lie between the end")
    assert len(read_kineto(two(tmp_path, step(3), step(3, 1000)))) == 2


def test_ranks_twice_missing_and_unknown(tmp_path):
    fails(two(tmp_path, EVENTS, EVENTS, ranks=(1, 1)), r"rank0.json and .*both belong to rank 1")
    traces = read_kineto(two(tmp_path, EVENTS, EVENTS, sizes=(4, 4), ranks=(0, 3)))
    assert all(trace.notes[-1] == "2 of 4 ranks have no trace: 1, 2" for trace in traces)
    folder = tmp_path / "other"
    folder.mkdir()
    write(folder / "alpha.json", EVENTS)
    write(folder / "beta.json", EVENTS)
    fails(folder, "alpha.json: neither `distributedInfo`")


@pytest.mark.parametrize(
    "name", ["rank3.json", "worker3_step_12.1694.pt.trace.json", "et-3.json", "gpu_3_x.json"]
)
def test_ranks_from_names(tmp_path, name):
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / name, EVENTS)
    write(tmp_path / "run" / "rank_12.json", EVENTS)
    assert [trace.rank for trace in read_kineto(tmp_path / "run")] == [3, 12]


def test_execution_traces_are_checked(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(text())
    fails(path, "`nodes` is missing; it looks like a Kineto trace", read_execution_trace)
    fails(execution_trace(path, []), "without nodes", read_execution_trace)
    nodes = [node(2, "a", 1)]
    fails(execution_trace(path, nodes, "7.1"), "schema `7.1`", read_execution_trace)
    del nodes[0]["id"]
    fails(execution_trace(path, nodes), "node 0 has no usable `id`", read_execution_trace)
