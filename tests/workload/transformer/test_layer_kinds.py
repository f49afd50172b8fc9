"""Layers that differ: dense ones among experts, windows, latent attention, prediction modules."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from dse.machine import Precision
from dse.machine.collectives import CollectiveOp, Group, collective_estimate
from dse.machine.platforms import load_platform
from dse.model import LatentAttention, MixtureOfExperts, SlidingWindow, load_model
from dse.workload import predict_job
from dse.workload.transformer import (
    MEGATRON_CORE,
    DataSharding,
    Parallelism,
    Recompute,
    TransformerJob,
)
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.kernels._operators import Attention, Product
from dse.workload.transformer.step._transfers import Transfers

H100 = load_platform("h100_sxm")
DENSE = replace(load_model("llama3_8b"), layers=4, sequence_length=4096)
SPARSE = replace(load_model("mixtral_8x7b"), layers=4)
MIXED = replace(
    SPARSE, experts=MixtureOfExperts(8, 2, 14336, first_dense=1, dense_ffn_hidden=14336)
)
LATENT = LatentAttention(kv_rank=512, rope_dim=64, value_dim=128, query_rank=1536)


def job(model, gpus=8, batch=8, **spread):
    spread = {"data": gpus} | spread
    cluster = H100.cluster(gpus)
    return TransformerJob(
        model, cluster, batch, Precision.BF16, Parallelism(**spread), MEGATRON_CORE
    )


def time_s(*args, **kwargs):
    return predict_job(job(*args, **kwargs)).iteration_time_s


def activations(asked):
    return dict(asked.memory()[0].parts)["activations"]


def products(asked, kernels=LayerWork.layer_forward):
    return [tuple(k[:3]) for k in kernels(LayerWork(asked)) if isinstance(k, Product)]


def attention(asked):
    (kernel,) = [k for k in LayerWork(asked).layer_forward() if isinstance(k, Attention)]
    return kernel


# --- dense layers among experts ------------------------------------------------------------------


SPREADS = [
    {},
    {"data_sharding": DataSharding.PARAMETERS},
    {"data_sharding": DataSharding.OPTIMIZER, "recompute": Recompute.FULL},
    {"data": 4, "pipeline": 2, "interleave": 2},
    {"data": 4, "tensor": 2, "sequence_parallel": True},
    {"data": 4, "context": 2},
]


@pytest.mark.parametrize("spread", SPREADS)
def test_a_mixed_model_lies_between_its_layers(spread):
    plain = replace(SPARSE, experts=None, ffn_hidden=14336)
    fast, between, slow = (time_s(model, **spread) for model in (plain, MIXED, SPARSE))
    assert fast < between < slow


def test_stages_have_the_layers_that_are_theirs():
    asked = job(MIXED, data=4, pipeline=2)
    first, second = (sum(asked.memory()[stage].parts[0][1:]) for stage in (0, 1))
    expert_layer = 2 * (MIXED.layer_models[1].layer_expert_parameters)
    dense_layer = 2 * 3 * 4096 * 14336
    router = 2 * 4096 * 8
    # Embedding and head are as large but for the final norm.
    assert second - first == pytest.approx(expert_layer + router - dense_layer + 2 * 4096)


def test_every_second_layer_has_experts():
    model = replace(SPARSE, experts=replace(MIXED.experts, first_dense=0, every=2))
    assert model.layer_kinds == (0, 1, 0, 1)
    assert [one.experts is None for one in model.layer_models] == [True, False]


# --- latent attention ----------------------------------------------------------------------------


def test_products_of_latent_attention_by_hand():
    model = replace(DENSE, heads=16, kv_heads=16, head_dim=192, latent=LATENT)
    asked = job(model, tensor=2, data=4, sequence_parallel=True)
    assert products(asked)[:5] == [
        (2048, 1536, 4096),  # down, on all ranks with their share of the tokens
        (2048, 512 + 64, 4096),
        (4096, 8 * 192, 1536),
        (4096, 8 * (128 + 128), 512),
        (4096, 4096, 8 * 128),
    ]
    assert attention(asked)[1:7] == (8, 8, 4096, 4096, 192, 128)
    plain = job(replace(model, latent=replace(LATENT, query_rank=0)), tensor=2, data=4)
    assert products(plain)[:2] == [(4096, 576, 4096), (4096, 8 * 192, 4096)]


def test_backward_products_of_latent_attention_are_twice_the_forward_ones():
    asked = job(replace(DENSE, heads=16, kv_heads=16, head_dim=192, latent=LATENT))
    forward, backward = products(asked), products(asked, LayerWork.layer_backward)
    assert sum(2 * m * n * k for m, n, k in backward) == 2 * sum(
        2 * m * n * k for m, n, k in forward
    )


def test_ranks_replicate_projections_to_latent_columns():
    model = replace(DENSE, heads=16, kv_heads=16, head_dim=192, latent=LATENT)
    whole, split = model.layer_matrix_parameters_of(1), model.layer_matrix_parameters_of(4)
    down = 4096 * (1536 + 512 + 64)
    assert whole == model.layer_matrix_parameters
    assert split == (whole - down) / 4 + down


def test_tensor_parallel_ranks_exchange_latent_columns():
    # Backward the gradient of each input is scattered, and the input gathered again.
    plain = replace(DENSE, heads=16, kv_heads=16, head_dim=192)
    spread = {"tensor": 8, "data": 1, "sequence_parallel": True}
    transfers = [
        Transfers(job(model, **spread)) for model in (plain, replace(plain, latent=LATENT))
    ]
    wide, narrow = (one.tensor_backward(0.0).inside_s for one in transfers)
    asked = job(plain, **spread)
    sizes = [2.0 * 4096 * columns for columns in (4096, 1536 + 512 + 64)]
    gathered, scattered = (
        [float(collective_estimate(asked.cluster, op, size, Group(1, 8)).time_s) for size in sizes]
        for op in (CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER)
    )
    saved_s = gathered[0] - gathered[1] + scattered[0] - scattered[1]
    assert wide - narrow == pytest.approx(saved_s)


# --- windows -------------------------------------------------------------------------------------


@given(st.integers(1, 64).map(lambda blocks: 64 * blocks))
def test_a_window_is_never_slower(tokens):
    full = attention(job(DENSE))
    windowed = attention(job(replace(DENSE, window=SlidingWindow(tokens))))
    assert windowed == full._replace(window=tokens)
    model = replace(DENSE, window=SlidingWindow(tokens))
    assert model.model_flops_per_sample_causal <= DENSE.model_flops_per_sample_causal
    assert model.model_flops_per_sample <= DENSE.model_flops_per_sample
    assert model.model_flops_per_sample_causal <= model.model_flops_per_sample


def test_arithmetic_of_utilization_with_windows_by_hand():
    # Each score takes part in 4 operations for each of 32 × 128 columns, and twice that backward.
    # Of 4,096 keys, 1,024 are in the window; the first 1,023 tokens see fewer.
    def scores(keys):
        return 3 * 4 * 4096 * keys * 32 * 128

    full = DENSE.model_flops_per_sample
    window = replace(DENSE, window=SlidingWindow(1024))
    half = replace(DENSE, window=SlidingWindow(1024, full_every=2))
    assert full - window.model_flops_per_sample == 4 * scores(4096 - 1024)
    assert full - half.model_flops_per_sample == 2 * scores(4096 - 1024)
    visible = (1024 * 1025 / 2 + 3072 * 1024) / 4096
    assert full - window.model_flops_per_sample_causal == 4 * scores(4096 - visible)
    wide = replace(DENSE, window=SlidingWindow(8192))
    assert wide.model_flops_per_sample == full
    # An encoder has no mask that a window could belong to.
    encoder = replace(load_model("bert_large"), window=SlidingWindow(64))
    assert encoder.model_flops_per_sample == load_model("bert_large").model_flops_per_sample


def test_utilization_with_a_window_is_between_causal_and_full():
    model = replace(DENSE, window=SlidingWindow(1024))
    asked = job(model, recompute=Recompute.FULL)
    prediction = predict_job(asked)
    mfu, causal, hfu = (
        prediction.metric(name)
        for name in (
            "model_flops_utilization",
            "model_flops_utilization_causal",
            "hardware_flops_utilization",
        )
    )
    assert causal < mfu < mfu * DENSE.model_flops_per_sample / model.model_flops_per_sample
    # What is repeated is a forward pass of all layers.
    layers = model.layers * model.layer_flops_per_sample / model.model_flops_per_sample
    assert hfu == pytest.approx(mfu * (1 + layers))


def test_time_and_memory_of_alternating_windows():
    windowed = replace(DENSE, window=SlidingWindow(128))
    alternating = replace(DENSE, window=SlidingWindow(128, full_every=2))
    times = [time_s(model) for model in (windowed, alternating, DENSE)]
    assert times == sorted(times)
    assert times[1] == pytest.approx(0.5 * (times[0] + times[2]), rel=1e-3)
    assert activations(job(windowed)) == activations(job(DENSE))


def test_a_window_as_long_as_the_sample_changes_nothing():
    assert time_s(replace(DENSE, window=SlidingWindow(4096, full_every=2))) == time_s(DENSE)


# --- heads of keys and values --------------------------------------------------------------------


def test_ranks_beyond_the_heads_of_keys_and_values_replicate_them():
    model = replace(DENSE, kv_heads=2)
    shared = [job(model, tensor=tensor, data=8 // tensor) for tensor in (2, 8)]
    assert [attention(asked).kv_heads for asked in shared] == [1, 1]
    assert products(shared[1])[0] == (4096, (4 + 2) * 128, 4096)
    # Eight ranks hold four times the weights of keys and values that there are.
    assert 8 * model.layer_matrix_parameters_of(8) == pytest.approx(
        model.layer_matrix_parameters + 3 * 4096 * 2 * 2 * 128
    )


# --- multi-token prediction ----------------------------------------------------------------------


@pytest.mark.parametrize("spread", [*SPREADS, {"data": 2, "pipeline": 4}])
def test_a_module_is_one_more_layer_with_a_head(spread):
    ahead = replace(DENSE, mtp_modules=1)
    longer = time_s(replace(DENSE, layers=5), **spread) if "pipeline" not in spread else 0.0
    assert time_s(ahead, **spread) > max(longer, time_s(DENSE, **spread))


def test_choices_of_layers_count_those_of_the_whole_model():
    # Without its module the model could not be divided into four chunks.
    ahead = replace(DENSE, layers=9, mtp_modules=1)
    spread = {"data": 2, "pipeline": 4, "recompute": Recompute.FULL}
    none, some, every = (
        time_s(ahead, **choice)
        for choice in (
            {**spread, "recompute": Recompute.NONE},
            spread | {"recompute_layers": 1},
            spread,
        )
    )
    assert none < some < every


def test_parameters_of_a_module():
    ahead = replace(DENSE, mtp_modules=1)
    more = ahead.parameter_count - DENSE.parameter_count
    assert more == DENSE.layer_parameters + 2 * 4096**2 + 3 * 4096


# --- DeepSeek-V3 ---------------------------------------------------------------------------------


def test_deepseek_v3_has_the_published_parameters():
    model = load_model("deepseek_v3")
    main = replace(model, mtp_modules=0)
    # 671,026,419,200 in the published files, with 58 biases of 256 router scores.
    assert main.parameter_count == 671_026_419_200 - 58 * 256
    # Active: 36.6 billion with the language head; a module has 11.5 billion of its own (README of
    # the weights).
    assert main.active_parameter_count - main.embedding_parameters == pytest.approx(
        36.6e9, rel=1e-3
    )
    assert model.parameter_count - main.parameter_count == pytest.approx(11.5e9, rel=0.01)


def test_deepseek_v3_is_predicted_on_the_ranks_of_its_recipe():
    asked = TransformerJob(
        load_model("deepseek_v3"),
        H100.cluster(1024),
        8192,
        Precision.FP8_BLOCK,
        Parallelism(
            tensor=2,
            pipeline=8,
            data=64,
            expert=64,
            interleave=4,
            sequence_parallel=True,
            data_sharding=DataSharding.OPTIMIZER,
        ),
        MEGATRON_CORE,
    )
    asked.check()
    assert 0.05 < predict_job(asked).metric("model_flops_utilization") < 0.6
