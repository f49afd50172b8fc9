"""The command line, called in this process."""

from __future__ import annotations

from contextlib import chdir, redirect_stderr, redirect_stdout
import io
import json
from pathlib import Path
import subprocess
import sys
from unittest.mock import patch

from dse.cli import main


def dse(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `dse` with its handling of errors and exit codes, but without starting Python."""
    command = ["dse", *map(str, arguments)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", command),
        redirect_stdout(out),
        redirect_stderr(err),
        chdir(cwd or Path.cwd()),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    return subprocess.CompletedProcess(command, int(code), out.getvalue(), err.getvalue())


def answer(*arguments: object, code: int = 0):
    """Returns what `dse … --json` prints when it ends with an exit code."""
    done = dse(*arguments, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def process(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `dse` as a process."""
    return subprocess.run(
        [sys.executable, "-m", "dse", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
