"""Parts that a transformer's layers may have: kinds of attention, norms, experts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """A mixture of experts in place of feed-forward blocks.

    Attributes:
        count: Experts of a layer.
        active: Experts that one token visits.
        ffn_hidden: Inner width of an expert.
        shared_ffn_hidden: Inner width of the expert that every token visits; 0 without one.
        imbalance: Tokens of the busiest rank of a group over the mean; 1 if routing is even.
        first_dense: Layers at the beginning that have no experts.
        every: Of the layers from there on, every `every`-th one has experts.
        dense_ffn_hidden: Inner width of layers without experts; 0 if all have them.
        skew: Exponent of Zipf's law for the popularity of experts, which by chance makes some
            ranks busier than others; 0 if all are equally popular.
        capacity_factor: Rows that an expert takes at most, over the mean; the rest are dropped.
            None without a limit.
        pads_to_capacity: Whether experts with fewer rows are padded to that number.
        biases: Whether the products of an expert add biases.
        limited: Whether values are clamped before a gated activation, as in gpt-oss.
        router_groups: Groups of neighbouring experts between which the router chooses first.
        active_groups: Groups that the experts of one token are in.
    """

    count: int
    active: int
    ffn_hidden: int
    shared_ffn_hidden: int = 0
    imbalance: float = 1.0
    first_dense: int = 0
    every: int = 1
    dense_ffn_hidden: int = 0
    skew: float = 0.0
    capacity_factor: float | None = None
    pads_to_capacity: bool = False
    biases: bool = False
    limited: bool = False
    router_groups: int = 1
    active_groups: int = 1

    def at(self, layer: int) -> bool:
        """Returns whether a layer has experts; layers are counted from 0."""
        beyond = layer - self.first_dense
        return beyond >= 0 and (beyond + 1) % self.every == 0


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA: DeepSeek-V2, arXiv 2405.04434, § 2.1).

    Keys and values of all heads are projected from a few latent columns, and queries from a few
    others; both are normalized. A part of every head carries the position; in the keys, all heads
    share it.

    Attributes:
        kv_rank: Columns that keys and values are made from.
        rope_dim: Columns of a head, in queries and keys, that carry the position.
        value_dim: Columns of a head's values.
        query_rank: Columns that queries are made from; 0 where they come from the layer's input.
    """

    kv_rank: int
    rope_dim: int
    value_dim: int
    query_rank: int = 0

    @property
    def width(self) -> int:
        """Columns of both projections down, and of the shared part of the keys."""
        return self.query_rank + self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Attention to the nearest tokens only.

    Attributes:
        tokens: Tokens that a token sees, itself included.
        full_every: Every `full_every`-th layer sees all tokens instead; 0 if none does.
    """

    tokens: int
    full_every: int = 0

    def at(self, layer: int) -> bool:
        """Returns whether a layer has the window; layers are counted from 0."""
        return not self.full_every or (layer + 1) % self.full_every != 0
