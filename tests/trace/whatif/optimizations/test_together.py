"""Optimizations one after the other: any order gives a step or a clear error."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.graph import topological_order
from tests.trace.whatif.helpers import Tape, apply

NAMES = (
    "amp",
    "fused_optimizer",
    "batch_norm",
    "fusion",
    "cuda_graphs",
    "data_parallel=16",
    "p3=256KiB",
    "blueconnect",
    "dgc",
    "vdnn=matrix",
    "gist",
    "network=2x",
)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Three steps of a convolution with its normalisation and activation, and a linear layer."""
    tape = Tape()
    image, weight = [8, 16, 32, 32], [[512, 512], [512, 512]]
    names = ["vectorized_elementwise_kernel"]
    for _ in range(3):
        conv = tape.forward("aten::cudnn_convolution", 60, shapes=[image, [16, 16, 3, 3]])
        norm = tape.forward("aten::cudnn_batch_norm", 20, shapes=[image])
        relu = tape.forward("aten::relu_", 9, kernels=names, shapes=[image])
        for length in (9, 7):
            tape.forward("aten::mul", length, kernels=names, shapes=[image])
        mm = tape.forward("aten::mm", 30, shapes=weight)
        tape.backward("MmBackward0", mm, "aten::mm", 25, 35, shapes=weight)
        tape.gradient([512, 512])
        tape.backward("ReluBackward0", relu, "aten::threshold_backward", 9, shapes=[image])
        tape.backward("CudnnBatchNormBackward0", norm, "aten::cudnn_batch_norm_backward", 30)
        tape.gradient([16])
        tape.backward("ConvolutionBackward0", conv, "aten::convolution_backward", 50, 70)
        tape.gradient([16, 16, 3, 3])
        tape.optimizer("SGD", *[("aten::add_", 3, None) for _ in range(4)])
    return tape.capture(tmp_path_factory.mktemp("together"))


@given(texts=st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
def test_any_order(captured, texts):
    try:
        answer = apply(captured, *texts)
    except ConfigError as error:
        answer, problem = None, str(error)
    if answer is None:
        # Which step cannot be done, and why.
        assert problem.startswith("change ")
        return
    graph = answer.graph.graph
    topological_order(graph)
    assert len(answer.effects) == len(texts)
    busiest = max(
        graph.duration_s[graph.stream == stream].sum() for stream in range(len(graph.streams))
    )
    assert answer.after_s >= busiest * (1 - 1e-9)


def test_all_at_once(captured):
    answer = apply(
        captured,
        "data_parallel=16",
        "dgc",
        "amp",
        "gist",
        "batch_norm",
        "fusion",
        "vdnn",
        "fused_optimizer",
        "cuda_graphs",
    )
    assert answer.work_factor == 16
    assert all(effect.tasks > 0 for effect in answer.effects)
