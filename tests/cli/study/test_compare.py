"""`dse compare`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dse.cli._app import app
from dse.errors import StudyError
from dse.search.revise import revise_study, write_revision
from tests.search.revise.studies import SPACE, study_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    study = study_of(SPACE)
    changed = revise_study(study.result, ["device.memory.bandwidth=*2", "price=-10%"])
    new = write_revision(changed, study.directory, tmp_path_factory.mktemp("compare") / "new")
    return study.directory.root, new.directory.root


def compare(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_for_people(folders):
    done = compare(*folders)
    assert done.exit_code == 0, done.output
    for words in (
        "what differs",
        "device.memory.bandwidth",
        "front of A",
        "front of B",
        "relative to the box between",
        "16 outcomes in both",
        "the second is ahead in",
    ):
        assert words in done.output


def test_for_machines(folders):
    fields = json.loads(compare(*folders, "--json").output)
    assert fields["same_objectives"]
    assert fields["hypervolume_ratio"] > 1
    assert len(fields["fronts"]) == 2
    assert len(fields["common"]) == 16
    assert any(pair["time_ratio"] < 1 and pair["reasons"] for pair in fields["common"])
    moving = [found for found in fields["differences"] if found["moves_predictions"]]
    assert {found["quantity"] for found in moving} == {"device.memory.bandwidth"}
    assert fields["conclusion"].startswith("the second is ahead in")


def test_the_same_study_twice(folders):
    done = compare(folders[0], folders[0])
    assert "made from the same inputs, versions and settings" in done.output


def test_what_is_no_study(folders, tmp_path):
    done = compare(folders[0], tmp_path)
    assert isinstance(done.exception, StudyError)
