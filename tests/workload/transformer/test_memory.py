"""Memory of a stage, by the formulas of Korthikanti et al. (arXiv 2205.05198) and by hand."""

from __future__ import annotations

from dataclasses import replace
import math

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from dse.errors import ConfigError
from dse.machine import Precision
from dse.machine.platforms import load_platform
from dse.model import AttentionKind, load_model
from dse.workload import MemoryAccount, predict_job
from dse.workload.transformer import (
    COMPOSER,
    MEGATRON,
    MEGATRON_CORE,
    TRANSFORMER_PROGRAMS,
    DataSharding,
    Offload,
    Parallelism,
    Recompute,
    RecomputeModule,
    TransformerJob,
    layer_activation_bytes,
    stage_parameters,
)
from dse.workload.transformer.kernels._layer import LayerWork
from dse.workload.transformer.memory._recompute import recomputed_kernels

DENSE_MODULES = [
    RecomputeModule.CORE_ATTENTION,
    RecomputeModule.NORMS,
    RecomputeModule.FEED_FORWARD,
]


def problem(model="gpt_22b", gpus=8, batch=64, software=MEGATRON, **parallelism):
    cluster = load_platform("a100_sxm_80").cluster(gpus)
    found = load_model(model) if isinstance(model, str) else model
    return TransformerJob(
        found, cluster, batch, Precision.FP16, Parallelism(**parallelism), software
    )


S, B, H, A = 2048, 2, 6144, 64


@pytest.mark.parametrize(
    ("tensor", "sequence", "recompute", "expected"),
    [
        (1, False, Recompute.NONE, S * B * H * (34 + 5 * A * S / H)),
        (8, False, Recompute.NONE, S * B * H * (10 + 24 / 8 + 5 * A * S / (H * 8))),
        (8, True, Recompute.NONE, S * B * H / 8 * (34 + 5 * A * S / H)),
        (8, True, Recompute.SELECTIVE, S * B * H / 8 * 34),
        (8, False, Recompute.SELECTIVE, S * B * H * (10 + 24 / 8)),
        (8, False, Recompute.FULL, 2 * S * B * H),
    ],
)
def test_activations_of_a_layer(tensor, sequence, recompute, expected):
    asked = problem(
        tensor=tensor, data=8 // tensor, sequence_parallel=sequence, micro_batch_size=B
    )
    assert layer_activation_bytes(asked, recompute) == pytest.approx(expected, rel=1e-12)


def test_context_parallelism_splits_activations():
    one = problem("mpt_7b", micro_batch_size=1, data=8)
    four = problem("mpt_7b", micro_batch_size=1, data=2, context=4)
    for recompute in Recompute:
        whole = layer_activation_bytes(one, recompute)
        assert layer_activation_bytes(four, recompute) == pytest.approx(whole / 4)


def test_fused_attention_and_no_dropout_need_less():
    model = load_model("gpt_22b")
    dry = problem(replace(model, dropout=False), tensor=8)
    flash = problem(replace(model, dropout=False, attention=AttentionKind.FLASH), tensor=8)
    asked = problem(tensor=8)
    kept = [layer_activation_bytes(p, Recompute.NONE) for p in (asked, dry, flash)]
    # Two masks of a byte outside the core; inside it a mask and the dropped-out probabilities.
    assert kept[0] - kept[1] == pytest.approx(S * H * 2 + 3 * S * S * A / 8)
    # Probabilities of two bytes against one statistic of four bytes a row.
    assert kept[1] - kept[2] == pytest.approx(2 * S * S * A / 8 - 4 * S * A / 8)


def test_a_fused_gated_activation_keeps_its_inputs_and_its_output():
    model = load_model("llama3_8b")
    kept = [
        layer_activation_bytes(problem(model, data=8, software=software), Recompute.NONE)
        for software in (MEGATRON, COMPOSER)
    ]
    # Separate kernels keep the activated gate as well: four values of the inner width, not three.
    assert kept[1] - kept[0] == model.sequence_length * model.ffn_hidden * 2


def test_megatron_sums_gradients_of_bf16_in_four_bytes():
    half = problem(data=8)
    brain = replace(half, precision=Precision.BF16)
    assert (half.gradient_bytes, brain.gradient_bytes) == (2, 4)
    twice = [dict(job.memory()[0].parts)["gradients"] for job in (half, brain)]
    assert twice[1] == 2 * twice[0]


