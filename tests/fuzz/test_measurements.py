"""Mutated tables, logs and sessions of measurements."""

from __future__ import annotations

import io
import json
import random
from typing import TYPE_CHECKING

import pytest

from dse.calibration.measurements import ColumnOptions, read_collective, read_embedding, read_gemm
from dse.calibration.microbench import read_session
from dse.model import read_table_list
from tests.fuzzing import (
    check_reader,
    mutated_bytes,
    mutated_lines,
    text_of,
    variants,
)

if TYPE_CHECKING:
    from pathlib import Path


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
