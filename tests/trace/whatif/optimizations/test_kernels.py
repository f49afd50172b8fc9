"""Optimizations of kernels and launches on steps made by hand; all answers computed by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine.platforms import load_platform
from tests.trace.whatif.helpers import Tape, apply, ends, starts

_MATRIX = [[64], [8, 32], [32, 64], [], []]


@pytest.fixture
def layer(tmp_path):
    """100 µs of product from 6 on, 40 of ReLU, 30 of integers, 50 of product, 20 of update."""
    tape = Tape()
    tape.forward("aten::addmm", 100, shapes=_MATRIX)
    tape.forward("aten::relu", 40, shapes=[[8, 64]])
    tape.forward("aten::index_add", 30, shapes=[[8]], types=["long int"])
    tape.backward("AddmmBackward0", 1, "aten::mm", 50, shapes=[[64, 8], [8, 32]])
    tape.optimizer("SGD", ("aten::add_", 20, [[64, 32]]))
    return tape.capture(tmp_path)


def test_amp(layer):
    answer = apply(layer, "amp")
    assert answer.before_s == pytest.approx(246e-6)
    # 6 + 100 / 3 + 40 / 2 + 30 + 50 / 3 + 20.
    assert answer.after_s == pytest.approx(126e-6)
    assert answer.effects[0].tasks == 3


def test_amp_with_other_factors(layer):
    answer = apply(layer, "amp=2x,other=4x")
    assert answer.after_s == pytest.approx((6 + 50 + 10 + 30 + 25 + 20) * 1e-6)
    answer = apply(layer, "amp=2x,other=1x,keep=aten::mm")
    assert answer.after_s == pytest.approx((6 + 50 + 40 + 30 + 50 + 20) * 1e-6)


def test_amp_knows_products_by_kernels_where_there_are_no_operators(tmp_path):
    tape = Tape()
    tape.op("a", 90, 40, kernels=["ampere_sgemm_128x64_tn", "vectorized_elementwise_kernel"])
    answer = apply(tape.capture(tmp_path), "amp")
    assert answer.after_s == pytest.approx((6 + 30 + 20) * 1e-6)


def test_amp_leaves_doubles_and_sums_of_gradients_alone(tmp_path):
    tape = Tape()
    tape.forward("aten::mm", 90, shapes=[[8, 8], [8, 8]], types=["double", "double"])
    tape.backward("torch::autograd::AccumulateGrad", 7, "aten::add_", 30, shapes=[[8, 8]])
    with pytest.raises(ConfigError, match="computes in fp32"):
        apply(tape.capture(tmp_path), "amp")


@given(matmul=st.floats(1.001, 16), other=st.floats(1, 16))
def test_amp_is_never_slower(tmp_path_factory, matmul, other):
    tape = Tape()
    tape.forward("aten::addmm", 100, shapes=_MATRIX)
    tape.forward("aten::relu", 5, shapes=[[8, 64]])
    captured = tape.capture(tmp_path_factory.mktemp("amp"))
    answer = apply(captured, f"amp={matmul}x,other={other}x")
    assert answer.after_s <= answer.before_s * (1 + 1e-12)


def test_a_fused_optimizer(tmp_path):
    tape = Tape()
    tape.forward("aten::relu", 40)
    for _ in range(2):
        tape.backward("ReluBackward0", 1, "aten::threshold_backward", 10)
        tape.optimizer("SGD", *(("aten::add_", length, None) for length in (20, 30, 25)))
    answer = apply(tape.capture(tmp_path), "fused_optimizer")
    assert answer.before_s == pytest.approx((6 + 40 + 2 * (10 + 75)) * 1e-6)
    # The shortest takes 20 µs, which two of three kernels no longer do: 75 - 40.
    assert answer.after_s == pytest.approx((6 + 40 + 2 * (10 + 35)) * 1e-6)
    # In each of two steps two kernels, their calls and the two own parts of their operators.
    assert answer.effects[0].removed == 2 * 2 * (1 + 1 + 2)


def test_a_fused_optimizer_of_several_kernels(tmp_path):
    tape = Tape()
    tape.optimizer("SGD", *(("aten::add_", 20, None) for _ in range(4)))
    # 80 µs less twice 20.
    answer = apply(tape.capture(tmp_path), "fused_optimizer=2")
    assert answer.after_s == pytest.approx((6 + 40) * 1e-6)
    assert ends(answer, "add__kernel") == pytest.approx([26, 46])


def test_a_fused_optimizer_shortens_the_host(tmp_path):
    tape = Tape()
    tape.optimizer("SGD", *(("aten::add_", 1, None) for _ in range(10)))
    answer = apply(tape.capture(tmp_path), "fused_optimizer")
    assert answer.before_s == pytest.approx(80e-6)
    assert answer.after_s == pytest.approx(8e-6)


def test_a_fused_optimizer_by_the_platform(tmp_path):
    weights = [[4096, 1024], [1024, 1024]]
    tape = Tape()
    names = ("aten::lerp_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_")
    updates = [(name, 200, [shape]) for shape in weights for name in names]
    tape.optimizer("Adam", *updates, ("aten::add_", 2, [[1]]))
    answer = apply(tape.capture(tmp_path), "fused_optimizer")
    expected = load_platform("a100_sxm_40").kernel_time(
        "optimizer_step", parameters=5 * 1024 * 1024, state_values=2
    )
    assert float(expected) < 1600e-6
    assert answer.after_s == pytest.approx(6e-6 + float(expected))


def test_a_fused_optimizer_on_a_cpu(tmp_path):
    # Operators are the kernels: 8 µs of forward, then four updates of 8 µs each.
    tape = Tape()
    tape.forward("aten::mm", shapes=[[64, 64], [64, 64]])
    tape.optimizer("SGD", *(("aten::add_", None, None) for _ in range(4)))
    answer = apply(tape.capture(tmp_path, platform="cpu"), "fused_optimizer")
    assert answer.before_s == pytest.approx(40e-6)
    # 32 µs less the shortest of 8 µs for each of three that went.
    assert answer.after_s == pytest.approx(16e-6)


def test_no_optimizer_to_fuse(layer):
    with pytest.raises(ConfigError, match="no optimizer step has more than 1 kernel"):
        apply(layer, "fused_optimizer")


def normalised(tmp_path):
    tape = Tape()
    tape.forward("aten::cudnn_convolution", 100)
    number = tape.forward("aten::cudnn_batch_norm", 60)
    last = tape.forward("aten::relu_", 40)
    tape.backward("ReluBackward0", last, "aten::threshold_backward", 30)
    tape.backward("CudnnBatchNormBackward0", number, "aten::cudnn_batch_norm_backward", 80)
    tape.forward("aten::relu_", 7)
    return tape.capture(tmp_path)


def test_batch_norm(tmp_path):
    captured = normalised(tmp_path)
    answer = apply(captured, "batch_norm")
    assert answer.before_s == pytest.approx((6 + 100 + 60 + 40 + 30 + 80 + 7) * 1e-6)
    # The last ReLU follows no batch norm of its pass but the gradient of one, and stays.
    assert answer.after_s == pytest.approx((6 + 100 + 30 + 40 + 7) * 1e-6)
    answer = apply(captured, "batch_norm=0.75,activations=false")
    assert answer.after_s == pytest.approx((6 + 100 + 45 + 40 + 30 + 60 + 7) * 1e-6)


def test_a_batch_norm_that_stays_as_it_is_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="changes nothing"):
        apply(normalised(tmp_path), "batch_norm=1,activations=false")


def test_no_batch_norm(layer):
    with pytest.raises(ConfigError, match="no batch-norm kernel"):
        apply(layer, "batch_norm")


_FUSABLE = ["vectorized_elementwise_kernel"]


def test_fusion(tmp_path):
    tape = Tape()
    tape.forward("aten::mm", 100)
    for length in (20, 30, 10):
        tape.forward("aten::mul", length, kernels=_FUSABLE, shapes=[[8, 64]])
    tape.forward("aten::mul", 15, kernels=_FUSABLE, shapes=[[9, 64]])
    tape.forward("aten::mm", 50)
    tape.forward("aten::mul", 5, kernels=_FUSABLE, shapes=[[9, 64]])
    captured = tape.capture(tmp_path)
    answer = apply(captured, "fusion")
    # The three of one size last as long as the longest.
    assert answer.before_s == pytest.approx(236e-6)
    assert answer.after_s == pytest.approx((6 + 100 + 30 + 15 + 50 + 5) * 1e-6)
    assert len(starts(answer, "vectorized_elementwise_kernel")) == 3
    assert len(starts(answer, "cudaLaunchKernel")) == 5


def test_fusion_of_named_kernels(tmp_path):
    tape = Tape()
    for length in (20, 30):
        tape.forward("aten::softmax", length, kernels=["softmax_warp"])
    captured = tape.capture(tmp_path)
    assert apply(captured, "fusion=softmax*").after_s == pytest.approx(36e-6)
    with pytest.raises(ConfigError, match="no two kernels that could be fused"):
        apply(captured, "fusion")


def test_fusion_keeps_sums_of_gradients_apart(tmp_path):
    tape = Tape()
    for _ in range(2):
        node = "torch::autograd::AccumulateGrad"
        tape.backward(node, 9, "aten::add_", 20, kernels=_FUSABLE)
    with pytest.raises(ConfigError, match="no two kernels"):
        apply(tape.capture(tmp_path), "fusion")


def test_scaling_a_layer(tmp_path):
    tape = Tape()
    first = tape.forward("aten::mm", 100)
    tape.forward("aten::mm", 60)
    tape.backward("MmBackward0", first, "aten::mm", 40)
    captured = tape.capture(tmp_path)
    answer = apply(captured, "fusion=layer=0,scale_layer=0.5")
    assert answer.after_s == pytest.approx((6 + 50 + 60 + 20) * 1e-6)
    with pytest.raises(ConfigError, match="needs `layer`"):
        apply(captured, "fusion=scale_layer=0.5")


def short_kernels(count=4):
    tape = Tape()
    for _ in range(count):
        tape.forward("aten::relu", 1)
    return tape


def test_cuda_graphs(tmp_path):
    # Launches end at 6, 14, 22, 30; operators at 32.
    captured = short_kernels().capture(tmp_path)
    answer = apply(captured, "cuda_graphs=5us")
    assert answer.before_s == pytest.approx(32e-6)
    # One launch from 2 to 7, then the kernels back to back.
    assert starts(answer, "relu_kernel") == pytest.approx([7, 8, 9, 10])
    assert answer.after_s == pytest.approx(11e-6)
    assert answer.effects[0].inserted == 1


def test_cuda_graphs_take_the_launch_of_the_platform(tmp_path):
    answer = apply(short_kernels(8).capture(tmp_path), "cuda_graphs")
    launch_us = 1e6 * load_platform("a100_sxm_40").host.graph_launch_s
    assert starts(answer, "relu_kernel")[0] == pytest.approx(2 + launch_us)


def test_a_wait_for_the_device_ends_a_graph(tmp_path):
    tape = short_kernels()
    wait = tape.now
    tape.events.append(
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaDeviceSynchronize",
            "ts": wait,
            "dur": 3,
            "pid": 10,
            "tid": 11,
            "args": {"correlation": 1000},
        }
    )
    tape.now += 3
    for _ in range(4):
        tape.forward("aten::relu", 1)
    answer = apply(tape.capture(tmp_path), "cuda_graphs=5us")
    assert answer.effects[0].inserted == 2
    assert any("1 calls wait for a device" in note for note in answer.notes)
    first = starts(answer, "relu_kernel")
    assert first[:4] == pytest.approx([7, 8, 9, 10])
    # The wait ends at the earliest with the last kernel at 11; what it took itself stays.
    assert first[4] > 11 + 5


@given(lengths=st.lists(st.integers(1, 30), min_size=2, max_size=8))
def test_removing_launches_is_never_slower(tmp_path_factory, lengths):
    tape = Tape()
    for length in lengths:
        tape.forward("aten::relu", length)
    captured = tape.capture(tmp_path_factory.mktemp("graphs"))
    # The launch is no longer than one of those that it replaces.
    answer = apply(captured, "cuda_graphs=4us")
    assert answer.after_s <= answer.before_s * (1 + 1e-12)
    assert answer.after_s >= sum(lengths) * 1e-6


def test_nothing_to_capture(tmp_path):
    tape = Tape()
    tape.forward("aten::relu")
    with pytest.raises(ConfigError, match="no work of a GPU was launched"):
        apply(tape.capture(tmp_path, platform="cpu"), "cuda_graphs")
    with pytest.raises(ConfigError, match="is not shorter"):
        apply(short_kernels(2).capture(tmp_path), "cuda_graphs=1ms")
