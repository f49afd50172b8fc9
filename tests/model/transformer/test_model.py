"""Transformers: their files, parameters and arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.model import (
    AttentionKind,
    ModelFile,
    SlidingWindow,
    TransformerFamily,
    TransformerModel,
    list_models,
    load_model,
)

TEXT = """\
schema_version: 1
kind: transformer
name: small
source: test
family: gpt
layers: 2
hidden: 8
heads: 4
vocab: 10
sequence_length: 6
global_batch_size: 3
"""


def read(text: str):
    return parse_document(text, ModelFile, file="f.yaml").to_model()


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.diagnostics]


def test_a_file_becomes_plain_values():
    model = read(TEXT + "kv_heads: 2\nattention: unfused\n")
    assert isinstance(model, TransformerModel)
    assert (model.family, model.attention) == (TransformerFamily.GPT, AttentionKind.UNFUSED)
    assert (model.ffn_hidden, model.kv_heads, model.head_dim) == (32, 2, 2)
    assert model.causal
    assert not model.dropout


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("heads: 4", "heads: 3", "f.yaml:8:8: heads: expected a divisor of the hidden width 8"),
        (
            "heads: 4",
            "heads: 4\nkv_heads: 3",
            "f.yaml:9:11: kv_heads: expected a divisor of the 4",
        ),
        ("layers: 2", "layers: 0", "f.yaml:6:9: layers: expected at least 1"),
        ("family: gpt", "family: bart", "expected one of `gpt`, `bert` (did you mean `bert`?)"),
        ("vocab: 10", "vocab: 10\nlayer: 2", "layer: unknown key; did you mean `layers`?"),
        ("vocab: 10\n", "", "vocab: this field is missing"),
        ("heads: 4", "heads: 4\noptimizer: rowwise_adagrad", "is for embedding tables"),
        (
            "kind: transformer",
            "kind: transfomer",
            "f.yaml:2:7: kind: expected one of `dlrm`, `transformer` (did you mean `transf",
        ),
    ],
)
def test_mistakes_are_reported_at_their_field(old, new, expected):
    assert TEXT.count(old) == 1
    found = problems(TEXT.replace(old, new))
    assert any(expected in line for line in found), found


def test_only_keys_of_the_stated_kind_are_suggested():
    (line,) = problems(TEXT + "table_defaults: {}\n")
    assert "bottom_mlp" not in line
    assert "`hidden`" in line


def test_a_file_without_a_kind_is_told_so():
    found = problems(TEXT.replace("kind: transformer\n", ""))
    assert found == ["f.yaml:1:1: kind: this field is missing"]


def test_parameters_of_a_small_decoder_by_hand():
    # Layer: 8 × 24 + 24, 8 × 8 + 8, 8 × 32 + 32, 32 × 8 + 8, two norms of 16.
    assert read(TEXT).layer_parameters == 216 + 72 + 288 + 264 + 32
    assert read(TEXT).parameter_count == 2 * 872 + 10 * 8 + 6 * 8 + 16
    # Keys and values of half the heads, a gate, no biases, no positions, a head of its own.
    variant = replace(
        read(TEXT),
        kv_heads=2,
        gated_ffn=True,
        biases=False,
        learned_positions=False,
        tied_embeddings=False,
    )
    assert variant.layer_parameters == 8 * 16 + 8 * 8 + 8 * 64 + 32 * 8 + 2 * 8
    assert variant.parameter_count == 2 * variant.layer_parameters + 2 * 10 * 8 + 8


def test_biases_of_attention_alone_by_hand():
    # Of 8 × 16 columns of queries, keys and values; the norms have none.
    plain, some, both, every = (
        read(TEXT + f"kv_heads: 2\n{keys}")
        for keys in (
            "biases: false",
            "biases: false\nqkv_bias: true",
            "biases: false\nqkv_bias: true\nattention_output_bias: true",
            "biases: true",
        )
    )
    assert some.layer_parameters - plain.layer_parameters == 16
    assert both.layer_parameters - plain.layer_parameters == 16 + 8
    # With all biases these are among them.
    again = "kv_heads: 2\nbiases: true\nqkv_bias: true\nattention_output_bias: true"
    assert read(TEXT + again) == every
    latent = "latent_attention: {kv_rank: 4, rope_dim: 2, value_dim: 2}\nhead_dim: 4\n"
    found = problems(TEXT + latent + "biases: false\nqkv_bias: true")
    assert [line for line in found if "qkv_bias" in line]


#: As counted by the sources of the models (GPT-2 XL with its own vocabulary).
PARAMETERS = {
    "bert_base": 110_106_428,
    "bert_large": 336_226_108,
    "mpt_125m": 125_311_488,
    "mpt_350m": 355_985_408,
    "mpt_760m": 760_470_528,
    "mpt_1b": 1_315_950_592,
    "mpt_3b": 2_651_837_440,
    "mpt_7b": 6_658_859_008,
    "mpt_13b": 12_853_954_560,
    "mpt_30b": 29_975_214_080,
    "mpt_70b": 64_862_437_376,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama31_405b": 405_853_388_800,
}


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("qwen3_30b_a3b", 30.5, 3.3),
        ("qwen3_235b_a22b", 235.1, 22.2),
        ("mixtral_8x7b", 46.7, 12.9),
        ("gpt_oss_120b", 116.8, 5.7),
        # The embedding counts here as active.
        ("kimi_k2", 1026.4, 32.9),
        ("llama4_maverick", 400.7, 17.2),
        ("qwen3_32b", 32.8, 32.8),
        ("gemma3_27b", 25.6 + 1.41, 25.6 + 1.41),
    ],
)
def test_parameters_of_shipped_mixtures(name, billions, active):
    model = load_model(name)
    assert model.parameter_count / 1e9 == pytest.approx(billions, abs=0.1)
    assert model.active_parameter_count / 1e9 == pytest.approx(active, abs=0.1)


def test_experts_replace_the_feed_forward_block():
    block = "experts: {count: 4, active: 2, ffn_hidden: 16, shared_ffn_hidden: 8}"
    model = read(TEXT + block + "\nbiases: false\n")
    # Queries, keys, values and projection; the router; the shared expert.
    assert model.layer_matrix_parameters == 8 * 24 + 64 + 8 * 4 + 2 * 8 * 8
    assert model.layer_expert_parameters == 4 * (2 * 8 * 16)
    idle = 2 * (2 * 8 * 16)
    assert model.parameter_count - model.active_parameter_count == 2 * idle
    assert "at most 4 active" in problems(TEXT + block.replace("active: 2", "active: 5"))[0]
    assert "belongs to layers without experts" in problems(TEXT + block + "\nffn_hidden: 4")[0]


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_parameters_of_shipped_models(name, count):
    assert load_model(name).parameter_count == count


def test_heads_may_be_wider_than_the_model_together():
    model = read(TEXT.replace("heads: 4", "heads: 3\nkv_heads: 1\nhead_dim: 4\nbiases: false"))
    assert (model.attention_width, model.qkv_width) == (12, 20)
    # Queries, keys and values; the projection; two matrices of 8 × 32.
    assert model.layer_matrix_parameters == 8 * 20 + 12 * 8 + 2 * 8 * 32
    assert model.layer_flops_per_sample == 2 * 6 * model.layer_matrix_parameters + 4 * 36 * 12


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("latent_attention: {kv_rank: 4, rope_dim: 2, value_dim: 2}", "head_dim: with latent"),
        (
            "head_dim: 4\nlatent_attention: {kv_rank: 4, rope_dim: 4, value_dim: 2}",
            "more than the 4 with the position",
        ),
        (
            "head_dim: 4\nkv_heads: 2\nlatent_attention: {kv_rank: 4, rope_dim: 2, value_dim: 2}",
            "kv_heads: with latent attention",
        ),
        ("sliding_window: {tokens: 4}\nattention: unfused", "sliding_window: modelled for"),
        ("sliding_window: {tokens: 4, full_every: 1}", "full_every: expected at least 2"),
        ("experts: {count: 4, active: 2, ffn_hidden: 8, first_dense: 9}", "none of the"),
    ],
)
def test_parts_of_layers_that_cannot_be(block, expected):
    assert expected in problems(TEXT + block + "\n")[0]


def test_layers_without_experts_have_a_width_of_their_own():
    block = "experts: {count: 4, active: 2, ffn_hidden: 16, first_dense: 1}\nffn_hidden: 24\n"
    model = read(TEXT + block + "biases: false\n")
    dense, sparse = model.layer_models
    assert (dense.ffn_hidden, sparse.ffn_hidden, model.layer_kinds[0]) == (24, 0, 0)
    assert model.parameter_count - model.embedding_parameters - model.head_parameters == (
        dense.layer_parameters
        + (model.layers - 1) * (sparse.layer_parameters + sparse.layer_expert_parameters)
    )


def test_parameters_of_gpt2_with_its_own_vocabulary():
    model = replace(load_model("gpt2_xl"), vocab=50257)
    assert model.parameter_count == 1_557_611_200


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gpt_22b", 22.0), ("gpt_175b", 174.6), ("gpt_145b", 145.6), ("gpt_39b", 39.1)],
)
def test_parameters_of_gpt_models_as_published(name, billions):
    assert load_model(name).parameter_count / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize("name", ["gpt_22b", "gpt_175b", "mpt_7b"])
def test_arithmetic_follows_the_published_formula(name):
    # Narayanan et al., § 5.1: 96 s l h² (1 + s / 6 h + V / 16 l h) with one forward pass repeated,
    # of which the repeated part does not include the language head.
    model = load_model(name)
    s, layers, h, v = model.sequence_length, model.layers, model.hidden, model.vocab
    published = 96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    repeated = layers * model.layer_flops_per_sample
    assert model.model_flops_per_sample + repeated == pytest.approx(published, rel=1e-12)


@pytest.mark.parametrize(
    ("family", "window", "expected"),
    [
        (TransformerFamily.GPT, None, (1 + 2 + 3 + 4) / 4),
        (TransformerFamily.GPT, SlidingWindow(2), (1 + 2 + 2 + 2) / 4),
        (TransformerFamily.GPT, SlidingWindow(8), (1 + 2 + 3 + 4) / 4),
        (TransformerFamily.BERT, None, 4),
    ],
)
def test_tokens_that_a_token_sees_by_hand(family, window, expected):
    model = replace(load_model("gpt_22b"), sequence_length=4, family=family, window=window)
    assert model.attended_tokens == expected


def test_every_shipped_transformer_loads():
    names = [name for name in list_models() if not name.startswith("dlrm")]
    assert len(names) >= 18
    for name in names:
        model = load_model(name)
        assert isinstance(model, TransformerModel)
        assert model.name == name
        assert model.source