def test_parameters_and_states_of_every_stage_add_up():
    model = load_model("gpt_22b")
    asked = problem(gpus=32, tensor=4, pipeline=4, data=2, micro_batch_size=1)
    shared = model.vocab * model.hidden
    # On all tensor-parallel ranks: norms and biases of outputs, six vectors a layer; a vector for
    # each position; weight and bias of the final norm.
    whole = (model.layers * 6 + model.sequence_length + 2) * model.hidden
    total = 4 * sum(stage_parameters(asked, stage) for stage in range(4))
    assert total == pytest.approx(model.parameter_count + shared + 3 * whole)


def test_parameters_of_both_ends_by_hand():
    # GPT-175B: 51,200 words over eight ranks on both ends, 2,048 positions and a norm on each.
    asked = problem("gpt_175b", 64, tensor=8, pipeline=8)
    layers = stage_parameters(asked, 1)
    assert stage_parameters(asked, 0) - layers == (51_200 / 8 + 2_048) * 12_288
    assert stage_parameters(asked, 7) - layers == (51_200 / 8 + 2) * 12_288
    # Tied, on one stage: the vocabulary once.
    tied = problem("gpt2_xl", tensor=1, data=8)
    assert stage_parameters(tied, 0) == load_model("gpt2_xl").parameter_count


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer"),
    [
        (DataSharding.NONE, 2, 4, 12),
        (DataSharding.OPTIMIZER, 2, 4, 12 / 8),
        (DataSharding.GRADIENTS, 2, 4 / 8, 12 / 8),
        (DataSharding.PARAMETERS, 4 / 8, 4 / 8, 8 / 8),
    ],
)
def test_sharding_divides_what_it_names(sharding, weights, gradients, optimizer):
    # Mixed precision with Adam: 2 bytes of weights, 4 of gradients, 12 of master and state.
    asked = problem("mpt_1b", software=COMPOSER, data=8, data_sharding=sharding)
    memory, count = asked.memory()[0], load_model("mpt_1b").parameter_count
    assert memory.bytes_for("weights") == pytest.approx(weights * count)
    assert memory.bytes_for("gradients") == pytest.approx(gradients * count)
    assert memory.bytes_for("optimizer state") == pytest.approx(optimizer * count)


@pytest.mark.parametrize(
    ("changes", "gradients"),
    [
        # Sharded FP32 gradients; those in BF16 exist for one layer, which buffers count.
        ({"data_sharding": DataSharding.PARAMETERS}, 4 / 8),
        ({"data_sharding": DataSharding.PARAMETERS, "sharding_degree": 4}, 4 / 4),
        ({"data_sharding": DataSharding.PARAMETERS, "no_sync": True}, 4 + 2),
        ({"data_sharding": DataSharding.GRADIENTS}, (4 + 2) / 8),
        ({"data_sharding": DataSharding.OPTIMIZER}, 4 + 2),
        ({}, 4 + 2),
    ],
)
def test_gradients_of_full_shards_are_reduced_layer_by_layer(changes, gradients):
    software = TRANSFORMER_PROGRAMS["torchtitan"].software
    asked = problem("llama3_8b", software=software, data=8, **changes)
    memory = replace(asked, precision=Precision.BF16).memory()[0]
    count = 8_030_261_248
    assert memory.bytes_for("gradients") == pytest.approx(gradients * count)
    if changes == {"data_sharding": DataSharding.PARAMETERS}:
        assert memory.bytes_for("weights") == pytest.approx(4 / 8 * count)
        assert memory.bytes_for("optimizer state") == pytest.approx(8 / 8 * count)
        # Two layers gathered in BF16 beside both ends, which are larger than a layer: of them
        # also the unreduced gradients, in FP32.
        layer, ends = 218_112_000, 2 * 128_256 * 4096 + 4096
        assert memory.bytes_for("buffers") == 2 * (2 * layer + ends) + 4 * ends


@pytest.mark.parametrize(
    ("precision", "changes", "optimizer"),
    [
        # The 16 bits that a weight in BF16 lacks, and two moments of four bytes.
        (Precision.BF16, {}, 10 / 8),
        (Precision.FP16, {}, 12 / 8),
        (Precision.FP8, {}, 12 / 8),
        (Precision.BF16, {"data_sharding": DataSharding.NONE}, 12),
        (Precision.BF16, {"data_sharding": DataSharding.GRADIENTS}, 12 / 8),
        # Other programs keep whole master weights.
        (Precision.BF16, {"software": COMPOSER}, 12 / 8),
    ],
)
def test_sharded_master_weights_of_bf16_are_remainders(precision, changes, optimizer):
    choices = {"software": MEGATRON_CORE, "data_sharding": DataSharding.OPTIMIZER, **changes}
    asked = replace(problem("mpt_1b", data=8, **choices), precision=precision)
    memory, count = asked.memory()[0], load_model("mpt_1b").parameter_count
    assert memory.bytes_for("optimizer state") == pytest.approx(optimizer * count)


