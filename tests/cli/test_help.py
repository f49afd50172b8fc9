"""Help, completion and errors of the command line as a whole."""

from __future__ import annotations

import os
import shlex
from typing import get_args
from unittest.mock import patch

import pytest
from typer.main import get_command

from dse.cli import _complete, _options
from dse.cli._app import app
from dse.machine import Precision
from dse.model import DataType
from dse.sharding import ComputeKernel, ShardingType
from dse.workload import workload_kinds
from dse.workload.dlrm import DlrmParameters
from dse.workload.dlrm.program._wire import WireFormat
from tests.cli.running import dse

GROUPS = ("Plan:", "Search:", "Decide:", "Traces:", "Machine:")


def commands(group=None, path=()):
    """Yields the words and the command of every command, groups included."""
    group = group or get_command(app)
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


COMMANDS = dict(commands())


def help_of(path, columns):
    with patch.dict(os.environ, {"COLUMNS": str(columns)}):
        done = dse(*path, "-h")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", list(COMMANDS), ids=" ".join)
def test_help_fits_80_columns_without_cut_words_and_has_examples(path):
    narrow, wide = help_of(path, 80), help_of(path, 1000)
    assert max(map(len, narrow.splitlines())) <= 80
    assert not set(narrow.split()) - set(wide.split()) - {"\\"}
    assert "\nExamples:\n  dse " in narrow


def test_commands_are_in_groups():
    shown = help_of((), 80)
    places = [shown.index(f"\n{group}\n") for group in GROUPS]
    assert places == sorted(places)


def example_lines():
    for path, command in COMMANDS.items():
        text = command.epilog.replace("\\\n", " ")
        for line in text.splitlines():
            if line.startswith("  dse "):
                yield pytest.param(path, shlex.split(line)[1:], id=" ".join(line.split()))


@pytest.mark.parametrize(("path", "words"), list(example_lines()))
def test_examples_parse(path, words):
    if words[0].startswith("--"):
        assert words == ["--install-completion"]
        return
    if not path:
        path = (words[0],)
    words = [word.split(">")[0] for word in words]
    if ">" in words or "" in words:
        words = words[: words.index("")]
    assert tuple(words[: len(path)]) == path
    command = COMMANDS[path]
    if not hasattr(command, "commands"):
        root = get_command(app).make_context("dse", ["list", "models"])
        command.make_context(path[-1], words[len(path) :], parent=root)


