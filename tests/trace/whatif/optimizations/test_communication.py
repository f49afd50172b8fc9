"""Optimizations of gradients and memory on steps made by hand; all answers computed by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine.collectives import Group, collective_time_s
from dse.machine.platforms import load_platform
from tests.trace.whatif.helpers import ACCUMULATE, EVALUATE, Tape, apply, ends, starts, two_ranks

_PLATFORM = load_platform("a100_sxm_40")
_MEBI = 2**20
#: 1 MiB, 1 MiB and 2 MiB of fp32.
_GRADIENTS = ([256, 1024], [512, 512], [512, 1024])


def backward_of_three(tmp_path, gradients=_GRADIENTS):
    """Forward until 106 µs, then 50 µs a layer with a gradient each, then an update of 20 µs."""
    tape = Tape()
    numbers = [tape.forward("aten::mm", length) for length in (40, 30, 30)]
    for number, shape in zip(reversed(numbers), gradients, strict=True):
        tape.backward("MmBackward0", number, "aten::mm", 50)
        tape.gradient(shape)
    tape.optimizer("SGD", ("aten::add_", 20, None))
    return tape.capture(tmp_path)


def all_reduce_us(size_bytes, ranks=8):
    return 1e6 * float(_PLATFORM.collective_time("all_reduce", size_bytes, ranks))


def test_data_parallel(tmp_path):
    captured = backward_of_three(tmp_path)
    answer = apply(captured, "data_parallel=8")
    assert answer.before_s == pytest.approx(276e-6)
    # The first bucket closes at 1 MiB; the rest stays below 25 MiB and waits for the last one.
    first, second = all_reduce_us(_MEBI), all_reduce_us(3 * _MEBI)
    assert starts(answer, "all-reduce of bucket 0") == pytest.approx([156])
    last = max(256, 156 + first)
    assert starts(answer, "all-reduce of bucket 1") == pytest.approx([last])
    assert starts(answer, "add__kernel") == pytest.approx([last + second])
    assert answer.after_s == pytest.approx(1e-6 * (last + second + 20))
    assert answer.work_factor == 8
    assert answer.machine.world_size == 8
    assert answer.speedup == pytest.approx(8 * 276e-6 / answer.after_s)


def test_buckets_and_overlap(tmp_path):
    captured = backward_of_three(tmp_path)
    answer = apply(captured, "data_parallel=8,bucket=1MiB,overlap_slowdown=1.34")
    # A bucket for each gradient; the last one has nothing to overlap with.
    small, large = 1.34 * all_reduce_us(_MEBI), all_reduce_us(2 * _MEBI)
    assert ends(answer, "all-reduce of bucket 0") == pytest.approx([156 + small])
    assert ends(answer, "all-reduce of bucket 1") == pytest.approx([max(206, 156 + small) + small])
    end = max(256, max(206, 156 + small) + small) + large
    assert answer.after_s == pytest.approx(1e-6 * (end + 20))


def test_gradients_of_a_given_size(tmp_path):
    captured = backward_of_three(tmp_path, gradients=(None, None, None))
    with pytest.raises(ConfigError, match="gradients=100MB"):
        apply(captured, "data_parallel=8")
    # Three shares of 2 MiB: the first alone, the others together.
    answer = apply(captured, "data_parallel=8,gradients=6MiB")
    last = max(256, 156 + all_reduce_us(2 * _MEBI))
    assert answer.after_s == pytest.approx(1e-6 * (last + all_reduce_us(4 * _MEBI) + 20))


def test_gradients_spread_over_layers_where_none_are_handed_over(tmp_path):
    tape = Tape()
    numbers = [tape.forward("aten::mm", 50) for _ in range(2)]
    for number in reversed(numbers):
        tape.backward("MmBackward0", number, "aten::mm", 50)
    answer = apply(tape.capture(tmp_path), "data_parallel=8,gradients=4MiB,bucket=1MiB")
    assert starts(answer, "all-reduce of bucket 0") == pytest.approx([156])


def test_every_backward_pass_is_reduced(tmp_path):
    tape = Tape()
    for _ in range(3):
        number = tape.forward("aten::mm", 100)
        tape.backward("MmBackward0", number, "aten::mm", 100)
        tape.gradient([512, 512])
        tape.optimizer("SGD", ("aten::add_", 20, None))
    answer = apply(tape.capture(tmp_path), "data_parallel=8")
    each = 220 + all_reduce_us(_MEBI)
    assert starts(answer, "all-reduce of bucket 0") == pytest.approx(
        [6 + 200, 6 + 200 + each, 6 + 200 + 2 * each]
    )
    assert answer.after_s == pytest.approx(1e-6 * (6 + 3 * each))


def test_data_parallel_on_cpus(tmp_path):
    # Where the CPU is the device, operators are the kernels and the thread waits for gloo.
    tape = Tape()
    number = tape.forward("aten::mm", shapes=[[64, 64], [64, 64]])
    tape.backward("MmBackward0", number, "aten::mm", shapes=[[64, 64], [64, 64]])
    tape.gradient([512, 512])
    tape.optimizer("SGD", ("aten::add_", None, None))
    answer = apply(tape.capture(tmp_path, platform="cpu"), "data_parallel=2")
    transfer = 1e6 * float(load_platform("cpu").collective_time("all_reduce", _MEBI, 2))
    assert starts(answer, "aten::add_") == pytest.approx([24 + transfer], abs=0.51)
    assert answer.after_s == pytest.approx(32e-6 + 1e-6 * transfer, abs=0.51e-6)


@given(factor=st.floats(1.001, 50))
def test_more_bandwidth_is_never_slower(tmp_path_factory, factor):
    captured = backward_of_three(tmp_path_factory.mktemp("network"))
    plain = apply(captured, "data_parallel=8")
    faster = apply(captured, "data_parallel=8", f"network={factor}x")
    assert faster.after_s <= plain.after_s * (1 + 1e-12)


def test_data_parallel_needs_one_rank_and_a_backward_pass(tmp_path):
    with pytest.raises(ConfigError, match="captured on 2 ranks already"):
        apply(two_ranks(tmp_path, _MEBI), "data_parallel=4")
    tape = Tape()
    tape.forward("aten::mm", 10)
    with pytest.raises(ConfigError, match="no backward pass"):
        apply(tape.capture(tmp_path), "data_parallel=4")


def test_p3(tmp_path):
    # Two steps; gradients of 64 MiB keep the stream busy, so that the first layer's overtake.
    tape = Tape()
    shape = [4096, 4096]
    for _ in range(2):
        numbers = [tape.forward("aten::mm", 40) for _ in range(2)]
        for number in reversed(numbers):
            tape.backward("MmBackward0", number, "aten::mm", 50)
            tape.gradient(shape)
        tape.optimizer("SGD", ("aten::add_", 20, None))
    captured = tape.capture(tmp_path)
    answer = apply(captured, "data_parallel=8", "p3=32MiB")
    part = all_reduce_us(32 * _MEBI)
    assert part > 50
    late, early = (
        [f"all-reduce of bucket {number}, slice {one} of 2" for one in (1, 2)] for number in (0, 1)
    )
    # The first slice of the second layer's runs from 136 on; at 186 the first layer's are ready.
    first = 136 + part
    assert starts(answer, late[0])[0] == pytest.approx(136)
    assert starts(answer, early[0])[0] == pytest.approx(first)
    assert starts(answer, early[1])[0] == pytest.approx(first + part)
    assert starts(answer, late[1])[0] == pytest.approx(first + 2 * part)
    # The update waits for none; the next forward pass waits layer by layer.
    assert starts(answer, "add__kernel")[0] == pytest.approx(186)
    forward = starts(answer, "mm_kernel")
    assert forward[4] == pytest.approx(first + 2 * part)
    assert forward[5] == pytest.approx(max(first + 2 * part + 40, first + 3 * part))
    # Nothing follows the second backward pass: its four slices count in full.
    assert answer.after_s == pytest.approx(1e-6 * (forward[5] + 40 + 50 + 4 * part))


def test_blueconnect(tmp_path):
    captured = two_ranks(tmp_path, 2**22, groups=8)
    answer = apply(captured, "blueconnect=2x4")
    cluster, size = load_platform("v100_dgx1").cluster(8), 2**24
    whole = float(collective_time_s(cluster, "all_reduce", size))
    pair, four = Group(1, 2), Group(1, 4)
    stages = sum(
        float(collective_time_s(cluster, operation, moved, group))
        for operation in ("reduce_scatter", "all_gather")
        for moved, group in ((size, pair), (size / 2, four))
    )
    assert answer.before_s == pytest.approx(500e-6)
    assert starts(answer, "update") == pytest.approx([120 + 300 * stages / whole] * 2)
    assert len(starts(answer, "all-gather of level 0")) == 2


def test_blueconnect_over_nodes_overlaps_stages(tmp_path):
    # Two buckets at once: the second one's first level runs during the first one's second level.
    tape = Tape()
    number = tape.forward("aten::mm", 40)
    tape.backward("MmBackward0", number, "aten::mm", 50)
    for _ in range(2):
        tape.gradient([4096, 4096])
    captured = tape.capture(tmp_path)
    answer = apply(captured, "data_parallel=16", "blueconnect")
    inner, outer = (starts(answer, f"reduce-scatter of level {level}") for level in (0, 1))
    assert inner[0] == pytest.approx(96)
    assert inner[1] == pytest.approx(outer[0])


def test_blueconnect_needs_levels(tmp_path):
    captured = two_ranks(tmp_path, 2**22, groups=8)
    with pytest.raises(ConfigError, match="no second level on nodes of 8"):
        apply(captured, "blueconnect")
    with pytest.raises(ConfigError, match="3x2 make 6 ranks, the all-reduce has 8"):
        apply(captured, "blueconnect=3x2")
    with pytest.raises(ConfigError, match="sizes of groups such as `2x4`"):
        apply(captured, "blueconnect=fast")


def test_gradient_compression(tmp_path):
    captured = two_ranks(tmp_path, 2**22)
    answer = apply(captured, "dgc=0.01,compress=7us,decompress=3us")
    cluster, size = load_platform("v100_dgx1").cluster(2), 2**24
    # 1 % of 4 Mi values and their indices from each of two ranks.
    sent = 41944 * 8 * 2
    share = float(collective_time_s(cluster, "all_gather", sent)) / float(
        collective_time_s(cluster, "all_reduce", size)
    )
    assert starts(answer, "compress") == pytest.approx([120, 120])
    assert starts(answer, "update") == pytest.approx([120 + 7 + 300 * share + 3] * 2)


def test_compression_costs_by_the_devices_memory(tmp_path):
    captured = two_ranks(tmp_path, 2**22)
    answer = apply(captured, "dgc")
    cost = load_platform("v100_dgx1").kernel_time("elementwise", traffic_bytes=8 * 2**24)
    assert ends(answer, "compress") == pytest.approx([120 + 1e6 * float(cost)] * 2)


@pytest.mark.parametrize("name", ["p3", "blueconnect=2x4", "dgc"])
def test_nothing_is_reduced(tmp_path, name):
    captured = backward_of_three(tmp_path)
    with pytest.raises(ConfigError, match="no all-reduce of known size"):
        apply(captured, name)


def convolutions(tmp_path):
    """Two convolutions of 100 µs, then their gradients of 200 µs."""
    tape = Tape()
    shapes = [[32, 16, 64, 64], [16, 16, 3, 3]]
    name = "aten::cudnn_convolution"
    numbers = [tape.forward(name, 100, shapes=shapes) for _ in range(2)]
    for number in reversed(numbers):
        tape.backward("ConvolutionBackward0", number, "aten::convolution_backward", 200)
    return tape.capture(tmp_path)


def test_vdnn(tmp_path):
    captured = convolutions(tmp_path)
    size = 32 * 16 * 64 * 64 * 4
    out, back = (
        1e6 * float(_PLATFORM.kernel_time(name, size_bytes=size))
        for name in ("memcpy_d2h", "memcpy_h2d")
    )
    assert out > 100
    answer = apply(captured, "vdnn")
    assert starts(answer, "offload") == pytest.approx([106, 106 + out])
    # The second layer's input has to leave before it comes back.
    second = 106 + 2 * out + back
    backward = starts(answer, "convolution_backward_kernel")
    assert backward[0] == pytest.approx(second)
    # The first one's comes back while the second layer is at work.
    assert backward[1] == pytest.approx(second + max(200, back))
    assert answer.after_s == pytest.approx(1e-6 * (backward[1] + 200))


def test_vdnn_that_waits_for_the_offload(tmp_path):
    answer = apply(convolutions(tmp_path), "vdnn=convolution,sync=true")
    out = 1e6 * float(_PLATFORM.kernel_time("memcpy_d2h", size_bytes=2**23))
    assert starts(answer, "cudnn_convolution_kernel") == pytest.approx([6, 106 + out])


def test_vdnn_needs_layers_and_shapes(tmp_path):
    tape = Tape()
    number = tape.forward("aten::mm", 40)
    tape.backward("MmBackward0", number, "aten::mm", 50)
    captured = tape.capture(tmp_path)
    with pytest.raises(ConfigError, match="no convolution layer"):
        apply(captured, "vdnn")
    with pytest.raises(ConfigError, match="record_shapes=True"):
        apply(captured, "vdnn=matrix")


def test_gist(tmp_path):
    tape = Tape()
    tape.forward("aten::mm", 100)
    number = tape.forward("aten::relu", 40, shapes=[[1024, 1024]])
    tape.backward("ReluBackward0", number, "aten::threshold_backward", 60)
    captured = tape.capture(tmp_path)
    answer = apply(captured, "gist=0.5")
    # Half of 40 µs to encode, and to decode.
    assert starts(answer, "encode") == pytest.approx([146])
    assert starts(answer, "threshold_backward_kernel") == pytest.approx([186])
    assert answer.after_s == pytest.approx(246e-6)
    moved = 4 * _MEBI * 1.25
    cost = 1e6 * float(_PLATFORM.kernel_time("elementwise", traffic_bytes=moved))
    assert apply(captured, "gist").after_s == pytest.approx(1e-6 * (206 + 2 * cost))


def test_gist_without_activations(tmp_path):
    with pytest.raises(ConfigError, match="no activation or pooling"):
        apply(convolutions(tmp_path), "gist")


def test_the_evaluation_of_a_node_has_the_inputs_of_the_node(tmp_path):
    editor = backward_of_three(tmp_path).editor()
    stacks = {
        (editor.stack_of(task)[-1], inputs.shapes)
        for task in range(editor.build().graph.task_count)
        if editor.stack_of(task) and (inputs := editor.inputs_of(task)) is not None
    }
    assert (EVALUATE + ACCUMULATE, "[[256,1024]]") in stacks