def test_the_host_keeps_whole_master_weights():
    spread = {"data": 8, "data_sharding": DataSharding.OPTIMIZER, "offload": Offload.OPTIMIZER}
    jobs = [problem("mpt_1b", software=runtime, **spread) for runtime in (MEGATRON_CORE, COMPOSER)]
    ours, theirs = (replace(job, precision=Precision.BF16) for job in jobs)
    moved = (theirs.gradient_bytes - ours.gradient_bytes) * stage_parameters(ours, 0) / 8
    held = [job.memory()[0].host_bytes for job in (ours, theirs)]
    assert held[1] - held[0] == pytest.approx(moved)


def test_the_first_stage_keeps_most():
    # 1F1B: stage r of p keeps min(p - r, m) micro-batches.
    asked = problem("gpt_175b", gpus=64, batch=64, tensor=8, pipeline=8)
    layer = layer_activation_bytes(asked, Recompute.NONE)
    dropout = 2048 * 12288 * 8
    first, second = (asked.memory()[stage].bytes_for("activations") for stage in (0, 1))
    assert first == pytest.approx(8 * 12 * layer + dropout)
    assert second == pytest.approx(7 * 12 * layer)


def test_interleaving_keeps_more_by_the_published_factor():
    # § 4.2.3: L layers of activations become L (1 + (p - 1) / (p m)) with m chunks.
    plain = problem("gpt_175b", gpus=64, tensor=8, pipeline=8)
    chunked = problem("gpt_175b", gpus=64, tensor=8, pipeline=8, interleave=3)
    dropout = 2048 * 12288 * 8
    kept = [p.memory()[0].bytes_for("activations") - dropout for p in (plain, chunked)]
    assert kept[1] / kept[0] == pytest.approx(1 + 7 / 24)


def test_what_does_not_fit_says_why():
    prediction = predict_job(problem("gpt_175b", gpus=8, batch=8, tensor=8))
    assert not prediction.feasible
    assert prediction.memory_headroom_fraction < 0
    assert "out of memory: every rank needs" in prediction.infeasible_reason
    assert "optimizer state" in prediction.infeasible_reason
    assert "NVIDIA A100 SXM4 80 GB" in prediction.infeasible_reason


def test_advice_on_memory_names_only_what_is_not_chosen_yet():
    def advice(**chosen):
        asked = problem("gpt_175b", gpus=64, batch=512, tensor=8, pipeline=8, **chosen)
        return asked.memory_advice(asked.memory()[0])

    assert "sequence parallelism" in advice()
    assert "micro batch" not in advice()
    assert "sequence parallelism" not in advice(sequence_parallel=True)
    assert "micro batch" in advice(micro_batch_size=4)
    everything = {"sequence_parallel": True, "micro_batch_size": 64, "recompute": Recompute.FULL}
    assert "recomputation" not in advice(**everything)


def test_a_share_of_the_layers_is_recomputed_by_hand():
    # GPT-22B has 48 layers; 12 of them keep 2 s b h, the others all, and one is there in full.
    asked = problem(micro_batch_size=1, data=8, recompute=Recompute.FULL, recompute_layers=12)
    whole = layer_activation_bytes(asked, Recompute.NONE)
    less = layer_activation_bytes(asked, Recompute.FULL)
    assert less == 2 * S * H
    kept = asked.memory()[0].bytes_for("activations") - S * H  # the embedding's mask
    assert kept == pytest.approx(12 * less + 36 * whole + whole - less)


def test_arithmetic_of_recomputed_layers_alone_counts_as_repeated():
    # 12 of GPT-22B's 48 layers run forward twice.
    asked = problem(data=8, recompute=Recompute.FULL, recompute_layers=12)
    figures, possible = dict(asked.metrics(1.0)), 8 * asked.cluster.device.peak.of(Precision.FP16)
    repeated = figures["hardware_flops_utilization"] - figures["model_flops_utilization"]
    assert repeated * possible == pytest.approx(64 * 12 * asked.model.layer_flops_per_sample)


