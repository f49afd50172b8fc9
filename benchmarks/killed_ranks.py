"""Real runs that lose a process at a random moment, for `benchmarks/faults.py`."""

from __future__ import annotations

from contextlib import suppress
import os
from pathlib import Path
import shutil
import signal
import time
from typing import TYPE_CHECKING

from dse.search import load_study
from tests.search.files import unfinished
from tests.search.runs import Command, session_members, wait_until_gone
from tests.validation.studies import make_study

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults import Try, Workplace

#: What happens to a run: to one of its ranks, or to the command itself.
EVENTS = ("rank killed", "rank stopped, then Ctrl-C", "command killed", "Ctrl-C", "SIGTERM")

COMMAND = ("validate", "study", "--top", "2", "--ranks", "2", "--budget", "10s", "--device", "cpu")

#: How long processes may stay after the command that started them was killed, in seconds.
_GONE_S = 10.0

#: How long a run may take that nothing happens to, in seconds.
_PATIENCE_S = 240.0


def ranks(place: Workplace) -> Iterator[Try]:
    """A rank or the command is killed, stopped or interrupted while plans train for real."""
    made = place.new()
    made.mkdir()
    study = make_study(made).directory.root
    files = {path.name: path.read_bytes() for path in study.iterdir() if path.is_file()}
    took_s = 0.0
    while True:
        folder = place.new()
        folder.mkdir()
        shutil.copytree(study, folder / "study")
        start_s = time.monotonic()
        command = Command(folder / "messages", *COMMAND, cwd=folder)
        event = place.chance.choice(EVENTS) if took_s else ""
        # The first run is left alone, and says how long one takes.
        command.process.join(place.chance.uniform(0.5, took_s) if took_s else None)
        problem = _after(event, command, folder, place)
        if not event:
            took_s = time.monotonic() - start_s
        yield event or "left alone", problem or _kept(folder / "study", files)
        shutil.rmtree(folder)


def _after(event: str, command: Command, folder: Path, place: Workplace) -> str:
    """Has something happen to a run; returns what is wrong then, or nothing."""
    members = session_members(command.process.pid)
    victim = place.chance.choice(found) if (found := _ranks(command.process.pid)) else None
    expected = {0, 1}
    if event == "command killed":
        command.process.kill()
        expected |= {-signal.SIGKILL}
    elif event == "rank killed" and victim:
        expected |= {2}
        _send(victim, signal.SIGKILL)
    elif event in ("Ctrl-C", "SIGTERM") or victim:
        if event.startswith("rank stopped"):
            _send(victim, signal.SIGSTOP)
            time.sleep(0.5)
        number = signal.SIGTERM if event == "SIGTERM" else signal.SIGINT
        command.interrupt(number)
        expected |= {128 + number}
    # Under load a whole run takes minutes.
    command.process.join(_PATIENCE_S)
    code, messages = command.join()
    problem = ""
    if code not in expected:
        problem = f"exit code {code}: {messages[-300:]}"
    elif "Traceback" in messages:
        problem = f"a traceback: {messages[-300:]}"
    elif code == 2 and messages.count("error:") != 1:
        problem = f"not one message: {messages[-300:]}"
    start_s = time.monotonic()
    left = wait_until_gone({*members, *session_members(command.process.pid)})
    if left:
        problem = f"processes left: {left}"
    elif time.monotonic() - start_s > _GONE_S:
        problem = f"processes ended after {time.monotonic() - start_s:.0f} s"
    return problem


def _ranks(session: int) -> list[int]:
    """Returns the ranks of a run: forked from its server, which the command has started."""
    parents = {pid: _parent(pid) for pid in session_members(session)}
    return [pid for pid, parent in parents.items() if parents.get(parent) == session]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _send(pid: int | None, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid or 0, number)


def _kept(study: Path, files: dict[str, bytes]) -> str:
    """Returns what is wrong with the folder of a study, or nothing."""
    for name, content in files.items():
        if name != "report.html" and (study / name).read_bytes() != content:
            return f"{name} has changed"
    if found := unfinished(study):
        return f"left behind: {found}"
    validated = (study / "validation.json").exists()
    if (load_study(study).result.validation is not None) != validated:
        return "half a validation"
    return ""
