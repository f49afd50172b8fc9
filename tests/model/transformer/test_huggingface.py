"""Models from Hugging Face configurations."""

from __future__ import annotations

from dataclasses import replace
import json

import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import (
    Activation,
    MixtureOfExperts,
    NormKind,
    SlidingWindow,
    TransformerDocument,
    TransformerFamily,
    compose_transformer,
    load_model,
)

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "sliding_window": None,
    "attention_dropout": 0.0,
    "rope_scaling": None,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "resid_pdrop": 0.1,
}


def read(tmp_path, config, **options):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    text = compose_transformer(path, name="mine", **options)
    return parse_document(text, TransformerDocument).to_model()


def test_a_decoder_with_a_gate_and_grouped_queries(tmp_path):
    model = read(tmp_path, QWEN3, sequence_length=4096)
    assert model.parameter_count == pytest.approx(0.596e9, rel=1e-3)
    assert (model.head_dim, model.kv_heads, model.sequence_length) == (128, 8, 4096)
    assert (model.gated_ffn, model.tied_embeddings, model.dropout) == (True, True, False)
    assert model.precision is Precision.BF16


@pytest.mark.parametrize("architecture", ["llama", "olmo", "olmo2", "phi3"])
def test_layers_of_three_matrices(tmp_path, architecture):
    assert read(tmp_path, QWEN3 | {"model_type": architecture}).gated_ffn


def test_older_names_of_the_same_sizes(tmp_path):
    model = read(tmp_path, GPT2)
    assert model.parameter_count == 124_439_808
    assert (model.biases, model.learned_positions, model.dropout) == (True, True, True)
    assert model.family is TransformerFamily.GPT


def test_learned_positions_bound_the_sequence(tmp_path):
    assert read(tmp_path, GPT2, sequence_length=512).sequence_length == 512
    with pytest.raises(ConfigError, match="--sequence-length 1024 or less"):
        read(tmp_path, GPT2, sequence_length=1025)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (QWEN3, NormKind.RMS),
        (QWEN3 | {"model_type": "llama"}, NormKind.RMS),
        (QWEN3 | {"model_type": "nemotron"}, NormKind.LAYER),
        (QWEN3 | {"model_type": "olmo"}, NormKind.LAYER),
        (QWEN3 | {"model_type": "olmo2"}, NormKind.RMS),
        (GPT2, NormKind.LAYER),
    ],
)
def test_the_kind_of_norm_follows_the_architecture(tmp_path, config, expected):
    assert read(tmp_path, config).norm is expected


def test_a_mixture_of_experts(tmp_path):
    sizes = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    config = QWEN3 | sizes | {"model_type": "qwen3_moe", "num_key_value_heads": 4}
    larger = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32}
    model = read(tmp_path, config | larger | {"tie_word_embeddings": False, "mlp_only_layers": []})
    assert model.parameter_count == load_model("qwen3_30b_a3b").parameter_count
    assert model.experts == MixtureOfExperts(128, 8, 768)


QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def test_qwen_2_has_biases_of_queries_keys_and_values(tmp_path):
    # Qwen2.5-7B, whose checkpoint has exactly as many.
    model = read(tmp_path, QWEN2)
    assert model.parameter_count == 7_615_616_512
    without = replace(model, qkv_bias=False)
    assert model.parameter_count - without.parameter_count == 28 * (28 + 2 * 4) * 128
    assert not model.attention_output_bias


@pytest.mark.parametrize(
    ("changed", "qkv", "output"),
    [
        ({"model_type": "qwen2_moe"}, True, False),
        ({"model_type": "qwen2_moe", "qkv_bias": False}, False, False),
        ({"model_type": "glm4_moe"}, False, False),
        ({"model_type": "glm4_moe", "attention_bias": True}, True, False),
        ({"model_type": "llama"}, False, False),
        ({"model_type": "llama", "attention_bias": True}, True, True),
        ({"attention_bias": False}, False, False),
        ({"attention_bias": True}, True, True),
        # Architectures that do not read the key.
        ({"model_type": "mistral", "attention_bias": True}, False, False),
        ({"model_type": "starcoder2", "attention_bias": True}, False, False),
    ],
)
def test_biases_of_attention_follow_architecture_and_file(tmp_path, changed, qkv, output):
    model = read(tmp_path, QWEN3 | changed)
    assert (model.qkv_bias, model.attention_output_bias) == (qkv, output)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [5]},
            "mlp_only_layers: layers [5]",
        ),
        ({"num_experts": 8}, "num_experts_per_tok: missing"),
        ({"word_embed_proj_dim": 512}, "word_embed_proj_dim: embeddings of 512"),
        ({"model_type": "mamba"}, "`mamba` is not known"),
        ({"sliding_window": 512, "max_window_layers": 14}, "max_window_layers: full attention"),
        ({"attention_chunk_size": 8192}, "pass --sequence-length 8192 or less"),
        ({"vocab_size": "many"}, "vocab_size: expected a whole number, found `many`"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path, changed, expected):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, QWEN3 | changed)
    assert expected in str(caught.value)


DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "head_dim": 64,
    "hidden_act": "silu",
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}


