"""Clean edges of the command line: any terminal, any name, any seed, any number of jobs."""

from __future__ import annotations

from contextlib import contextmanager
import errno
import io
import os
from pathlib import Path
import resource
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dse.cli import main
from dse.cli._streams import accept_any_encoding
from dse.search import RunOptions, run
from tests.cli.running import dse
from tests.search.runs import QUICK_SPACE


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "quick.yaml"
    path.write_text(QUICK_SPACE)
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with a study, and a file where a folder is asked for."""
    folder = tmp_path_factory.mktemp("edges")
    (folder / "quick.yaml").write_text(QUICK_SPACE)
    run(folder / "quick.yaml", RunOptions(out=folder / "study", trials=2))
    (folder / "file").touch()
    return folder


def printed(monkeypatch, encoding, *arguments):
    """Returns the exit code and the bytes that a command prints on a terminal of an encoding."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "argv", ["dse", *map(str, arguments)])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    stream.flush()
    return code, raw.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_predictions_are_printed_in_any_encoding(monkeypatch, encoding):
    machine = ("--platform", "h100_sxm", "--world-size", 2, "--global-batch-size", 4096)
    code, out = printed(monkeypatch, encoding, "predict", "dlrm_tiny", *machine, "--explain")
    assert code == 0
    assert out.decode(encoding)


def test_signs_that_an_encoding_lacks_are_written_in_others(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    accept_any_encoding()
    sys.stdout.write("2 × 3 ≤ 7 → µs: tÄble \udcff\n")
    sys.stdout.flush()
    assert raw.getvalue() == b"2 x 3 <= 7 -> us: t\\xc4ble \\udcff\n"


def test_what_an_encoding_has_stays(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    accept_any_encoding()
    sys.stdout.write("2 × µs – Ä\n")
    sys.stdout.flush()
    assert raw.getvalue().decode("latin-1") == "2 × µs - Ä\n"


@pytest.mark.parametrize("name", ["d" * 300, "d/" * 2500], ids=["name", "path"])
@pytest.mark.parametrize(
    "command",
    [
        ("run", "SPACE", "--out", "NAME"),
        ("run", "SPACE", "--out", "NAME", "--resume"),
        ("export", "NAME", "--candidate", 0),
        ("report", "NAME"),
        ("whatif", "NAME", "--out", "NAME"),
        ("predict", "NAME", "--world-size", 2, "--global-batch-size", 8, "--platform", "cpu"),
    ],
    ids=["run", "resume", "export", "report", "whatif", "predict"],
)
def test_names_that_no_file_can_have_are_one_clean_line(space, tmp_path, command, name):
    given = {"SPACE": space, "NAME": name}
    done = dse(*(given.get(word, word) for word in command), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr) < 1500
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quick.yaml"]


def test_an_error_of_the_system_is_one_clean_line(space, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device", "/some/file")

    monkeypatch.setattr("dse.search.run", fail)
    done = dse("run", space, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: /some/file: No space left on device\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/some/file"), ["/some/file", "ulimit -n"]),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), ["ulimit -u"]),
        (MemoryError(), ["out of memory", "ulimit -v"]),
    ],
)
def test_a_limit_of_the_system_is_one_line_that_says_which(space, monkeypatch, error, words):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("dse.search.run", fail)
    done = dse("run", space)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_an_error_that_cannot_be_said_keeps_its_exit_code(redirection):
    command = f"{sys.executable} -m dse list nosuch {redirection}"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stdout == ""


CLOSED = """
import os
import sys
from dse.cli import main

sys.argv = ["dse", "--version"]
for handle in (0, 2):
    os.close(handle)
try:
    main()
except SystemExit:
    print(os.open(os.devnull, os.O_RDONLY))
"""


def test_no_file_takes_the_place_of_a_closed_stream():
    # What libraries write on standard error would end in it.
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True)
    version, handle = done.stdout.splitlines()
    assert version.startswith("dse ")
    assert int(handle) > 2


def test_what_is_meant_for_a_closed_output_goes_nowhere_else():
    command = 'exec "$0" -m dse --version >&-'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


JOB = ["--platform", "h100_sxm", "--world-size", "2", "--global-batch-size", "16384"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "study", "--candidate", "0", "--out", "file/plan.json"],
        ["export", "study", "--candidate", "0", "--format", "torchrec", "--module-path", "tables",
         "--out", "file/folder"],
        ["whatif", "study", "--set", "memory_bandwidth=+20%", "--out", "file/folder"],
        ["shard", "dlrm_tiny", *JOB, "--out", "file/plan.json"],
        ["fit", "gemm", "file", "--platform", "h100_sxm", "--out", "file/ours.json"],
        ["trace", "capture", "--out", "file/capture", "--", "true"],
    ],
    ids=lambda arguments: " ".join(arguments[-3:]),
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_named_with_a_next_step(study, arguments):
    done = dse(*arguments, cwd=study)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert arguments[arguments.index("--out") + 1].partition("/")[0] in done.stderr
    assert "choose another" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("arguments", [["--version"], ["list", "platforms"]], ids=" ".join)
def test_output_onto_a_full_disk_is_one_clean_line(arguments):
    command = [sys.executable, "-m", "dse", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: No space left on device")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--version"], ["list", "platforms"]], ids=" ".join)
def test_a_reader_that_has_gone_is_neither_success_nor_nothing_feasible(arguments):
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "dse", *arguments]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    assert done.returncode == 2
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_of_which_a_disk_takes_a_part_is_no_success(tmp_path, unbuffered):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    with (tmp_path / "output").open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "dse", "list", "platforms", "--json"],
            stdout=output,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            preexec_fn=limit,
            text=True,
        )
    assert (tmp_path / "output").stat().st_size == 100
    assert done.returncode == 2
    assert "ulimit -f" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "phase",
    ["dse.cli._app.app", "dse.cli._app.Group.parse_args", "dse.cli._output.emit"],
    ids=["building the commands", "parsing the arguments", "running"],
)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupt_is_one_line_at_any_moment(tmp_path, monkeypatch, phase, number, code):
    monkeypatch.setattr(phase, lambda *arguments, **options: signal.raise_signal(number))
    with interruptible():
        done = dse("list", "platforms", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "interrupted\n")


def test_an_interrupt_of_the_imports_is_one_line(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "dse.cli._app")
    finder = SimpleNamespace(find_spec=interrupted)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    done = dse("list", "platforms", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_an_interrupt_that_a_library_turns_into_an_error_is_one_line(tmp_path, monkeypatch):
    def build(*arguments, **options):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("cannot build the schema") from None

    monkeypatch.setattr("dse.cli._output.emit", build)
    with interruptible():
        done = dse("list", "platforms", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@contextmanager
def interruptible():
    """SIGINT as Python has it, even where the shell ignores it; SIGTERM would end the tests."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
        signal.signal(signal.SIGTERM, other)


def interrupted(*arguments, **options):
    raise KeyboardInterrupt


def test_an_empty_name_is_no_folder(space, tmp_path):
    done = dse("run", space, "--out", "", cwd=tmp_path)
    assert done.returncode == 2
    assert "empty" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quick.yaml"]
