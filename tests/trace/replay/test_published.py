"""Published traces of GPUs: each operator is planned or listed; skipped where they are missing."""

from __future__ import annotations

import pytest

from benchmarks.folders import DATA
from dse.trace import read_execution_trace
from dse.trace.replay import ReplayOptions, replay
from dse.trace.replay.plan import OperatorFinder, Planner
from dse.trace.replay.read import UnitSelector

torch = pytest.importorskip("torch")

FOLDER = DATA / "traces"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason=f"no published traces in {FOLDER}; name the folder above in DSE_MEASUREMENTS",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("resnet_et", marks=pytest.mark.slow),
        pytest.param("resnet_2gpu_et", marks=pytest.mark.slow),
        "linear_et",
    ],
)
def test_every_operator_of_a_network_is_rebuilt_for_the_cpu(name):
    (trace,) = read_execution_trace(FOLDER / f"{name}.json.gz", arguments=True)
    finder = OperatorFinder(torch, "cpu")
    units = UnitSelector(trace, finder).units(0, len(trace))
    plan = Planner(trace, finder, skip_collectives=False).plan(units)
    assert len(units) > 300
    assert plan.reasons == {}


@pytest.mark.slow
def test_eight_ranks_of_a_dlrm_are_replayed_or_listed():
    options = ReplayOptions(iterations=1, warm_up=0, collectives="mock")
    result = replay([FOLDER / "dlrm_pytorch_et.tar.gz"], options)
    assert [rank.rank for rank in result.ranks] == list(range(8))
    for rank in result.ranks:
        covered = rank.coverage
        listed = sum(one.count for one in rank.skipped)
        assert covered.replayed + listed == covered.operators
        assert all(one.reason for one in rank.skipped)
        assert rank.collectives == 8
        # Lookups of FBGEMM and their backward functions are all that can be missing.
        names = {one.name for one in rank.skipped}
        assert all(name.startswith(("fbgemm::", "torch::autograd::CppNode")) for name in names)
        assert covered.time_share > 0.9
