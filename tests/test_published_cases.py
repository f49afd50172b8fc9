"""Rules that turn published cases into configurations, and how well the predictions do."""

from __future__ import annotations

from dataclasses import replace
import importlib
import json
import math
import sys

import pytest

from dse.model import load_model
from dse.sharding import ShardingType
from dse.workload import find_program
from dse.workload.dlrm import DLRM_PROGRAMS, DlrmProblem, PlanScorer
from tests.conftest import ROOT, make_cluster, make_model, make_table

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def published():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("published_cases")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def evaluations(published):
    assert published
    return sys.modules["published_evaluations"]


@pytest.fixture(scope="module")
def plans(published):
    assert published
    return sys.modules["published_plans"]


def row(**changes):
    values = {
        "case": "MLPerf v2.0 somebody",
        "model": "mlperf_dlrm_v1",
        "gpu": "A100-SXM-80GB",
        "gpus": 8,
        "nodes": 1,
        "interconnect": "",
        "global_batch": 55296,
        "precision": "AMP",
        "samples_per_s": 36e6,
        "note": "throughput includes in-run evaluation; framework HugeCTR",
    }
    return pd.Series({**values, **changes})


@pytest.mark.parametrize(
    ("changes", "program"),
    [
        ({}, "hugectr_hybrid"),
        ({"case": "MLPerf v1.0 somebody"}, "hugectr_3_1"),
        ({"model": "mlperf_dlrm_dcnv2"}, "hugectr"),
        ({"note": "framework MXNet NVIDIA Release 21.09"}, "hugectr_hybrid"),
        ({"note": "framework PyTorch NVIDIA Release 21.05"}, "deeplearningexamples"),
        ({"case": "MLPerf v1.0 box_pytorch"}, "deeplearningexamples"),
        ({"case": "DLE-PyT DGX-1", "note": float("nan")}, "deeplearningexamples"),
        ({"case": "torchrec_dlrm", "note": "data-loading in loop"}, "torchrec_dlrm"),
        ({"case": "torchrec somewhere", "note": ""}, "torchrec"),
        ({"case": "TFDE synthetic", "model": "tfde_tiny_v3"}, "distributed_embeddings"),
        ({"case": "HiPC'22 DLRM_DDP"}, "pytorch_eager"),
    ],
)
def test_the_program_follows_from_what_the_source_says(published, changes, program):
    assert published.program_of(row(**changes)) == program


def test_evaluation_is_counted_where_it_is_in_the_throughput(evaluations):
    assert evaluations.evaluation_share(row()) == pytest.approx(0.4248, abs=1e-4)
    assert evaluations.evaluation_share(row(note="framework HugeCTR")) == 0.0


def test_a_throughput_includes_evaluations_and_the_start_of_a_run(published, evaluations):
    stated = row(gpu="A100-SXM-80GB")
    job = published.job_of(stated)
    batch = job.problem.global_batch_size
    # 89.1 million samples, and 75 ms, every twentieth of an epoch.
    interval = 0.05 * 4195.2e6
    expected_s = (job.evaluation_time_s(89.1e6) + 0.075) * batch / interval
    assert evaluations.besides_iteration_s(job, stated) == pytest.approx(expected_s)
    trained_only = row(note="framework HugeCTR")
    assert evaluations.besides_iteration_s(job, trained_only) == 0.0


@pytest.mark.parametrize(
    ("changes", "samples"),
    [
        ({}, None),
        ({"gpus": 4}, 55_296),
        ({"gpus": 4, "case": "MLPerf v1.1 Dell XE8545"}, 442_368),
        ({"gpus": 64, "nodes": 8}, None),
        ({"gpus": 64, "nodes": 8, "case": "MLPerf v1.0 somebody"}, 716_800),
        ({"model": "mlperf_dlrm_dcnv2"}, 262_144),
        ({"model": "mlperf_dlrm_dcnv2", "gpus": 128, "nodes": 16}, 2_097_152),
        ({"note": "framework PyTorch NVIDIA Release 21.05"}, None),
    ],
)
def test_evaluations_have_the_batches_of_their_configurations(
    published, evaluations, changes, samples
):
    case = row(**changes)
    assert evaluations.evaluation_batch_size(case, published.program_of(case)) == samples


