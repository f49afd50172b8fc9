"""Untrusted files: nothing in them is run, and reading stays within limits."""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import re
import tarfile
import threading

import pytest

from dse._io.reading import (
    MAX_DEPTH,
    MAX_DOCUMENT_BYTES,
    MAX_JOURNAL_BYTES,
    MAX_TABLE_BYTES,
    MAX_TRACE_BYTES,
    JsonProblemError,
    byte_limit,
    load_json,
    open_file,
    read_bytes,
    read_text,
)
from dse.calibration.measurements import read_gemm
from dse.calibration.microbench import read_session
from dse.config import DocumentKind, find_document, load_document, parse_plain
from dse.errors import ConfigError
from dse.machine.host import load_host_profile
from dse.machine.platforms import load_platform
from dse.model import ModelFile, load_model
from dse.search.space import load_space
from dse.sharding import read_constraints, read_plan
from dse.trace import read_execution_trace, read_kineto
from dse.trace.whatif import read_changes
from tests.conftest import ROOT

# --- what no module may do ------------------------------------------------------------------

#: Packages that create objects or run code from what they read, or have no limits.
FORBIDDEN_IMPORTS = {
    *("pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"),
    *("sqlite3", "xml", "lxml", "zipfile", "bz2", "code", "codeop", "pty"),
}

#: Calls that are allowed only in the given modules.
CALLS = {
    "eval": set(),
    # Scripts of the package, which `dse export` writes.
    "exec": {"dse/workload/dlrm/deploy/_torchrec.py"},
    "compile": {"dse/workload/dlrm/deploy/_torchrec.py"},
    "__import__": set(),
    "os.system": set(),
    "os.popen": set(),
    "yaml.load": set(),
    "yaml.load_all": set(),
    "yaml.full_load": set(),
    "yaml.unsafe_load": set(),
    # It has no limits; `dse.config` reads YAML.
    "yaml.safe_load": set(),
    "np.load": set(),
    "np.fromfile": set(),
    "np.memmap": set(),
    "np.loadtxt": set(),
    "np.genfromtxt": set(),
    "torch.hub.load": set(),
    "torch.jit.load": set(),
    "joblib.load": set(),
    # The reader itself; a study's journal; messages between the package's own processes; its own
    # JSON output; databases.
    "json.loads": {
        "dse/_io/reading.py",
        "dse/search/storage/_journal_line.py",
        "dse/trace/capture/_agent.py",
        "dse/trace/capture/startup/sitecustomize.py",
        "dse/cli/job/_shard.py",
        "dse/cli/study/_recommend.py",
        "dse/search/storage/_database.py",
        "dse/workload/_workload.py",
    },
    "json.load": set(),
    # Bounded, and nowhere else.
    "gzip.open": set(),
    "tarfile.open": {"dse/trace/read/_files.py"},
    "lzma.LZMADecompressor": {"dse/machine/fits/_trees.py"},
    "lzma.open": set(),
    "lzma.decompress": set(),
    "zlib.decompress": set(),
    "gzip.decompress": set(),
    # Names in the code, and Python files named on the command line.
    "import_module": {
        "dse/__init__.py",
        "dse/report/__init__.py",
        "dse/search/execute/_worker.py",
        "dse/trace/__init__.py",
        "dse/validation/trainer/__init__.py",
        "dse/trace/replay/_replay.py",
        "dse/trace/whatif/optimizations/__init__.py",
        "dse/workload/_registry.py",
        "dse/workload/transformer/deploy/__init__.py",
    },
    "importlib.import_module": set(),
    "runpy.run_path": {
        "dse/cli/files/model/_torchrec.py",
        "dse/trace/replay/_registry.py",
        # The module that `dse export` writes, of numbers and a quoted name.
        "dse/validation/trainer/pytorch/_rank.py",
    },
    "runpy.run_module": set(),
    # Trees of a calibration, unpacked within a limit.
    "*.load_model": {"dse/machine/fits/_trees.py"},
    # Files of the system, traces that the profiler just wrote, and scripts of the package.
    "*.read_text": {
        "dse/_process/system.py",
        "dse/trace/capture/_agent.py",
        "dse/workload/dlrm/deploy/_torchrec.py",
    },
    "*.read_bytes": set(),
}

