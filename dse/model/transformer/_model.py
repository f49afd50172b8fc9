"""Transformer as plain values: sizes, parameters and arithmetic.

Counted as in Narayanan et al. (SC 2021, arXiv 2104.04473) and Korthikanti et al. (MLSys 2023,
arXiv 2205.05198): only matrix products count as arithmetic. Scores of attention count there even
where a causal mask makes half of them useless. Sliding windows are younger than that convention,
and no kernel computes scores outside of one, so these never count. The counts that end in
``_causal`` also leave out those that the mask hides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from dse.model.transformer._parts import SlidingWindow, TransformerFamily

if TYPE_CHECKING:
    from dse.machine import Precision
    from dse.model._common import Optimizer
    from dse.model.transformer._parts import (
        Activation,
        AttentionKind,
        LatentAttention,
        MixtureOfExperts,
        NormKind,
    )


@dataclass(frozen=True)
class TransformerModel:
    """A transformer with its training recipe.

    Attributes:
        name: Name of the model.
        description: One line for listings.
        source: Where its figures come from.
        family: Decoder or encoder.
        layers: Transformer layers.
        hidden: Width of the residual stream.
        heads: Attention heads.
        kv_heads: Heads of keys and values (less than `heads` for grouped queries).
        head_dim: Columns of one head's queries and keys; together they may be wider than `hidden`.
        ffn_hidden: Inner width of the feed-forward block that every token visits: of the shared
            expert where there are experts, 0 without one.
        gated_ffn: Whether that block has a second matrix whose output gates the first's.
        vocab: Rows of the embedding, padding included.
        sequence_length: Tokens of one sample.
        attention: How attention is computed.
        tied_embeddings: Whether the language head uses the embedding's matrix.
        norm: Kind of the norms. Like the activation it changes no count and no time.
        activation: Function of the feed-forward block.
        learned_positions: Whether every position has a learned vector.
        biases: Whether linear layers and norms have biases.
        dropout: Whether the recipe drops out activations and attention probabilities.
        precision: Default arithmetic.
        optimizer: Update rule.
        global_batch_size: Samples of one iteration in the recipe.
        experts: Mixture of experts; None in a dense model.
        latent: Latent attention; None where queries, keys and values come from the layer's input.
        window: Sliding window of attention; None where a token sees all before it.
        mtp_modules: Modules after the last layer that predict one more token each: two norms, a
            projection of embedding and residual stream together, a layer like the last one, and
            the language head (MTP: DeepSeek-V3, arXiv 2412.19437, § 2.2).
        of_modules: Whether its layers are such modules, as in one of :attr:`layer_models`.
        qkv_bias: Whether, where `biases` is false, queries, keys and values have biases all the
            same, as in Qwen 2.
        attention_output_bias: Whether, where `biases` is false, the projection of attention's
            output has a bias all the same.
    """

    name: str
    description: str
    source: str
    family: TransformerFamily
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    gated_ffn: bool
    vocab: int
    sequence_length: int
    attention: AttentionKind
    tied_embeddings: bool
    norm: NormKind
    activation: Activation
    learned_positions: bool
    biases: bool
    dropout: bool
    precision: Precision
    optimizer: Optimizer
    global_batch_size: int
    experts: MixtureOfExperts | None = None
    latent: LatentAttention | None = None
    window: SlidingWindow | None = None
    mtp_modules: int = 0
    of_modules: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False

    # --- layers ---------------------------------------------------------------------------------

    def __repr__(self) -> str:
        billions = self.parameter_count / 1e9
        return f"TransformerModel({self.name}: {self.layers} layers, {billions:.3g} B parameters)"

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all layers are alike."""
        experts, window = self.experts, self.window
        mixed = experts is not None and (experts.first_dense > 0 or experts.every > 1)
        hidden = window is not None and window.tokens < self.sequence_length
        return not (mixed or self.mtp_modules or (hidden and window and window.full_every))

    @property
    def layer_models(self) -> tuple[TransformerModel, ...]:
        """The model with all layers of one kind, for each kind of layer that it has.

        What is counted by layer (`layer_…`, `attention_…`, `ffn_…`) is right for these only. A
        multi-token prediction module counts as a layer of its own kind.
        """
        return (self,) if self.is_uniform else _layers_by_kind(self)[0]

    @cached_property
    def layer_kinds(self) -> tuple[int, ...]:
        """Index in :attr:`layer_models` of each layer, multi-token prediction modules included."""
        return (0,) * self.layers if self.is_uniform else _layers_by_kind(self)[1]

    @cached_property
    def _layers_alike(self) -> tuple[tuple[TransformerModel, int], ...]:
        """Each kind of layer and how many there are."""
        kinds = self.layer_kinds
        return tuple((one, kinds.count(index)) for index, one in enumerate(self.layer_models))

    # --- attention ------------------------------------------------------------------------------

    @cached_property
    def value_dim(self) -> int:
        """Columns of one head's values."""
        return self.head_dim if self.latent is None else self.latent.value_dim

    @cached_property
    def attention_width(self) -> int:
        """Columns of attention's output, all heads together."""
        return self.heads * self.value_dim

    @cached_property
    def attention_input_width(self) -> int:
        """Columns that the projections to heads take in: of the layer's input, or latent ones."""
        latent = self.latent
        if latent is None:
            return self.hidden
        return (latent.query_rank or self.hidden) + latent.kv_rank + latent.rope_dim

    @cached_property
    def window_tokens(self) -> int:
        """Tokens that a token sees at most; all of a sample without a sliding window."""
        return (
            self.sequence_length
            if self.window is None
            else min(self.window.tokens, self.sequence_length)
        )

    @cached_property
    def scored_tokens(self) -> int:
        """Tokens whose scores count for each token where the causal mask is ignored."""
        return self.window_tokens if self.causal else self.sequence_length

    @cached_property
    def attended_tokens(self) -> float:
        """Tokens that a token sees, itself included, on average over a sample."""
        tokens, most = self.sequence_length, self.window_tokens
        return most - most * (most - 1) / (2 * tokens) if self.causal else float(tokens)

    def key_heads(self, tensor: int = 1) -> int:
        """Returns the heads of keys and values that one of `tensor` ranks holds.

        Where there are fewer heads than ranks, several ranks hold the same one.
        """
        return max(1, self.kv_heads // tensor)

    def key_value_width(self, tensor: int = 1) -> int:
        """Returns the columns of keys and values together that one of `tensor` ranks holds."""
        return self.key_heads(tensor) * (self.head_dim + self.value_dim)

    @cached_property
    def causal(self) -> bool:
        """Whether a token sees only those before it."""
        return self.family is TransformerFamily.GPT

    @cached_property
    def qkv_width(self) -> int:
        """Columns of queries, keys and values together."""
        return self.qkv_width_of(1)

    def qkv_width_of(self, tensor: int) -> int:
        """Returns the columns of queries, keys and values that one of `tensor` ranks holds."""
        return self.heads // tensor * self.head_dim + self.key_value_width(tensor)

    @cached_property
    def attention_parameters(self) -> int:
        """Weights of attention's matrices in one layer."""
        hidden, latent = self.hidden, self.latent
        output = hidden * self.attention_width
        if latent is None:
            return hidden * self.qkv_width + output
        queries = self.heads * self.head_dim * (latent.query_rank or hidden)
        keys_values = self.heads * (self.head_dim - latent.rope_dim + latent.value_dim)
        return hidden * latent.width + queries + latent.kv_rank * keys_values + output

    @cached_property
    def ffn_width(self) -> int:
        """Columns of the first product of the feed-forward block, the gate included."""
        return self.ffn_hidden * (2 if self.gated_ffn else 1)

    @cached_property
    def layer_matrix_parameters(self) -> int:
        """Weights of the matrices of one layer that every token visits; no experts."""
        router = 0 if self.experts is None else self.hidden * self.experts.count
        module = 2 * self.hidden**2 if self.of_modules else 0
        block = self.hidden * (self.ffn_width + self.ffn_hidden)
        return self.attention_parameters + router + block + module

    def layer_matrix_parameters_of(self, tensor: int) -> float:
        """Returns the weights of a layer's matrices on one of `tensor` ranks; no experts.

        Projections down to latent columns are on all of them. Where there are more ranks than key
        and value heads, several ranks have the same head.
        """
        whole = 0 if self.latent is None else self.hidden * self.latent.width
        shared = self.hidden * (tensor * self.key_value_width(tensor) - self.key_value_width())
        return (self.layer_matrix_parameters - whole + shared) / tensor + whole

    @cached_property
    def expert_parameters(self) -> int:
        """Weights of one expert; 0 in a dense model."""
        if self.experts is None:
            return 0
        return self.hidden * self.experts.ffn_hidden * (3 if self.gated_ffn else 2)

    @cached_property
    def layer_expert_parameters(self) -> int:
        """Weights of all experts of one layer; 0 in a dense model."""
        return 0 if self.experts is None else self.experts.count * self.expert_parameters

    @cached_property
    def layer_vector_parameters(self) -> int:
        """Biases and norm weights of one layer."""
        width = 2 * self.hidden
        if self.latent is not None:
            width += self.latent.query_rank + self.latent.kv_rank
        # A module's norms are those of its two inputs and the one before its language head.
        norms = (width + 3 * self.hidden * self.of_modules) * (2 if self.biases else 1)
        if self.biases:
            return norms + self.qkv_width + self.ffn_width + 2 * self.hidden
        outputs = self.qkv_width if self.qkv_bias else 0
        return norms + outputs + (self.hidden if self.attention_output_bias else 0)

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of one layer that every token visits; no experts."""
        return self.layer_matrix_parameters + self.layer_vector_parameters

    @cached_property
    def embedding_parameters(self) -> int:
        """Parameters before the first layer: tokens, positions, and BERT's segments and norm."""
        positions = self.sequence_length if self.learned_positions else 0
        rows = self.vocab + positions
        if self.family is TransformerFamily.BERT:
            rows += 2 + 2  # two segments; weight and bias of the norm
        return rows * self.hidden

    @cached_property
    def head_parameters(self) -> int:
        """Parameters after the last layer that are not the tied embedding's.

        GPT: the final norm and, where not tied, the language head. BERT: the transform before the
        language head with its norm, the head's bias, the pooler, and the next-sentence classifier
        (Devlin et al., arXiv 1810.04805).
        """
        hidden = self.hidden
        head = 0 if self.tied_embeddings else self.vocab * hidden
        if self.family is TransformerFamily.GPT:
            return head + hidden * (2 if self.biases else 1)
        square = hidden * hidden + hidden
        return head + 2 * square + 2 * hidden + self.vocab + 2 * hidden + 2

    @cached_property
    def parameter_count(self) -> int:
        """All parameters; those of multi-token prediction modules without the shared ends."""
        layers = sum(
            count * (one.layer_parameters + one.layer_expert_parameters)
            for one, count in self._layers_alike
        )
        return layers + self.embedding_parameters + self.head_parameters

    @cached_property
    def active_parameter_count(self) -> int:
        """Parameters that one token visits; all of them in a dense model."""
        idle = sum(
            count * (one.experts.count - one.experts.active) * one.expert_parameters
            for one, count in self._layers_alike
            if one.experts is not None
        )
        return self.parameter_count - idle

    @cached_property
    def head_flops_per_sample(self) -> float:
        """Arithmetic of the language head in a forward pass over one sample."""
        transform = self.hidden if self.family is TransformerFamily.BERT else 0
        return 2.0 * self.sequence_length * self.hidden * (self.vocab + transform)

    @cached_property
    def layer_flops_per_sample(self) -> float:
        """Arithmetic of one layer in a forward pass over one sample; no causal mask counts."""
        return self._layer_flops(self.scored_tokens)

    @cached_property
    def forward_flops_per_sample(self) -> float:
        """Arithmetic of a forward pass over one sample; no causal mask counts."""
        layers = sum(count * one.layer_flops_per_sample for one, count in self._layers_alike)
        return layers + self._heads_flops

    @cached_property
    def forward_flops_per_sample_causal(self) -> float:
        """Arithmetic of a forward pass over one sample, with the scores that a token sees."""
        layers = sum(
            count * one._layer_flops(one.attended_tokens) for one, count in self._layers_alike
        )
        return layers + self._heads_flops

    @cached_property
    def model_flops_per_sample(self) -> float:
        """Arithmetic of forward and backward pass over one sample, without recomputation.

        Scores of attention count as if there were no causal mask (Chowdhery et al., PaLM,
        arXiv 2204.02311, appendix B), but none outside a sliding window.
        """
        return 3.0 * self.forward_flops_per_sample

    @cached_property
    def model_flops_per_sample_causal(self) -> float:
        """The same without the scores that the mask hides, as Megatron-Core counts today."""
        return 3.0 * self.forward_flops_per_sample_causal

    @cached_property
    def _heads_flops(self) -> float:
        return (1 + self.mtp_modules) * self.head_flops_per_sample

    def _layer_flops(self, attended_tokens: float) -> float:
        visited = 0 if self.experts is None else self.experts.active * self.expert_parameters
        matrices = 2.0 * self.sequence_length * (self.layer_matrix_parameters + visited)
        scores = self.sequence_length * attended_tokens * self.heads
        return matrices + 2.0 * scores * (self.head_dim + self.value_dim)


@lru_cache(maxsize=64)
def _layers_by_kind(
    model: TransformerModel,
) -> tuple[tuple[TransformerModel, ...], tuple[int, ...]]:
    """Returns a model for each kind of layer, and the kind of each layer."""
    found: dict[TransformerModel, int] = {}
    modules = [(model.layers - 1, True)] * model.mtp_modules
    kinds = [
        found.setdefault(_with_layers_like(model, layer, module), len(found))
        for layer, module in [*((layer, False) for layer in range(model.layers)), *modules]
    ]
    return tuple(found), tuple(kinds)


def _with_layers_like(model: TransformerModel, layer: int, module: bool) -> TransformerModel:
    """Returns the model with all layers like one of its own, or like a module after them."""
    experts, window, inner = model.experts, model.window, model.ffn_hidden
    if experts is not None and not experts.at(layer):
        inner, experts = experts.dense_ffn_hidden, None
    elif experts is not None:
        experts = replace(experts, first_dense=0, every=1, dense_ffn_hidden=0)
    if window is not None:
        windowed = window.tokens < model.sequence_length and window.at(layer)
        window = SlidingWindow(window.tokens) if windowed else None
    return replace(model, experts=experts, window=window, ffn_hidden=inner, of_modules=module)
