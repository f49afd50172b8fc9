"""Commands in unusual surroundings, for `benchmarks/faults.py`: limits, streams, places."""

from __future__ import annotations

from functools import partial
import os
from pathlib import Path
import re
import resource
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING

from synthetic_trace import write_synthetic

from dse.search import load_study
from tests.search.files import unfinished
from tests.search.runs import Command, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faults import Try, Workplace

_JOB = "--platform h100_sxm --world-size 2 --global-batch-size 16384"

#: Commands; those with a study in a folder of their own write it to `study`.
COMMANDS = (
    f"predict dlrm_tiny {_JOB} --explain",
    f"predict dlrm_tiny {_JOB} --json",
    f"shard dlrm_tiny {_JOB} --out plan.json",
    "run ../quick.yaml --trials 6 --jobs 1 --out study",
    "run ../quick.yaml --trials 6 --jobs 2 --out study",
    "compare ../whole ../whole",
    "whatif ../whole --set memory_bandwidth=+20% --out study",
    "export ../whole --candidate 0 --format yaml --out configuration.yaml",
    "recommend dlrm_tiny --target 1Msamples/s --platforms h100_sxm --world-sizes 2",
    "collective --platform h100_sxm --op all_reduce",
    "trace info ../trace.json",
    "trace simulate ../trace.json",
    "list platforms",
)

#: Surroundings in which a command may not find what it needs, and those in which it always does.
_SCARCE = ("open files", "memory", "file size", "working directory")
_HARMLESS = ("home", "temporary folder", "terminal", "streams", "umask")


def surroundings(place: Workplace) -> Iterator[Try]:
    """Few open files, little memory, no home, closed streams: the same answer, or one message."""
    write_synthetic(place.folder / "trace.json", events=7000)
    answers: dict[str, tuple[int | None, str, bytes]] = {}
    while True:
        text = place.chance.choice(COMMANDS)
        if text not in answers:
            answers[text] = _run(place, text, _nothing)[:3]
        kind = place.chance.choice(_SCARCE + _HARMLESS)
        change = _change(kind, place)
        code, said, front, messages, problem = _run(place, text, change)
        if not problem:
            problem = _judged(kind, (code, said, front), answers[text], messages)
        name = f"{kind}, {text.split()[0]}"
        yield (
            name,
            f"{change.keywords if isinstance(change, partial) else ''} {problem}" * bool(problem),
        )


def _run(
    place: Workplace, text: str, change: Callable[[], None]
) -> tuple[int | None, str, bytes, str, str]:
    """Runs a command; returns exit code, output, front, messages, and what is wrong by then."""
    folder = place.new()
    folder.mkdir()
    words = [word.replace("../", f"{place.folder}/") for word in text.split()]
    command = Command(
        folder / "messages",
        *words,
        cwd=folder,
        before=partial(_prepare, str(folder / "output"), change),
    )
    command.process.join(_PATIENCE_S)
    code, messages = command.join()
    problem = ""
    if left := wait_until_gone([command.process.pid]):
        problem = f"processes left: {left}"
    elif found := unfinished(folder):
        problem = f"left behind: {found}"
    said = (folder / "output").read_text(errors="replace")
    front = b""
    if (folder / "study" / "study.yaml").exists():
        front = (folder / "study" / "pareto.csv").read_bytes() if code == 0 else b""
        load_study(folder / "study")
    shutil.rmtree(folder)
    return code, said, front, messages, problem


#: How long a command may take on a busy machine, in seconds.
_PATIENCE_S = 120.0


def _judged(
    kind: str,
    found: tuple[int | None, str, bytes],
    answer: tuple[int | None, str, bytes],
    messages: str,
) -> str:
    """Returns what is wrong with an ending, or nothing."""
    code, said, front = found
    if "Traceback" in messages or "Traceback" in said:
        return f"a traceback: {messages[-300:]}"
    if code == 0:
        if front != answer[2]:
            return "another front"
        same = kind in ("terminal", "streams", "working directory") or _without_times(
            said
        ) == _without_times(answer[1])
        return "" if same else f"another answer: {said[-200:]}"
    if code != 2 or kind not in _SCARCE:
        return f"exit code {code}: {messages[-300:]}"
    return "" if messages.count("error: ") == 1 else f"not one message: {messages[-300:]}"


def _without_times(text: str) -> str:
    return re.sub(r"[\d.]+ s\b", "", text)


def _nothing() -> None:
    """Leaves everything as it is."""


def _change(kind: str, place: Workplace) -> Callable[[], None]:
    """Returns what changes the surroundings of a process, with random numbers."""
    chance = place.chance
    if kind == "open files":
        return partial(_limit_files, count=chance.randrange(8, 60))
    if kind == "memory":
        return partial(_limit_memory, free_bytes=chance.randrange(2**20, 2**28))
    if kind == "file size":
        return partial(_limit_size, size_bytes=chance.randrange(300, 2**17))
    if kind == "home":
        return partial(_set, HOME=chance.choice(("", "/dev/null", "/nowhere", None)))
    if kind == "temporary folder":
        return partial(_set, TMPDIR=chance.choice(("", "/dev/null", "/nowhere", None)))
    if kind == "terminal":
        columns = chance.choice(("-1", "0", "1", "20", "99999999999", "many"))
        encoding = chance.choice(("ascii", "latin-1", "utf-16"))
        colours = chance.choice(("NO_COLOR", "FORCE_COLOR"))
        return partial(_terminal, encoding, COLUMNS=columns, TERM="dumb", **{colours: "1"})
    if kind == "streams":
        return partial(_close, handles=chance.sample((0, 1, 2), chance.randrange(1, 4)))
    if kind == "umask":
        return partial(os.umask, chance.choice((0o777, 0o077, 0)))
    return _delete_working_directory


def _prepare(output: str, change: Callable[[], None]) -> None:
    """Sends what the command prints to a file, then changes its surroundings."""
    handle = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.close(handle)
    change()


def _limit_files(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def _limit_memory(free_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + free_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_size(size_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def _set(**variables: str | None) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None


def _terminal(encoding: str, **variables: str) -> None:
    _set(**variables)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding=encoding)


def _close(handles: list[int]) -> None:
    names = ("stdin", "stdout", "stderr")
    for handle in handles:
        os.close(handle)
        setattr(sys, names[handle], None)


def _delete_working_directory() -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    os.rmdir(os.getcwd())
