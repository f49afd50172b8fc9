"""Kernels of a layer: arithmetic that adds up, and bytes by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
import pytest

import dse
from dse.machine import Precision
from dse.machine.platforms import load_platform, override_platform
from dse.model import AttentionKind, load_model
from dse.workload.transformer import (
    COMPOSER,
    MEGATRON,
    MEGATRON_CORE,
    NANOTRON,
    PYTORCH,
    Parallelism,
    TransformerJob,
)
from dse.workload.transformer.kernels._durations import KernelTimes
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.kernels._operators import Attention, Elementwise, Product
from tests.conftest import make_cluster, make_device


def work(name="gpt_22b", software=MEGATRON, changes=None, **parallelism):
    model = replace(load_model(name), **(changes or {}))
    spread = Parallelism(**parallelism)
    cluster = make_cluster(spread.world_size, 8)
    problem = TransformerJob(model, cluster, 8, Precision.FP16, spread, software)
    return LayerWork(problem), model


def flops(kernels):
    return sum(2 * k.m * k.n * k.k * k.batch for k in kernels if isinstance(k, Product)) + sum(
        2 * k.batch * k.heads * k.queries * k.keys * (k.dim + k.value_dim)
        for k in kernels
        if isinstance(k, Attention)
    )


@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize("name", ["gpt_22b", "bert_large"])
def test_products_have_the_arithmetic_of_the_model(name, tensor):
    found, model = work(name, tensor=tensor, micro_batch_size=2)
    forward, backward = found.layer_forward(), found.layer_backward()
    assert flops(forward) * tensor == pytest.approx(2 * model.layer_flops_per_sample)
    assert flops(backward) == pytest.approx(2 * flops(forward))


def test_the_head_has_the_arithmetic_of_the_model():
    # The vocabulary is split; BERT's transform before it is not.
    for name, tensor in (("gpt_22b", 8), ("bert_large", 1)):
        found, model = work(name, tensor=tensor)
        head = found.head()
        assert flops(head.forward) * tensor == pytest.approx(model.head_flops_per_sample)
        assert flops(head.backward) == pytest.approx(2 * flops(head.forward))


def test_context_parallelism_shares_all_arithmetic():
    whole, _ = work("mpt_7b", COMPOSER, data=4)
    part, _ = work("mpt_7b", COMPOSER, context=4)
    assert 4 * flops(part.layer_forward()) == pytest.approx(flops(whole.layer_forward()))


def test_fused_attention_of_a_rank():
    both, model = work("mpt_7b", COMPOSER, tensor=4, context=2, micro_batch_size=3)
    (kernel,), (back,) = both.attention.core_forward(), both.attention.core_backward()
    heads, length = model.heads // 4, model.sequence_length
    dim = model.head_dim
    assert kernel == Attention(
        3, heads, heads, length // 2, length, dim, dim, length, causal=True, backward=False
    )
    assert back == kernel._replace(backward=True)
    bert, _ = work("bert_large", COMPOSER, {"attention": AttentionKind.FLASH})
    assert not bert.attention.core_forward()[0].causal


def test_early_end_of_recomputation_saves_the_last_product():
    early, _ = work("mpt_7b", COMPOSER)
    full, model = work("mpt_7b", replace(COMPOSER, stops_recomputing_early=False))
    s, h = model.sequence_length, model.hidden
    saved = flops(full.layer_recomputed()) - flops(early.layer_recomputed())
    assert saved == pytest.approx(2 * s * h * 4 * h)
    assert full.layer_recomputed() == full.layer_forward()


def test_bytes_of_elementwise_kernels_by_hand():
    # Two norms of 4 bytes a value, two fused sums of 7, GELU of 4 bytes on 4 h / 8 columns.
    found, model = work(tensor=8)
    values = 2048 * model.hidden
    core = found.attention.core_forward()
    moved = sum(
        k.traffic_bytes
        for k in found.layer_forward()
        if isinstance(k, Elementwise) and k not in core
    )
    assert moved == pytest.approx(values * (2 * 4 + 2 * 7) + values * 4 * 4 / 8)
    # Softmax reads and writes two bytes, dropout the same and writes a mask.
    assert core[1].traffic_bytes == pytest.approx((4 + 5) * 8 * 2048 * 2048)


def test_bytes_between_the_products_of_latent_attention_by_hand():
    found, _ = work("deepseek_v3")
    forward, backward = (found.attention.between(backward=back) for back in (False, True))
    rows, columns, value = 4096, 1536 + 512, 2
    # A norm reads its input and writes as much; backward it reads input and gradient and writes
    # one, and its weights' gradient reads both again.
    assert [k[0].traffic_bytes for k in (forward, backward)] == [
        2 * rows * columns * value,
        5 * rows * columns * value,
    ]
    # Of 128 heads: 64 columns rotated, and keys of 192 and values of 128 put together.
    assert forward[1].traffic_bytes == 2 * rows * 128 * (64 + 192 + 128) * value


@pytest.mark.parametrize(("tensor", "samples", "launches"), [(16, 1, 1), (32, 1, 5), (32, 2, 1)])
def test_a_softmax_kernel_takes_groups_of_four_heads(tensor, samples, launches):
    # 64 heads: 4, 2 and 2 × 2 of them.
    found, _ = work(tensor=tensor, micro_batch_size=samples, changes={"dropout": False})
    for kernels in (found.attention.core_forward(), found.attention.core_backward()):
        softmax = max(
            (k for k in kernels if isinstance(k, Elementwise)), key=lambda k: k.traffic_bytes
        )
        assert softmax.launches == launches
        assert softmax.separate == (launches > 1)


@pytest.mark.parametrize(
    ("software", "kv_heads", "forward", "backward"),
    [
        # Queries and keys rotated, values and shared queries copied; both ways four bytes a value.
        (MEGATRON_CORE, 32, 4 * (4096 + 4096) + 4 * 4096, 4 * 8192 + 4 * 12288),
        (MEGATRON_CORE, 8, 4 * (4096 + 1024) + 4 * (4096 + 1024), 4 * 5120 + 4 * 6144),
        # Cast to FP32, product of four-byte values, cast back; shared keys and values repeated.
        (MEGATRON, 32, 20 * 8192, 20 * 8192),
        (MEGATRON, 8, 20 * 5120 + 8 * 5120, 20 * 5120 + 8 * 5120),
        (NANOTRON, 32, 40 * 4096, 44 * 4096),
    ],
)
def test_bytes_of_rotary_positions_by_hand(software, kv_heads, forward, backward):
    changes = {"kv_heads": kv_heads}
    found, _ = work("llama3_8b", software, changes, tensor=2, micro_batch_size=3)
    for expected, is_backward in ((forward, False), (backward, True)):
        (kernel,) = found.attention.positions(backward=is_backward)
        assert kernel.traffic_bytes == expected / 2 * 3 * 8192
        kernels = found.layer_backward() if is_backward else found.layer_forward()
        assert kernels.count(kernel) == 1


@pytest.mark.parametrize(
    ("software", "values"),
    # Separate kernels: three values for the activation and six for the product of gate and input;
    # two read and two written to join halves of one product.
    [(MEGATRON_CORE, 5), (PYTORCH, 9), (NANOTRON, 13)],
)
def test_bytes_of_the_gradient_of_a_gate_by_hand(software, values):
    found, model = work("llama3_8b", software, tensor=2)
    expected = values * 2 * model.ffn_hidden / 2 * 8192
    moved = [k.traffic_bytes for k in found.layer_backward() if isinstance(k, Elementwise)]
    assert moved.count(expected) == 1


def test_a_divided_vocabulary_costs_the_bytes_of_its_operators():
    # To FP32 6, maximum 4, difference, exponential and quotient 8 each, sum 4; back 8 and 6.
    for software in (MEGATRON, NANOTRON):
        found, model = work("llama3_8b", software, tensor=4)
        logits, head = model.vocab / 4 * 8192, found.head()
        for kernels, each in ((head.forward, 38), (head.backward, 14)):
            loss = kernels[-1]
            assert isinstance(loss, Elementwise)
            assert loss.traffic_bytes == each * logits
        # Streams, however separate the program's other kernels are.
        whole = KernelTimes(make_device(), Precision.BF16, MEGATRON).measure([head.forward[-1:]])
        apart = KernelTimes(make_device(), Precision.BF16, NANOTRON).measure([head.forward[-1:]])
        assert whole == apart


def test_learned_positions_and_latent_columns_are_not_rotated_again():
    for name, software in (
        ("gpt_22b", MEGATRON_CORE),
        ("deepseek_v3", MEGATRON_CORE),
        ("llama3_8b", PYTORCH),
    ):
        found, _ = work(name, software)
        assert found.attention.positions(backward=False) == []
        assert found.attention.positions(backward=True) == []


def test_sequence_parallelism_splits_norms_and_sums():
    plain, model = work(tensor=8)
    shared, _ = work(tensor=8, sequence_parallel=True)

    def moved(found):
        return sum(k.traffic_bytes for k in found.layer_forward() if isinstance(k, Elementwise))

    values = 2048 * model.hidden * (2 * 4 + 2 * 7)
    assert moved(plain) - moved(shared) == pytest.approx(values * 7 / 8)


def test_faster_parts_make_faster_kernels():
    found, _ = work("mpt_7b", COMPOSER)
    kernels = [found.layer_forward(), found.layer_backward()]
    slow = make_device()
    quick = make_device(memory_bandwidth_bytes_per_s=3e12, l2_bandwidth_bytes_per_s=6e12)
    times = [
        KernelTimes(device, Precision.BF16, COMPOSER).measure(kernels) for device in (slow, quick)
    ]
    for before, after in zip(*times, strict=True):
        assert after.elementwise_s < before.elementwise_s
        assert after.product_s <= before.product_s
        assert after.launches == before.launches


@settings(max_examples=25)
@given(
    st.sampled_from(("bert_large", "mpt_125m", "gpt_7_5b", "gpt_oss_120b")),
    st.sampled_from(("a100_sxm_80", "h100_sxm", "l40s_pcie", "mi300x")),
    st.sampled_from(("composer", "megatron_bridge", "pytorch")),
    st.floats(1.0, 5.0),
)
@example("bert_large", "l40s_pcie", "composer", 1.3)
def test_more_arithmetic_never_makes_a_step_longer(model, name, program, factor):
    """Small batches, so that some products are bound by memory."""
    slower = load_platform(name)
    faster, _ = override_platform(slower, [f"device.peak=*{factor}"])
    steps_s = [
        dse.predict(
            model, platform=platform, world_size=8, global_batch_size=8, program=program
        ).iteration_time_s
        for platform in (slower, faster)
    ]
    assert steps_s[1] <= steps_s[0]
