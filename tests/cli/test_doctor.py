from __future__ import annotations

import json
import subprocess
import sys

from dse.doctor import FAMILIES
from dse.machine.platforms import list_platforms
from tests.cli.running import answer, dse


def test_the_core_works_here(tmp_path):
    done = dse("doctor", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "the core works" in done.stdout
    for heading in ("machine", "packages", "platforms", "commands"):
        assert f"\n{heading}\n" in f"\n{done.stdout}"
    assert list(tmp_path.iterdir()) == []


def test_json_has_every_platform_and_line(tmp_path):
    done = dse("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["healthy"] is True
    assert {one["name"] for one in document["platforms"]} == set(list_platforms())
    assert {one["status"] for one in document["findings"]} <= {"ok", "warning", "missing"}
    assert document["machine"]["cores"] >= 1


def test_one_platform_in_detail():
    document = answer("doctor", "--platform", "cpu")
    assert document["kind"] == "cpu"
    assert {one["family"] for one in document["families"]} == set(FAMILIES)
    assert any(one["origin"] == "assumed" for one in document["figures"])
    words = dse("doctor", "--platform", "h100_sxm").stdout
    assert "by formulas" in words
    assert "embedding" in words
    assert "datasheet" in words
    missing = dse("doctor", "--platform", "h100")
    assert missing.returncode == 2
    assert "no platform is called" in missing.stderr


def test_a_broken_file_of_one_s_own_is_a_warning(tmp_path):
    (tmp_path / "local_cpu.yaml").write_text("schema_version: 1\n")
    done = dse("doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert "mend the file" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr


def test_what_everybody_needs_and_is_broken_is_exit_code_1(tmp_path):
    # Nothing is installed, as far as the metadata of packages tell.
    code = (
        "import importlib.metadata as metadata, sys\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = missing\n"
        "sys.argv = ['dse', 'doctor']\n"
        "from dse.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "the core does not work" in done.stdout
    assert "broken" in done.stdout


def test_looking_imports_nothing_heavy(tmp_path):
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
