"""Every optimization on published traces; skipped where these are not at hand."""

from __future__ import annotations

import pytest

from benchmarks.folders import DATA
from dse.errors import ConfigError
from dse.trace import read_kineto
from dse.trace.whatif import captured_step
from dse.trace.whatif.optimizations import OPTIMIZATIONS
from tests.trace.whatif.helpers import apply

FOLDER = DATA / "traces"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not FOLDER.is_dir(),
        reason=f"no published traces in {FOLDER}; name the folder above in DSE_MEASUREMENTS",
    ),
]

#: The traces of one GPU come from an RTX 2080 Ti, of which there is no built-in platform.
TRACES = {
    "dlrm_kineto.tar.gz": "",
    "linear_kineto.json.gz": "a100_pcie",
    "resnet_kineto.json.gz": "a100_pcie",
}
#: Values of optimizations that need one, and where defaults do nothing on these traces.
VALUES = {"network": "network=2x", "data_parallel": "data_parallel=8,gradients=50MB"}


@pytest.fixture(scope="module", params=TRACES)
def captured(request):
    traces = tuple(read_kineto(FOLDER / request.param))
    return captured_step(traces, platform=TRACES[request.param])


@pytest.mark.parametrize("name", OPTIMIZATIONS)
def test_it_changes_the_step_or_says_why_not(captured, name):
    try:
        answer = apply(captured, VALUES.get(name, name))
    except ConfigError as error:
        answer, problem = None, str(error)
    if answer is None:
        assert len(problem.split()) > 5
        return
    (effect,) = answer.effects
    assert effect.tasks > 0
    assert answer.after_s > 0


@pytest.fixture(scope="module")
def resnet():
    traces = tuple(read_kineto(FOLDER / "resnet_kineto.json.gz"))
    return captured_step(traces, platform="a100_pcie")


def test_a_captured_training_of_thirty_steps(resnet):
    # The trace is bound by its host, so shorter kernels alone gain nothing, and launches do.
    shorter = apply(resnet, "amp")
    assert shorter.after_s == pytest.approx(shorter.before_s, rel=0.01)
    graphs = apply(resnet, "cuda_graphs")
    assert graphs.after_s < 0.7 * graphs.before_s
    both = apply(resnet, "cuda_graphs", "amp", "batch_norm", "fusion", "fused_optimizer")
    assert both.after_s < 0.8 * graphs.after_s
    # Each optimizer step keeps one kernel, 30 of them and the copies of the first one's clones.
    fused = apply(resnet, "fused_optimizer")
    assert fused.effects[0].removed > 148 - 30


def test_data_parallel_training_of_the_captured_model(resnet):
    answer = apply(resnet, "data_parallel=8,gradients=100MB")
    assert answer.work_factor == 8
    # 30 backward passes, 5 buckets each: the first of 1 MiB and four of 25 MiB.
    assert answer.effects[0].inserted == 150
    assert 7 < answer.speedup <= 8
