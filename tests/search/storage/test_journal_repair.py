"""A journal after crashes and accidents: what is torn is passed over, what is damaged refused."""

from __future__ import annotations

from dataclasses import replace
import json
import os
import re
import zlib

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
import pytest

from dse.errors import DseError, StudyError
from dse.search import read_inputs
from dse.search._records import TrialStatus
from dse.search.evaluate._judge import without_answer
from dse.search.storage._journal import Journal
from dse.search.storage._journal_repair import repair_journal, stored_operations
from tests.search.files import without_checksums

#: More records than the three that are cut at every byte.
RECORDS = 5


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    from tests.conftest import SMALL_SPACE

    path = tmp_path_factory.mktemp("space") / "small.yaml"
    path.write_text(SMALL_SPACE)
    return read_inputs(path).space


@pytest.fixture(scope="module")
def records(space):
    return tuple(
        without_answer(
            number,
            TrialStatus.INFEASIBLE,
            "too large – für alles\n",
            {p.name: p.choices[number % len(p.choices)] for p in space.parameters}
            | {"world_size": number},
        )
        for number in range(RECORDS)
    )


@pytest.fixture(scope="module")
def whole(space, records, tmp_path_factory):
    """The bytes of a journal; the first line creates the study."""
    path = tmp_path_factory.mktemp("whole") / "journal.log"
    journal = opened(path, space, create=True)
    for record in records:
        journal.add(record)
    return path.read_bytes()


def opened(path, space, **options):
    parameters = [
        parameter
        if parameter.name != "world_size"
        else type(parameter)("world_size", tuple(range(RECORDS + 1)))
        for parameter in space.parameters
    ]
    return Journal(path, space.objectives, parameters, **options)


def kept(path):
    """Numbers of the records in a file, by nothing but JSON."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [line["user_attrs"]["record"]["number"] for line in lines if line["op_code"] == 4]


def lines_of(whole):
    return whole.splitlines(keepends=True)


def test_a_cut_at_every_byte_loses_only_what_it_cuts(whole, tmp_path, monkeypatch):
    """Only complete lines count, and nothing of a cut one does."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # thousands of them take a minute
    lines = lines_of(whole)
    assert len(lines) == RECORDS + 1
    start = sum(len(line) for line in lines[:-3])
    for end in range(start, len(whole) + 1):
        path = tmp_path / f"{end}.log"
        path.write_bytes(whole[:end])
        expected = whole[:end].count(b"\n") - 1
        assert len(list(stored_operations(path))) == expected + 1
        assert path.read_bytes() == whole[:end]
        repair_journal(path)
        assert path.read_bytes() == b"".join(lines[: expected + 1])
        assert kept(path) == list(range(expected))
        path.unlink()


@pytest.mark.parametrize("spare", [1, 100, 5000])
def test_a_repaired_journal_is_read_and_goes_on(space, whole, records, tmp_path, spare):
    path = tmp_path / "journal.log"
    lines = lines_of(whole)
    torn = b"".join(lines[:-1]) + lines[-1][:spare][:-1]
    path.write_bytes(torn)
    assert opened(path, space).records() == records[:-1]
    assert path.read_bytes() == torn
    journal = opened(path, space, create=True)
    journal.add(records[-1])
    assert opened(path, space).records() == records
    assert kept(path) == list(range(RECORDS))


@pytest.mark.parametrize(
    "end",
    [
        b"\0" * 4096,
        b'{"op_code":4,"worker_id' + b"\0" * 300,
        # The last block of a line was written, those before it were not.
        b'{"op_code":4,' + b"\0" * 512 + b'"}}}\n',
        b"\0" * 512 + b"}\n",
    ],
    ids=["zeros", "a begin and zeros", "zeros and an end", "only an end"],
)
def test_zeros_after_a_power_cut_are_a_torn_end(space, whole, records, tmp_path, end):
    path = tmp_path / "journal.log"
    path.write_bytes(whole + end)
    assert opened(path, space).records() == records
    assert path.read_bytes() == whole + end
    repair_journal(path)
    assert path.read_bytes() == whole


def test_nothing_but_a_torn_line_is_an_empty_journal(space, whole, records, tmp_path):
    path = tmp_path / "journal.log"
    path.write_bytes(whole[:20])
    with pytest.raises(StudyError, match="the journal is empty; continue the run with --resume"):
        opened(path, space)
    journal = opened(path, space, create=True)
    journal.add(records[0])
    assert opened(path, space).records() == records[:1]


def damaged(whole, line, change):
    lines = lines_of(whole)
    lines[line] = change(lines[line])
    return b"".join(lines), sum(map(len, lines[:line]))


