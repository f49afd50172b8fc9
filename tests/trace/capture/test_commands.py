"""Commands that are recorded without changing them; torch is a stand-in here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dse.errors import ConfigError
from dse.trace.capture import CaptureSettings, record_command
from dse.trace.capture._agent import VARIABLE, CaptureRequest, ProcessReport, read_reports
from dse.trace.capture._command import environment


@pytest.fixture
def request_(tmp_path):
    settings = CaptureSettings(steps=4, stacks=True)
    return CaptureRequest(tmp_path / "out", tmp_path / "reports", tmp_path, settings)


def python(code, variables):
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_requests_survive_the_environment(request_):
    before = {"PYTHONPATH": "mine", "OTHER": "x"}
    variables = environment(request_, before)
    assert CaptureRequest.from_json(variables[VARIABLE]) == request_
    startup, _, rest = variables["PYTHONPATH"].partition(os.pathsep)
    assert os.path.isfile(os.path.join(startup, "sitecustomize.py"))
    assert rest == "mine"
    assert variables["OTHER"] == "x"
    # An empty entry would put the current folder on the path.
    assert environment(request_, {})["PYTHONPATH"] == startup


def test_reports_of_processes_come_in_order(tmp_path):
    reports = [ProcessReport(20, 3, ("a",)), ProcessReport(3)]
    for report in reports:
        report.write(tmp_path)
    assert read_reports(tmp_path) == (reports[1], reports[0])


def test_a_sitecustomize_that_was_there_still_runs(request_, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __name__\n")
    variables = environment(request_, {**os.environ, "PYTHONPATH": str(theirs)})
    code = (
        "import builtins, sys\n"
        "assert builtins.theirs == 'sitecustomize'\n"
        f"assert sys.modules['sitecustomize'].__file__.startswith({str(theirs)!r})\n"
        "assert not any('startup' in place for place in sys.path)\n"
    )
    python(code, variables)


def test_nothing_is_loaded_before_torch(request_):
    code = "import sys; assert not {'dse', 'torch'} & set(sys.modules)"
    python(code, environment(request_, dict(os.environ)))


def test_the_agent_loads_no_third_party_package():
    heavy = {"numpy", "msgspec", "pydantic", "yaml", "torch"}
    code = f"import sys, dse.trace.capture._agent; assert not {heavy!r} & set(sys.modules)"
    python(code, dict(os.environ))


def test_processes_know_where_to_import_the_package_from(tmp_path):
    code = (
        "import json, os\n"
        f"home = json.loads(os.environ[{VARIABLE!r}])['home']\n"
        "raise SystemExit(0 if os.path.isdir(os.path.join(home, 'dse', 'trace')) else 9)\n"
    )
    done = record_command([sys.executable, "-c", code], tmp_path / "out", CaptureSettings())
    assert done.exit_code == 0


def test_looking_for_torch_is_not_importing_it(request_, tmp_path):
    package = tmp_path / "fake"
    package.mkdir()
    (package / "torch.py").write_text("LOADED = True\n")
    variables = environment(request_, {**os.environ, "PYTHONPATH": str(package)})
    code = (
        "import importlib.util, sys\n"
        "assert importlib.util.find_spec('torch').name == 'torch'\n"
        "assert 'dse' not in sys.modules\n"
        "import torch\n"
        "assert torch.LOADED\n"
    )
    # This torch has no optimizers: the command continues, and the failure is reported.
    assert "cannot record this process" in python(code, variables).stderr


def test_the_folder_must_be_empty(tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("x")
    command = [sys.executable, "-c", "pass"]
    with pytest.raises(ConfigError, match=r"not empty.*--force"):
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
    command = ["sh", "-c", "trap 'kill $!; exit 7' INT; sleep 600 & wait"]
    done = record_command(command, tmp_path / "out", CaptureSettings(), timeout_s=0.5)
    assert done.timed_out
    assert done.exit_code == 7
