"""Transformer as plain values: sizes, parameters and arithmetic.

Counted as in Narayanan et al. (SC 2021, arXiv 2104.04473) and Korthikanti et al. (MLSys 2023,
arXiv 2205.05198): only matrix products count as arithmetic, the scores of attention in full even
where a mask makes half of them useless.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.machine import Precision
    from dse.model._common import Optimizer


class TransformerFamily(StrEnum):
    """Decoder with a causal mask and a language head, or encoder with BERT's two heads."""

    GPT = "gpt"
    BERT = "bert"


class AttentionKind(StrEnum):
    """Whether the matrix of scores goes through memory, or one kernel keeps it on the chip."""

    UNFUSED = "unfused"
    FLASH = "flash"


class NormKind(StrEnum):
    """Normalisation before each block; RMS norms have no mean and no bias."""

    LAYER = "layer_norm"
    RMS = "rms_norm"


class Activation(StrEnum):
    """Function inside the feed-forward block, or of its gate; ``relu2`` is the squared ReLU."""

    GELU = "gelu"
    SILU = "silu"
    RELU2 = "relu2"


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """A mixture of experts in the place of every feed-forward block.

    Attributes:
        count: MixtureOfExperts of a layer.
        active: MixtureOfExperts that one token visits.
        ffn_hidden: Inner width of an expert.
        shared_ffn_hidden: Inner width of the expert that every token visits; 0 without one.
        imbalance: Tokens of the busiest rank of a group over the mean; 1 is an even routing.
        skew: Exponent of Zipf's law for the popularity of experts, which makes some ranks busier
            by chance besides; 0 if all are alike.
        capacity_factor: Rows that an expert takes at most, over the mean; more are dropped. None
            if none are.
        pads_to_capacity: Whether experts with fewer rows are filled up to that.
        biases: Whether the products of an expert add biases.
        limited: Whether values are limited before a gated activation, as in gpt-oss.
    """

    count: int
    active: int
    ffn_hidden: int
    shared_ffn_hidden: int = 0
    imbalance: float = 1.0
    skew: float = 0.0
    capacity_factor: float | None = None
    pads_to_capacity: bool = False
    biases: bool = False
    limited: bool = False


@dataclass(frozen=True, slots=True)
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
        head_dim: Columns of one head; together they may be wider than `hidden`.
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
        experts: MixtureOfExperts of every layer; None in a dense model.
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

    @property
    def attention_width(self) -> int:
        """Columns of all heads together: of the queries, and of what attention gives."""
        return self.heads * self.head_dim

    @property
    def causal(self) -> bool:
        """Whether a token sees only those before it."""
        return self.family is TransformerFamily.GPT

    @property
    def qkv_width(self) -> int:
        """Columns of the projection to queries, keys and values."""
        return self.attention_width + 2 * self.kv_heads * self.head_dim

    @property
    def ffn_width(self) -> int:
        """Columns of the first product of the feed-forward block, the gate included."""
        return self.ffn_hidden * (2 if self.gated_ffn else 1)

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of the matrices of one layer that every token visits; no experts."""
        attention = self.hidden * (self.qkv_width + self.attention_width)
        router = 0 if self.experts is None else self.hidden * self.experts.count
        return attention + router + self.hidden * (self.ffn_width + self.ffn_hidden)

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert; 0 in a dense model."""
        if self.experts is None:
            return 0
        return self.hidden * self.experts.ffn_hidden * (3 if self.gated_ffn else 2)

    @property
    def layer_expert_parameters(self) -> int:
        """Weights of all experts of one layer; 0 in a dense model."""
        return 0 if self.experts is None else self.experts.count * self.expert_parameters

    @property
    def layer_vector_parameters(self) -> int:
        """Biases and norm weights of one layer."""
        norms = 2 * self.hidden * (2 if self.biases else 1)
        outputs = self.qkv_width + self.ffn_width + 2 * self.hidden
        return norms + (outputs if self.biases else 0)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer that every token visits; no experts."""
        return self.layer_matrix_parameters + self.layer_vector_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the first layer: tokens, positions, and BERT's segments and norm."""
        positions = self.sequence_length if self.learned_positions else 0
        rows = self.vocab + positions
        if self.family is TransformerFamily.BERT:
            rows += 2 + 2  # two segments; weight and bias of the norm
        return rows * self.hidden

    @property
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

    @property
    def parameter_count(self) -> int:
        """All parameters."""
        layers = self.layers * (self.layer_parameters + self.layer_expert_parameters)
        return layers + self.embedding_parameters + self.head_parameters

    @property
    def active_parameter_count(self) -> int:
        """Parameters that one token visits; all of them in a dense model."""
        active = 0 if self.experts is None else self.experts.active
        idle = self.layer_expert_parameters - active * self.expert_parameters
        return self.parameter_count - self.layers * idle

    @property
    def head_flops_per_sample(self) -> float:
        """Arithmetic of the language head in a forward pass over one sample."""
        transform = self.hidden if self.family is TransformerFamily.BERT else 0
        return 2.0 * self.sequence_length * self.hidden * (self.vocab + transform)

    @property
    def layer_flops_per_sample(self) -> float:
        """Arithmetic of one layer in a forward pass over one sample."""
        visited = 0 if self.experts is None else self.experts.active * self.expert_parameters
        matrices = 2.0 * self.sequence_length * (self.layer_matrix_parameters + visited)
        return matrices + 4.0 * self.sequence_length**2 * self.attention_width

    @property
    def forward_flops_per_sample(self) -> float:
        """Arithmetic of a forward pass over one sample."""
        return self.layers * self.layer_flops_per_sample + self.head_flops_per_sample

    @property
    def model_flops_per_sample(self) -> float:
        """Arithmetic of forward and backward pass over one sample, without recomputation."""
        return 3.0 * self.forward_flops_per_sample