def with_unknown_trial(line):
    return b'{"op_code":6,"worker_id":"w","trial_id":99,"state":1,"values":[1.0]}\n'


CHANGES = {
    "not JSON": lambda line: b"{broken\n",
    "garbage": lambda line: bytes(range(128, 256)) + b"\n",
    "merged with the next": lambda line: line[:-1],
    "a piece is missing": lambda line: line.replace(b'"user_attrs":{', b""),
    "a field is missing": lambda line: line.replace(b'"datetime_start"', b'"date"'),
    "not an object": lambda line: b"[1, 2]\n",
    "nothing": lambda line: b"\n",
    "no operation": lambda line: b'{"a": 1}\n',
    "an unknown operation": lambda line: b'{"op_code": 77, "worker_id": "w"}\n',
    "an unknown trial": with_unknown_trial,
    "an unknown study": lambda line: line.replace(b'"study_id":0', b'"study_id":3'),
    "nested without end": lambda line: b"[" * 200_000 + b"\n",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("line", [2, RECORDS - 1], ids=["middle", "late"])
def test_damage_before_the_end_is_refused_with_its_offset(space, whole, tmp_path, line, change):
    path = tmp_path / "journal.log"
    content, offset = damaged(whole, line, change)
    path.write_bytes(content)
    place = re.escape(f"{path}: damaged at byte {offset} (line {line + 1}): ")
    for create in (False, True):
        with pytest.raises(StudyError, match=place + ".*--resume --repair"):
            opened(path, space, create=create)
        assert path.read_bytes() == content


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "merged with the next"])
def test_a_complete_last_line_that_is_damaged_is_refused_too(space, whole, tmp_path, name):
    """It was finished once: to drop it without a word would lose a trial."""
    path = tmp_path / "journal.log"
    content, offset = damaged(whole, RECORDS, CHANGES[name])
    path.write_bytes(content)
    with pytest.raises(StudyError, match=f"damaged at byte {offset} "):
        opened(path, space, create=True)
    assert path.read_bytes() == content


def test_the_step_that_the_message_names_drops_what_is_damaged(space, whole, records, tmp_path):
    path = tmp_path / "journal.log"
    for name, change in CHANGES.items():
        # All but what merges two lines, which takes both.
        lost = 2 if name == "merged with the next" else 1
        content, offset = damaged(whole, 3, change)
        path.write_bytes(content)
        journal = opened(path, space, create=True, repair=True)
        assert journal.records() == records[:2] + records[2 + lost :], name
        assert [(found.offset, found.line) for found in journal.dropped] == [(offset, 4)]
        again = opened(path, space, create=True, repair=True)
        again.add(records[2])
        assert again.dropped == ()
        assert set(opened(path, space).records()) >= {records[2], *journal.records()}


def test_a_journal_whose_first_line_is_dropped_is_a_study(space, whole, records, tmp_path):
    path = tmp_path / "journal.log"
    path.write_bytes(damaged(whole, 0, CHANGES["garbage"])[0])
    journal = opened(path, space, create=True, repair=True)
    assert [found.line for found in journal.dropped] == [1]
    assert opened(path, space).records() == records


@pytest.mark.parametrize("kind", ["thorough", "borrowed"])
def test_a_later_answer_goes_with_the_first_one(space, records, tmp_path, kind):
    """The sampler has learned from the first one."""
    path = tmp_path / "journal.log"
    journal = opened(path, space, create=True)
    for record in (*records, *(replace(record, **{kind: True}) for record in records[:2])):
        journal.add(record)
    path.write_bytes(damaged(path.read_bytes(), 1, CHANGES["garbage"])[0])
    repaired = opened(path, space, create=True, repair=True)
    assert repaired.records() == records[1:]
    assert [record.number for record in repaired.revised()] == [1]