def test_latent_attention_and_layers_without_experts(tmp_path):
    model = read(tmp_path, DEEPSEEK, sequence_length=4096, global_batch_size=15360)
    shipped = load_model("deepseek_v3")
    named = {name: getattr(shipped, name) for name in ("name", "description", "source")}
    assert replace(model, **named) == shipped


@pytest.mark.parametrize("frequency", [1, 2, 3, 5])
@pytest.mark.parametrize("dense", [1, 2, 3, 4, 7])
def test_layers_with_experts_are_those_of_deepseek(tmp_path, dense, frequency):
    config = DEEPSEEK | {"first_k_dense_replace": dense, "moe_layer_freq": frequency}
    experts = read(tmp_path, config, sequence_length=4096).experts
    wanted = [layer >= dense and layer % frequency == 0 for layer in range(61)]
    assert [experts.at(layer) for layer in range(61)] == wanted


@pytest.mark.parametrize("dense", [0, 1, 2, 3])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_layers_with_experts_are_those_of_qwen(tmp_path, dense, step):
    config = DEEPSEEK | {"first_k_dense_replace": 0, "decoder_sparse_step": step}
    config |= {"mlp_only_layers": list(range(dense))}
    experts = read(tmp_path, config, sequence_length=4096).experts
    wanted = [layer >= dense and (layer + 1) % step == 0 for layer in range(61)]
    assert [experts.at(layer) for layer in range(61)] == wanted


def test_experts_in_the_first_layer_and_not_in_the_next_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="moe_layer_freq"):
        read(tmp_path, DEEPSEEK | {"first_k_dense_replace": 0, "moe_layer_freq": 2})


def test_gpt_oss_is_the_shipped_model(tmp_path):
    config = QWEN3 | {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "vocab_size": 201088,
        "sliding_window": 128,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
    }
    model = read(tmp_path, config, sequence_length=4096, global_batch_size=1280)
    shipped = load_model("gpt_oss_120b")
    named = {name: getattr(shipped, name) for name in ("name", "description", "source")}
    assert replace(model, **named) == shipped


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"model_type": "mistral"}, SlidingWindow(512)),
        ({"max_window_layers": 28}, None),
        ({"max_window_layers": 0}, SlidingWindow(512)),
        ({"use_sliding_window": False}, None),
        ({"model_type": "gemma3_text"}, SlidingWindow(512, full_every=6)),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 4}, SlidingWindow(512, 4)),
        (
            {"layer_types": ["sliding_attention", "full_attention"] * 14},
            SlidingWindow(512, full_every=2),
        ),
        ({"layer_types": ["full_attention"] * 28}, None),
    ],
)
def test_windows_of_attention(tmp_path, changed, expected):
    assert read(tmp_path, QWEN3 | {"sliding_window": 512} | changed).window == expected


def test_experts_in_every_second_layer_of_a_text_part(tmp_path):
    text = QWEN3 | {
        "model_type": "llama4_text",
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192,
    }
    config = {"model_type": "llama4", "text_config": text}
    model = read(tmp_path, config, sequence_length=8192)
    assert model.experts == MixtureOfExperts(
        128, 1, 8192, shared_ffn_hidden=8192, every=2, dense_ffn_hidden=16384
    )
    assert model.layer_kinds == (0, 1) * 14


def gemma3(**sizes):
    """A published file: its text part has only what differs from the defaults of the library."""
    text = {"model_type": "gemma3_text", "sliding_window": 1024} | sizes
    return {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}


GEMMA3_4B = gemma3(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34)
GEMMA3_27B = gemma3(
    hidden_size=5376,
    intermediate_size=21504,
    num_hidden_layers=62,
    num_attention_heads=32,
    num_key_value_heads=16,
    head_dim=128,
)


def test_gemma3_has_the_sizes_that_published_files_leave_out(tmp_path):
    model = read(tmp_path, GEMMA3_27B)
    assert (model.vocab, model.sequence_length) == (262_208, 131_072)
    assert (model.heads, model.kv_heads, model.head_dim) == (32, 16, 128)
    assert model.activation is Activation.GELU
    assert model.window == SlidingWindow(1024, full_every=6)
    model = read(tmp_path, GEMMA3_4B)
    assert (model.heads, model.kv_heads, model.head_dim) == (8, 4, 256)
    # The published number, without the image part and with 64 more rows of padding.
    assert model.parameter_count == pytest.approx(3_880_099_328 + 64 * 2560, rel=1e-3)


def test_what_a_gemma3_file_says_counts(tmp_path):
    config = gemma3(
        hidden_size=1152,
        intermediate_size=6912,
        num_hidden_layers=26,
        vocab_size=262_144,
        max_position_embeddings=32_768,
        sliding_window=None,
    )
    model = read(tmp_path, config)
    assert (model.vocab, model.sequence_length) == (262_144, 32_768)
    assert model.window is None


@pytest.mark.parametrize("key", ["vocab_size", "max_position_embeddings"])
def test_other_architectures_have_to_say_their_sizes(tmp_path, key):
    short = {name: value for name, value in QWEN3.items() if name != key}
    with pytest.raises(ConfigError, match=key):
        read(tmp_path, short)