def test_parts_of_a_layer_are_dropped_by_hand():
    model = load_model("llama3_8b")
    tokens, hidden, inner = model.sequence_length, model.hidden, model.ffn_hidden

    def kept(*modules):
        asked = problem(
            model, data=8, recompute=Recompute.SELECTIVE, recompute_modules=tuple(modules)
        )
        return layer_activation_bytes(asked, Recompute.SELECTIVE)

    whole = layer_activation_bytes(problem(model, data=8), Recompute.NONE)
    assert kept(RecomputeModule.CORE_ATTENTION) == whole  # fused
    assert whole - kept(RecomputeModule.NORMS) == 2 * tokens * hidden * 2
    # Both sides of the gate and the activated output.
    assert whole - kept(RecomputeModule.FEED_FORWARD) == 3 * tokens * inner * 2


def test_every_other_product_is_repeated_by_hand():
    model, runtime = load_model("llama3_8b"), TRANSFORMER_PROGRAMS["torchtitan"].software
    asked = problem(
        model,
        data=8,
        software=runtime,
        recompute=Recompute.SELECTIVE,
        recompute_modules=(RecomputeModule.OPERATORS,),
    )
    asked.check()
    tokens, hidden, inner, keys = model.sequence_length, 4096, 14336, 1024
    # Keys, projection and one side of the gate.
    products = [one for one in recomputed_kernels(asked, LayerWork(asked)) if one.flops]
    assert [one[:3] for one in products] == [
        (tokens, keys, hidden),
        (tokens, hidden, hidden),
        (tokens, inner, hidden),
    ]
    # The input, queries, values, attention with the statistics of its 32 heads, the other side of
    # the gate and the output.
    kept = 2 * tokens * (hidden + hidden + keys + hidden + inner + hidden) + 4 * tokens * 32
    assert layer_activation_bytes(asked, Recompute.SELECTIVE) == pytest.approx(kept)
    whole = replace(asked, parallelism=Parallelism(data=8))
    full = replace(asked, parallelism=Parallelism(data=8, recompute=Recompute.FULL))
    assert kernels_time(whole) < kernels_time(asked) < kernels_time(full)


def test_experts_are_dropped_whole_or_but_for_their_inputs():
    model = load_model("mixtral_8x7b")
    rows = model.sequence_length * model.experts.active * model.experts.imbalance

    def kept(*modules):
        asked = problem(
            model, data=8, recompute=Recompute.SELECTIVE, recompute_modules=tuple(modules)
        )
        return layer_activation_bytes(asked, Recompute.SELECTIVE)

    whole = kept(RecomputeModule.CORE_ATTENTION)
    # There are no other columns than those of experts.
    assert kept(RecomputeModule.FEED_FORWARD) == whole
    activated = rows * model.experts.ffn_hidden * 2
    assert whole - kept(RecomputeModule.EXPERT_ACTIVATION) == pytest.approx(activated)
    both = (RecomputeModule.EXPERTS, RecomputeModule.EXPERT_ACTIVATION)
    # Scores weigh the activation, so that the output of an expert is not needed again.
    everything = rows * (3 * model.experts.ffn_hidden + model.hidden) * 2
    assert whole - kept(*both) == pytest.approx(everything)


