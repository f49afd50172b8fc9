"""YAML of a transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from dse.config import Count, Document, Number, StrictModel, WholeNumber
from dse.machine import Precision
from dse.model._common import Name, Optimizer, Width
from dse.model.transformer._model import TransformerModel
from dse.model.transformer._parts import (
    Activation,
    AttentionKind,
    LatentAttention,
    MixtureOfExperts,
    NormKind,
    SlidingWindow,
    TransformerFamily,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


Layers = Annotated[Count, Field(le=10_000)]


class ExpertsBlock(StrictModel):
    """A mixture of experts in place of feed-forward blocks."""

    described_by: ClassVar = MixtureOfExperts

    count: Width
    active: Width
    ffn_hidden: Width
    shared_ffn_hidden: Width | None = None
    imbalance: Annotated[Number, Field(ge=1, le=1000)] = 1.0
    first_dense: Annotated[WholeNumber, Field(ge=0, le=10_000)] = 0
    every: Layers = 1
    skew: Annotated[Number, Field(ge=0, le=4)] = 0.0
    capacity_factor: Annotated[Number, Field(ge=1, le=1000)] | None = None
    pads_to_capacity: bool = False
    biases: bool = False
    limited: bool = False
    router_groups: Width = 1
    active_groups: Width = 1

    @model_validator(mode="after")
    def _check(self) -> ExpertsBlock:
        if self.pads_to_capacity and self.capacity_factor is None:
            raise PydanticCustomError(
                "experts", "`pads_to_capacity` needs a `capacity_factor` to fill experts up to"
            )
        if self.active > self.count:
            raise PydanticCustomError(
                "experts", f"expected at most {self.count} active experts, found {self.active}"
            )
        if self.count % self.router_groups or self.active_groups > self.router_groups:
            raise PydanticCustomError(
                "experts",
                f"{self.router_groups} groups of {self.count} experts, {self.active_groups} of "
                "them active: expected a divisor of the experts, and at most as many active ones",
            )
        if self.active > (most := self.count // self.router_groups * self.active_groups):
            raise PydanticCustomError(
                "experts",
                f"the active groups have {most} experts, fewer than the {self.active} active",
            )
        return self

    def to_experts(self, dense_ffn_hidden: int) -> MixtureOfExperts:
        """Returns plain values, with the inner width of layers without experts."""
        some = self.first_dense > 0 or self.every > 1
        return MixtureOfExperts(
            self.count,
            self.active,
            self.ffn_hidden,
            self.shared_ffn_hidden or 0,
            self.imbalance,
            self.first_dense,
            self.every,
            dense_ffn_hidden if some else 0,
            skew=self.skew,
            capacity_factor=self.capacity_factor,
            pads_to_capacity=self.pads_to_capacity,
            biases=self.biases,
            limited=self.limited,
            router_groups=self.router_groups,
            active_groups=self.active_groups,
        )


class LatentBlock(StrictModel):
    """Latent attention: columns that queries, keys and values are made from."""

    described_by: ClassVar = LatentAttention

    query_rank: Width | None = None
    kv_rank: Width
    rope_dim: Width
    value_dim: Width


class WindowBlock(StrictModel):
    """A sliding window of attention, in all layers or in all but every `full_every`-th."""

    described_by: ClassVar = SlidingWindow

    tokens: Width
    full_every: Annotated[WholeNumber, Field(ge=2, le=10_000)] | None = None


class TransformerDocument(Document):
    """A transformer and its training recipe.

    Attributes:
        kind: `transformer`.
        aliases: Other names.
        kv_heads: Heads of keys and values, less than `heads` for grouped queries; by default all.
        head_dim: Columns of one head's queries and keys; `hidden` over `heads` by default.
        ffn_hidden: Inner width of the feed-forward block of layers without experts; four times
            `hidden` by default.
        latent_attention: Latent attention (MLA), where queries, keys and values come from a few
            columns.
        sliding_window: Sliding window of attention.
    """

    called: ClassVar = "a model"
    described_by: ClassVar = TransformerModel

    kind: Literal["transformer"]
    name: Name
    description: str = ""
    aliases: list[Name] = []
    source: str
    family: TransformerFamily
    layers: Layers
    hidden: Width
    heads: Width
    kv_heads: Width | None = None
    head_dim: Width | None = None
    ffn_hidden: Width | None = None
    gated_ffn: bool = False
    experts: ExpertsBlock | None = None
    latent_attention: LatentBlock | None = None
    sliding_window: WindowBlock | None = None
    mtp_modules: Annotated[WholeNumber, Field(ge=0, le=16)] = 0
    vocab: Width
    sequence_length: Width
    attention: AttentionKind = AttentionKind.FLASH
    tied_embeddings: bool = True
    norm: NormKind = NormKind.LAYER
    activation: Activation | None = None
    learned_positions: bool = True
    biases: bool = True
    qkv_bias: bool = False
    attention_output_bias: bool = False
    dropout: bool = False
    precision: Precision = Precision.BF16
    optimizer: Optimizer = Optimizer.ADAM
    global_batch_size: Count

    @model_validator(mode="after")
    def _check(self) -> TransformerDocument:
        problems = list(self._problems())
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    def _problems(self) -> Iterator[InitErrorDetails]:
        if self.head_dim is None and self.hidden % self.heads:
            yield _problem(
                "heads",
                f"expected a divisor of the hidden width {self.hidden}, found {self.heads}; "
                "for heads of another width give `head_dim`",
            )
        kv_heads = self.kv_heads or self.heads
        if self.heads % kv_heads:
            yield _problem(
                "kv_heads", f"expected a divisor of the {self.heads} heads, found {kv_heads}"
            )
        yield from self._layer_problems()
        if self.latent_attention is not None:
            if self.head_dim is None or self.head_dim <= self.latent_attention.rope_dim:
                yield _problem(
                    "head_dim",
                    "with latent attention: expected the columns of a head's queries, more than "
                    f"the {self.latent_attention.rope_dim} with the position, found "
                    f"{self.head_dim or 'none'}",
                )
            if kv_heads != self.heads:
                yield _problem(
                    "kv_heads", "with latent attention all heads have their own; leave it out"
                )
            if self.qkv_bias:
                yield _problem("qkv_bias", "latent attention has none; leave it out")
            if self.attention is AttentionKind.UNFUSED:
                yield _problem("attention", "latent attention is modelled as `flash` only")
        if self.sliding_window is not None and (
            self.family is TransformerFamily.BERT or self.attention is AttentionKind.UNFUSED
        ):
            yield _problem(
                "sliding_window", "modelled for family `gpt` with `flash` attention only"
            )
        if self.optimizer is Optimizer.ROWWISE_ADAGRAD or self.optimizer.of_tables_only:
            yield _problem(
                "optimizer",
                f"`{self.optimizer.value}` is for embedding tables; use `adagrad` or `adam`",
            )

    def _layer_problems(self) -> Iterator[InitErrorDetails]:
        """Layers without experts have a width of their own, where there are any."""
        experts = self.experts
        if experts is None:
            return
        some = experts.first_dense > 0 or experts.every > 1
        if self.ffn_hidden is not None and not some:
            yield _problem(
                "ffn_hidden",
                "belongs to layers without experts; experts have `experts.ffn_hidden`, and the "
                "one that all tokens visit `experts.shared_ffn_hidden`",
            )
        if some and not any(
            experts.to_experts(0).at(layer) for layer in range(min(self.layers, 10_000))
        ):
            yield _problem(
                "experts",
                f"none of the {self.layers} layers has experts; lower `first_dense` or `every`",
            )

    def to_model(self) -> TransformerModel:
        """Returns the model as plain values."""
        return TransformerModel(
            name=self.name,
            description=self.description,
            source=self.source,
            family=self.family,
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim or self.hidden // self.heads,
            ffn_hidden=self._ffn_hidden(),
            gated_ffn=self.gated_ffn,
            vocab=self.vocab,
            sequence_length=self.sequence_length,
            attention=self.attention,
            tied_embeddings=self.tied_embeddings,
            norm=self.norm,
            activation=self.activation or (Activation.SILU if self.gated_ffn else Activation.GELU),
            learned_positions=self.learned_positions,
            biases=self.biases,
            dropout=self.dropout,
            precision=self.precision,
            optimizer=self.optimizer,
            global_batch_size=self.global_batch_size,
            experts=self._experts(),
            latent=self._latent(),
            window=self._window(),
            mtp_modules=self.mtp_modules,
            qkv_bias=self.qkv_bias and not self.biases,
            attention_output_bias=self.attention_output_bias and not self.biases,
        )

    def _ffn_hidden(self) -> int:
        if self.experts is not None:
            return self.experts.shared_ffn_hidden or 0
        return self.ffn_hidden or 4 * self.hidden

    def _experts(self) -> MixtureOfExperts | None:
        block = self.experts
        return None if block is None else block.to_experts(self.ffn_hidden or 4 * self.hidden)

    def _latent(self) -> LatentAttention | None:
        block = self.latent_attention
        if block is None:
            return None
        return LatentAttention(
            block.kv_rank, block.rope_dim, block.value_dim, block.query_rank or 0
        )

    def _window(self) -> SlidingWindow | None:
        block = self.sliding_window
        return None if block is None else SlidingWindow(block.tokens, block.full_every or 0)


def _problem(field: str, message: str) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError("transformer", "{message}", {"message": message}),
        loc=(field,),
        input=None,
    )