def test_every_changed_byte_of_a_line_is_found(space, whole, tmp_path, monkeypatch):
    """A digit that is another digit is JSON as before."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    path = tmp_path / "journal.log"
    lines = lines_of(whole)
    start = sum(map(len, lines[:2]))
    for place in range(start, start + len(lines[2]) - 1, 3):
        content = bytearray(whole)
        content[place] = ord("7") if content[place] != ord("7") else ord("8")
        path.write_bytes(content)
        with pytest.raises(StudyError, match=rf"damaged at byte {start} \(line 3\)"):
            list(stored_operations(path))


def test_every_line_has_a_checksum_and_optuna_reads_it(space, whole, tmp_path):
    path = tmp_path / "journal.log"
    path.write_bytes(whole)
    for line in lines_of(whole):
        body, _, checksum = line.rpartition(b',"crc32":')
        assert int(json.loads(checksum[:-2]), 16) == zlib.crc32(body)
    backend = JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))
    study = optuna.load_study(study_name="dse", storage=JournalStorage(backend))
    assert len(study.trials) == RECORDS


def test_a_journal_without_checksums_opens_and_gains_them(space, whole, records, tmp_path):
    path = tmp_path / "journal.log"
    before = without_checksums(whole)
    assert b"crc32" not in before
    path.write_bytes(whole)
    operations = list(stored_operations(path))
    path.write_bytes(before)
    assert list(stored_operations(path)) == operations
    assert opened(path, space).records() == records
    opened(path, space, create=True).add(records[0])
    assert path.read_bytes().startswith(before)
    assert path.read_bytes().count(b"crc32") == 1


def test_a_trial_without_a_checksum_among_others_is_damage(space, whole, tmp_path):
    path = tmp_path / "journal.log"
    content, offset = damaged(whole, 2, without_checksums)
    path.write_bytes(content)
    with pytest.raises(StudyError, match=f"damaged at byte {offset} .*no checksum"):
        opened(path, space)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"values":[10.5,2.5]', b'"values":[90.5,2.5]'),
        (b'"value":null,"values":[10.5', b'"value":null,"values":[10.6'),
        (b'"status":"feasible"', b'"status":"rejected"'),
    ],
)
def test_a_trial_and_its_record_are_compared(space, records, tmp_path, before, after):
    """Also of former versions, which wrote no checksums."""
    path = tmp_path / "journal.log"
    journal = opened(path, space, create=True)
    journal.add(replace(records[0], status=TrialStatus.FEASIBLE, values=(10.5, 2.5)))
    old = without_checksums(path.read_bytes())
    # What Optuna keeps of a complete trial.
    old = old.replace(b'"value":null,"values":null', b'"value":null,"values":[10.5,2.5]')
    path.write_bytes(old)
    assert opened(path, space).records()
    path.write_bytes(old.replace(before, after, 1))
    with pytest.raises(StudyError, match=r"damaged at byte .* and its record have"):
        opened(path, space)


def test_zeros_in_the_middle_are_damage(space, whole, tmp_path):
    path = tmp_path / "journal.log"
    content, offset = damaged(whole, 2, lambda line: line[:50] + b"\0" * 50 + line[100:])
    path.write_bytes(content)
    with pytest.raises(StudyError, match=f"damaged at byte {offset} \\(line 3\\)"):
        opened(path, space)


def test_a_carriage_return_in_damage_does_not_look_like_a_torn_end(space, whole, tmp_path):
    path = tmp_path / "journal.log"
    content, offset = damaged(whole, 2, lambda line: line[:50] + b"\r" + line[50:])
    content = content.replace(b"\r", b"\x01\r")
    path.write_bytes(content)
    with pytest.raises(StudyError, match=f"damaged at byte {offset} "):
        opened(path, space, create=True)
    assert path.read_bytes() == content


def test_an_operation_that_optuna_refuses_is_no_traceback(space, whole, tmp_path):
    path = tmp_path / "journal.log"
    line = b'{"op_code":4,"worker_id":"w","study_id":0,"datetime_start":"once","state":77}\n'
    path.write_bytes(without_checksums(whole) + line)
    with pytest.raises(StudyError, match="not a readable study journal"):
        opened(path, space)


def test_every_record_is_flushed_to_the_disk(space, records, tmp_path, monkeypatch):
    flushed = []
    original = os.fsync

    def noting(handle):
        original(handle)
        flushed.append(os.fstat(handle).st_size)

    path = tmp_path / "journal.log"
    journal = opened(path, space, create=True)
    monkeypatch.setattr(os, "fsync", noting)
    for record in records:
        journal.add(record)
        assert flushed[-1] == path.stat().st_size


def test_a_later_answer_to_a_failed_configuration_replaces_it(space, records, tmp_path):
    path = tmp_path / "journal.log"
    journal = opened(path, space, create=True)
    failed = replace(records[1], status=TrialStatus.FAILED, traceback="Traceback …")
    for record in (records[0], failed, records[2], records[1]):
        journal.add(record)
    assert opened(path, space).records() == (records[0], records[1], records[2])


def test_repairing_nothing(tmp_path):
    repair_journal(tmp_path / "none.log")
    empty = tmp_path / "empty.log"
    empty.write_bytes(b"")
    repair_journal(empty)
    assert empty.read_bytes() == b""


def test_a_journal_that_is_a_folder_is_one_clean_line(space, tmp_path):
    folder = tmp_path / "journal.log"
    folder.mkdir()
    for create in (False, True):
        with pytest.raises(DseError, match="this is a folder"):
            opened(folder, space, create=create)
