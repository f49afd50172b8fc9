"""Commands that are recorded without being touched; torch is a stand-in here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dse.errors import ConfigError
from dse.trace.capture import CaptureSettings, record_command
from dse.trace.capture._command import environment
from dse.trace.capture._orders import VARIABLE, Note, Orders, read_notes


@pytest.fixture
def orders(tmp_path):
    settings = CaptureSettings(steps=4, stacks=True)
    return Orders(tmp_path / "out", tmp_path / "notes", tmp_path, settings)


def python(code, variables):
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_orders_survive_the_environment(orders):
    before = {"PYTHONPATH": "mine", "OTHER": "x"}
    variables = environment(orders, before)
    assert Orders.from_json(variables[VARIABLE]) == orders
    startup, _, rest = variables["PYTHONPATH"].partition(os.pathsep)
    assert os.path.isfile(os.path.join(startup, "sitecustomize.py"))
    assert rest == "mine"
    assert variables["OTHER"] == "x"
    # An empty entry would put the current folder on the path.
    assert environment(orders, {})["PYTHONPATH"] == startup


def test_notes_of_processes(tmp_path):
    notes = [Note(20, 3, ("a",)), Note(3)]
    for note in notes:
        note.write(tmp_path)
    assert read_notes(tmp_path) == (notes[1], notes[0])


def test_a_sitecustomize_that_was_there_still_runs(orders, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __name__\n")
    variables = environment(orders, {**os.environ, "PYTHONPATH": str(theirs)})
    code = (
        "import builtins, sys\n"
        "assert builtins.theirs == 'sitecustomize'\n"
        f"assert sys.modules['sitecustomize'].__file__.startswith({str(theirs)!r})\n"
        "assert not any('startup' in place for place in sys.path)\n"
    )
    python(code, variables)


def test_nothing_is_loaded_before_torch(orders):
    code = "import sys; assert not {'dse', 'torch'} & set(sys.modules)"
    python(code, environment(orders, dict(os.environ)))


def test_looking_for_torch_is_not_importing_it(orders, tmp_path):
    package = tmp_path / "fake"
    package.mkdir()
    (package / "torch.py").write_text("LOADED = True\n")
    variables = environment(orders, {**os.environ, "PYTHONPATH": str(package)})
    code = (
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('torch').name == 'torch'\n"
        "assert 'dse' not in sys.modules\n"
        "import torch\n"
        "assert torch.LOADED\n"
    )
    # This torch has no optimizers: the command goes on, and the failure is told.
    assert "cannot record this process" in python(code, variables).stderr


def test_the_folder_must_be_empty(tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("x")
    command = [sys.executable, "-c", "pass"]
    with pytest.raises(ConfigError, match=r"not empty.*--overwrite"):
        record_command(command, tmp_path, CaptureSettings())
    with pytest.raises(ConfigError, match="is a file"):
        record_command(command, mine, CaptureSettings())
    for name in ("rank0.pt.trace.json.gz", "rank0.et.json.gz", "rank12.capture.json"):
        (tmp_path / name).write_text("old")
    record_command(command, tmp_path, CaptureSettings(), overwrite=True)
    # Only files of captures are removed.
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_command_that_does_not_exist(tmp_path):
    with pytest.raises(ConfigError, match="cannot run `no-such-program`"):
        record_command(["no-such-program"], tmp_path / "out", CaptureSettings())
    with pytest.raises(ConfigError, match="no command"):
        record_command([], tmp_path / "out", CaptureSettings())


def test_a_command_without_torch(tmp_path):
    done = record_command([sys.executable, "-c", "pass"], tmp_path / "out", CaptureSettings())
    assert done.exit_code == 0
    assert not done.records
    assert "no Python process of the command imported torch" in done.why_nothing


def test_signals_become_exit_codes(tmp_path):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = record_command([sys.executable, "-c", code], tmp_path / "out", CaptureSettings())
    assert done.exit_code == 128 + 9


def test_the_time_ends_a_command(tmp_path):
    code = (
        "import time\n"
        "try:\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    raise SystemExit(7)\n"
    )
    command = [sys.executable, "-c", code]
    done = record_command(command, tmp_path / "out", CaptureSettings(), timeout_s=5.0)
    assert done.timed_out
    assert done.exit_code == 7
