"""Model files from the `config.json` of Hugging Face Transformers."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from dse.config import SCHEMA_VERSION, load_document, parse_document
from dse.errors import ConfigError
from dse.model._common import Width
from dse.model.transformer._parts import Activation, NormKind, TransformerFamily
from dse.model.transformer._schema import Layers, TransformerDocument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


#: Numbers of which there may be none.
Number = Annotated[int, Field(ge=0, le=10_000_000)]


class _AttentionBiases(NamedTuple):
    """Biases of attention in architectures whose other layers have none.

    Attributes:
        key: Which key of the file says whether there are any; none if it has no say.
        default: Whether there are where the file does not say.
        output: Whether the projection of the output then has one as well.
    """

    key: str = "attention_bias"
    default: bool = False
    output: bool = True


class _Architecture(NamedTuple):
    """What a `model_type` stands for besides the sizes.

    Attributes:
        gated_ffn: Whether the feed-forward block has a gate.
        norm: Kind of the norms.
        biases: Whether linear layers have biases.
        learned_positions: Whether positions have learned vectors.
        tied: Whether embedding and language head share a matrix unless the file says otherwise.
        full_every: With a sliding window, every n-th layer sees all tokens unless the file says
            otherwise; 0 if none does.
        shared_expert: Whether all tokens visit one more expert, as wide as the others.
        limited_experts: Whether experts have biases and limit values before their activation.
        attention: Biases of attention alone; None where there are never any.
        defaults: Values of keys that published files leave out, because the library has them.
    """

    gated_ffn: bool
    norm: NormKind = NormKind.RMS
    biases: bool = False
    learned_positions: bool = False
    tied: bool = False
    full_every: int = 0
    shared_expert: bool = False
    limited_experts: bool = False
    attention: _AttentionBiases | None = None
    defaults: Mapping[str, object] = MappingProxyType({})


#: Defaults of `Gemma3TextConfig` in Transformers, where published files have only what differs.
_GEMMA3_DEFAULTS = MappingProxyType(
    {
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 4096,
    }
)

#: Biases of attention as in Llama.
_ALL = _AttentionBiases()

#: Known architectures. Norms of heads and those after a block, sinks of attention, and biases of
#: experts and of the feed-forward block alone do not count.
_ARCHITECTURES = {
    "bert": _Architecture(
        gated_ffn=False, norm=NormKind.LAYER, biases=True, learned_positions=True, tied=True
    ),
    "deepseek_v2": _Architecture(gated_ffn=True),
    "deepseek_v3": _Architecture(gated_ffn=True),
    "gemma": _Architecture(gated_ffn=True, tied=True, attention=_ALL),
    "gemma2": _Architecture(gated_ffn=True, tied=True, full_every=2, attention=_ALL),
    "gemma3_text": _Architecture(
        gated_ffn=True, tied=True, full_every=6, attention=_ALL, defaults=_GEMMA3_DEFAULTS
    ),
    "glm4_moe": _Architecture(gated_ffn=True, attention=_AttentionBiases(output=False)),
    "gpt2": _Architecture(
        gated_ffn=False, norm=NormKind.LAYER, biases=True, learned_positions=True, tied=True
    ),
    "gpt_neox": _Architecture(gated_ffn=False, norm=NormKind.LAYER, biases=True),
    "gpt_oss": _Architecture(gated_ffn=True, full_every=2, limited_experts=True, attention=_ALL),
    "granite": _Architecture(gated_ffn=True, attention=_ALL),
    "kimi_k2": _Architecture(gated_ffn=True),
    "llama": _Architecture(gated_ffn=True, attention=_ALL),
    "llama4_text": _Architecture(gated_ffn=True, shared_expert=True, attention=_ALL),
    "mistral": _Architecture(gated_ffn=True),
    "mixtral": _Architecture(gated_ffn=True),
    "nemotron": _Architecture(gated_ffn=False, norm=NormKind.LAYER, attention=_ALL),
    "olmo": _Architecture(gated_ffn=True, norm=NormKind.LAYER, attention=_ALL),
    "olmo2": _Architecture(gated_ffn=True, attention=_ALL),
    "opt": _Architecture(
        gated_ffn=False, norm=NormKind.LAYER, biases=True, learned_positions=True, tied=True
    ),
    "olmoe": _Architecture(gated_ffn=True, attention=_ALL),
    "phi3": _Architecture(gated_ffn=True),
    "olmo3": _Architecture(gated_ffn=True, full_every=4, attention=_ALL),
    "qwen2": _Architecture(
        gated_ffn=True, attention=_AttentionBiases(key="", default=True, output=False)
    ),
    "qwen2_moe": _Architecture(
        gated_ffn=True, attention=_AttentionBiases("qkv_bias", default=True, output=False)
    ),
    "qwen3": _Architecture(gated_ffn=True, attention=_ALL),
    "qwen3_moe": _Architecture(gated_ffn=True, attention=_ALL),
    "starcoder2": _Architecture(gated_ffn=False, norm=NormKind.LAYER, biases=True, tied=True),
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
    dense_hidden: Width | None = Field(None, validation_alias="intermediate_size_mlp")
    experts: Width | None = Field(
        None, validation_alias=AliasChoices("num_experts", "num_local_experts", "n_routed_experts")
    )
    active_experts: Width | None = Field(
        None, validation_alias=AliasChoices("num_experts_per_tok", "experts_per_token")
    )
    expert_groups: Width | None = Field(None, validation_alias="n_group")
    active_groups: Width | None = Field(None, validation_alias="topk_group")
    expert_hidden: Width | None = Field(None, validation_alias="moe_intermediate_size")
    shared_experts: Number = Field(0, validation_alias="n_shared_experts")
    shared_hidden: Number = Field(0, validation_alias="shared_expert_intermediate_size")
    first_dense: Number = Field(0, validation_alias="first_k_dense_replace")
    dense_layers: list[int] = Field([], validation_alias="mlp_only_layers")
    experts_every: Width = Field(
        1,
        validation_alias=AliasChoices("decoder_sparse_step", "interleave_moe_layer_step"),
    )
    #: As `experts_every`, but counted from the first layer, which is one of them.
    experts_every_from_first: Width = Field(1, validation_alias="moe_layer_freq")
    mtp_modules: Number = Field(0, validation_alias="num_nextn_predict_layers")
    kv_rank: Width | None = Field(None, validation_alias="kv_lora_rank")
    query_rank: Width | None = Field(None, validation_alias="q_lora_rank")
    nope_dim: Width = Field(128, validation_alias="qk_nope_head_dim")
    rope_dim: Width = Field(64, validation_alias="qk_rope_head_dim")
    value_dim: Width = Field(128, validation_alias="v_head_dim")
    vocab: Width = Field(validation_alias="vocab_size")
    embedding_dim: Width | None = Field(None, validation_alias="word_embed_proj_dim")
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
    max_window_layers: Number | None = None
    full_every: Width | None = Field(None, validation_alias="sliding_window_pattern")
    layer_types: list[str] | None = None
    attention_chunk_size: Width | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_part(cls, value: object) -> object:
        """A model of several kinds of input has its text part in a block of its own.

        Keys that this part leaves out get the defaults of its architecture.
        """
        if not isinstance(value, dict):
            return value
        if isinstance(value.get("text_config"), dict):
            value = {**value, **value["text_config"]}
        kind = value.get("model_type")
        architecture = _ARCHITECTURES.get(kind) if isinstance(kind, str) else None
        return value if architecture is None else {**architecture.defaults, **value}

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
    chunk = config.attention_chunk_size
    if chunk is not None and chunk < tokens:
        raise ConfigError(
            f"{path}: attention_chunk_size: attention to chunks of {chunk} of {tokens} tokens is "
            f"not modelled; pass --sequence-length {chunk} or less, where it sees all of them"
        )
    if architecture.learned_positions and tokens > config.positions:
        raise ConfigError(
            f"{path}: max_position_embeddings: the model has vectors for {config.positions} "
            f"positions, not for {tokens}; pass --sequence-length {config.positions} or less"
        )
    if config.embedding_dim not in (None, config.hidden):
        raise ConfigError(
            f"{path}: word_embed_proj_dim: embeddings of {config.embedding_dim} values in a model "
            f"of {config.hidden} are not modelled; in model files they are as wide as it is"
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
        *_heads(config),
        *_window(path, config, architecture),
        *_feed_forward(path, config, architecture),
        *([f"mtp_modules: {config.mtp_modules}"] if config.mtp_modules else []),
        f"gated_ffn: {_yaml(architecture.gated_ffn)}",
        f"vocab: {config.vocab}",
        f"sequence_length: {tokens}",
        "attention: flash",
        f"tied_embeddings: {_yaml(tied)}",
        f"norm: {architecture.norm}",
        *([] if activation is None else [f"activation: {activation}"]),
        f"learned_positions: {_yaml(architecture.learned_positions)}",
        f"biases: {_yaml(architecture.biases)}",
        *_attention_biases(config, architecture),
        f"dropout: {_yaml(any(config.other(key) for key in _DROPOUT))}",
        f"precision: {precision}",
        "optimizer: adam",
        f"global_batch_size: {global_batch_size}",
    ]
    text = "\n".join(lines) + "\n"
    parse_document(text, TransformerDocument, file=str(path))
    return text


def _heads(config: _HuggingFaceConfig) -> list[str]:
    if config.kv_rank is None:
        kv_heads = [f"kv_heads: {config.kv_heads}"] if config.kv_heads else []
        return [*kv_heads, *([f"head_dim: {config.head_dim}"] if config.head_dim else [])]
    sizes = {
        "query_rank": config.query_rank,
        "kv_rank": config.kv_rank,
        "rope_dim": config.rope_dim,
        "value_dim": config.value_dim,
    }
    return [f"head_dim: {config.nope_dim + config.rope_dim}", f"latent_attention: {_flow(sizes)}"]


def _attention_biases(config: _HuggingFaceConfig, architecture: _Architecture) -> list[str]:
    there = architecture.attention
    if there is None:
        return []
    said = config.other(there.key)
    if not (there.default if said is None else said):
        return []
    return ["qkv_bias: true", *(["attention_output_bias: true"] if there.output else [])]


def _window(path: Path, config: _HuggingFaceConfig, architecture: _Architecture) -> list[str]:
    """Returns the sliding window.

    Raises:
        ConfigError: Model files cannot express which layers have a window.
    """
    if config.sliding_window is None or not config.use_sliding_window:
        return []
    full_every = config.full_every or architecture.full_every
    if full_every == 1:
        return []
    layers = range(config.layers)
    windowed = [not full_every or (layer + 1) % full_every > 0 for layer in layers]
    key = "layer_types"
    if config.layer_types is not None:
        windowed = [kind == "sliding_attention" for kind in config.layer_types]
    elif config.max_window_layers is not None:
        key = "max_window_layers"
        windowed = [layer >= config.max_window_layers for layer in layers]
    if not any(windowed):
        return []
    full = [layer for layer, window in enumerate(windowed) if not window]
    every = full[0] + 1 if full else 0
    if full != [layer for layer in layers if every and (layer + 1) % every == 0]:
        raise ConfigError(
            f"{path}: {key}: full attention in the layers {full} of {config.layers} is not "
            "modelled; in model files it is in each n-th layer"
        )
    return [
        f"sliding_window: {_flow({'tokens': config.sliding_window, 'full_every': every or None})}"
    ]


def _feed_forward(
    path: Path, config: _HuggingFaceConfig, architecture: _Architecture
) -> list[str]:
    """Returns the feed-forward block, or experts and the layers that have none.

    Raises:
        ConfigError: Model files cannot express which layers have experts, or it is not said how
            many of them a token visits.
    """
    if config.experts is None:
        return [] if config.ffn_hidden is None else [f"ffn_hidden: {config.ffn_hidden}"]
    if config.active_experts is None:
        raise ConfigError(
            f"{path}: num_experts_per_tok: missing; add how many of the {config.experts} experts "
            "a token visits"
        )
    dense = config.dense_layers
    if sorted(dense) != list(range(len(dense))):
        raise ConfigError(
            f"{path}: mlp_only_layers: layers {dense} without experts are not modelled; in model "
            "files they are the first ones, or all but each n-th"
        )
    inner = config.expert_hidden or config.ffn_hidden or 0
    shared = config.shared_hidden or config.shared_experts * inner
    first_dense, every = _layers_of_experts(path, config)
    grouped = (config.expert_groups or 1) > 1
    sizes = {
        "count": config.experts,
        "active": config.active_experts,
        "ffn_hidden": inner,
        "shared_ffn_hidden": shared or (inner if architecture.shared_expert else None),
        "first_dense": first_dense or None,
        "every": every if every > 1 else None,
        **dict.fromkeys(("biases", "limited"), "true" if architecture.limited_experts else None),
        "router_groups": config.expert_groups if grouped else None,
        "active_groups": config.active_groups if grouped else None,
    }
    width = config.dense_hidden or config.ffn_hidden
    mixed = first_dense or every > 1
    return [*([f"ffn_hidden: {width}"] if mixed else []), f"experts: {_flow(sizes)}"]


def _layers_of_experts(path: Path, config: _HuggingFaceConfig) -> tuple[int, int]:
    """Returns how many layers come first without experts, and which ones after them have some.

    Raises:
        ConfigError: The first layer has experts, and some later one has none.
    """
    first = max(config.first_dense, len(config.dense_layers))
    every, remainder = config.experts_every, -1
    if config.experts_every_from_first > 1:
        every, remainder = config.experts_every_from_first, 0
    # Model files count from the last layer without experts.
    first_dense = first + (remainder - first) % every - every + 1
    if first_dense < 0:
        raise ConfigError(
            f"{path}: moe_layer_freq: experts in layer 0 and in every {every}th after it are not "
            "modelled; set first_k_dense_replace to 1, which removes those of layer 0"
        )
    return first_dense, every


def _flow(sizes: Mapping[str, int | str | None]) -> str:
    """Returns a mapping in one line, without what there is none of."""
    given = (f"{name}: {value}" for name, value in sizes.items() if value is not None)
    return f"{{{', '.join(given)}}}"


def _architecture(path: Path, config: _HuggingFaceConfig) -> _Architecture:
    """Returns the architecture.

    Raises:
        ConfigError: It is not modelled.
    """
    found = _ARCHITECTURES.get(config.model_type)
    if found is None:
        known = ", ".join(_ARCHITECTURES)
        raise ConfigError(
            f"{path}: model_type: `{config.model_type}` is not known; expected one of {known}"
        )
    return found


def _yaml(value: bool) -> str:
    return "true" if value else "false"
