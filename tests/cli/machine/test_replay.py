"""`dse replay` from the command line."""

from __future__ import annotations

import json

import pytest

from dse.cli import main
from dse.trace.replay import unregister_operator
from tests.trace.replay.making import MUL, RELU, T, annotation, call, write

pytest.importorskip("torch")

X, Y, Z = T(10, (4, 8)), T(11, (4, 8)), T(12, (4, 8))
FEW = ("--iterations", 2, "--warm-up", 0)


@pytest.fixture
def dse(monkeypatch, capsys):
    """Runs the command in this process, which has torch already; returns code, output, errors."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["dse", "replay", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return (left.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def answer(dse):
    def run(*arguments):
        code, output, errors = dse(*arguments, "--json")
        assert code == 0, errors
        return json.loads(output)

    return run


@pytest.fixture
def trace(tmp_path):
    nodes = [
        annotation(2, 1, "forward"),
        call(3, 2, RELU, [X], [Y]),
        annotation(4, 1, "backward"),
        call(5, 4, MUL, [Y, X], [Z]),
        call(6, 4, "mine::op(Tensor self) -> Tensor", [Z], [T(13, (4, 8))]),
    ]
    return write(tmp_path / "rank3.et.json", nodes)


def test_json_has_times_coverage_and_reasons(trace, answer):
    document = answer(trace, *FEW)
    assert (document["device"], document["collectives"]) == ("cpu", "none")
    (rank,) = document["ranks"]
    assert rank["rank"] == 3
    # No step is marked.
    assert rank["original"]["steps"] is None
    assert len(rank["iteration_s"]) == 2
    assert rank["replayed_s"] > 0
    assert rank["error"] is None
    assert rank["coverage"]["operator_share"] == pytest.approx(2 / 3)
    (skipped,) = rank["skipped"]
    assert (skipped["name"], skipped["reason"]) == ("mine::op", "the library `mine` is not loaded")


def test_the_table_says_what_is_missing(trace, dse):
    code, output, errors = dse(trace, *FEW)
    assert code == 0, errors
    for word in ("replayed", "original", "2 of 3", "66.67 %", "mine::op", "not loaded"):
        assert word in output


def test_a_range_and_a_file_of_operators(trace, tmp_path, answer):
    teaching = tmp_path / "teaching.py"
    teaching.write_text(
        "from dse.trace.replay import register_operator\n"
        "register_operator('mine::op', lambda call: lambda values: values + 1)\n"
    )
    options = ("--from", "backward", "--to", "backward", "--operators", teaching)
    (rank,) = answer(trace, *FEW, *options)["ranks"]
    unregister_operator("mine::op")
    assert rank["coverage"] | {"time_share": 0, "device_time_share": 0} == {
        "operators": 2,
        "replayed": 2,
        "operator_share": 1,
        "time_share": 0,
        "device_time_share": 0,
    }


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--compute-only", "--communication-only"), "choose one"),
        (("--from", "forwart"), "did you mean `forward`"),
        (("--indices", "normal"), "uniform nor zipf"),
        (("--indices", "zipf:-1"), "uniform nor zipf"),
        (("--device", "tpu"), "--device: expected one of `cpu`"),
        (("--collectives", "maybe"), "--collectives: expected one of `auto`"),
        (("--scale-batch", "-1"), "scale_batch"),
        (("--scale-batch", "2"), "--batch-size"),
        (("--memory-limit", "5 s"), "--memory-limit"),
        (("--memory-limit", "8 B"), "raise --memory-limit"),
        (("--operators", "nowhere.py"), "nowhere.py: no such file of operators"),
        (("--kineto", "nowhere.json"), "nowhere.json: no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trace, options, word, dse):
    code, output, errors = dse(trace, *options)
    assert code == 2
    assert word in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert output == ""


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"traceEvents": []})])
def test_files_that_are_no_execution_traces(tmp_path, content, dse):
    path = tmp_path / "rank0.et.json"
    path.write_text(content)
    code, _, errors = dse(path)
    assert code == 2
    assert errors.startswith(f"error: {path}")
