"""What is given in place of a model, and is none."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.workload import load_workload


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("rank0.pt.trace.json.gz", "dse trace simulate"),
        ("rank0.et.json", "dse trace simulate"),
        ("study.yaml", "dse report"),
        ("mine.yaml", "mine.yaml"),
        ("notes.txt", "file of a model"),
    ],
)
def test_a_folder_without_a_model_names_what_takes_it(tmp_path, file, command):
    (tmp_path / file).write_text("{}")
    with pytest.raises(ConfigError) as caught:
        load_workload(tmp_path)
    assert command in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_captured_step_is_no_model(tmp_path):
    file = tmp_path / "rank0.pt.trace.json.gz"
    file.write_bytes(b"\x1f\x8b")
    with pytest.raises(ConfigError, match="dse trace simulate"):
        load_workload(file)
