"""`dse trace overheads` and `dse predict --host-profile` from the command line."""

from __future__ import annotations

import pytest
import yaml

from dse.machine.host import load_host_profile
from tests.cli.running import answer, dse
from tests.trace.helpers import operator, write
from tests.trace.overheads.test_extract import PLAIN


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "t.json", PLAIN)


def test_json_holds_profile_and_check(trace):
    document = answer("trace", "overheads", trace)
    shared = document["profile"]["shared"]
    assert shared["between_operators"]["mean_s"] == pytest.approx(5.5e-6)
    (check,) = document["checks"]
    assert check["measured_s"] == pytest.approx(80e-6)
    assert check["error"] == pytest.approx(0, abs=1e-9)


def test_the_table_and_the_file(trace, tmp_path):
    done = dse("trace", "overheads", trace, "--out", tmp_path / "p.yaml")
    assert done.returncode == 0, done.stderr
    for word in ("T1 between operators", "cudaLaunchKernel", "measured", "written to"):
        assert word in done.stdout
    operators = load_host_profile(tmp_path / "p.yaml").operators
    assert ("a", 2) in [(operator.name, operator.launches) for operator in operators]


def test_traces_of_the_same_rank_make_a_shared_profile(trace, tmp_path):
    other = write(tmp_path / "u.json", PLAIN)
    document = answer("trace", "overheads", trace, other)
    assert document["profile"]["name"] == "t+u"
    assert document["profile"]["shared"]["launch"]["count"] == 6
    assert len(document["checks"]) == 2


def test_the_platform_block_is_yaml(trace):
    done = dse("trace", "overheads", trace, "--platform-block")
    block = yaml.safe_load(done.stdout)["host"]
    assert block["between_operators"] == "5.5 us"
    assert block["origin"] == "measured"
    assert "graph_launch" not in block
    both = dse("trace", "overheads", trace, "--platform-block", "--json")
    assert both.returncode == 2
    assert "choose one" in both.stderr


def test_bad_input_is_one_line(trace, tmp_path):
    done = dse("trace", "overheads", trace, "--step", 3)
    assert done.returncode == 2
    assert "no profiler step 3" in done.stderr
    host_only = write(tmp_path / "cpu.json", [operator("aten::mm", 0, 20)])
    done = dse("trace", "overheads", host_only)
    assert done.returncode == 2
    assert "no call launched device work" in done.stderr
    done = dse("trace", "overheads", trace, "--step", "no_such_mark")
    assert done.returncode == 2
    assert "no annotation `no_such_mark`" in done.stderr


def test_predict_uses_a_profile_and_says_so(trace, tmp_path):
    path = tmp_path / "p.yaml"
    assert dse("trace", "overheads", trace, "--out", path).returncode == 0
    words = ("predict", "dlrm_criteo", "--platform", "v100_dgx2", "--world-size", 2)
    words = (*words, "--global-batch-size", 64)
    slow = tmp_path / "slow.yaml"
    slow.write_text(path.read_text().replace("mean: 5.5 us", "mean: 900 us"))
    fast, slower = (
        # The tables are larger than two of these devices.
        answer(*words, "--host-profile", one, code=1)
        for one in (path, slow)
    )
    assert slower["iteration_time_s"] > 5 * fast["iteration_time_s"]
    assert fast["host_overheads"] == str(path)
    assert answer(*words, code=1)["host_overheads"] != str(path)
    shown = dse(*words, "--host-profile", path)
    assert "host overheads: measured, profile t" in shown.stdout
    missing = dse(*words, "--host-profile", tmp_path / "none.yaml")
    assert missing.returncode == 2
    assert "no such file" in missing.stderr
