"""`rank<r>.capture.json` and the files it stands for."""

from __future__ import annotations

from dataclasses import replace
import gzip
import json

import pytest

from dse.errors import ConfigError
from dse.trace import read_execution_trace, read_kineto
from dse.trace.capture import CapturedFile, CaptureRecord, CaptureSettings, read_records
from dse.trace.capture._files import write_record
from dse.trace.capture._profiler import pack
from tests.trace.helpers import execution_trace, node, operator, write

RECORD = CaptureRecord(
    rank=0,
    world_size=2,
    backend="nccl",
    host="host",
    device="GPU",
    dse="1",
    python="3",
    torch="2",
    cuda="12",
    settings=CaptureSettings(steps=1, stacks=True),
    counted_by="step",
    steps=(5,),
    complete=True,
    step_s_profiled=0.011,
    step_s_unprofiled=0.01,
    files=(CapturedFile("rank0.pt.trace.json.gz", 3, "ab"),),
)


def test_records_come_back_in_order_of_ranks(tmp_path):
    records = [replace(RECORD, rank=rank) for rank in (10, 2, 0)]
    for record in records:
        write_record(tmp_path, record)
    assert read_records(tmp_path) == tuple(reversed(records))
    assert read_records(tmp_path / "none") == ()


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 1}', '{"schema_version": 2}'])
def test_what_is_no_record_is_refused(tmp_path, text):
    (tmp_path / "rank0.capture.json").write_text(text)
    with pytest.raises(ConfigError, match=r"rank0\.capture\.json.*capture again"):
        read_records(tmp_path)


def test_the_first_wrong_field_of_a_record_is_named(tmp_path):
    write_record(tmp_path, RECORD)
    path = tmp_path / "rank0.capture.json"
    whole = json.loads(path.read_text())
    for change, field in (
        ({"rank": "x"}, "rank"),
        ({"settings": {"steps": "x"}}, r"settings\.steps"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(ConfigError, match=rf"\({field}: "):
            read_records(tmp_path)


@pytest.mark.parametrize(
    ("profiled_s", "unprofiled_s", "overhead", "distorted"),
    [
        (0.0109, 0.01, 0.09, False),
        (0.0112, 0.01, 0.12, True),
        (0.0088, 0.01, -0.12, True),
        (None, 0.01, None, False),
        (0.01, None, None, False),
    ],
)
def test_a_tenth_more_is_a_distortion(profiled_s, unprofiled_s, overhead, distorted):
    record = replace(RECORD, step_s_profiled=profiled_s, step_s_unprofiled=unprofiled_s)
    assert record.overhead == (None if overhead is None else pytest.approx(overhead))
    assert record.distorted is distorted


def test_packing_hides_places_and_renames_what_was_cut_off(tmp_path):
    source = tmp_path / "k.json"
    events = [
        {"name": "ProfilerStep#1"},
        {"name": "ProfilerStep#12"},
        {"name": 'user "traceName": "x"'},
    ]
    lines = ",\n".join(json.dumps(event) for event in events)
    source.write_text(f'{{"traceEvents": [\n{lines}\n],"traceName": "/home/me/k.json" }}')
    packed = pack(source, tmp_path / "rank0.pt.trace.json.gz", incomplete_step=1)
    with gzip.open(tmp_path / packed.name) as file:
        document = json.load(file)
    assert document["traceName"] == "rank0.pt.trace.json.gz"
    assert [event["name"] for event in document["traceEvents"]] == [
        "incomplete step 1",
        "ProfilerStep#12",
        'user "traceName": "x"',
    ]
    # The same input gives the same bytes.
    again = pack(source, tmp_path / "rank0.pt.trace.json.gz", incomplete_step=1)
    assert again == packed


def test_readers_of_a_folder_take_their_own_kind(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.pt.trace.json", [operator("aten::mm", 0, 20)])
        execution_trace(tmp_path / f"rank{rank}.et.json", [node(1, "aten::mm", 1)])
        write_record(tmp_path, replace(RECORD, rank=rank))
    assert [trace.rank for trace in read_kineto(tmp_path)] == [0, 1]
    assert [et.rank for et in read_execution_trace(tmp_path)] == [0, 1]