#: Modules that open files for reading without `dse._io.reading`.
OPENS = {
    # Files that this process has just written.
    "dse/trace/capture/_profiler.py",
    "dse/calibration/microbench/log/_journal.py",
    "dse/calibration/microbench/ranks/_barrier.py",
    "dse/search/storage/_journal_repair.py",
}


@pytest.fixture(scope="module")
def modules():
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
        for path in sorted((ROOT / "dse").rglob("*.py"))
    }


def dotted(node: ast.expr) -> str:
    """Returns the dotted name of a called function; `*.c` if its owner is an expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        front = dotted(node.value)
        return f"{front}.{node.attr}" if front else f"*.{node.attr}"
    return ""


def faults(tree: ast.AST, module: str) -> list[str]:
    """Returns the forbidden imports and calls of a module, with their lines."""
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        found += [
            f"{node.lineno}: imports {name}"
            for name in names
            if name.split(".")[0] in FORBIDDEN_IMPORTS
        ]
        if isinstance(node, ast.Call):
            found += [f"{node.lineno}: {what}" for what in call_faults(node, module)]
    return found


def call_faults(node: ast.Call, module: str):
    name = dotted(node.func)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    last = f"*.{name.rpartition('.')[2]}"
    for rule in {name, last} & CALLS.keys():
        if ("." in name or rule == name) and module not in CALLS[rule]:
            yield f"calls {name}"
    if name == "torch.load" and not is_true(given.get("weights_only")):
        yield "torch.load without weights_only=True"
    if is_true(given.get("shell")):
        yield f"{name} through a shell"
    if name.startswith(("pd.read_", "pandas.read_")):
        yield f"calls {name}"
    if last == "*.open" or name == "open":
        mode = given.get("mode") or next(iter(node.args[name == "open" :]), None)
        text = mode.value if isinstance(mode, ast.Constant) else "r"
        writes = isinstance(text, str) and set(text) & set("wax")
        known = name.split(".")[0] in {"tarfile", "os", "webbrowser"} or "session" in name
        if not writes and not known and module not in OPENS:
            yield f"opens a file by {name}"


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def test_no_module_runs_what_it_reads(modules):
    found = {module: faults(tree, module) for module, tree in modules.items()}
    assert {module: lines for module, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "eval(text)",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "yaml.safe_load(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "pd.read_csv(path)",
        "open(path)",
        "path.open()",
        "path.open('rb')",
        "Path(name).read_text()",
        "subprocess.run(text, shell=True)",
        "json.loads(text)",
        "gzip.open(path)",
    ],
)
def test_the_check_finds(source):
    assert faults(ast.parse(source), "dse/any.py")


@pytest.mark.parametrize(
    "source",
    ["torch.load(p, weights_only=True)", "path.open('w')", "open(p, 'ab')", "a.evaluate()"],
)
def test_the_check_allows(source):
    assert not faults(ast.parse(source), "dse/any.py")


def test_what_is_allowed_is_needed(modules):
    """Exceptions to the rules are removed when no longer needed."""
    for rule, exceptions in CALLS.items():
        for module in exceptions:
            calls = (node for node in ast.walk(modules[module]) if isinstance(node, ast.Call))
            used = [dotted(node.func) for node in calls]
            last = rule.removeprefix("*.")
            assert any(name == rule or name.endswith(f".{last}") for name in used), (rule, module)


# --- special files ----------------------------------------------------------------------------

READERS = {
    "model": load_model,
    "platform": load_platform,
    "space": load_space,
    "plan": read_plan,
    "constraints": read_constraints,
    "profile": load_host_profile,
    "steps": read_changes,
    "gemm": read_gemm,
    "kineto": read_kineto,
    "execution trace": read_execution_trace,
    "document": lambda path: load_document(path, ModelFile),
}


@pytest.fixture(params=READERS)
def read(request):
    return lambda path: READERS[request.param](str(path))


def refusal(call) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path, read):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    words: list[str] = []
    waiting = threading.Thread(target=lambda: words.append(refusal(lambda: read(pipe))))
    waiting.daemon = True
    waiting.start()
    waiting.join(20)
    assert words == [f"{pipe}: this is a pipe; a file is expected"]


def test_devices_are_refused(tmp_path, read):
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    assert "this is a device; a file is expected" in refusal(lambda: read(tmp_path / "zero.yaml"))


def test_empty_files_invalid_names_and_circular_links(tmp_path, read):
    (tmp_path / "empty.yaml").write_bytes(b"")
    assert refusal(lambda: read(tmp_path / "empty.yaml"))
    for name in ("a\0b.yaml", "x" * 300 + ".yaml", "x" * 5000 + ".yaml"):
        assert len(refusal(lambda name=name: read(tmp_path / name))) < 2000
    circle = tmp_path / "circle.yaml"
    circle.symlink_to(circle)
    refusal(lambda: read(circle))


def test_a_log_that_is_a_pipe(tmp_path):
    from dse.errors import CalibrationError

    os.mkfifo(tmp_path / "log")
    with pytest.raises(CalibrationError, match="this is a pipe"):
        read_session(tmp_path / "log")


# --- sizes --------------------------------------------------------------------------------------


def test_the_size_is_limited_and_the_environment_may_allow_more(tmp_path, monkeypatch, read):
    path = tmp_path / "large.yaml"
    path.write_text("a: " + "x" * 2000)
    monkeypatch.setenv("DSE_MAX_FILE_BYTES", "1000")
    assert "more than the limit of 1000" in refusal(lambda: read(path))
    monkeypatch.setenv("DSE_MAX_FILE_BYTES", "100000")
    assert "more than the limit" not in refusal(lambda: read(path))


def test_the_sizes_that_the_page_promises_are_those_that_hold():
    page = (ROOT / "docs" / "security.md").read_text()
    units = {"MiB": 2**20, "GiB": 2**30}
    rows = re.findall(r"^\| ([^|]+) \| (\d+) (MiB|GiB)\b", page, re.MULTILINE)
    promised = {what: int(count) * units[unit] for what, count, unit in rows}
    of = {what.split()[0]: size for what, size in promised.items()}
    assert of == {
        "YAML": MAX_DOCUMENT_BYTES,
        "measurements": MAX_TABLE_BYTES,
        "journal": MAX_JOURNAL_BYTES,
        "traces": MAX_TRACE_BYTES,
    }


def test_the_error_has_the_limit_and_how_to_raise_it(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_bytes(b"x" * 1001)
    with pytest.raises(ConfigError, match="1001 bytes") as caught:
        read_bytes(path, 1000)
    assert (caught.value.limit, caught.value.key) == (1000, "DSE_MAX_FILE_BYTES")
    assert read_bytes(path, 1001) == b"x" * 1001


def test_a_file_larger_than_its_reported_size(tmp_path):
    """Files in /proc report a size of 0."""
    assert "at least" in refusal(lambda: read_bytes("/proc/self/maps", 100))
    assert read_bytes("/proc/self/maps")


@pytest.mark.parametrize("text", ["x", "-1", "0", "1e9", "9" * 30, "1 GB", "٣"])
def test_an_invalid_limit(monkeypatch, text):
    monkeypatch.setenv("DSE_MAX_FILE_BYTES", text)
    assert "expected a whole number of bytes" in refusal(lambda: byte_limit(5))


def test_an_empty_limit_is_the_usual_one(monkeypatch):
    monkeypatch.setenv("DSE_MAX_FILE_BYTES", "")
    assert byte_limit(5) == 5


def changed(path, **values) -> str:
    """Returns a built-in file with other values at the given places."""
    import yaml

    data = yaml.safe_load((ROOT / path).read_text())
    for place, value in values.items():
        *blocks, last = place.split("__")
        inner = data
        for block in blocks:
            inner = inner[block]
        inner[last] = value
    return yaml.safe_dump(data)


@pytest.mark.parametrize(
    ("reader", "path", "values"),
    [
        ("space", "search_spaces/dlrm_sharding.yaml", {"parameters__world_size": 10**9}),
        (
            "space",
            "search_spaces/dlrm_sharding.yaml",
            {"parameters__world_size": {"low": 1, "high": 10**18, "step": 10**17}},
        ),
        ("space", "search_spaces/dlrm_sharding.yaml", {"search": {"trials": 10**15}}),
        ("space", "search_spaces/gpt_parallelism.yaml", {"parameters__pipeline": [10**12]}),
        ("platform", "platforms/h100_sxm.yaml", {"node__devices": 10**9}),
        ("model", "models/dlrm_small.yaml", {"tables": [{"name": "a", "rows": 10**18, "dim": 8}]}),
        (
            "model",
            "models/dlrm_small.yaml",
            {"tables": [{"name": "a", "rows": 10, "dim": 8, "count": 10**9}]},
        ),
        ("model", "models/dlrm_small.yaml", {"global_batch_size": 10**30}),
        ("model", "models/gpt_1_7b.yaml", {"layers": 10**12}),
    ],
)
def test_huge_sizes_are_rejected_before_allocation(tmp_path, reader, path, values):
    file = tmp_path / "large.yaml"
    file.write_text(changed(path, **values))
    assert "expected at most" in refusal(lambda: READERS[reader](str(file)))
    assert peak_bytes(lambda: READERS[reader](str(file))) < 50e6


def test_huge_plans_are_rejected(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"schema_version": 1, "world_size": 10**9, "tables": {}}))
    assert "expected at most 1000000" in refusal(lambda: read_plan(path))
    path.write_text(json.dumps({"world_size": 10**9, "plan": {}}))
    assert "expected at most 1000000" in refusal(lambda: read_plan(path))


# --- bombs --------------------------------------------------------------------------------------


def peak_bytes(call) -> int:
    """Returns the peak memory of Python during a call that raises ConfigError."""
    import tracemalloc

    tracemalloc.start()
    try:
        refusal(call)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(256, id="256MiB", marks=pytest.mark.part_of_slow),
        pytest.param(1024, id="1GiB", marks=pytest.mark.slow),
    ],
)
def bomb(request):
    """Blanks that compress a thousandfold."""
    block = gzip.compress(b" " * 2**20, mtime=0)
    return block * request.param


def test_a_compression_bomb_is_refused_while_it_unpacks(tmp_path, bomb):
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(bomb)
    peak = peak_bytes(lambda: read_kineto(path))
    assert peak < 200e6
    words = refusal(lambda: read_execution_trace(path))
    assert "times its size, more than the limit of 200" in words


def archive(path, name, content, **header):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for field, value in header.items():
            setattr(info, field, value)
        tar.addfile(info, io.BytesIO(content))
    return path


def test_a_bomb_inside_an_archive(tmp_path, bomb):
    path = archive(tmp_path / "a.tar.gz", "rank0.json.gz", bomb)
    assert peak_bytes(lambda: read_kineto(path)) < 200e6
    words = refusal(lambda: read_kineto(path))
    assert words.startswith(f"{path}:rank0.json.gz: unpacks to ")


def test_sparse_files_in_archives_are_rejected(tmp_path):
    """A sparse file of many terabytes takes a few bytes in an archive."""
    header = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "rank0.json"}
    header["GNU.sparse.realsize"] = str(10**15)
    content = b"1\n0\n1\n".ljust(512, b"\0") + b"{"
    path = archive(tmp_path / "a.tar", "rank0.json", content, pax_headers=header)
    assert "sparse" in refusal(lambda: read_kineto(path))


def test_many_short_values_are_rejected(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents":[' + b"1," * 20_100_000 + b"1]}")
    assert "take many times their size in memory" in refusal(lambda: read_kineto(path))


def laughs() -> str:
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        text += f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    return text


def test_aliases_expand_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("dse.config._yaml._MAX_VALUES", 10_000)
    assert "more than 10000 values after expansion" in refusal(lambda: parse_plain(laughs()))


@pytest.mark.slow
def test_a_billion_laughs():
    assert "more than 2000000 values after expansion" in refusal(lambda: parse_plain(laughs()))


def test_an_alias_cannot_be_inside_its_anchor():
    assert "the alias `a` is inside" in refusal(lambda: parse_plain("x: &a [1, *a, *a]"))


def test_merging_many_blocks_takes_linear_time():
    text = f"a: &a {{{', '.join(f'k{i}: 1' for i in range(1000))}}}\n"
    text += f"b: {{<<: [{', '.join(['*a'] * 100)}]}}\n"
    data = parse_plain(text)
    assert isinstance(data, dict)
    assert len(data["b"]) == 1000


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_yaml_ends_early(opening):
    assert "nested more than 64 levels deep" in refusal(lambda: parse_plain(opening * 1_000_000))


def test_the_depth_that_is_allowed():
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(load_json(text)) == text
    assert json.dumps(parse_plain(text)) == text
    for deeper in (f"[{text}]", "[" * 100_000):
        with pytest.raises(JsonProblemError, match="more than 64 levels"):
            load_json(deeper)


# --- invalid text --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "the key `a` is given twice"),
        ("NaN", "`NaN` is not"),
        ("[-Infinity]", "`-Infinity` is not"),
        ("1e400", "`1e400` .* 1.8e308"),
        ("9" * 5000, "has 5000 digits, more than the limit of 300"),
        ('"\\ud800"', "half of a surrogate pair"),
        ('{"\\udfff": 1}', "half of a surrogate pair"),
        ("", "not valid JSON"),
        ("[1,", "not valid JSON"),
        ("\0", "not valid JSON"),
    ],
)
def test_json_that_is_refused(text, words):
    with pytest.raises(JsonProblemError, match=words):
        load_json(text)


def test_surrogate_pairs_are_accepted():
    assert load_json('"\\ud83d\\ude00"') == "\N{GRINNING FACE}"


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system [echo]",
        "!!python/name:os.system",
        "!!binary aGk=",
        "!!set {a}",
        "!!omap [a: 1]",
        "!mine x",
        "a: !!bool x",
        "a: !!int ''",
        "a: !!float ''",
        "a: 0x" + "f" * 2000,
        "a: " + ":".join(["1"] * 300),
        "a: " + "9" * 5000,
        "? [a, b]\n: 1",
        "1: a",
        "a: 1\na: 2",
        "--- a\n--- b",
        "a: \0",
        "a: \ud800",
        'a: "\\ud800"',
        "*a",
        "[&a x, &a y]",
    ],
)
def test_yaml_that_is_refused(text):
    assert refusal(lambda: parse_plain(text))


def test_encodings(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfname: a")
    assert read_text(path) == "name: a"
    path.write_bytes(b"a\nb \xff")
    assert refusal(lambda: read_text(path)) == f"{path}:2: not UTF-8 text"


def test_a_link_is_followed_and_a_file_is_closed(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with open_file(tmp_path / "b") as stream:
        assert stream.read() == b"abc"
    assert stream.closed


# --- paths ---------------------------------------------------------------------------------------


def test_a_folder_of_traces_leads_nowhere_else(tmp_path):
    outside = tmp_path / "secret.json"
    outside.write_text("{}")
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.json").symlink_to(outside)
    for read_traces in (read_kineto, read_execution_trace):
        assert "a link out of the folder" in refusal(lambda read=read_traces: read(run))


def test_names_of_documents_are_looked_up_or_paths():
    for name in ("../models/none.yaml", "a\0b/c.yaml", "x" * 400 + ".yaml"):
        assert "no such file" in refusal(lambda name=name: find_document(DocumentKind.MODEL, name))
