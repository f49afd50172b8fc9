"""Models from Hugging Face configurations."""

from __future__ import annotations

import json

import pytest

from dse.config import parse_document
from dse.errors import ConfigError
from dse.machine import Precision
from dse.model import (
    MixtureOfExperts,
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


def test_older_names_of_the_same_sizes(tmp_path):
    model = read(tmp_path, GPT2)
    assert model.parameter_count == 124_439_808
    assert (model.biases, model.learned_positions, model.dropout) == (True, True, True)
    assert model.family is TransformerFamily.GPT


def test_a_mixture_of_experts(tmp_path):
    sizes = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    config = QWEN3 | sizes | {"model_type": "qwen3_moe", "num_key_value_heads": 4}
    larger = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32}
    model = read(tmp_path, config | larger | {"tie_word_embeddings": False, "mlp_only_layers": []})
    assert model.parameter_count == load_model("qwen3_30b_a3b").parameter_count
    assert model.experts == MixtureOfExperts(128, 8, 768)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"mlp_only_layers": [0]}, "mlp_only_layers: a model some of whose layers"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"model_type": "mamba"}, "`mamba` is not known"),
        ({"sliding_window": 512}, "pass --sequence-length 512 or less"),
        ({"vocab_size": "many"}, "vocab_size: expected a whole number, found `many`"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path, changed, expected):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, QWEN3 | changed)
    assert expected in str(caught.value)


def test_a_window_as_long_as_the_sample_changes_nothing(tmp_path):
    short = read(tmp_path, QWEN3 | {"sliding_window": 512}, sequence_length=512)
    assert short == read(tmp_path, QWEN3, sequence_length=512)
