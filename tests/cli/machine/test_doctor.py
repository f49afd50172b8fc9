from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dse.cli._app import app
from dse.machine.platforms import FAMILIES, list_platforms


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["doctor", *arguments])


def test_the_core_works_here(tmp_path, doctor):
    done = doctor()
    assert done.exit_code == 0, done.output
    assert "the core works" in done.stdout
    for heading in ("machine", "packages", "platforms"):
        assert f"\n{heading}\n" in f"\n{done.stdout}"
    assert list(tmp_path.iterdir()) == []


def test_json_has_every_platform_and_line(doctor):
    document = json.loads(doctor("--json").stdout)
    assert document["healthy"] is True
    findings = document["findings"]
    assert set(list_platforms()) <= {one["subject"] for one in findings}
    assert {one["status"] for one in findings} <= {"ok", "warning", "missing"}
    assert {one["topic"] for one in findings} == {"machine", "packages", "platforms"}


def test_one_platform_in_detail(doctor):
    document = json.loads(doctor("--platform", "cpu", "--json").stdout)
    assert document["kind"] == "cpu"
    assert document["kernel_floor_s"] == pytest.approx(2.05e-6)
    assert "2.05 us" in doctor("--platform", "cpu").stdout
    assert {family["family"] for family in document["families"]} == {*FAMILIES} - {
        "networks",
        "experts",
    }
    assert any(figure["origin"] == "assumed" for figure in document["figures"])
    text = doctor("--platform", "h100_sxm").stdout
    assert "by formulas" in text
    assert "embedding" in text
    assert "datasheet" in text


def test_fitted_families_are_listed_with_their_held_out_errors(doctor):
    families = json.loads(doctor("--platform", "h100_sxm", "--json").stdout)["families"]
    lines = doctor("--platform", "h100_sxm").stdout.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert families
    for one in families:
        error = f"{100 * one['gmae']:.1f}"
        assert ("another" in rows[one["family"]]) == one["transferred"]
        assert rows[one["family"]][1:4] == [str(one["models"]), f"{one['points']:,}", error]


def test_a_broken_local_file_is_a_warning(tmp_path, doctor):
    (tmp_path / "local_cpu.yaml").write_text("schema_version: 1\n")
    done = doctor()
    assert done.exit_code == 0
    assert "correct the file" in " ".join(done.stdout.split())


def test_missing_core_packages_are_exit_code_1(monkeypatch, doctor):
    import importlib.metadata as metadata

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    done = doctor()
    assert done.exit_code == 1, done.output
    assert "the core does not work" in done.stdout


def test_a_checkup_imports_nothing_heavy(tmp_path):
    code = (
        "import sys\n"
        "sys.argv = ['dse', 'doctor', '--json']\n"
        "from dse.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'ray', 'optuna', 'plotly', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
