"""Model files from the `config.json` of Hugging Face Transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from dse.config import SCHEMA_VERSION, load_document, parse_document
from dse.errors import ConfigError
from dse.model._common import Width
from dse.model.transformer._model import Activation, NormKind, TransformerFamily
from dse.model.transformer._schema import Layers, TransformerDocument

if TYPE_CHECKING:
    from pathlib import Path


class _Architecture(NamedTuple):
    """What a `model_type` stands for beside the sizes.

    Attributes:
        gated_ffn: Whether the feed-forward block has a gate.
        biases: Whether linear layers have biases.
        learned_positions: Whether positions have learned vectors.
        tied: Whether embedding and language head share a matrix unless the file says otherwise.
    """

    gated_ffn: bool
    biases: bool = False
    learned_positions: bool = False
    tied: bool = False


#: Known architectures. Biases of queries, keys and values alone, as in Qwen 2, do not count.
_ARCHITECTURES = {
    "bert": _Architecture(gated_ffn=False, biases=True, learned_positions=True, tied=True),
    "gemma": _Architecture(gated_ffn=True, tied=True),
    "gpt2": _Architecture(gated_ffn=False, biases=True, learned_positions=True, tied=True),
    "gpt_neox": _Architecture(gated_ffn=False, biases=True),
    "granite": _Architecture(gated_ffn=True),
    "llama": _Architecture(gated_ffn=True),
    "mistral": _Architecture(gated_ffn=True),
    "mixtral": _Architecture(gated_ffn=True),
    "nemotron": _Architecture(gated_ffn=False),
    "olmo": _Architecture(gated_ffn=True),
    "olmo2": _Architecture(gated_ffn=True),
    "opt": _Architecture(gated_ffn=False, biases=True, learned_positions=True, tied=True),
    "olmoe": _Architecture(gated_ffn=True),
    "phi3": _Architecture(gated_ffn=True),
    "qwen2": _Architecture(gated_ffn=True),
    "qwen3": _Architecture(gated_ffn=True),
    "qwen3_moe": _Architecture(gated_ffn=True),
    "starcoder2": _Architecture(gated_ffn=False, biases=True, tied=True),
}

#: Keys of parts that are not modelled, and what those are.
_NOT_MODELLED = {
    "kv_lora_rank": "latent attention",
    "first_k_dense_replace": "a model whose first layers have no experts",
    "mlp_only_layers": "a model some of whose layers have no experts",
}

#: Probabilities of dropout.
_DROPOUT = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "resid_pdrop")

#: Activations by their names there; others are taken to be the usual one.
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "relu2": Activation.RELU2,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU,
}

#: Types of weights by their names in PyTorch; others train in BF16.
_PRECISIONS = {"float16": "fp16", "float32": "fp32"}


class _HuggingFaceConfig(BaseModel):
    """The sizes under the names of any architecture; other keys are kept as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model_type: str
    layers: Layers = Field(validation_alias=AliasChoices("num_hidden_layers", "n_layer"))
    hidden: Width = Field(validation_alias=AliasChoices("hidden_size", "n_embd"))
    heads: Width = Field(validation_alias=AliasChoices("num_attention_heads", "n_head"))
    kv_heads: Width | None = Field(None, validation_alias="num_key_value_heads")
    head_dim: Width | None = None
    ffn_hidden: Width | None = Field(
        None, validation_alias=AliasChoices("intermediate_size", "ffn_dim", "n_inner")
    )
    experts: Width | None = Field(
        None, validation_alias=AliasChoices("num_experts", "num_local_experts")
    )
    active_experts: Width = Field(2, validation_alias="num_experts_per_tok")
    expert_hidden: Width | None = Field(None, validation_alias="moe_intermediate_size")
    vocab: Width = Field(validation_alias="vocab_size")
    positions: Width = Field(
        validation_alias=AliasChoices("max_position_embeddings", "n_positions")
    )
    tied: bool | None = Field(None, validation_alias="tie_word_embeddings")
    weights: str = Field("bfloat16", validation_alias=AliasChoices("dtype", "torch_dtype"))
    activation: str = Field(
        "", validation_alias=AliasChoices("hidden_act", "activation_function", "hidden_activation")
    )
    sliding_window: Width | None = None
    use_sliding_window: bool = True

    def other(self, key: str) -> object:
        """Returns the value of a key that is not among the fields; None without it."""
        return (self.model_extra or {}).get(key)