def test_stated_nodes_and_cards_replace_the_platforms(published):
    cluster = published.cluster_of(
        row(gpus=16, nodes=4, interconnect="NVLink | 2x ConnectX-6 IB HDR 200Gb/Sec")
    )
    assert (cluster.node_count, cluster.devices_per_node) == (4, 4)
    assert cluster.network.nics_per_node == 2
    assert cluster.network.nic_bandwidth_bytes_per_s == 25e9
    assert published.cluster_of(row()).node_count == 1


def test_cards_for_storage_carry_no_collectives(published):
    stated = (
        "NVLink | Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-6 IB HDR 200Gb/s"
    )
    network = published.cluster_of(row(gpus=16, nodes=2, interconnect=stated)).network
    assert (network.nics_per_node, network.nic_bandwidth_bytes_per_s) == (8, 25e9)
    cut = stated.replace("Compute: 8x ConnectX-6 IB HDR 200Gb/s", "Com")
    own = published.platform_of("A100-SXM-80GB").cluster(16).network
    assert published.cluster_of(row(gpus=16, nodes=2, interconnect=cut)).network == own


def test_more_tables_than_ranks_leave_the_first_gpu_to_the_bottom(plans):
    tables = tuple(make_table(f"t{index}", rows=10 - index) for index in range(10))
    plan = plans.first_gpu_free_plan(make_model(tables), 6)
    ranks = [table.ranks[0] for table in plan.tables]
    # Two tables a rank, by falling size to the emptiest that has room.
    assert ranks == [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]
    on_four = plans.first_gpu_free_plan(make_model(tables), 4)
    assert {table.ranks[0] for table in on_four.tables} == {0, 1, 2, 3}


def test_memory_balanced_plans_deal_slices_back_and_forth(plans):
    tables = tuple(make_table(f"t{index}", rows=100 - index) for index in range(6))
    plan = plans.memory_balanced_plan(make_model(tables), 2)
    assert [table.ranks for table in plan.tables] == [(0,), (1,), (1,), (0,), (0,), (1,)]
    huge = (make_table("huge", rows=40_000_000, dim=64), *tables)
    cut = plans.memory_balanced_plan(make_model(huge), 4)
    # 2.56 G values are more than 1.28 Gi and cut in two.
    assert cut.tables[0].sharding_type is ShardingType.COLUMN_WISE
    assert cut.tables[0].ranks == (0, 1)


def test_hugectrs_planner_splits_the_tables_with_most_lookups(plans):
    tables = (
        make_table("small", rows=100, dim=8, pooling=50),
        make_table("hot", rows=1000, dim=8, pooling=16),
        make_table("b", rows=1000, dim=8, pooling=3),
        make_table("c", rows=1000, dim=8, pooling=2),
    )
    # Memory is four times as fast as links, so that a shard counts as much as a lookup.
    cluster = make_cluster(4)
    link = replace(
        cluster.link, bandwidth_bytes_per_s=cluster.device.memory_bandwidth_bytes_per_s / 4
    )
    cluster = replace(cluster, link=link)
    plan = plans.lookup_balanced_plan(make_model(tables), cluster, 8 * 8 * 1000)
    placed = {table.table: (table.sharding_type, table.ranks) for table in plan.tables}
    assert placed["small"] == (ShardingType.DATA_PARALLEL, (0, 1, 2, 3))
    # Work of the busiest rank: 17 with `hot` whole, 9 in halves and in quarters (with `b` beside
    # one), 8 with `b` in halves as well, 7.5 with `c`, and 8.75 with `b` in quarters.
    assert placed["hot"] == (ShardingType.ROW_WISE, (0, 1, 2, 3))
    assert placed["b"] == (ShardingType.ROW_WISE, (0, 1))
    assert placed["c"] == (ShardingType.ROW_WISE, (2, 3))


