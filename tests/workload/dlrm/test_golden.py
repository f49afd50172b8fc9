"""Predictions may only change on purpose.

After an intended change of the model, rewrite the file with
`python -m tests.workload.dlrm.test_golden`
and say in the commit what moved and why.
"""

from __future__ import annotations

import json

import pytest

from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import load_model
from dse.sharding import PLANNERS, ShardingType
from dse.workload import LaunchMode
from dse.workload.dlrm import DlrmProblem, DlrmRuntime, PlanScorer, WireFormat, WireFormats
from dse.workload.dlrm.solver import planning_request
from tests.conftest import ROOT

GOLDEN = ROOT / "tests/data/golden_iteration_times.json"

CASES = {
    f"{model} on {ranks} × {platform}, {planner}": (model, platform, ranks, planner)
    for model, platform, ranks in (
        ("dlrm_criteo", "a100_sxm_80", 8),
        ("dlrm_dcnv2", "h100_sxm", 16),
        ("dlrm_tiny", "v100_dgx2", 4),
        ("dlrm_medium", "h200_sxm", 8),
        ("dlrm_default", "a100_pcie", 4),
    )
    for planner in ("size_greedy", "dim_greedy")
}


def iteration_time_s(model_name: str, platform: str, ranks: int, planner: str) -> float:
    model = load_model(model_name)
    cluster = load_platform(platform).cluster(ranks)
    software = DlrmRuntime(launch=LaunchMode.CUDA_GRAPHS, wire=WireFormats.of(WireFormat.FP16))
    scorer = PlanScorer(DlrmProblem(model, cluster, 32768, Precision.FP16, software))
    plan = PLANNERS[planner](planning_request(scorer, frozenset(ShardingType), 0))
    return float(scorer.score([plan]).iteration_time_s[0])


@pytest.mark.parametrize("name", CASES)
def test_predictions_have_not_moved(name):
    stored = json.loads(GOLDEN.read_text())
    assert iteration_time_s(*CASES[name]) == pytest.approx(stored[name], rel=1e-6)


if __name__ == "__main__":
    moved = {name: iteration_time_s(*case) for name, case in CASES.items()}
    GOLDEN.write_text(json.dumps(moved, indent=1, ensure_ascii=False) + "\n")
