"""What runs on a GPU: measurements, training, capture and replay. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest

import dse
from dse.calibration import fit_machine, write_machine
from dse.calibration.microbench import describe_machine, make_plan, run_session
from dse.sharding import ShardingType
from dse.simulate import simulate
from dse.trace import compare_with_measured, link, match_collectives, read_kineto, trace_graph
from dse.trace.replay import ReplayOptions, replay
from dse.validation.measurement import train
from tests.validation.models import OPTIONS, candidate, model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    plan = make_plan("cuda", collectives=False, local_ranks=1, threads=1, points=2)
    return run_session(plan, tmp_path_factory.mktemp("cuda") / "points.jsonl", 120)


def test_all_operators_and_the_host_are_measured(session):
    assert session.done == session.planned
    assert not session.skipped
    assert session.host.graph_launch_s is not None
    assert all(0 < point.time_s < 1 for point in session.kernels)


def test_measured_points_make_a_platform(session, tmp_path):
    platform = write_machine(fit_machine("here", session, 1), tmp_path / "here.yaml")
    assert platform.device.kind == "gpu"
    assert platform.device.name == describe_machine("cuda").device_name
    assert platform.device.peak.bf16 > platform.device.peak.fp32


def test_training_gives_what_it_gives_on_the_cpu():
    one = [candidate("whole", model(), 1, [(ShardingType.TABLE_WISE, (0,))] * 4)]
    (here,) = train(one, 3, device="cuda", options=OPTIONS, threads=1)
    (there,) = train(one, 3, device="cpu", options=OPTIONS, threads=1)
    np.testing.assert_allclose(here.losses, there.losses, rtol=1e-9)
    for name, other in there.weights.items():
        np.testing.assert_allclose(here.weights[name], other, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    layers = [torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)]
    network = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    inputs = torch.randn(256, 512, device="cuda")
    with dse.capture(folder, steps=3, skip=2) as capture:
        for _ in capture.steps(range(12)):
            optimizer.zero_grad()
            network(inputs).square().mean().backward()
            optimizer.step()
            torch.cuda.synchronize()
    return folder


def test_a_captured_step_simulates_to_its_measured_time(captured):
    traces = read_kineto(captured)
    links = [link(trace) for trace in traces]
    made = trace_graph(traces, links, match_collectives(traces, links), None)
    (rank,) = compare_with_measured(made, simulate(made.graph))
    assert rank.compute_s > 0
    assert abs(rank.error) < 0.05


def test_a_captured_step_is_replayed_on_the_gpu(captured):
    (rank,) = replay([captured], ReplayOptions(device="cuda", iterations=3, warm_up=1)).ranks
    assert rank.coverage.operator_share > 0.95
    assert rank.replayed_s > 0
