"""`dse fit network` from the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from dse.machine.collectives import CollectiveOp, collective_time_s
from dse.machine.platforms import load_platform, read_calibrations
from tests.cli.running import answer, dse
from tests.conftest import ROOT
from tests.nccl_logs import nccl_log

if TYPE_CHECKING:
    from pathlib import Path

#: A network ten times slower than the platform's.
SLOW_S = {
    "all_reduce": lambda size: 2e-4 + size / 15e9,
    "alltoall": lambda size: 3e-4 + size / 5e9,
}


def log(folder: Path, op: str, nodes: int = 2, **options) -> Path:
    path = folder / f"{op}_{nodes}.log"
    path.write_text(nccl_log(op, nodes, SLOW_S[op], **options))
    return path


def own_platform(folder: Path, **block):
    document = yaml.safe_load((ROOT / "platforms/h100_sxm.yaml").read_text())
    document["name"] = "own"
    built_in = [item for item in document["calibrations"] if "network" not in item]
    document["calibrations"] = [*built_in, {"file": "cluster.json", **block}]
    (folder / "own.yaml").write_text(yaml.safe_dump(document))
    return load_platform(str(folder / "own.yaml"))


def fit(folder: Path, *arguments):
    out = folder / "cluster.json"
    options = ("--platform", "h100_sxm", "--out", out)
    return answer("fit", "network", *arguments, *options)


def test_a_two_node_log_changes_sixteen_ranks_and_no_single_node(tmp_path):
    document = fit(tmp_path, log(tmp_path, "all_reduce"), log(tmp_path, "alltoall"))
    (model,) = document["models"]
    assert model["model"] == "all_reduce, all_to_all between nodes"
    assert model["fitted_points"] == 42
    assert model["mape"] < 0.15
    (fitted,) = read_calibrations(tmp_path / "cluster.json").networks
    assert fitted.nodes == (2, 2)
    before, after = load_platform("h100_sxm"), own_platform(tmp_path)
    for op in CollectiveOp:
        for ranks in (2, 8):
            assert collective_time_s(after.cluster(ranks), op, 2**26) == (
                collective_time_s(before.cluster(ranks), op, 2**26)
            )
        slower = collective_time_s(after.cluster(16), op, 2**26)
        assert slower > 2 * collective_time_s(before.cluster(16), op, 2**26)
    took_s = float(collective_time_s(after.cluster(16), "all_reduce", 2**28))
    assert took_s == pytest.approx(SLOW_S["all_reduce"](2**28), rel=0.15)


def test_predictions_of_two_nodes_change(tmp_path):
    fit(tmp_path, log(tmp_path, "all_reduce"))
    own_platform(tmp_path, network="infiniband_ndr400")

    def seconds(platform: str, ranks: int) -> float:
        job = ("--world-size", ranks, "--global-batch-size", 4096 * ranks, "--program", "ideal")
        document = answer("predict", "dlrm_ddp", "--platform", platform, *job)
        return float(document["iteration_time_s"])

    own = str(tmp_path / "own.yaml")
    assert seconds(own, 8) == seconds("h100_sxm", 8)
    assert seconds(own, 16) > seconds("h100_sxm", 16)


def test_in_place_times_on_demand(tmp_path):
    path = log(tmp_path, "all_reduce")
    outside = fit(tmp_path, path)
    inside = fit(tmp_path, path, "--in-place")
    assert inside["models"] != outside["models"]
    assert any("in-place" in note for note in inside["notes"])


def test_a_table_may_state_the_nodes(tmp_path):
    path = tmp_path / "table.csv"
    rows = [f"all_reduce,2,4,{2**power},{100 + 2**power / 1e4}" for power in range(10, 30)]
    path.write_text("\n".join(["op,nodes,ranks,size_bytes,time_us", *rows]) + "\n")
    fit(tmp_path, path)
    (fitted,) = read_calibrations(tmp_path / "cluster.json").networks
    assert fitted.nodes == (2, 2)


def test_collectives_over_nodes_are_refused_as_those_of_a_link(tmp_path):
    """Ranks of two hosts, whether the log names them or not."""
    for path in (
        log(tmp_path, "all_reduce"),
        log(tmp_path, "all_reduce", per_node=4),
    ):
        out = tmp_path / "link.json"
        run = dse("fit", "collective", path, "--platform", "h100_sxm", "--out", out)
        assert run.returncode == 2
        assert "dse fit network" in run.stderr
        assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nodes", 4), "4"),
        (("--network", "carrier pigeons"), "carrier pigeons"),
        (("--op", "all_gather"), "all_gather"),
    ],
)
def test_what_contradicts_the_log_is_refused(tmp_path, arguments, message):
    out = tmp_path / "cluster.json"
    path = log(tmp_path, "all_reduce")
    run = dse("fit", "network", path, "--platform", "h100_sxm", "--out", out, *arguments)
    assert run.returncode == 2
    assert message in run.stderr


def test_options_stand_for_the_files_that_do_not_say(tmp_path):
    silent = tmp_path / "four.log"
    text = nccl_log("all_reduce", 4, SLOW_S["all_reduce"])
    silent.write_text("\n".join(line for line in text.splitlines() if "Rank" not in line))
    said = log(tmp_path, "all_reduce")
    fit(tmp_path, said, silent, "--ranks", 32)
    (fitted,) = read_calibrations(tmp_path / "cluster.json").networks
    assert fitted.nodes == (2, 4)
    options = ("--platform", "h100_sxm", "--out", tmp_path / "other.json", "--ranks", 64)
    run = dse("fit", "network", said, log(tmp_path, "all_reduce", nodes=3), *options)
    assert run.returncode == 2
    assert "--ranks 64" in run.stderr


def test_one_node_says_nothing_of_a_network(tmp_path):
    out = tmp_path / "cluster.json"
    path = log(tmp_path, "all_reduce", nodes=1)
    run = dse("fit", "network", path, "--platform", "h100_sxm", "--out", out)
    assert run.returncode == 2
    assert "dse fit collective" in run.stderr


def test_only_networks_join_files(tmp_path):
    path = log(tmp_path, "all_reduce", nodes=1)
    out = tmp_path / "link.json"
    run = dse("fit", "collective", path, path, "--platform", "h100_sxm", "--out", out)
    assert run.returncode == 2


def test_logs_cut_short_or_without_the_operation(tmp_path):
    path = tmp_path / "cut.log"
    text = nccl_log("all_reduce", 2, SLOW_S["all_reduce"], named=False)
    lines = text.splitlines()
    # The last row is cut in the middle, and one has been torn by other output.
    torn = [*lines[:-5], "   536870912     134217728     float     sumnode-01:1 [0] NCCL INFO"]
    path.write_text("\n".join([*torn, lines[-4][:60]]))
    options = ("--platform", "h100_sxm", "--out", tmp_path / "cluster.json")
    unnamed = dse("fit", "network", path, *options)
    assert unnamed.returncode == 2
    assert "--op" in unnamed.stderr
    document = fit(tmp_path, path, "--op", "all_reduce")
    assert document["models"][0]["fitted_points"] == 19
    assert json.dumps(document["notes"])