def complete(shell, words, **variables):
    """What a shell is offered after these words."""
    line = " ".join(words)
    environment = {"_DSE_COMPLETE": f"complete_{shell}", **variables}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        environment["_TYPER_COMPLETE_ARGS"] = line
    with patch.dict(os.environ, environment):
        return dse().stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dse pred", "predict"),
        ("dse predict dlrm_dc", "dlrm_dcnv2"),
        ("dse run dlrm_sh", "dlrm_sharding"),
        ("dse predict x --platform h100_s", "h100_sxm"),
        ("dse predict x --program torchr", "torchrec"),
        ("dse predict x --launch cu", "cuda_graphs"),
        ("dse predict x --platform h100_sxm --network infi", "infiniband_ndr400"),
        ("dse shard x --types row_wise,table_w", "row_wise,table_wise"),
        ("dse recommend x --platforms h100_sxm,b200", "h100_sxm,b200_sxm"),
        ("dse run x --sampler nsg", "nsga2"),
        ("dse list plat", "platforms"),
        ("dse schema sp", "space"),
    ],
)
def test_names_are_completed(shell, words, expected):
    found = complete(shell, words.split(), _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert expected in found


@pytest.mark.parametrize("option", ["--network", "--link"])
def test_nothing_is_offered_of_a_platform_that_is_not_named(option):
    assert complete("bash", ["dse", "predict", "x", option, "in"]).split() == []


FRONT = """\
number,status,equal_configurations,platform,world_size,throughput_samples_per_s
14,feasible,0,b200_sxm,8,2e6
7,feasible,1,`touch x`;,8,1e6
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("begun", "offered"), [("", ["14", "7"]), ("1", ["14"]), ("9", [])])
def test_candidates_of_a_study_are_completed_with_what_they_differ_in(
    shell, begun, offered, tmp_path
):
    (tmp_path / "pareto.csv").write_text(FRONT)
    words = ["dse", "export", str(tmp_path), "--candidate", begun]
    found = complete(shell, words, _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert [number for number in ("14", "7") if number in found] == offered
    if offered and shell != "bash":
        assert "platform b200_sxm" in found
        assert "world_size" not in found
    # Text of files never runs in a shell.
    assert "`" not in found


def test_a_folder_without_a_front_has_no_candidates(tmp_path):
    words = ["dse", "export", str(tmp_path), "--candidate", ""]
    assert complete("bash", words).strip() == ""


def test_fixed_names_are_those_of_the_library():
    kinds = workload_kinds()
    built_in = [kinds[kind] for kind in ("dlrm", "transformer")]
    assert set(_complete.PROGRAMS) == {name for kind in built_in for name in kind.programs}
    frameworks = {name for kind in built_in for name in kind.frameworks}
    assert set(_complete.EXPORT_FORMATS) == {"json", "yaml", *frameworks}
    assert set(_complete.SHARDING_TYPES) == set(ShardingType)
    assert set(_complete.KERNELS) == set(ComputeKernel)
    assert set(_complete.WIRE_FORMATS) == set(WireFormat)
    assert set(get_args(_options.PrecisionName)) == set(Precision)
    assert set(get_args(_options.TableTypeName)) == set(DataType)
    fields = str(DlrmParameters.model_fields["train_pipeline"].annotation)
    assert all(f"'{name}'" in fields for name in get_args(_options.PipelineName))


JOB = ("--platform", "h100_sxm", "--world-size", 8, "--global-batch-size", 8192)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["predic"], ["`predic`", "`predict`"]),
        (["trace", "inf"], ["`inf`", "`info`"]),
        (["list", "modles"], ["KIND", "`models`", "`modles`"]),
        (["predict", "x", "--batch-size", 1], ["--batch-size", "`--global-batch-size`"]),
        (["predict", "x", "--platfrom", 1], ["--platfrom", "`--platform`"]),
        (["predict", "dlrm_tiny"], ["--platform", "missing", "`dse predict --help`"]),
        (["run"], ["SPACE", "missing"]),
        (["run", "x", "--trials", 0], ["--trials", "at least 1", "`0`"]),
        (["run", "x", "--trials", "ten"], ["--trials", "whole number", "`ten`"]),
        (["run", "x", "--sampler", "nsga"], ["--sampler", "nsga2", "`nsga`"]),
        (["recommend", "x", "--price-basis", "spott"], ["--price-basis", "mean `spot`"]),
        (["validate", "x", "--mode", "fast"], ["--mode", "`rank-serial`", "`fast`"]),
        (["validate", "x", "--device", "tpu"], ["--device", "`cuda`", "`tpu`"]),
        (["predict", "dlrm_tiny", *JOB, "--launch", "lazy"], ["--launch", "eager", "`lazy`"]),
        (["predict", "dlrm_tin", *JOB], ["`dlrm_tin`", "`dlrm_tiny`"]),
        (["predict", "nothing_like_it", *JOB], ["`dse list models`"]),
    ],
)
def test_all_errors_have_one_style(arguments, parts):
    done = dse(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_an_unknown_name_of_a_file_that_is_here_names_the_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("")
    done = dse("predict", "mine", *JOB, cwd=tmp_path)
    assert "`mine.yaml`" in done.stderr


def test_without_arguments_there_is_help():
    for arguments in ((), ("trace",), ("model",)):
        done = dse(*arguments)
        assert done.returncode == 2
        assert done.stdout.startswith("Usage: dse")


def test_files_are_not_replaced_without_force(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text("mine")
    arguments = ("shard", "dlrm_tiny", *JOB, "--types", "row_wise", "--out", plan)
    refused = dse(*arguments)
    assert (refused.returncode, plan.read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    assert dse(*arguments, "--force").returncode == 0
    assert plan.read_text() != "mine"


def test_a_job_that_does_not_fit_says_so_first_and_exits_1():
    arguments = ("predict", "dlrm_dcnv2", "--platform", "a100_pcie", "--world-size", 2)
    done = dse(*arguments, "--global-batch-size", 8192)
    assert done.returncode == 1
    assert done.stdout.startswith("does not fit: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "dlrm_tiny", *JOB, "--timeline"),
        ("recommend", "dlrm_tiny", "--target", "1M samples/s", "--export"),
        ("collective", "--platform", "h100_sxm", "--op", "all_reduce", "--plot"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_command_replaces_a_file_that_is_there(tmp_path, arguments):
    there = tmp_path / "there.svg"
    there.write_text("mine")
    refused = dse(*arguments, there)
    assert (refused.returncode, there.read_text()) == (2, "mine")
    assert "--force" in refused.stderr
