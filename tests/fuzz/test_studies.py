"""Mutated folders of studies."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dse.report.terminal.studies import print_study, print_validation
from dse.search import (
    RunOptions,
    load_study,
    run,
)
from dse.sharding import plan_to_json
from tests.fuzzing import (
    check_reader,
    mutated_lines,
    variants,
)
from tests.search.files import without_checksums
from tests.validation.studies import VALIDATION, write_space

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The files of a finished study with its validation."""
    folder = tmp_path_factory.mktemp("finished")
    study = run(write_space(folder), RunOptions(out=folder / "study", executor="serial"))
    directory = study.directory
    directory.write_validation(VALIDATION)
    paths = (directory.header, directory.journal, directory.validation)
    return {path.name: path.read_bytes() for path in paths}


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
    # With checksums, hardly any change would get as far as the record.
    journal = without_checksums(finished["journal.log"])
    read_with("journal.log", mutated_lines(journal, number, 17), 1)
    files = variants([finished["validation.json"]], count("validation"), 18)
    read_with("validation.json", files, 1)