def test_hugectr_deals_tables_out_to_nodes_where_there_are_several(plans):
    tables = tuple(make_table(f"t{index}", pooling=4 - index) for index in range(3))
    plan = plans.lookup_balanced_plan(make_model(tables), make_cluster(4, 2), 0.0)
    assert {table.sharding_type for table in plan.tables} == {ShardingType.TABLE_ROW_WISE}
    assert [table.ranks for table in plan.tables] == [(0, 1), (2, 3), (2, 3)]


def test_rounds_that_copy_small_tables(published):
    job = published.job_of(row(case="MLPerf v3.1 somebody", model="mlperf_dlrm_dcnv2"))
    before = published.job_of(row(case="MLPerf v3.0 somebody", model="mlperf_dlrm_dcnv2"))
    copied = [
        sum(table.sharding_type is ShardingType.DATA_PARALLEL for table in found.plan.tables)
        for found in (before, job)
    ]
    # Below 8 MB with state are 13 of 26.
    assert copied == [0, 13]


def test_a_plan_that_does_not_fit_is_left_for_the_solvers(published):
    model = load_model("dle_criteo_t0_xl")
    software = find_program(DLRM_PROGRAMS, "deeplearningexamples").software
    cluster = published.cluster_of(row(gpu="A100-SXM-40GB", gpus=16, nodes=2))
    scorer = PlanScorer(DlrmProblem(model, cluster, 65536, model.precision, software))
    plan = published.plan_of(scorer, "deeplearningexamples")
    assert scorer.score([plan]).fits[0]


def test_families(published):
    names = ("DLE-PyT DGX-2", "TFDE synthetic", "torchrec_dlrm", "HiPC'22 DLRM_DDP", "MLPerf v2.0")
    assert [published.family_of(name) for name in names] == [
        "dlrm cuda graphs",
        "dlrm synthetic",
        "dlrm eager",
        "dlrm eager",
        "dlrm cuda graphs",
    ]


def test_a_case_that_cannot_be_predicted_says_why(published):
    result = published.predict_case(row(gpu="Abacus"))
    assert "Abacus" in result.problem
    assert result.predicted_samples_per_s != result.predicted_samples_per_s


@pytest.mark.parametrize(
    "changes",
    [
        *({"samples_per_s": text} for text in ("", "0", "-5", "soon", "inf", "nan")),
        *({"gpus": text} for text in ("", "0", "-8", "8.5", "x")),
        *({"global_batch": text} for text in ("", "0", "-4", "x")),
        *({"nodes": text} for text in ("", "0", "3", "100", "x")),
        *({name: ""} for name in ("model", "gpu", "precision")),
    ],
)
def test_what_a_row_does_not_state_is_its_problem(published, changes):
    (name,) = changes
    result = published.predict_case(row(**changes))
    assert name in result.problem or name in ("model", "gpu")
    assert result.problem
    assert math.isnan(result.predicted_samples_per_s)


def test_a_file_of_problems_has_figures_of_none(published, tmp_path, capsys):
    path = tmp_path / "cases.csv"
    path.write_text(",".join(row().index) + "\n" + ",".join(map(str, row(gpus=0))) + "\n")
    published.compare_published(path, as_json=False)
    published.compare_published(path, as_json=True)
    text = capsys.readouterr().out
    found = json.loads(text[text.index("{") :], parse_constant=pytest.fail)
    assert found["overall"] == {
        "cases": 0,
        "not_predicted": 1,
        "median_abs_error": None,
        "mean_abs_error": None,
        "kendall_tau": None,
    }