def compose_transformer(
    path: Path, *, name: str, sequence_length: int | None = None, global_batch_size: int = 512
) -> str:
    """Returns the YAML of the model that a `config.json` describes; it was read back once.

    Args:
        path: The file.
        name: Name of the model.
        sequence_length: Tokens of one sample; the longest that the model takes by default.
        global_batch_size: Samples of one iteration.

    Raises:
        ConfigError: The file is invalid or of an architecture that is not modelled.
    """
    config = load_document(path, _HuggingFaceConfig)
    architecture = _architecture(path, config)
    tokens = sequence_length or config.positions
    window = config.sliding_window if config.use_sliding_window else None
    if window is not None and window < tokens:
        raise ConfigError(
            f"{path}: sliding_window: attention to {window} of {tokens} tokens is not modelled; "
            f"pass --sequence-length {window} or less, where it sees all of them"
        )
    family = TransformerFamily.BERT if config.model_type == "bert" else TransformerFamily.GPT
    tied = architecture.tied if config.tied is None else config.tied
    activation = _ACTIVATIONS.get(config.activation)
    precision = _PRECISIONS.get(config.weights.removeprefix("torch."), "bf16")
    lines = [
        f"schema_version: {SCHEMA_VERSION}",
        "kind: transformer",
        f"name: {json.dumps(name)}",
        f"description: {json.dumps(f'{config.model_type} of {config.layers} layers')}",
        f"source: {json.dumps(f'Hugging Face configuration {path.name}')}",
        f"family: {family}",
        f"layers: {config.layers}",
        f"hidden: {config.hidden}",
        f"heads: {config.heads}",
        *([f"kv_heads: {config.kv_heads}"] if config.kv_heads else []),
        *([f"head_dim: {config.head_dim}"] if config.head_dim else []),
        *_feed_forward(config),
        f"gated_ffn: {_yaml(architecture.gated_ffn)}",
        f"vocab: {config.vocab}",
        f"sequence_length: {tokens}",
        "attention: flash",
        f"tied_embeddings: {_yaml(tied)}",
        f"norm: {NormKind.RMS if config.other('rms_norm_eps') else NormKind.LAYER}",
        *([] if activation is None else [f"activation: {activation}"]),
        f"learned_positions: {_yaml(architecture.learned_positions)}",
        f"biases: {_yaml(architecture.biases)}",
        f"dropout: {_yaml(any(config.other(key) for key in _DROPOUT))}",
        f"precision: {precision}",
        "optimizer: adam",
        f"global_batch_size: {global_batch_size}",
    ]
    text = "\n".join(lines) + "\n"
    parse_document(text, TransformerDocument, file=str(path))
    return text


def _feed_forward(config: _HuggingFaceConfig) -> list[str]:
    inner = config.expert_hidden or config.ffn_hidden
    if config.experts is not None:
        sizes = f"count: {config.experts}, active: {config.active_experts}, ffn_hidden: {inner}"
        return [f"experts: {{{sizes}}}"]
    return [] if config.ffn_hidden is None else [f"ffn_hidden: {config.ffn_hidden}"]


def _architecture(path: Path, config: _HuggingFaceConfig) -> _Architecture:
    """Returns the architecture.

    Raises:
        ConfigError: It is not modelled.
    """
    for key, what in _NOT_MODELLED.items():
        if config.other(key):
            raise ConfigError(
                f"{path}: {key}: {what} is not modelled; write a model file for the nearest "
                "architecture that is"
            )
    found = _ARCHITECTURES.get(config.model_type)
    if found is None:
        known = ", ".join(_ARCHITECTURES)
        raise ConfigError(
            f"{path}: model_type: `{config.model_type}` is not known; expected one of {known}"
        )
    return found


def _yaml(value: bool) -> str:
    return "true" if value else "false"
