"""Reading pages of the documentation: their fenced blocks, and what stands in them for tests.

A remark below a block says what it is to a test, and is invisible on the page:

* `<!-- file: NAME -->` – it is the content of a file of that name
* `<!-- output -->` – it is what the last command printed: its lines are found there in this order,
  any number standing for any other and `…` for anything; `within N %` compares numbers, too
* `<!-- also: OPTIONS -->` – a test adds these to its commands, so that they take seconds
* `<!-- needs: MODULE -->` – it is run only where that can be imported
* `<!-- exit: 0, 1 -->` – it may end with these codes; with 0 alone otherwise
* `<!-- again: N -->` – it is run again, up to N times in all, until it ends well
* `<!-- not run: WHY -->`
"""

from __future__ import annotations

from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
import importlib.util
import io
import os
import re
import shlex
import stat
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest.mock import patch
import warnings

from tests.cli.running import dse
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Longest command, on a machine that does other things.
_TIMEOUT_S = 300

_FENCE = re.compile(r"^```(\w*)\s*$")
_REMARK = re.compile(r"^<!-- ([a-z ]+?)(?:: (.*?))? -->\s*$")
_CODE_REMARK = re.compile(r"\s+# .*$")
_NUMBER = r"(?<![\d.,])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\d)"


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: Of its fence.
        language: Word behind the fence.
        text: What is in it.
        remarks: By their first words.
    """

    line: int
    language: str
    text: str
    remarks: dict[str, str] = field(default_factory=dict)


def blocks_of(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page with the remarks below them."""
    found: list[Block] = []
    inside: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line.strip())
        if inside is not None:
            if line.strip() == "```":
                found.append(Block(inside[0], inside[1], "\n".join(inside[2]) + "\n"))
                inside = None
            else:
                inside[2].append(line)
        elif fence:
            inside = (number, fence[1], [])
        elif (remark := _REMARK.match(line.strip())) and found:
            found[-1].remarks[remark[1]] = remark[2] or ""
    assert inside is None, f"{page}: the fence of line {inside[0]} is not closed"
    return found


def run_page(
    page: Path, folder: Path, wanted: Callable[[Block], bool] = lambda _: True
) -> list[tuple[int, str]]:
    """Runs the blocks of a page in order and compares what they print.

    Args:
        page: The page.
        folder: Folder to run in.
        wanted: Which commands are run; outputs of others are not compared.

    Returns:
        Lines of the commands that were not run for want of a module, with its name.
    """
    environment = _environment(folder)
    left_out: list[tuple[int, str]] = []
    printed: str | None = None
    for block in blocks_of(page):
        if "not run" in block.remarks or "entry" in block.remarks:
            continue
        if "file" in block.remarks:
            (folder / block.remarks["file"]).write_text(block.text)
        elif "output" in block.remarks:
            if printed is not None:
                _check_output(block, printed)
        else:
            known = ("sh", "python", "console")
            assert block.language in known, f"line {block.line}: what is this block?"
            module = block.remarks.get("needs", "")
            missing = bool(module) and importlib.util.find_spec(module) is None
            if missing:
                left_out.append((block.line, module))
            run = wanted(block) and not missing
            printed = _run(block, folder, environment) if run else None
    return left_out


def _environment(folder: Path) -> dict[str, str]:
    """The commands of pages by their names, whatever is installed."""
    programs = folder / ".bin"
    programs.mkdir()
    for name, words in (("dse", "-m dse"), ("python", "")):
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "COLUMNS": "100",
        "PYTHONUTF8": "1",
    }


def _run(block: Block, folder: Path, environment: dict[str, str]) -> str:
    if block.language == "python":
        return _run_python(block, folder)
    commands = _commands(block)
    allowed = [int(code) for code in block.remarks.get("exit", "0").split(",")]
    run = _run_here if all(map(_is_ours, commands)) else _run_in_shell
    for _ in range(int(block.remarks.get("again", "1"))):
        code, printed = run(commands, allowed, folder, environment)
        if code in allowed:
            return printed
    raise AssertionError(f"line {block.line}: exit code {code}\n{printed}")


def _run_in_shell(
    commands: list[str], allowed: list[int], folder: Path, environment: dict[str, str]
) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _run_here(
    commands: list[str], allowed: list[int], folder: Path, environment: dict[str, str]
) -> tuple[int, str]:
    """Runs commands of ours in this process, up to one that ends with another code."""
    printed = ""
    code = 0
    for command in commands:
        with patch.dict(os.environ, {"COLUMNS": environment["COLUMNS"]}), others_may_warn():
            done = dse(*shlex.split(command, comments=True)[1:], cwd=folder)
        printed += done.stdout + done.stderr
        code = done.returncode
        if code not in allowed:
            break
    return code, printed


def _run_python(block: Block, folder: Path) -> str:
    """Runs a script with nothing of the scripts before it but the modules that they imported."""
    shown = io.StringIO()
    code = compile(block.text, f"line {block.line}", "exec")
    with chdir(folder), redirect_stdout(shown), redirect_stderr(shown), others_may_warn():
        exec(code, {"__name__": "__main__"})
    return shown.getvalue()


@contextmanager
def others_may_warn() -> Iterator[None]:
    """Leaves out the warnings of other packages; ours stay errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", module=r"dse(\.|$)")
        yield


def _commands(block: Block) -> list[str]:
    """Returns the command lines of a block; those of a console begin with a prompt."""
    joined = re.sub(r"\\\n\s*", " ", block.text)
    lines = [line for line in joined.splitlines() if line.strip()]
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    also = block.remarks.get("also", "")
    return [f"{_CODE_REMARK.sub('', line)} {also}".strip() if also else line for line in lines]


def _is_ours(command: str) -> bool:
    """Whether a line is one command of ours that needs no shell."""
    words = shlex.split(command, comments=True)
    shell = any(set(word) <= set("&|;<>") for word in words) or "$" in command
    return words[:1] == ["dse"] and not shell


def _check_output(block: Block, printed: str) -> None:
    words = block.remarks["output"].split()
    tolerance = float(words[1]) / 100 if words else None
    missing = missing_line(block.text, printed, tolerance)
    assert missing is None, f"line {block.line}: not printed: {missing}\n\n{printed}"


def missing_line(expected: str, printed: str, tolerance: float | None = None) -> str | None:
    """Returns the first line of an expected output that was not printed; None if all were.

    Args:
        expected: The block of the page.
        printed: What the command printed.
        tolerance: Largest relative difference of a number; any if None.
    """
    found = " ".join(printed.split())
    place = 0
    for line in filter(str.strip, expected.splitlines()):
        match = _first(line, found, place, tolerance)
        if match is None:
            return line.strip()
        place = match
    return None


def _first(line: str, found: str, place: int, tolerance: float | None) -> int | None:
    """Returns where a line ends in a text behind a place; None if it is not there."""
    words = " ".join(line.split())
    numbers = [_value(text) for text in re.findall(_NUMBER, words)]
    pieces = re.split(f"(…|{_NUMBER})", words)
    pattern = "".join(
        ".*?" if piece == "…" else f"({_NUMBER})" if index % 2 else re.escape(piece)
        for index, piece in enumerate(pieces)
    )
    line_of = re.compile(pattern.replace(r"\ ", r"\s*"))
    match = line_of.search(found, place)
    while match is not None:
        near = zip(numbers, map(_value, match.groups()), strict=True)
        if tolerance is None or all(abs(a - b) <= tolerance * abs(a) for a, b in near):
            return match.end()
        # What was found may overlap what is looked for.
        match = line_of.search(found, match.start() + 1)
    return None


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))
