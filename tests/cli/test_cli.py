from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dse.config import DocumentKind, find_document
from dse.search import RunOptions, run
from dse.workload import workload_kinds
from tests.cli.running import answer, dse
from tests.conftest import SMALL_SPACE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli")
    (root / "small.yaml").write_text(SMALL_SPACE)
    return run(root / "small.yaml", RunOptions(out=root / "study"))


def test_help_and_import_stay_light():
    code = (
        "import sys, dse\n"
        "try:\n    sys.argv = ['dse', '--help']\n    from dse.cli import main\n    main()\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'ray', 'xgboost', 'optuna', 'plotly', 'pandas', 'scipy'}\n"
        "found = heavy & set(sys.modules)\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_predict_prints_the_contract():
    fields = answer(
        "predict",
        "dlrm_tiny",
        *("--platform", "h100_sxm", "--world-size", 8, "--global-batch-size", 16384),
    )
    contract = {
        "iteration_time_s",
        "iteration_time_p5_s",
        "iteration_time_p95_s",
        "throughput_samples_per_s",
        "cost_usd_per_million_samples",
        "memory_bytes_per_rank",
        "feasible",
        "infeasible_reason",
        "breakdown",
        "program",
        "bound_by",
    }
    assert contract <= set(fields)
    assert len(fields["memory_bytes_per_rank"]) == len(fields["breakdown"]) == 8
    assert set(fields["breakdown"][0]) == {
        "compute_s",
        "exposed_communication_s",
        "host_s",
        "idle_s",
    }
    assert fields["feasible"] is True
    assert (fields["program"], fields["is_bound"]) == ("torchrec", False)
    assert fields["throughput_samples_per_s"] == pytest.approx(16384 / fields["iteration_time_s"])


def test_predict_for_people():
    done = dse(
        *("predict", "dlrm_tiny", "--platform", "h100_sxm", "--world-size", 2),
        *("--global-batch-size", 4096, "--program", "hugectr", "--launch", "cuda_graphs"),
    )
    assert done.returncode == 0
    for word in ("iteration time", "90 % interval", "throughput", "exposed communication"):
        assert word in done.stdout


def test_export_and_rank(study, tmp_path):
    numbers = [r.number for r in study.result.records if r.evaluated]
    worlds = {r.number: r.configuration.world_size for r in study.result.records if r.evaluated}
    chosen = [number for number in numbers if worlds[number] == 8][:3]
    plans = []
    for number in chosen:
        path = tmp_path / f"{number}.json"
        done = dse("export", study.directory.root, "--candidate", number, "--out", path)
        assert done.returncode == 0, done.stderr
        plans.append(path)
    ranking = answer(
        "rank",
        *plans,
        *("--model", "dlrm_tiny", "--platform", "h100_sxm", "--global-batch-size", 16384),
    )["ranking"]
    assert {row["plan"] for row in ranking} == {str(path) for path in plans}
    times = [row["iteration_time_s"] for row in ranking]
    assert times == sorted(times)
    assert [row["rank"] for row in ranking] == list(range(1, len(plans) + 1))
    assert ranking[0]["tie_with_best"] is False


def test_export_formats(study, tmp_path):
    number = study.result.front[0].number
    root = study.directory.root
    torchrec = dse("export", root, "--candidate", number, "--format", "torchrec")
    (module,) = json.loads(torchrec.stdout)["plan"].values()
    assert len(module) == 55
    path = tmp_path / "plan.json"
    path.write_text(torchrec.stdout)
    world_size = study.result.front[0].configuration.world_size
    ranked = dse(
        *("predict", "dlrm_tiny", "--platform", "h100_sxm", "--plan", path),
        *("--world-size", world_size, "--global-batch-size", 16384),
    )
    assert ranked.returncode == 0, ranked.stderr
    configuration = dse("export", root, "--candidate", number, "--format", "yaml")
    assert "global_batch_size:" in configuration.stdout


def test_run_writes_a_report_and_says_where(tmp_path):
    space = tmp_path / "small.yaml"
    space.write_text(SMALL_SPACE)
    done = dse("run", space, "--trials", 6, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "out" / "report.html") in done.stdout
    assert done.stdout.startswith("take")
    assert (tmp_path / "out" / "report.html").stat().st_size < 6e6
    assert "evaluated" not in done.stderr
    fields = answer("run", space, "--trials", 3, "--out", tmp_path / "json")
    assert fields["evaluated"] == 3
    numbers = [entry["number"] for entry in fields["front"]]
    assert fields["recommended"] in numbers
    assert fields["decision"]["take"]["number"] == fields["recommended"]
    assert fields["certificate"] is None or set(fields["certificate"]) >= {
        "complete",
        "distinct",
        "evaluated",
        "proven_dominated",
        "hypervolume_missing_at_most",
    }


def test_run_works_away_from_the_repository(tmp_path):
    done = dse("run", "transformer_cpu", "--trials", 2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = dse("run", "transformer_cpu", "--trials", 2, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    names = {path.name for path in (tmp_path / "results").iterdir()}
    assert names == {"transformer_cpu", "transformer_cpu-2"}


def test_report_writes_the_page_again(study):
    study.directory.report.unlink(missing_ok=True)
    done = dse("report", study.directory.root)
    assert done.returncode == 0, done.stderr
    assert study.directory.report.stat().st_size > 1e6


def test_list_and_schema():
    models = {row["name"]: row for row in answer("list", "models")}
    assert (models["dlrm_dcnv2"]["kind"], models["dlrm_dcnv2"]["tables"]) == ("dlrm", 26)
    assert models["dlrm_dcnv2"]["layers"] is None
    assert (models["bert_base"]["kind"], models["bert_base"]["layers"]) == ("transformer", 12)
    assert models["bert_base"]["embedding_gib"] is None
    assert "h100_sxm" in {row["name"] for row in answer("list", "platforms")}
    assert "dlrm_sharding" in {row["name"] for row in answer("list", "search-spaces")}
    programs = answer("list", "software-profiles")
    kinds = {(row["name"], row["kind"]) for row in programs}
    for workload in workload_kinds().values():
        assert kinds >= {(name, workload.kind) for name in workload.programs}
    assert kinds >= {("hugectr", "dlrm"), ("ideal", "transformer"), ("megatron", "transformer")}
    (torchrec,) = (row for row in programs if row["name"] == "torchrec_dlrm")
    assert torchrec["fitted"][0].keys() == {"name", "value", "on"}
    assert answer("list", "programs") == programs
    for kind in ("space", "model", "platform"):
        schema = json.loads(dse("schema", kind).stdout)
        assert schema["properties"]["schema_version"]
    assert dse("--version").stdout.startswith("dse ")


@pytest.mark.parametrize("kind", ["models", "programs"])
def test_lists_have_a_table_for_each_kind_of_workload(kind):
    lines = dse("list", kind).stdout.splitlines()
    names_under = {
        title: {line.split(" ")[0] for line in lines[lines.index(title) :] if line.strip()}
        for title in ("recommendation models", "transformers")
    }
    rows = answer("list", kind)
    of_transformers = {row["name"] for row in rows if row["kind"] == "transformer"}
    assert {row["name"] for row in rows} <= names_under["recommendation models"]
    assert of_transformers <= names_under["transformers"]
    assert not names_under["transformers"] & {row["name"] for row in rows} - of_transformers


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


PREDICT = ("--world-size", 8, "--global-batch-size", 55296)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "none.yaml"), "none.yaml: no such file"),
        (("run", "dlrm_shardin"), "did you mean `dlrm_sharding`"),
        (
            ("run", "dlrm_sharding", "--executor", "threads"),
            "--executor: expected one of `process`",
        ),
        (("run", "dlrm_sharding", "--sampler", "best"), "expected one of `auto`, `nsga2`"),
        (("predict", "dlrm_dcnv3", "--platform", "h100_sxm", *PREDICT), "did you mean"),
        (("predict", "dlrm_dcnv2", "--platform", "h100", *PREDICT), "no platform is called"),
        (
            ("predict", "dlrm_dcnv2", "--platform", "h100_sxm", *PREDICT, "--program", "megatron"),
            "no program that trains a recommendation model",
        ),
        (("run", "nothing"), "no search space is called `nothing`"),
        (
            ("predict", "dlrm_dcnv2", "--platform", "h100_sxm", *PREDICT, "--network", "token"),
            "has no network called `token`",
        ),
        (
            ("predict", "dlrm_dcnv2", "--platform", "h100_sxm", *PREDICT, "--precision", "fp12"),
            "--precision: expected one of `fp32`",
        ),
        (
            (
                *("predict", "dlrm_dcnv2", "--platform", "h100_sxm"),
                *("--world-size", 8, "--global-batch-size", 55297),
            ),
            "does not divide over 8 ranks",
        ),
        (("report", "nowhere"), "not a study directory"),
        (
            ("rank", "no.json", "--model", "dlrm_tiny", "--platform", "cpu"),
            "",
        ),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, words, tmp_path):
    done = dse(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_all_problems_of_a_file_are_printed(tmp_path):
    text = SMALL_SPACE.replace("[2, 8, 12]", "[2, -8]").replace("minimize", "down")
    done = dse("run", write(tmp_path, "bad.yaml", text))
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2
    assert all(":" in line and "bad.yaml" in line for line in lines)


def test_a_python_tag_is_an_error_and_not_an_object(tmp_path):
    marker = tmp_path / "executed"
    text = SMALL_SPACE.replace(
        "name: small", f"name: !!python/object/apply:os.system ['touch {marker}']"
    )
    done = dse("run", write(tmp_path, "tag.yaml", text))
    assert done.returncode == 2
    assert "is not allowed" in done.stderr
    assert not marker.exists()


def test_unknown_platform_in_a_space(tmp_path):
    text = SMALL_SPACE.replace("v100_dgx2", "v100_dgx3")
    done = dse("run", write(tmp_path, "platform.yaml", text))
    assert done.returncode == 2
    assert "did you mean `v100_dgx" in done.stderr


def test_tables_larger_than_the_cluster_are_nothing_feasible(tmp_path):
    text = SMALL_SPACE.replace("dlrm_tiny", "dlrm_jumbo")
    done = dse("run", write(tmp_path, "jumbo.yaml", text), "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "nothing is feasible" in done.stdout
    assert "the tables take 6218.9 GiB" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr


def test_a_truncated_journal_is_repaired_and_a_damaged_one_named(tmp_path):
    space = write(tmp_path, "small.yaml", SMALL_SPACE)
    out = tmp_path / "out"
    assert dse("run", space, "--trials", 4, "--out", out).returncode == 0
    journal = out / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    assert dse("run", space, "--trials", 4, "--out", out, "--resume").returncode == 0
    journal.write_bytes(b"rubbish\n" + whole)
    done = dse("run", space, "--out", out, "--resume")
    assert done.returncode == 2
    assert "damaged at byte 0" in done.stderr
    assert journal.read_bytes() == b"rubbish\n" + whole
    done = dse("run", space, "--trials", 4, "--out", out, "--resume", "--repair")
    assert done.returncode == 0
    assert "byte 0 (line 1): not JSON" in " ".join(done.stderr.split())
    assert journal.read_bytes() == whole


def test_a_folder_that_cannot_be_written(tmp_path):
    space = write(tmp_path, "small.yaml", SMALL_SPACE)
    blocker = write(tmp_path, "file", "")
    done = dse("run", space, "--out", blocker / "study")
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_candidate_lists_the_front(study):
    done = dse("export", study.directory.root, "--candidate", 9999)
    assert done.returncode == 2
    assert "on its front" in done.stderr


@pytest.mark.parametrize("given", ["a space", "a model", "a platform", "a study", "its header"])
@pytest.mark.parametrize("wanted", ["a space", "a model", "a platform"])
def test_a_file_of_another_kind_is_told_in_one_line(given, wanted, study, tmp_path):
    if given == wanted:
        return
    space = tmp_path / "small.yaml"
    space.write_text(SMALL_SPACE)
    path = {
        "a space": space,
        "a model": find_document(DocumentKind.MODEL, "dlrm_tiny"),
        "a platform": find_document(DocumentKind.PLATFORM, "h100_sxm"),
        "a study": study.directory.root,
        "its header": study.directory.root / "study.yaml",
    }[given]
    command = {
        "a space": ("run", path, "--out", tmp_path / "out"),
        "a model": ("predict", path, "--platform", "h100_sxm", *PREDICT),
        "a platform": ("predict", "dlrm_dcnv2", "--platform", path, *PREDICT),
    }[wanted]
    done = dse(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert str(path) in done.stderr


@pytest.mark.parametrize("name", ["dlrm_tiny", "h100_sxm", "plan.json", "study"])
def test_a_name_of_something_else_is_told_what_it_is(name, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.yaml").write_text("")
    words = {"dlrm_tiny": "a model", "h100_sxm": "a platform", "plan.json": "./plan.json"}
    done = dse("run", name, cwd=tmp_path)
    assert done.returncode == 2
    assert words.get(name, "dse report study") in done.stderr