@pytest.mark.parametrize(
    "wrong",
    [
        {"recompute": Recompute.FULL, "recompute_modules": (RecomputeModule.NORMS,)},
        {"recompute": Recompute.SELECTIVE, "recompute_modules": (RecomputeModule.EXPERTS,)},
        {"recompute_layers": 4},
        {"recompute": Recompute.FULL, "recompute_layers": -1},
        {"recompute": Recompute.FULL, "recompute_layers": 400},
        {
            "recompute": Recompute.SELECTIVE,
            "recompute_modules": (RecomputeModule.NORMS, RecomputeModule.OPERATORS),
        },
        {
            "model": "mixtral_8x7b",
            "recompute": Recompute.SELECTIVE,
            "recompute_modules": (RecomputeModule.OPERATORS,),
        },
    ],
)
def test_what_cannot_be_recomputed_is_refused(wrong):
    with pytest.raises(ConfigError):
        problem(data=8, **wrong).check()


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(0, 48),
    pipeline=st.sampled_from([1, 2, 4]),
    modules=st.sets(st.sampled_from(DENSE_MODULES)),
)
def test_more_recomputation_needs_no_more_memory_and_no_less_time(layers, pipeline, modules):
    def of(**recomputed):
        return problem("gpt_22b", batch=16, pipeline=pipeline, tensor=8 // pipeline, **recomputed)

    none, full = of(), of(recompute=Recompute.FULL)
    some = of(recompute=Recompute.FULL, recompute_layers=layers)
    parts = of(
        recompute=Recompute.SELECTIVE,
        recompute_modules=tuple(one for one in RecomputeModule if one in modules),
    )
    for first, second in ((none, some), (some, full), (none, parts)):
        for less, more in zip(second.memory(), first.memory(), strict=True):
            assert less.total_bytes <= more.total_bytes * (1 + 1e-12)
        assert kernels_time(second) >= kernels_time(first) * (1 - 1e-12)


def kernels_time(job):
    return job.optimistic_time_s(closer=True)


def test_the_probability_to_fit_follows_the_spread():
    account = MemoryAccount((("all", 70.0),), spread=0.1)
    assert account.fit_probability(70.0) == 0.5
    # One standard deviation above.
    assert account.fit_probability(70.0 * math.exp(0.1)) == pytest.approx(0.8413, abs=1e-4)
    known = MemoryAccount((("all", 70.0),))
    assert (known.fit_probability(69.0), known.fit_probability(70.0)) == (0.0, 1.0)


def test_feasible_means_more_likely_than_not():
    for batch, micro in ((8, 1), (32, 4), (128, 16)):
        found = predict_job(problem("mpt_7b", batch=batch, micro_batch_size=micro, data=8))
        assert found.feasible == (found.fit_probability >= 0.5)
        assert 0.0 <= found.fit_probability <= 1.0


def test_a_program_with_buckets_and_gradients_apart_holds_three_kinds_of_gradients():
    software = replace(COMPOSER, fused_accumulation=False, gradient_buckets=True)
    asked = replace(problem(data=8, software=software), precision=Precision.BF16)
    count = stage_parameters(asked, 0)
    # FP32 sums, what a backward pass makes, and buckets.
    assert asked.memory()[0].bytes_for("gradients") == pytest.approx((4 + 2 + 2) * count)


def test_what_the_allocator_cannot_give_out_is_apart():
    asked = problem(data=8, software=replace(MEGATRON, fragmented_share=0.02))
    account = asked.memory()[0]
    moving = account.bytes_for("activations") + account.bytes_for("buffers")
    assert account.total_bytes - account.allocated_bytes == pytest.approx(0.02 * moving)


def test_latent_columns_are_enough_to_make_queries_keys_and_values_again():
    model = load_model("deepseek_v3")
    dropped = []
    for modules in ((), (RecomputeModule.LATENT_UP,)):
        spread = {"recompute": Recompute.SELECTIVE, "recompute_modules": modules}
        asked = problem(model, gpus=64, data=64, expert=64, **spread)
        dropped.append(layer_activation_bytes(asked.layer_jobs[-1], Recompute.SELECTIVE))
    # 128 heads of 192 columns in queries and keys and 128 in values, of two bytes.
    tokens = model.sequence_length
    assert dropped[0] - dropped[1] == pytest.approx(tokens * 2 * model.qkv_width_of(1))
    assert model.qkv_width_of(1) >= 128 * (192 + 128 + 128)


def test_tensor_ranks_share_biases_like_columns():
    # 32 heads of queries and 2 of keys and values, of 128 columns, over 8 ranks: a rank has four
    # of the former and one of each of the latter. The output's bias is on every rank.
    plain = replace(load_model("llama3_8b"), kv_heads=2)
    counts = [
        stage_parameters(problem(replace(plain, **biases), tensor=8), 0)
        for biases in (
            {},
            {"qkv_bias": True},
            {"qkv_bias": True, "attention_output_bias": True},
        )
    ]
    assert counts[1] - counts[0] == 32 * (4 + 2) * 128
    assert counts[2] - counts[1] == 32 * 4096


def test_a_gathered_layer_has_the_columns_that_tensor_ranks_do_not_share():
    model = replace(load_model("llama3_8b"), kv_heads=1)
    sharded = {"data": 4, "data_sharding": DataSharding.PARAMETERS, "sequence_parallel": True}
    alone = problem(model, gpus=8, tensor=2, **sharded)
    once = replace(alone, model=replace(model, kv_heads=2))
    # Both ranks hold the one head, as they do with a head for each.
    held, expected = (one.memory()[0].bytes_for("buffers") for one in (alone, once))
    assert held == expected
